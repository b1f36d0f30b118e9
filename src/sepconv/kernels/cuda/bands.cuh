// What a lane of the depthwise step has where the pixels of a row lie together, in 16 bits: matrix units slide the window. A tile's pixels
// are segments of eight; a product of 16 deep gives all segments of a channel their eight pixels, from the columns that the windows of
// a segment reach and from a matrix in which each column has the taps one place further down (a banded Toeplitz matrix).
#pragma once

#include "operands.cuh"
#include "taps.cuh"
#include "walk.cuh"

namespace sepconv {

constexpr int kAtOnce = 1, kPixels = kTile / 32, kSteps = kPart / kTeamWarps;  // a step is a channel, of which all lanes have some pixels
// Pairs of columns are read, so the first that a segment takes is even; so many products reach all its windows.
constexpr int kEvenPadding = (kPaddingW + 1) / 2 * 2, kDeeps = (7 + kKernelW + kEvenPadding - kPaddingW + 15) / 16;
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
  __device__ __forceinline__ Lane(u32 stages, u32 slots, u32 taps, int warp, int lane) {
    const int channel = warp * kSteps, segment = lane / 4, pair = lane % 4 * 2;
    from_ = stages + (channel * kBoxRows * kBoxColumns + kLead - kEvenPadding + segment * 8 + pair) * 2;
    to_ = slots + offset(channel, segment * 8 + pair);
    taps_ = taps + channel * kTapBytes;
#pragma unroll
    for (int i = 0; i < 2 * kDeeps; ++i) {  // in column `segment` of the matrix, row `pair` has this tap, and the next row the next
      const int tap = i * 8 + pair - segment - (kEvenPadding - kPaddingW);
      pairs_[i] = (tap >= -1 && tap < kKernelW ? tap + 1 : kPairs16 - 1) * 4;
    }
  }

  __device__ __forceinline__ void load_taps(Taps& taps, int part, int step, int h) const {
    const u32 channel = taps_ + (part * kPart + step) * kTapBytes;
#pragma unroll
    for (int i = 0; i < 2 * kDeeps; ++i) taps.b[i / 2][i % 2] = load_word(channel + h * kPairs16 * 4 + pairs_[i]);
    if (h == 0) taps.bias[0] = kDepthwiseBias ? load_float(channel + kKernelH * kPairs16 * 4) : 0.f;
  }

  __device__ __forceinline__ void load(Input& v, u32 stage, int step, int h) const {
    stage += from_ + (step * kBoxRows + h) * kBoxColumns * 2;
#pragma unroll
    for (int i = 0; i < kDeeps * 4; ++i) {
      const bool exists = i % 2 == 0 || kTile == 128;  // segments from 8 on
      v.a[i / 4][i % 4] = exists ? load_word(stage + i / 4 * 32 + i % 2 * 128 + i % 4 / 2 * 16) : 0;
    }
  }

  __device__ __forceinline__ void put(u32 slot, int, int step, const float (&done)[kAtOnce][kPixels]) const {
    const u32 to = (slot + to_ + step * 128) ^ (step % 8 << 4);
#pragma unroll
    for (int i = 0; i < kPixels / 2; ++i) store_words(to + i * (kChunk * 128), {pack(done[0][2 * i], done[0][2 * i + 1])});
  }

 private:
  // Where a channel of a chunk has its pixels, from `pixel` on, in a slot.
  static __device__ __forceinline__ u32 offset(int channel, int pixel) {
    const int column = column_of(pixel);
    return column / 64 * (kChunk * 128) + channel * 128 + ((column % 64 / 8 ^ channel % 8) << 4) + column % 8 * 2;
  }

  u32 from_, to_, taps_, pairs_[2 * kDeeps];
};

// The taps of this block's channels, by the threads of a role, in pairs: the first is zero and tap 0, the last two zeros.
__device__ __forceinline__ void load_all_taps(char* taps, const void* weight, const void* bias, int rank, int thread) {
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
