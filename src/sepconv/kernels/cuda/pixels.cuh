// What a lane of the depthwise step has where the channels of a pixel lie together: two neighbouring channels of a part, and of
// its warp's sixteen pixels some, four at a time.
#pragma once

#include "lane.cuh"

namespace sepconv {

constexpr int kAtOnce = 2, kPairs = kPart / kAtOnce, kPixelsOfWarp = kTile / kTeamWarps;
constexpr int kStepPixels = 32 / kPairs * kPixels, kSteps = kPixelsOfWarp / kStepPixels;
constexpr int kRead = kPixels + kKernelW - 1, kBefore = 0;

using Input = FloatInput<kAtOnce, kRead>;
using Taps = FloatTaps<kAtOnce>;

__device__ __forceinline__ void add_row(float (&sum)[kAtOnce][kPixels], const Taps& taps, const Input& input) {
  add_taps<kBefore>(sum, taps, input);
}

class Lane {
 public:
  __device__ __forceinline__ Lane(u32 stages, u32 slots, u32 taps, int warp, int lane) {
    const int channel = lane % kPairs * kAtOnce, pixel = warp * kPixelsOfWarp + lane / kPairs * kPixels;
    from_ = stages + pixel * 128 + channel * kElementBytes;
    to_ = slots + pixel * 128 + ((channel / 8 ^ pixel % 8) << 4) + channel % 8 * 2;
    taps_ = taps + channel * 4;
  }

  // Where the taps of a channel of the block's lie, in floats.
  static __device__ __forceinline__ int tap_index(int channel, int h, int w) {
    return ((channel / kPart * kKernelH + h) * kTapRow + w) * kPart + channel % kPart;
  }

  __device__ __forceinline__ void load_taps(Taps& taps, int part, int, int h) const {
#pragma unroll
    for (int w = 0; w < (h == 0 ? kTapRow : kKernelW); ++w) {
      float both[2];
      load_words(both, taps_ + tap_index(part * kPart, h, w) * 4);
      taps.v[0][w] = both[0], taps.v[1][w] = both[1];
    }
    if (h == 0) taps.bias[0] = taps.v[0][kTapRow - 1], taps.bias[1] = taps.v[1][kTapRow - 1];
  }

  __device__ __forceinline__ void load(Input& input, u32 stage, int step, int h) const {
#pragma unroll
    for (int i = 0; i < kRead; ++i) {
      float both[2];
      load_elements<2>(both, stage + from_ + (h * kBoxColumns + step * kStepPixels + i) * 128);
      input.v[0][i] = both[0], input.v[1][i] = both[1];
    }
  }

  // The pieces of 16 bytes of a pixel's channels lie swizzled by the pixel's number.
  __device__ __forceinline__ void put(u32 slot, int part, int step, float (&done)[2][kPixels]) const {
#pragma unroll
    for (int p = 0; p < kPixels; ++p) {
      float both[2] = {done[0][p], done[1][p]};
      const int pixel = step * kStepPixels + p;
      const u32 to = ((slot + to_) ^ ((part % kParts * kPart / 8 ^ pixel % 8) << 4)) + pixel * 128;
      for_terms(both, [&](int t, const u32(&pairs)[1]) { store_words(to + t * kTermBytes, pairs); });
    }
  }

 private:
  u32 from_, to_, taps_;
};

__device__ __forceinline__ void load_all_taps(char* taps, const void* weight, const void* bias, int rank, int thread) {
  load_float_taps<Lane>(reinterpret_cast<float*>(taps), weight, bias, rank, thread);
}

}  // namespace sepconv
