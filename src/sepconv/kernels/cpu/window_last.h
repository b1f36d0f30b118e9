// The depthwise step in channels_last: vectors of neighbouring channels, pixel after pixel, in float32.
#pragma once

#include <algorithm>

#include "tile.h"

namespace sepconv {

// Weights (taps, round_up(middle, kLanes)) and biases in float32; the bias is null where there is none.
struct LastTaps {
  const float* weight;
  const float* bias;
  long pitch;
  Activate activation;
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

// All pixels of a piece of one vector of channels; `out` is the first pixel's channel 0, `pitch` from pixel to pixel.
inline void depthwise_last(const Call& call, const Piece& piece, long channel, long lanes, const LastTaps& taps, Operand* out,
                           long pitch) {
  const Element* image = call.x + piece.image * call.x_stride_n;
  out += channel;
  for (long r = piece.row; r < piece.row + piece.rows; ++r) {
    const long row = r * call.stride_h - call.padding_h;
    const Span h = existing(row, call.kernel_h, call.dilation_h, call.in_h);
    for (long c = piece.column; c < piece.column + piece.columns; ++c, out += pitch) {
      const long column = c * call.stride_w - call.padding_w;
      const Span w = existing(column, call.kernel_w, call.dilation_w, call.in_w);
      const bool whole = w.begin == 0 && w.end == call.kernel_w;
      if (whole && lanes == kLanes) store(out, one_pixel<true>(call, image, row, column, h, w, channel, kLanes, taps));
      else store(out, one_pixel<false>(call, image, row, column, h, w, channel, lanes, taps));
    }
  }
}

}  // namespace sepconv
