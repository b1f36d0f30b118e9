// The depthwise step in channels_first: one channel of a tile of output pixels, in float32.
//
// The input rows that the tile needs are copied into a patch first: padded with zeros, converted to float32, and taken
// apart by the column stride into one run (a phase) for each remainder. Every tap of the window is then a run of
// consecutive floats at a constant offset, whatever the stride, the dilation, the padding, the dtype and x's strides are.
#pragma once

#include <algorithm>

#include "call.h"
#include "tile.h"

namespace sepconv {

class Patch {
 public:
  Patch(const Call& call, float* data, long columns)
      : call_(call), data_(data), reach_((call.kernel_w - 1) * call.dilation_w / call.stride_w),
        phase_(phase_length(call, columns)), pitch_(phase_ * phases(call)) {}

  // Floats of a patch of this many input rows, for this many output columns.
  static long size(const Call& call, long rows, long columns) {
    return rows * phase_length(call, columns) * phases(call);
  }

  // Copy what these output pixels of one channel need.
  void take(const Piece& piece, long channel) {
    const Element* plane = call_.x + piece.image * call_.x_stride_n + channel * call_.x_stride_c;
    for (long phase = 0; phase < phases(call_); ++phase) take_phase(plane, piece, phase);
  }

  // A row of zeros, as long as nothing was copied.
  const float* zeros() const { return data_; }

  // Where each tap of the window finds its input, counted from that of the first tap.
  void offsets(long* of_taps) const {
    for (long h = 0; h < call_.kernel_h; ++h) {
      for (long w = 0; w < call_.kernel_w; ++w) *of_taps++ = input(h * call_.dilation_h, w) - data_;
    }
  }

  // What the tap at `column` of the window, in any row of it, reads from the input row `row` of the patch.
  SEPCONV_INLINE const float* input(long row, long column) const {
    const long at = column * dilation_w(), step = stride_w();
    return data_ + row * pitch_ + at % step * phase_ + at / step;
  }

 private:
  long stride_w() const { return kAnyWindow ? call_.stride_w : kStrideW; }
  long dilation_w() const { return kAnyWindow ? call_.dilation_w : 1; }

  // A window that is narrower than its stride leaves the last phases unread.
  static long phases(const Call& call) { return std::min(call.stride_w, (call.kernel_w - 1) * call.dilation_w + 1); }
  // Whole vectors are read and written, up to one beyond the last column.
  static long phase_length(const Call& call, long columns) {
    return round_up(columns + (call.kernel_w - 1) * call.dilation_w / call.stride_w + kLanes, kLanes);
  }

  void take_phase(const Element* plane, const Piece& piece, long phase) {
    const long step = stride_w(), count = piece.columns + reach_;
    const long first = piece.column * step - call_.padding_w + phase;
    float* out = data_ + piece.input * pitch_ + phase * phase_;
    long row = piece.row * call_.stride_h - call_.padding_h;
    for (const long end = row + input_rows(call_, piece.rows); row < end; ++row, out += pitch_) {
      if (row < 0 || row >= call_.in_h) zero(count, out);
      else if (step == 1 && call_.x_stride_w == 1) take_row(plane + row * call_.x_stride_h, first, count, out);
      else if (step == 2 && call_.x_stride_w == 1) take_half_row(plane + row * call_.x_stride_h, first, count, out);
      else take_any_row(plane + row * call_.x_stride_h, first, step, count, out);
    }
  }

  static void zero(long count, float* out) {
    for (long j = 0; j < count; j += kLanes) store(out + j, Vector{});
  }

  // The columns first + j of a row for j < count; zeros where there are none.
  SEPCONV_INLINE void take_row(const Element* row, long first, long count, float* out) const {
    for (long j = 0; j < count; j += kLanes) {
      store(out + j, load_between(row + first + j, -first - j, call_.in_w - first - j));
    }
  }

