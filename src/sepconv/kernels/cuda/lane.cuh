// What the lanes of both layouts share: elements and taps from shared memory, and the taps' way into it.
#pragma once

#include "operands.cuh"
#include "walk.cuh"

namespace sepconv {

// Neighbouring pixels that a lane has at a time. Where they lie together, 16 bytes of them.
constexpr int kPixels = kChannelsLast ? 4 : 16 / kElementBytes;

template <int Count>
__device__ __forceinline__ void load_floats(float* v, u32 from) {
  float words[Count];
  load_words(words, from);
#pragma unroll
  for (int i = 0; i < Count; ++i) v[i] = words[i];
}

// Neighbouring elements of input as float32.
template <int Count>
__device__ __forceinline__ void load_elements(float* v, u32 from) {
  if constexpr (kElement == Element::float32) {
    load_floats<Count>(v, from);
  } else {
    u32 pairs[Count / 2];
    load_words(pairs, from);
#pragma unroll
    for (int i = 0; i < Count; ++i) v[i] = unpack(u16(pairs[i / 2] >> i % 2 * 16));
  }
}

// The taps of this block's channels, as its lanes read them, with the bias in the last place of the first row.
template <typename Lane>
__device__ __forceinline__ void load_all_taps(float* taps, const void* weight, const void* bias, int rank) {
#pragma unroll 1
  for (int i = threadIdx.x; i < kOwnChunks * kChunk * kTapFloats; i += kThreads) {
    const int own = i / kTapFloats, h = i % kTapFloats / kTapRow, w = i % kTapRow;
    const int channel = (own / kChunk * kCluster + rank) * kChunk + own % kChunk;
    float value = 0.f;
    if (channel < kChannels && w < kKernelW) value = element(weight, (channel * kKernelH + h) * kKernelW + w);
    else if (channel < kChannels && bias && h == 0 && w == kTapRow - 1) value = element(bias, channel);
    taps[Lane::tap_index(own, h, w)] = value;
  }
}

}  // namespace sepconv
