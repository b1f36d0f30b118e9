// What a lane of the depthwise step has where the pixels of a row lie together, in float32: a warp has some channels of a part, as
// many at a time as its lanes can share a row of the tile, and a lane 16 bytes of neighbouring pixels of each.
#pragma once

#include "ahead.cuh"
#include "lane.cuh"

namespace sepconv {

constexpr int kAtOnce = 1;
constexpr int kSharing = kTile / kPixels, kStepChannels = 32 / kSharing;  // lanes that share a row, channels of a step
constexpr int kSteps = kPart / kTeamWarps / kStepChannels;
static_assert(kSteps > 0, "too many warps for so small a tile");
// Input that a lane reads for some taps of a row, in whole vectors of its pixels' size, and how many columns of it come before those of
// the first window.
constexpr int kBefore = (kPixels - kPaddingW % kPixels) % kPixels;
constexpr __device__ int columns_read(int taps) {
  return (kBefore + (kPixels - 1) * kStrideW + (taps - 1) * kDilationW + kPixels) / kPixels * kPixels;
}
constexpr int kRead = kManyTaps ? kPixels : columns_read(kKernelW);
// Of many taps so many are multiplied at a time that registers suffice.
constexpr int kTapsAtOnce = columns_read(8) <= 32 && !(kSplitAnew && kTile == 128) ? 8 : 4, kReadAtOnce = columns_read(kTapsAtOnce);
static_assert(!kManyTaps || kReadAtOnce <= 32, "the taps of a row lie too far apart");

using Input = FloatInput<kAtOnce, kRead>;
using Taps = FloatTaps<kAtOnce>;

__device__ __forceinline__ void add_row(float (&sum)[kAtOnce][kPixels], const Taps& taps, const Input& input) {
  add_taps<kBefore>(sum, taps, input);
}

class Lane {
 public:
  __device__ __forceinline__ Lane(const Call& call, u32 stages, u32 slots, u32 taps, int rank, int warp, int lane) : ahead_(call, rank) {
    const int channel = warp * kSteps * kStepChannels + lane / kSharing, pixel = lane % kSharing * kPixels;
    from_ = stages + (channel * kBoxRows * kBoxColumns + kLead - kPaddingW - kBefore + pixel * kStrideW) * kElementBytes;
    to_ = slots + offset(channel, pixel), swaps_ = kInRuns && pixel >= 64;
    taps_ = taps + channel * kTapFloats * 4;
  }
  // Instead of taps that stay. `room`: of all warps of the role, for a row of each channel that they have at a time.
  __device__ __forceinline__ void bring_taps(u32 room, int warp) {
    const int lane = unforeseen(threadIdx.x) % 32;
    first_ = warp / kTeamWarps * kPart + warp % kTeamWarps * kSteps * kStepChannels + lane / kSharing;
    taps_ = room + (warp * kStepChannels + lane / kSharing) * kRowBytes;
    ahead_.fetch(first_, 0);
  }

  // Where the taps of a channel of the block's lie, in floats.
  static __device__ __forceinline__ int tap_index(int channel, int h, int w) { return channel * kTapFloats + h * kTapRow + w; }

  __device__ __forceinline__ void load_taps(Taps& taps, int part, int step, int h) const {
#pragma unroll
    for (int i = 0; i < kTapRow; i += 4) {
      load_floats<4>(&taps.v[0][i], taps_ + tap_index(part * kPart + step * kStepChannels, h, i) * 4);
    }
    if (h == 0) taps.bias[0] = taps.v[0][kTapRow - 1];
  }

  // Where the input of a step begins.
  __device__ __forceinline__ u32 input_of(u32 stage, int step) const {
    return stage + from_ + step * kStepChannels * kBoxRows * kBoxColumns * kElementBytes;
  }
  __device__ __forceinline__ void load(Input& input, u32 from, int h) const {
    from += h * kDilationH * kBoxColumns * kElementBytes;
#pragma unroll
    for (int i = 0; i < kRead; i += kPixels) load_floats<kPixels>(&input.v[0][i], from + i * kElementBytes);
  }

