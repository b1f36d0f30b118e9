// The pointwise step: two groups of four warps multiply chunk after chunk, 64 output channels by the tile's pixels each.
#pragma once

#include "epilogue.cuh"
#include "operands.cuh"
#include "walk.cuh"

namespace sepconv {

// Matrix units cut off what does not fit into a sum that they add to: of more channels the error would be too large.
constexpr int kLongestSum = kTerms == 3 ? 64 : 256;
static_assert(kChunks * kChunk <= kLongestSum, "long sums would have to be drained into other registers");

// How many chunks are multiplied together: the small products of all of them come first. Each sum that is added to cuts off
// what does not fit, so where float32 is wanted in full few of them should be large.
constexpr __device__ int most_together() {
  int chunks = kTerms < 3 ? 1 : kSlots / 2 < kChunks ? kSlots / 2 : kChunks;
  while (kChunks % chunks) --chunks;
  return chunks;
}
constexpr int kTogether = most_together();

// Products of one chunk whose terms' numbers sum up to at most `Most` and at least `Least`, the smallest products first. Of three
// terms the pairs of the smallest ones are left out.
template <int Most, int Least>
__device__ __forceinline__ void multiply_chunk(float (&sum)[64], u32 weights, u32 slot, int chunk) {
  const u64 a = describe(weights + chunk / 4 * kWeightBlockBytes + chunk % 4 * 32, 16, 1024);
  const u64 b = describe(slot, kPixelGroupBytes, 1024);
#pragma unroll
  for (int both = Most; both >= Least; --both) {
#pragma unroll
    for (int t = 0; t <= both; ++t) multiply(sum, a + u64(t * kWeightTermBytes / 16), b + u64((both - t) * kTermBytes / 16));
  }
}

// The slots of chunks that were multiplied together are empty; the first threads of a group say so.
__device__ __forceinline__ void release(const Barriers& barriers, int slot, int thread) {
  if (thread >= kTogether) return;
  slot += thread;
  if (slot >= kSlots) slot -= kSlots;
  if (kCluster == 1) barrier_arrive(barriers.slot_empty(slot));
  else barrier_arrive_at(barriers.slot_empty(slot), slot % kCluster);
}

__device__ __forceinline__ void product(const Call& call, u32 weights, u32 slots, u32 staged, const Barriers& barriers, int rank,
                                        int group, int thread) {
  load_weights(weights, call.pointwise_weight, rank * kBlockOutputs, group * kGroup + thread, 2 * kGroup);
  fence_async();
  threads_meet<3, 2 * kGroup>();
  Ring<kSlots> ring;
  Results results(call, staged + group * kStaged * kResultBytes, rank * kBlockOutputs + group * kGroupOutputs, group, thread);
  weights += group * kGroupOutputs * 128;
  for_items(call.sizes, [&](const Item& item) {
    for (int row = item.begin; row < item.end; ++row) {
      float sum[64];
#pragma unroll
      for (int i = 0; i < 64; ++i) sum[i] = 0.f;
      int before = 0;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; chunk += kTogether) {
        const Ring<kSlots> first = ring;
#pragma unroll
        for (int i = 0; i < kTogether; ++i, ring.next()) {
          barrier_wait(barriers.slot_full(ring.at), ring.parity);
          multiply_fence();
          multiply_chunk<kTerms - 1, kTogether == 1 ? 0 : 1>(sum, weights, slots + ring.at * kSlotBytes, chunk + i);
        }
        if constexpr (kTogether > 1) {
          Ring<kSlots> again = first;
#pragma unroll
          for (int i = 0; i < kTogether; ++i, again.next()) multiply_chunk<0, 0>(sum, weights, slots + again.at * kSlotBytes, chunk + i);
        }
        multiply_commit();
        if (chunk > 0) {
          multiply_wait<1>();
          release(barriers, before, thread);
        }
        before = first.at;
      }
      multiply_wait<0>();
      release(barriers, before, thread);
      results.put(sum, row / kOutH, row % kOutH, item.column);
    }
  });
  results.finish();
}

}  // namespace sepconv