  // The same for the columns first + 2 * j.
  SEPCONV_INLINE void take_half_row(const Element* row, long first, long count, float* out) const {
    for (long j = 0; j < count; j += kLanes) {
      const long at = first + 2 * j, then = at + kLanes;
      store(out + j, every_second<0>(load_between(row + at, -at, call_.in_w - at), load_between(row + then, -then, call_.in_w - then)));
    }
  }

  void take_any_row(const Element* row, long first, long step, long count, float* out) const {
    for (long j = 0, at = first; j < count; ++j, at += step) {
      out[j] = at >= 0 && at < call_.in_w ? to_float(row[at * call_.x_stride_w]) : 0.f;
    }
  }

  const Call& call_;
  float* const data_;
  const long reach_, phase_, pitch_;
};

// The weights of one channel in float32, with its bias.
struct Taps {
  const float* weight;
  float bias;
  Activate activation;
  bool finite;
};

// The input rows that a later channel will take, fetched bit by bit while the window slides over another one: copying waits
// for memory otherwise, for more than half of the time of (1, 64, 512, 512) with 3x3 (Xeon, 2026-11-29). Hints only.
// Into the first-level cache: into the second-level one alone took 6 % longer.
class Ahead {
 public:
  Ahead(const Call& call, const Piece& piece, long channel)
      : row_(sizeof(Element) * call.x_stride_h), column_(sizeof(Element) * call.stride_w * call.x_stride_w) {
    const long row = piece.row * call.stride_h - call.padding_h + (call.kernel_h - 1) * call.dilation_h;
    const long column = piece.column * call.stride_w - call.padding_w;
    start_ = reinterpret_cast<long>(call.x) +
             long(sizeof(Element)) * (piece.image * call.x_stride_n + channel * call.x_stride_c + column * call.x_stride_w) + row * row_;
  }

  // Of the last input row of the output row `row` what a vector of output columns takes, from `column` on.
  SEPCONV_INLINE void fetch(long row, long column) const {
    constexpr long kLine = 64, kTaken = kStrideW * kLanes * long(sizeof(Element));
#pragma GCC unroll 2
    for (long at = 0; at == 0 || at < kTaken; at += kLine) {
      __builtin_prefetch(reinterpret_cast<const void*>(start_ + row * row_ + column * column_ + at), 0, 3);
    }
  }

 private:
  long start_ = 0, row_, column_;
};

// Whether the window can read x itself, without a patch: masked loads put the zeros beside a row, at no cost ((1, 64, 512, 512) with
// 3x3: 11.3 ms instead of 12.9; 2 cores of a Xeon, 2026-11-30), and of two vectors every second column is taken ((8, 64, 112, 112) with
// stride 2: 1.6 ms instead of 2.3; (1, 64, 512, 512) in bfloat16: 7.3 instead of 8.3; 2 cores of an EPYC, 2026-12-01). The window has to be
// known, and x's columns neighbours; where an input row serves one output row only a copy pays (8.2 ms instead of 7.5).
#if defined(__AVX512F__)
constexpr bool kReadsInput = kKernelH > 1;
#else
constexpr bool kReadsInput = false;
#endif
inline bool reads_input(const Call& call) { return kReadsInput && call.x_stride_w == 1; }

// What the window of some neighbouring output rows reads: input rows of a patch, from `first` on.
struct PatchRows {
  Patch patch;
  long first;

  SEPCONV_INLINE void move_to(long) {}
  SEPCONV_INLINE Vector input(long row, long column, long v) const { return load(patch.input(first + row, column) + v); }
};

// The same of x itself. Rows that x does not have are read from `zeros`.
template <int Count>
class InputRows;

#if defined(__AVX512F__)
template <int Count>
class InputRows {
 public:
  SEPCONV_INLINE InputRows(const Call& call, const Piece& piece, long channel, long output_row, const float* zeros)
      : column_(piece.column - call.padding_w), in_w_(call.in_w) {
    const long first = (piece.row + output_row) * kStrideH - call.padding_h;
    const Element* start = call.x + piece.image * call.x_stride_n + channel * call.x_stride_c + column_;
#pragma GCC unroll 64
    for (int i = 0; i < Count; ++i) {
      const bool exists = first + i >= 0 && first + i < call.in_h;
      rows_[i] = exists ? start + (first + i) * call.x_stride_h : reinterpret_cast<const Element*>(zeros);
    }
  }