  // A row of many taps, some at a time; what the next ones take too of the input stays. The first row begins the sums.
  __device__ __forceinline__ void add_many(float (&sum)[kAtOnce][kPixels], u32 from, const TapRow& row) {
    const float bias = ahead_.lay_out([&](int tap, float value) { store_words(taps_ + tap * 4, {__float_as_uint(value)}); });
    const TapRow next = row.next<kSteps, kTeams>();
    ahead_.fetch(first_ + next.part * kPart + next.step * kStepChannels, next.h);
#pragma unroll
    for (int p = 0; p < kPixels; ++p) sum[0][p] = row.h == 0 ? bias : sum[0][p];
    from += row.h * kDilationH * kBoxColumns * kElementBytes;
    u32 taps = taps_;
    constexpr int kBlocks = kKernelW / kTapsAtOnce, kLeft = kKernelW % kTapsAtOnce;
    constexpr int kStay = kReadAtOnce - kTapsAtOnce * kDilationW;
    FloatInput<kAtOnce, kReadAtOnce> input;
    load_columns<0, kStay>(input, from);
#pragma unroll(kTapsAtOnce == 4 ? 2 : 1)
    for (int block = 0; block < kBlocks; ++block) add_block<kStay, kTapsAtOnce>(sum, input, from, taps);
    if constexpr (kLeft > 0) add_block<kStay, kLeft>(sum, input, from, taps);
  }

  __device__ __forceinline__ void put(u32 slot, int, int step, float (&done)[1][kPixels]) const {
    const int row = operand_row(step * kStepChannels);
    const u32 to = (slot + to_ + row * 128) ^ (row % 8 << 4);
    for_terms(done[0], [&](int t, u32(&pairs)[kPixels / 2]) {
      if constexpr (kInRuns) {
        // Lanes of the second 64 pixels store their second pair first: the others' is on its way to the same banks.
        store_words(to + t * kTermBytes, {swaps_ ? pairs[1] : pairs[0]});
        store_words((to ^ 16) + t * kTermBytes, {swaps_ ? pairs[0] : pairs[1]});
      } else {
        store_words(to + t * kTermBytes, pairs);
      }
    });
  }

 private:
  template <int From, int To>
  static __device__ __forceinline__ void load_columns(FloatInput<kAtOnce, kReadAtOnce>& input, u32 from) {
#pragma unroll
    for (int i = From; i < To; i += kPixels) load_floats<kPixels>(&input.v[0][i], from + i * kElementBytes);
  }
  // Some taps, and on to the next ones; `Have` columns of the input are there.
  template <int Have, int Count>
  static __device__ __forceinline__ void add_block(float (&sum)[kAtOnce][kPixels], FloatInput<kAtOnce, kReadAtOnce>& input, u32& from, u32& taps) {
    constexpr int kOn = Count * kDilationW, kThere = Have < columns_read(Count) ? columns_read(Count) : Have;
    load_columns<Have, kThere>(input, from);
    float tap[kTapsAtOnce];
#pragma unroll
    for (int i = 0; i < Count; i += 4) load_floats<4>(&tap[i], taps + i * 4);
#pragma unroll
    for (int k = 0; k < Count; ++k) {
#pragma unroll
      for (int p = 0; p < kPixels; ++p) sum[0][p] = fmaf(tap[k], input.v[0][kBefore + p * kStrideW + k * kDilationW], sum[0][p]);
    }
#pragma unroll
    for (int i = 0; i + kOn < kThere; ++i) input.v[0][i] = input.v[0][i + kOn];
    from += kOn * kElementBytes, taps += Count * 4;
  }

  // Where a channel of a chunk has its pixels, from `pixel` on, in a slot.
  static __device__ __forceinline__ u32 offset(int channel, int pixel) {
    const int row = operand_row(channel), column = column_of(pixel) ^ (kInRuns && pixel >= 64 ? 8 : 0);
    return column / 64 * (kChunk * 128) + row * 128 + ((column % 64 / 8 ^ row % 8) << 4) + column % 8 * 2;
  }

  u32 from_, to_, taps_;
  bool swaps_;
  int first_;  // channel of this lane, of the block's own
  TapsAhead<kSharing> ahead_;
};

__device__ __forceinline__ void load_all_taps(char* taps, const void* weight, const void* bias, int rank, int thread) {
  if constexpr (!kManyTaps) load_float_taps<Lane>(reinterpret_cast<float*>(taps), weight, bias, rank, thread);
}

}  // namespace sepconv
