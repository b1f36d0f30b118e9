// The taps' way into shared memory, where every kind of lane has an order of its own (lane.cuh, bands.cuh).
#pragma once

#include "problem.cuh"

namespace sepconv {

// Which channel of the input the block's own is.
__device__ __forceinline__ int channel_of(int own, int rank) {
  return kCluster == 1 ? own : (own / kChunk * kCluster + rank) * kChunk + own % kChunk;
}

// `Each` numbers of each of the block's channels from global memory, zeros of channels that do not exist, by the threads of a role:
// store(channel of the block's own, number, value). As many loads as there are registers for, so that they do not wait for one another.
template <int Each, typename Element, typename Store>
__device__ __forceinline__ void move_taps(const Element* from, int rank, int thread, Store store) {
  constexpr int kCount = kOwnChunks * kChunk * Each, kOfThread = (kCount + kRoleThreads - 1) / kRoleThreads;
  constexpr int kAtOnce = kOfThread < 12 ? kOfThread : 12;
#pragma unroll 1
  for (int first = thread; first < kCount; first += kAtOnce * kRoleThreads) {
    Element values[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * kRoleThreads, at = channel_of(i / Each, rank) * Each + i % Each;
      values[j] = at < kChannels * Each ? from[at] : Element(0);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * kRoleThreads;
      if (i < kCount) store(i / Each, i % Each, values[j]);
    }
  }
}

}  // namespace sepconv
