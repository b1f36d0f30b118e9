// What a lane of the depthwise step has where the pixels of a row lie together, in 16 bits: matrix units slide the window. A tile's pixels
// are segments of eight; a product of 16 deep gives all segments of a channel their eight pixels, from the columns that the windows of
// a segment reach and from a matrix in which each column has the taps one place further down (a banded Toeplitz matrix).
#pragma once

#include "ahead.cuh"
#include "operands.cuh"
#include "walk.cuh"

namespace sepconv {

constexpr int kAtOnce = 1, kPixels = kTile / 32, kSteps = kPart / kTeamWarps;  // a step is a channel, of which all lanes have some pixels
// Pairs of columns are read, so the first that a segment takes is even; so many products reach all its windows.
constexpr int kEvenPadding = (kPaddingW + 1) / 2 * 2, kDeeps = (7 * kStrideW + kReachW + kEvenPadding - kPaddingW + 15) / 16;
static_assert(kSteps > 0 && kTerms == 1, "a channel for each warp");

struct Input {
  u32 a[kDeeps][4];  // pairs of columns: of segments g and g + 8, for lane 4 g + t, from column 2 t and 2 t + 8 on
};
struct Taps {
  u32 b[kDeeps][2];
  float bias[1];
};

// One row of taps on one row of input, added up.
__device__ __forceinline__ void add_row(float (&sum)[kAtOnce][kPixels], const Taps& taps, const Input& v) {
#pragma unroll
  for (int deep = 0; deep < kDeeps; ++deep) multiply_small(sum[0], v.a[deep], taps.b[deep]);
}

class Lane {
 public:
  __device__ __forceinline__ Lane(const Call& call, u32 stages, u32 slots, u32 taps, int rank, int warp, int lane) : ahead_(call, rank) {
    const int channel = warp * kSteps, segment = lane / 4, pair = lane % 4 * 2;
    from_ = stages + (channel * kBoxRows * kBoxColumns + kLead - kEvenPadding + segment * 8 * kStrideW + pair) * 2;
    to_ = slots + offset(channel, segment * 8 + pair);
    taps_ = taps + channel * kTapBytes;
#pragma unroll
    for (int i = 0; i < kPairsKept; ++i) {  // in column `segment` of the matrix, row `pair` has this tap, and the next row the next
      const int tap = i * 8 + pair - segment - (kEvenPadding - kPaddingW);
      pairs_[i] = (tap >= -1 && tap < kKernelW ? tap + 1 : kPairs16 - 1) * 4;
    }
  }

  // Instead of taps that stay. `room`: of all warps of the role, for a row of the channel that each has at a time, in pairs.
  __device__ __forceinline__ void bring_taps(u32 room, int warp) {
    const int lane = unforeseen(threadIdx.x) % 32;
    first_ = warp / kTeamWarps * kPart + warp % kTeamWarps * kSteps;
    row_ = room + warp * kRowBytes + kPairsBefore * 4;
    taps_ = row_ + (lane % 4 * 2 - kStrideW * (lane / 4) - (kEvenPadding - kPaddingW)) * 4;
    ahead_.fetch(first_, 0);
  }

  // A row of many taps: of each product the operands are loaded while the one before is computed. The first row begins the sums.
  __device__ __forceinline__ void add_many(float (&sum)[kAtOnce][kPixels], u32 from, const TapRow& row) {
    const float bias = ahead_.lay_out([&](int tap, u16 value) {
      const u32 at = row_ + tap * kDilationW * 4;  // the first of its pair, and the second of the one before
      store_half(at, value), store_half(at - 2, value);
    });
    const TapRow next = row.next<kSteps, kTeams>();
    ahead_.fetch(first_ + next.part * kPart + next.step, next.h);
#pragma unroll
    for (int p = 0; p < kPixels; ++p) sum[0][p] = row.h == 0 ? bias : sum[0][p];
    from += row.h * kDilationH * kBoxColumns * 2;
    u32 a[2][4], b[2][2];
    const auto load = [&](int i, int deep) {
      if (deep >= kDeeps) return;
      load_columns(a[i], from, deep);
#pragma unroll
      for (int j = 0; j < 2; ++j) b[i][j] = load_word(taps_ + (2 * deep + j) * 32);
    };
    load(0, 0);
#pragma unroll 1
    for (int deep = 0; deep < kDeeps; deep += 2) {
      load(1, deep + 1);
      multiply_small(sum[0], a[0], b[0]);
      load(0, deep + 2);
      if (deep + 1 < kDeeps) multiply_small(sum[0], a[1], b[1]);
    }
  }

