// What a lane of the depthwise step has where the pixels of a row lie together, in float32: a warp has some channels of a part, as
// many at a time as its lanes can share a row of the tile, and a lane 16 bytes of neighbouring pixels of each.
#pragma once

#include "lane.cuh"

namespace sepconv {

constexpr int kAtOnce = 1;
constexpr int kSharing = kTile / kPixels, kStepChannels = 32 / kSharing;  // lanes that share a row, channels of a step
constexpr int kSteps = kPart / kTeamWarps / kStepChannels;
static_assert(kSteps > 0, "too many warps for so small a tile");
// Input that a lane reads, in whole vectors of its pixels' size, and how many columns of it come before those of the first window.
constexpr int kLeft = (kPaddingW + kPixels - 1) / kPixels, kRight = (kKernelW - 1 - kPaddingW + kPixels - 1) / kPixels;
constexpr int kRead = kPixels * (1 + kLeft + kRight), kBefore = kPixels * kLeft - kPaddingW;

using Input = FloatInput<kAtOnce, kRead>;
using Taps = FloatTaps<kAtOnce>;

__device__ __forceinline__ void add_row(float (&sum)[kAtOnce][kPixels], const Taps& taps, const Input& input) {
  add_taps<kBefore>(sum, taps, input);
}

class Lane {
 public:
  __device__ __forceinline__ Lane(u32 stages, u32 slots, u32 taps, int warp, int lane) {
    const int channel = warp * kSteps * kStepChannels + lane / kSharing, pixel = lane % kSharing * kPixels;
    from_ = stages + (channel * kBoxRows * kBoxColumns + kLead + pixel - kPixels * kLeft) * kElementBytes;
    to_ = slots + offset(channel, pixel), swaps_ = kInRuns && pixel >= 64;
    taps_ = taps + channel * kTapFloats * 4;
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

  __device__ __forceinline__ void load(Input& input, u32 stage, int step, int h) const {
    stage += from_ + (step * kStepChannels * kBoxRows + h) * kBoxColumns * kElementBytes;
#pragma unroll
    for (int i = 0; i < kRead; i += kPixels) load_floats<kPixels>(&input.v[0][i], stage + i * kElementBytes);
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
  // Where a channel of a chunk has its pixels, from `pixel` on, in a slot.
  static __device__ __forceinline__ u32 offset(int channel, int pixel) {
    const int row = operand_row(channel), column = column_of(pixel) ^ (kInRuns && pixel >= 64 ? 8 : 0);
    return column / 64 * (kChunk * 128) + row * 128 + ((column % 64 / 8 ^ row % 8) << 4) + column % 8 * 2;
  }

  u32 from_, to_, taps_;
  bool swaps_;
};

__device__ __forceinline__ void load_all_taps(char* taps, const void* weight, const void* bias, int rank, int thread) {
  load_float_taps<Lane>(reinterpret_cast<float*>(taps), weight, bias, rank, thread);
}

}  // namespace sepconv
