// The taps' way into shared memory, where every kind of lane has an order of its own (lane.cuh, bands.cuh).
#pragma once

#include "problem.cuh"

namespace sepconv {

// Which channel of the input the block's own is.
__device__ __forceinline__ int channel_of(int own, int rank) { return (own / kChunk * kCluster + rank) * kChunk + own % kChunk; }

// Move `Count` taps by the threads of a role: store(i, load(i)), some at once, so that their loads do not wait for one another.
template <int Count, typename Load, typename Store>
__device__ __forceinline__ void move_taps(int thread, Load load, Store store) {
  constexpr int kAtOnce = kBands ? 8 : 4;
#pragma unroll 1
  for (int first = thread; first < Count; first += kAtOnce * kRoleThreads) {
    decltype(load(0)) values[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) values[j] = load(min(first + j * kRoleThreads, Count - 1));
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j * kRoleThreads < Count) store(first + j * kRoleThreads, values[j]);
    }
  }
}

}  // namespace sepconv
