// The pointwise step: two groups of four warps multiply chunk after chunk, 64 output channels by the tile's pixels at a time or,
// with channels last, 64 pixels by 128 output channels: the rows of the product are the ones that are apart in memory.
#pragma once

#include "epilogue.cuh"
#include "operands.cuh"
#include "walk.cuh"

namespace sepconv {

// Matrix units cut off what does not fit into a sum that they add to: of more channels the error would be too large. Longer sums
// are added up in parts, in other registers.
constexpr int kLongestSum = kTerms < 3 ? 256 : kManyRegisters ? 32 : 64;
constexpr bool kInParts = kChunks * kChunk > kLongestSum;
static_assert(!kInParts || kSplitAnew, "nothing else takes sums out of the matrix units in between");
// Where there are registers to spare, results wait in them, and are written while the next tile is multiplied.
constexpr bool kWait = kManyRegisters && !kInParts && kBlocks == 1 && (kStaged == 0 || kStaged == kBoxes);
static_assert(kManyRegisters || kBlocks == 1, "too few registers");

// How many chunks are multiplied together: the small products of all of them come first. Each sum that is added to cuts off
// what does not fit, so where float32 is wanted in full few of them should be large.
constexpr __device__ int most_together() {
  int chunks = kTerms < 3 ? 1 : kSlots / 2 < kLongestSum / kChunk ? kSlots / 2 : kLongestSum / kChunk;
  while (chunks > 1 && kChunks % chunks) --chunks;
  return chunks > 1 ? chunks : 1;
}
constexpr int kTogether = most_together();

// All sums of a group.
struct Sums {
  float of_block[kBlocks][64];