  // Which lanes exist of the vectors at the output column `v`.
  SEPCONV_INLINE void move_to(long v) {
    const long at = column_ + v * kStrideW;
    const bool all = at >= 0 && at + offset(kLoads - 1) + kLanes <= in_w_;
#pragma GCC unroll 32
    for (int i = 0; i < kLoads; ++i) lanes_[i] = all ? 0xffff : lanes_between(-at - offset(i), in_w_ - at - offset(i));
  }
  SEPCONV_INLINE Vector input(int row, int column, long v) const {
    const Element* at = rows_[row] + v * kStrideW;
    const int i = column / kStrideW * kStrideW;
    const Vector first = load_lanes(at + offset(i), lanes_[i]);
    if constexpr (kStrideW == 1) {
      return first;
    } else {
      const Vector second = load_lanes(at + offset(i + 1), lanes_[i + 1]);
      return column % 2 == 0 ? every_second<0>(first, second) : every_second<1>(first, second);
    }
  }

 private:
  // Two vectors side by side hold what two neighbouring taps take in steps of two.
  static constexpr int kLoads = (kKernelW + kStrideW - 1) / kStrideW * kStrideW;
  static constexpr long offset(int load) { return load / kStrideW * kStrideW + load % kStrideW * kLanes; }

  const long column_, in_w_;
  const Element* rows_[Count];
  std::uint32_t lanes_[kLoads > 0 ? kLoads : 1];
};
#endif

// Results go to `line`, pixel after pixel. A row is written in whole vectors from its end to its beginning, and rows from
// the first to the last: what a vector writes beyond its row is overwritten by the rows that follow.

// Input rows of so many neighbouring output rows of a window that is known.
constexpr int inputs_of(int rows) { return (rows - 1) * kStrideH + kKernelH; }

// `Rows` output rows of a window that is known: an input row is loaded once for all outputs that it belongs to.
template <int Rows, typename Inputs>
SEPCONV_INLINE void slide(Inputs inputs, const Taps& taps, long columns, Ahead ahead, long row, float* line) {
  constexpr int count = inputs_of(Rows);
  const Vector bias = fill(taps.bias);
  Vector weight[kKernelH * kKernelW];
#pragma GCC unroll 64
  for (int t = 0; t < kKernelH * kKernelW; ++t) weight[t] = fill(taps.weight[t]);
  for (long v = (columns - 1) / kLanes * kLanes; v >= 0; v -= kLanes) {
    inputs.move_to(v);
    Vector sum[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) sum[r] = bias;
#pragma GCC unroll 8
    for (int r = 0; r < Rows * kStrideH; ++r) ahead.fetch(row * kStrideH + r, v);
#pragma GCC unroll 64
    for (int i = 0; i < count; ++i) {
#pragma GCC unroll 32
      for (int w = 0; w < kKernelW; ++w) {
        const Vector input = inputs.input(i, w, v);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
          const int at = i - r * kStrideH;
          if (at >= 0 && at < kKernelH) sum[r] += weight[at * kKernelW + w] * input;
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) store(line + r * columns + v, activate<kDepthwiseActivation>(sum[r], taps.activation));
  }
}

// `Vectors` vectors of one output row of a window that is only known at run time.
template <int Vectors>
SEPCONV_INLINE void slide_block(const Taps& taps, long count, const long* offsets, const float* inputs, float* line) {
  Vector sum[Vectors];
#pragma GCC unroll 8
  for (int j = 0; j < Vectors; ++j) sum[j] = fill(taps.bias);
  for (long t = 0; t < count; ++t) {
    const float* input = inputs + offsets[t];
    const float weight = taps.weight[t];
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; ++j) sum[j] += weight * load(input + j * kLanes);
  }
#pragma GCC unroll 8
  for (int j = Vectors - 1; j >= 0; --j) store(line + j * kLanes, activate<kDepthwiseActivation>(sum[j], taps.activation));
}

template <int Vectors>
SEPCONV_INLINE void slide_some(long vectors, const Taps& taps, long count, const long* offsets, const float* inputs, float* line) {
  if (vectors == Vectors) return slide_block<Vectors>(taps, count, offsets, inputs, line);
  if constexpr (Vectors > 1) slide_some<Vectors - 1>(vectors, taps, count, offsets, inputs, line);
}

// One whole output row of such a window, in blocks of about one size: each sum waits for the one before it, so that a few
// vectors left over would take as long as a block.
template <int Most = 8>
SEPCONV_INLINE void slide_any(const Taps& taps, long count, const long* offsets, const float* inputs, long vectors, Ahead ahead,
                              long row, float* line) {
  for (long blocks = (vectors + Most - 1) / Most; blocks > 0; --blocks) {
    const long size = (vectors + blocks - 1) / blocks, v = (vectors -= size) * kLanes;
    for (long j = 0; j < size; ++j) ahead.fetch(row, v + j * kLanes);
    slide_some<Most>(size, taps, count, offsets, inputs + v, line + v);
  }
}

// The same tap by tap without the padding: a weight that is inf or NaN must not meet a zero that is none of x's.
inline void slide_exactly(const Call& call, const Piece& piece, long channel, const Taps& taps, float* line) {
  const Element* plane = call.x + piece.image * call.x_stride_n + channel * call.x_stride_c;
  for (long r = 0; r < piece.rows; ++r) {
    for (long c = 0; c < piece.columns; ++c) {
      float sum = taps.bias;
      for (long h = 0; h < call.kernel_h; ++h) {
        const long row = (piece.row + r) * call.stride_h - call.padding_h + h * call.dilation_h;
        if (row < 0 || row >= call.in_h) continue;
        for (long w = 0; w < call.kernel_w; ++w) {
          const long column = (piece.column + c) * call.stride_w - call.padding_w + w * call.dilation_w;
          if (column < 0 || column >= call.in_w) continue;
          sum += taps.weight[h * call.kernel_w + w] * to_float(plane[row * call.x_stride_h + column * call.x_stride_w]);
        }
      }
      *line++ = activate<kDepthwiseActivation>(fill(sum), taps.activation)[0];
    }
  }
}

// `Rows` output rows of a piece of one channel, from `row` on.
template <int Rows>
SEPCONV_INLINE void slide_rows(const Call& call, const Piece& piece, long channel, const Patch& patch, const Taps& taps,
                               const Ahead& ahead, long row, float* line) {
  if constexpr (kReadsInput) {
    if (reads_input(call)) {
      return slide<Rows>(InputRows<inputs_of(Rows)>(call, piece, channel, row, patch.zeros()), taps, piece.columns, ahead, row, line);
    }
  }
  slide<Rows>(PatchRows{patch, piece.input + row * kStrideH}, taps, piece.columns, ahead, row, line);
}

// All rows of a piece of one channel.
inline void slide_piece(const Call& call, const Piece& piece, long channel, const Patch& patch, const Taps& taps, const long* offsets,
                        const Ahead& ahead, float* line) {
  const long columns = piece.columns;
  long row = 0;
  if constexpr (kAnyWindow) {
    for (; row < piece.rows; ++row, line += columns) {
      const float* inputs = patch.input(piece.input + row * call.stride_h, 0);
      slide_any(taps, call.taps(), offsets, inputs, (columns + kLanes - 1) / kLanes, ahead, row, line);
    }
  } else {
    for (; row + 4 <= piece.rows; row += 4) slide_rows<4>(call, piece, channel, patch, taps, ahead, row, line + row * columns);
    for (; row + 2 <= piece.rows; row += 2) slide_rows<2>(call, piece, channel, patch, taps, ahead, row, line + row * columns);
    for (; row < piece.rows; ++row) slide_rows<1>(call, piece, channel, patch, taps, ahead, row, line + row * columns);
  }
}

}  // namespace sepconv