  __device__ __forceinline__ void load_taps(Taps& taps, int part, int step, int h) const {
    const u32 channel = taps_ + (part * kPart + step) * kTapBytes;
#pragma unroll
    for (int i = 0; i < 2 * kDeeps; ++i) taps.b[i / 2][i % 2] = load_word(channel + h * kPairs16 * 4 + pairs_[i]);
    if (h == 0) taps.bias[0] = kDepthwiseBias ? load_float(channel + kKernelH * kPairs16 * 4) : 0.f;
  }

  // Where the input of a step begins.
  __device__ __forceinline__ u32 input_of(u32 stage, int step) const { return stage + from_ + step * kBoxRows * kBoxColumns * 2; }
  __device__ __forceinline__ void load(Input& v, u32 from, int h) const {
    from += h * kDilationH * kBoxColumns * 2;
#pragma unroll
    for (int deep = 0; deep < kDeeps; ++deep) load_columns(v.a[deep], from, deep);
  }

  __device__ __forceinline__ void put(u32 slot, int, int step, const float (&done)[kAtOnce][kPixels]) const {
    const u32 to = (slot + to_ + step * 128) ^ (step % 8 << 4);
#pragma unroll
    for (int i = 0; i < kPixels / 2; ++i) store_words(to + i * (kChunk * 128), {pack(done[0][2 * i], done[0][2 * i + 1])});
  }

 private:
  static __device__ __forceinline__ void load_columns(u32 (&a)[4], u32 row, int deep) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool exists = i % 2 == 0 || kTile == 128;  // segments from 8 on
      a[i] = exists ? load_word(row + deep * 32 + i % 2 * 128 * kStrideW + i / 2 * 16) : 0;
    }
  }

  // Where a channel of a chunk has its pixels, from `pixel` on, in a slot.
  static __device__ __forceinline__ u32 offset(int channel, int pixel) {
    const int column = column_of(pixel);
    return column / 64 * (kChunk * 128) + channel * 128 + ((column % 64 / 8 ^ channel % 8) << 4) + column % 8 * 2;
  }

  static constexpr int kPairsKept = kManyTaps ? 0 : 2 * kDeeps;
  u32 from_, to_, taps_, pairs_[kPairsKept > 0 ? kPairsKept : 1];
  u32 row_;    // of pairs, where the first tap begins one
  int first_;  // channel of this warp, of the block's own
  TapsAhead<32> ahead_;
};

// The taps of this block's channels, by the threads of a role, in pairs: the first is zero and tap 0, the last two zeros. Of many taps
// the zeros that lie around them.
__device__ __forceinline__ void load_all_taps(char* taps, const void* weight, const void* bias, int rank, int thread) {
  if constexpr (kManyTaps) {
#pragma unroll 1
    for (int i = thread; i < kScratchBytes / 4; i += kRoleThreads) reinterpret_cast<u32*>(taps)[i] = 0;
    return;
  }
  u16* const halves = reinterpret_cast<u16*>(taps);
  constexpr int kHalves = kTapBytes / 2, kRow = 2 * kPairs16;
  move_taps<kKernelH * kKernelW>(static_cast<const u16*>(weight), rank, thread, [&](int channel, int i, u16 tap) {
    u16* const row = halves + channel * kHalves + i / kKernelW * kRow;
    const int w = i % kKernelW;
    row[2 * w + 1] = tap, row[2 * w + 2] = tap;
    if (w == 0) row[0] = 0, row[kRow - 1] = 0, row[kRow - 2] = 0, row[kRow - 3] = 0;
  });
  if (!kDepthwiseBias) return;
  move_taps<1>(static_cast<const u16*>(bias), rank, thread, [&](int channel, int, u16 one) {
    reinterpret_cast<float*>(halves + (channel + 1) * kHalves)[-1] = unpack(one);
  });
}

}  // namespace sepconv