  __device__ __forceinline__ void set_zero() {
#pragma unroll
    for (int i = 0; i < kBlocks * 64; ++i) of_block[i / 64][i % 64] = 0.f;
  }
  // Any values: the first product of a sum does not add.
  __device__ __forceinline__ void leave_open() {
#pragma unroll
    for (int i = 0; i < kBlocks * 64; ++i) asm volatile("" : "=f"(of_block[i / 64][i % 64]));
  }
  __device__ __forceinline__ void take(const Sums& more) {
#pragma unroll
    for (int i = 0; i < kBlocks * 64; ++i) of_block[i / 64][i % 64] += more.of_block[i / 64][i % 64];
  }
};

// Products of one chunk whose terms' numbers sum up to at most `Most` and at least `Least`, the smallest products first. Of three
// terms the pairs of the smallest ones are left out. The first replaces the sums, unless it `adds`. Here with weights from registers:
template <int Most, int Least>
__device__ __forceinline__ void multiply_split_anew(Sums& sums, u32 weights, u32 slot, int chunk, bool adds) {
  u32 w[Most + 1][4];
  load_fragment(w, weights + chunk * (kBlockOutputs / 16) * kFragmentBytes);
  const u64 d = describe(slot, kChunk * 128, 1024);
#pragma unroll
  for (int i = 0; i < (Most + 1) * 4; ++i) asm volatile("" : "+r"(w[i / 4][i % 4])::"memory");  // all written before the fence
  multiply_fence();
#pragma unroll
  for (int both = Most; both >= Least; --both) {
#pragma unroll
    for (int t = 0; t <= both; ++t, adds = true) multiply(sums.of_block[0], w[t], d + u64((both - t) * kTermBytes / 16), adds);
  }
  multiply_commit();
  multiply_wait<0>();  // the registers are free for the next chunk; meanwhile the other group multiplies
}

// And from where the weights lie.
template <int Most, int Least>
__device__ __forceinline__ void multiply_chunk(Sums& sums, u32 weights, u32 slot, int chunk, bool adds) {
  if constexpr (kSplitAnew) return multiply_split_anew<Most, Least>(sums, weights, slot, chunk, adds);
  constexpr int kDeep = 16;  // channels of one product
  constexpr int kWeightRows = kChannelsLast ? kColumns : kBlockRows;
#pragma unroll
  for (int both = Most; both >= Least; --both) {
#pragma unroll
    for (int in_chunk = 0; in_chunk < kChunk; in_chunk += kDeep) {
      const int channel = chunk * kChunk + in_chunk;
      const u64 w = describe(weights + channel / 64 * kWeightBlockBytes + channel % 64 * 2, 16, 1024);
      const u64 d = kChannelsLast ? describe(slot + in_chunk * 2, 16, 1024) : describe(slot, kChunk * 128, 1024);
#pragma unroll
      for (int t = 0; t <= both; ++t) {
        const u64 d_term = d + u64((both - t) * kTermBytes / 16);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          const u64 w_term = w + u64((t * kWeightTermBytes + block * kWeightRows * 128) / 16);
          multiply(sums.of_block[block], kChannelsLast ? d_term : w_term, kChannelsLast ? w_term : d_term, adds);
        }
        adds = true;
      }
    }
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

__device__ __forceinline__ void product(const Call& call, u32 weights, u32 slots, u32 staged, u32 bias, const Barriers& barriers,
                                        int rank, int group, int thread) {
  Ring<kSlots> ring;
  Results results(call, staged, bias, rank);
  if (kChannelsLast) slots += group * kBlockRows * 128;
  else weights += kSplitAnew ? (group * 4 + thread / 32) * kFragmentBytes + thread % 32 * 16 : group * kBlocks * kBlockRows * 128;
  Sums held;  // the results that wait, or the parts of a sum so far
  Tile waiting{-1, 0};
  for_items(call.parts, [&](const Item& item) {
#pragma unroll 1
    for (int row = item.begin; row < item.end; ++row) {
      const Tile tile{row, item.column};
      Sums sums;
      sums.leave_open();
      if (kInParts) held.set_zero();
      int before = 0;
#pragma unroll(kSplitAnew ? 2 : kChunks)
      for (int chunk = 0; chunk < kChunks; chunk += kTogether) {
        const Ring<kSlots> first = ring;
#pragma unroll
        for (int i = 0; i < kTogether; ++i, ring.next()) {
          barrier_wait(barriers.slot_full(ring.at), ring.parity);
          if (!kSplitAnew) multiply_fence();
          const bool adds = (chunk + i) * kChunk % kLongestSum > 0;
          multiply_chunk<kTerms - 1, kTerms < 3 ? 0 : 1>(sums, weights, slots + ring.at * kSlotBytes, chunk + i, adds);
        }
        if constexpr (kTerms == 3) {
          Ring<kSlots> again = first;
#pragma unroll
          for (int i = 0; i < kTogether; ++i, again.next()) {
            multiply_chunk<0, 0>(sums, weights, slots + again.at * kSlotBytes, chunk + i, true);
          }
        }
        if (kSplitAnew) {
          release(barriers, first.at, thread);
        } else {
          multiply_commit();
          if (chunk > 0) {
            multiply_wait<1>();
            release(barriers, before, thread);
          }
        }
        if constexpr (kWait) {
          if (waiting.row >= 0) results.put_step(held.of_block[0], chunk / kTogether, kChunks / kTogether, waiting);
        }
        before = first.at;
        if (kInParts && (chunk + kTogether) * kChunk % kLongestSum == 0 && chunk + kTogether < kChunks) {
          held.take(sums);
        }
      }
      if (!kSplitAnew) {
        multiply_wait<0>();
        release(barriers, before, thread);
      }
      if constexpr (kWait) {
        held = sums;
        waiting = tile;
      } else {
        if (kInParts) sums.take(held);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) results.put(sums.of_block[block], block, tile);
      }
    }
  });
  if constexpr (kWait) {
    if (waiting.row >= 0) results.put(held.of_block[0], 0, waiting);
  }
  results.finish();
}

}  // namespace sepconv
