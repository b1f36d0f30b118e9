// The depthwise step in channels_last: vectors of neighbouring channels, pixel after pixel, in float32.
#pragma once

#include <algorithm>

#include "terms.h"
#include "tile.h"

namespace sepconv {

// Weights (taps, round_up(middle, kLanes)) and biases in float32; the bias is null where there is none.
struct LastTaps {
  const float* weight;
  const float* bias;
  long pitch;
  Activate activation;
};

// Where the depthwise results of a vector of channels go, pixel after pixel: rows with a pitch, or blocks for matrix units.
struct LastResult {
  Operand* start;
  long depth, pitch;
  long pixel, channel;
  Largest largest;

  SEPCONV_INLINE void put(Vector v) {
    if constexpr (kTerms > 1) largest.see(v);
    store_here(v);
    ++pixel;
  }

  SEPCONV_INLINE void store_here(Vector v) {
    if constexpr (kUnits == Units::matrices) {
      Operand* block = start + pixel / kBlock * kBlock * kTerms * depth;
      store_terms(block + in_block(pixel % kBlock, channel), kTermInBlock, v);
    } else {
      store(start + pixel * pitch + channel, v);
    }
  }
};

// One vector of middle channels from `channel` on, of which only `lanes` exist; `pixel` is where channel 0 of x lies.
SEPCONV_INLINE Vector load_channels(const Call& call, const Element* pixel, long channel, long lanes) {
  if constexpr (kMultiplier == 1) {
    return lanes == kLanes ? load(pixel + channel) : load_some(pixel + channel, lanes);
  } else {
    Vector v{};
    for (int i = 0; i < kLanes; ++i) {
      if (i < lanes) v[i] = to_float(pixel[call.channel_of(channel + i)]);
    }
    return v;
  }
}

// The taps of one axis, from `begin` to `end`, whose input exists.
struct Span {
  long begin, end;
};

SEPCONV_INLINE Span existing(long first, long kernel, long dilation, long size) {
  const long begin = first >= 0 ? 0 : (-first + dilation - 1) / dilation;
  const long end = first >= size ? 0 : (size - first + dilation - 1) / dilation;
  return {std::min(begin, kernel), std::min(end, kernel)};
}

// One pixel of one vector of channels. With Whole, no tap of a row of the window is left out: its loop can be unrolled.
template <bool Whole>
SEPCONV_INLINE Vector one_pixel(const Call& call, const Element* image, long row, long column, Span h, Span w, long channel,
                                long lanes, const LastTaps& taps) {
  const long kernel_w = kAnyWindow ? call.kernel_w : kKernelW, dilation_w = kAnyWindow ? call.dilation_w : 1;
  const float* weight = taps.weight + channel;
  Vector sum = taps.bias ? load(taps.bias + channel) : Vector{};
  for (long i = h.begin; i < h.end; ++i) {
    const Element* inputs = image + (row + i * call.dilation_h) * call.x_stride_h + column * call.x_stride_w;
    const float* weights = weight + i * kernel_w * taps.pitch;
    if constexpr (Whole && !kAnyWindow) {
#pragma GCC unroll 32
      for (int j = 0; j < kKernelW; ++j) {
        sum += load(weights + j * taps.pitch) * load_channels(call, inputs + j * call.x_stride_w, channel, lanes);
      }
    } else {
      for (long j = w.begin; j < w.end; ++j) {
        sum += load(weights + j * taps.pitch) * load_channels(call, inputs + j * dilation_w * call.x_stride_w, channel, lanes);
      }
    }
  }
  return activate<kDepthwiseActivation>(sum, taps.activation);
}

// One row of pixels of one vector of channels, for a window without steps between its columns or between pixels: an input is
// loaded once for all the pixels that it belongs to, whose sums move along in registers. What does not exist adds nothing.
template <bool Whole>
SEPCONV_INLINE void slide_row(const Call& call, const Element* image, long row, Span h, const Piece& piece, long channel, long lanes,
                              const LastTaps& taps, LastResult& result) {
  LastResult to = result;  // a copy, which no store can change
  const Vector bias = taps.bias ? load(taps.bias + channel) : Vector{};
  Vector weight[kKernelH * kKernelW];
#pragma GCC unroll 32
  for (int t = 0; t < kKernelH * kKernelW; ++t) weight[t] = load(taps.weight + t * taps.pitch + channel);
  const long first = piece.column - call.padding_w, end = first + piece.columns + kKernelW - 1;
  const Element* inputs = image + row * call.x_stride_h + first * call.x_stride_w;
  Vector sum[kKernelW];  // of the pixels that the input at hand is the last, the last but one, ... column of
#pragma GCC unroll 32
  for (int w = 0; w < kKernelW; ++w) sum[w] = bias;
  for (long column = first; column < end; ++column, inputs += call.x_stride_w) {
    if (column >= 0 && column < call.in_w) {
#pragma GCC unroll 32
      for (int i = 0; i < kKernelH; ++i) {
        if (!Whole && (i < h.begin || i >= h.end)) continue;
        const Vector input = load_channels(call, inputs + i * call.x_stride_h, channel, lanes);
#pragma GCC unroll 32
        for (int w = 0; w < kKernelW; ++w) sum[w] += weight[i * kKernelW + kKernelW - 1 - w] * input;
      }
    }
    if (column - first >= kKernelW - 1) {
      to.put(activate<kDepthwiseActivation>(sum[0], taps.activation));
    }
#pragma GCC unroll 32
    for (int w = 0; w + 1 < kKernelW; ++w) sum[w] = sum[w + 1];
    sum[kKernelW - 1] = bias;
  }
  result = to;
}

// All pixels of a piece of one vector of channels.
inline void depthwise_last(const Call& call, const Piece& piece, long channel, long lanes, const LastTaps& taps, LastResult& result) {
  const Element* image = call.x + piece.image * call.x_stride_n;
  for (long r = piece.row; r < piece.row + piece.rows; ++r) {
    const long row = r * call.stride_h - call.padding_h;
    const Span h = existing(row, call.kernel_h, call.dilation_h, call.in_h);
    if constexpr (!kAnyWindow && kStrideW == 1) {
      const bool whole = h.begin == 0 && h.end == kKernelH && lanes == kLanes;
      if (whole) slide_row<true>(call, image, row, h, piece, channel, kLanes, taps, result);
      else slide_row<false>(call, image, row, h, piece, channel, lanes, taps, result);
      continue;
    }
    for (long c = piece.column; c < piece.column + piece.columns; ++c) {
      const long column = c * call.stride_w - call.padding_w;
      const Span w = existing(column, call.kernel_w, call.dilation_w, call.in_w);
      const bool whole = w.begin == 0 && w.end == call.kernel_w;
      if (whole && lanes == kLanes) result.put(one_pixel<true>(call, image, row, column, h, w, channel, kLanes, taps));
      else result.put(one_pixel<false>(call, image, row, column, h, w, channel, lanes, taps));
    }
  }
}

}  // namespace sepconv
