// The pointwise step: two groups of four warps multiply chunk after chunk, 64 output channels by the tile's pixels at a time or,
// with channels last, 64 pixels by 128 output channels: the rows of the product are the ones that are apart in memory.
#pragma once

#include "epilogue.cuh"
#include "weights.cuh"
#include "wgmma.cuh"

namespace sepconv {

// Matrix units cut off what does not fit into a sum that they add to: of more channels the error would be too large. Longer sums
// are added up in parts, in other registers.
constexpr int kLongestSum = kTerms == 1 ? 1 << 20 : kTerms == 2 ? 256 : kSplitAnew ? kChunk : 64;
constexpr bool kInParts = kChunks * kChunk > kLongestSum;
static_assert(!kInParts || kSplitAnew, "nothing else takes sums out of the matrix units in between");
// Where there are registers to spare, results wait in them, and are written while the next product is computed.
constexpr bool kWait = kManyRegisters && !kInParts && !kTurns && !kBeside && !(kSplitAnew && kResidual);

static_assert(!kWait || !Results::kFetchesResidual, "residuals that are fetched ahead belong to the pass that is multiplied");

// How many chunks are multiplied together. Of three terms the small products of all of them come first: each sum that is added to cuts
// off what does not fit, so where float32 is wanted in full few of them should be large. Of one term a single chunk would be too little
// work between two waits.
constexpr __device__ int most_together() {
  if (kStreams) return kWeightPart / kChunk;
  const int wanted = kTerms == 3 ? kLongestSum / kChunk : kTerms == 1 ? 64 / kChunk : 1;
  const int chunks = wanted < kSlots / 2 ? wanted : kSlots / 2;
  return chunks < 1 ? 1 : chunks < kChunks ? chunks : kChunks;
}
constexpr int kTogether = most_together(), kBatches = (kChunks + kTogether - 1) / kTogether;

struct Sums {
  float of[kSums];

  // Any values: the first product of a sum does not add.
  __device__ __forceinline__ void leave_open() {
#pragma unroll
    for (int i = 0; i < kSums; ++i) set_open(of[i]);
  }
  __device__ __forceinline__ void set_zero() {
#pragma unroll
    for (int i = 0; i < kSums; ++i) of[i] = 0.f;
  }
  __device__ __forceinline__ void take(const Sums& more) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) of[i] += more.of[i];
  }
  // Behind a wait for the products: nothing reads the sums before.
  __device__ __forceinline__ void settle() {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sepconv::settle(of[i]);
  }
};

// A group's turn. Groups that write their results at once would, side by side, also write side by side, and the matrix units would wait.
struct Turn {
  int group;

  // In the last pass of a tile, which gives its slots back for the next one, both go on: the sooner it is through, the better. Room for the
  // weights of both is needed there: of a part that comes two rounds later a barrier would say that it is there when the one before it is.
  static __device__ __forceinline__ bool is_taken(bool is_last) {
    return kTurns && !(is_last && kPasses > 1 && kWeightStages >= 2 * kWeightParts);
  }
  __device__ __forceinline__ void wait() const { threads_meet(place(group), kRoleThreads); }
  // To the other group; at the beginning from the second one to the first.
  __device__ __forceinline__ void pass_on() const { threads_arrive(place(1 - group), kRoleThreads); }

 private:
  static __device__ __forceinline__ int place(int group) { return 5 + group; }
};

// Where the slots hold whole tiles, a tile begins at the first of them, or that many further on.
constexpr bool kWholeTiles = kSlots % kChunks == 0;
// The same for chunks that are multiplied together.
constexpr bool kWholeBatches = kWholeTiles || (kSlots % kTogether == 0 && kChunks % kTogether == 0);

// The operand of a tile as one pass over the output channels sees it: chunk after chunk, in slots.
struct Pass {
  u32 slots;
  Barriers barriers;
  Turn turn;
  int thread;
  bool is_first, is_last;  // the slots may still be filled; they are empty afterwards

  // The operand of a product: the first channels of a chunk, of the first term.
  __device__ __forceinline__ u32 operand(const Ring<kSlots>& slot) const {
    return describe(slots, kChannelsLast ? 16 : kChunk * 128) + slot.at * (kSlotBytes / 16);
  }
  __device__ __forceinline__ void wait_for(const Ring<kSlots>& slot) const {
    if (kPasses == 1 || is_first) barrier_wait(barriers.slot_full(slot.at), slot.parity);
  }
  static __device__ __forceinline__ void next(Ring<kSlots>& slot, int chunks = 1) {
    if (kWholeTiles) slot.at += chunks;
    else slot.next(chunks);
  }
  // The slot so many chunks after `first`, of those that are multiplied together.
  static __device__ __forceinline__ Ring<kSlots> slot_after(Ring<kSlots> first, int chunks) {
    if (kWholeBatches) first.at += chunks;
    else first.next(chunks);
    return first;
  }
  // This group has read some chunks, from one on; its first threads say so.
  __device__ __forceinline__ void release(const Ring<kSlots>& first, int chunks) const {
    if (thread >= chunks || !(kPasses == 1 || is_last)) return;
    int slot = first.at + thread;
    if (!kWholeBatches && slot >= kSlots) slot -= kSlots;
    if (kCluster == 1) barrier_arrive(barriers.slot_empty(slot));
    else barrier_arrive_at(barriers.slot_empty(slot), slot % kCluster);
  }
};

// Products of one chunk whose terms' numbers sum up to at most `Most` and at least `Least`, the smallest products first. Of three
// terms the pairs of the smallest ones are left out. The first replaces the sums, unless it `adds`.
template <int Most, int Least>
__device__ __forceinline__ void multiply_chunk(Sums& sums, u32 weights, u32 operand, bool adds) {
  constexpr int kDeep = 16;  // channels of one product
#pragma unroll
  for (int both = Most; both >= Least; --both) {
#pragma unroll
    for (int in_chunk = 0; in_chunk < kChunk; in_chunk += kDeep) {
#pragma unroll
      for (int t = 0; t <= both; ++t, adds = true) {
        const u32 w = further(weights, in_chunk * 2 + t * kWeightTermBytes), d = further(operand, in_chunk * 2 + (both - t) * kTermBytes);
        multiply(sums.of, kChannelsLast ? d : w, kChannelsLast ? w : d, adds);
      }
    }
  }
}

__device__ __forceinline__ void wait_for_chunks(const Pass& pass, Ring<kSlots> first, const Weights& weights, int begin, int end) {
#pragma unroll
  for (int chunk = begin; chunk < end; ++chunk) {
    pass.wait_for(pass.slot_after(first, chunk - begin));
    weights.wait_for(chunk);
  }
}

// Where weights pass by beside the chunks there may be any number of these, and nothing else is done between them: a loop.
constexpr bool kManyChunks = kBeside && !kSplitAnew;
constexpr int kUnrolled = kManyChunks ? 2 : kBatches;

// One pass with the weights from where they lie; after each batch of chunks the group may do other work: between(step, steps).
template <typename Between>
__device__ __forceinline__ void multiply_pass(Sums& sums, Ring<kSlots>& slot, const Pass& pass, Weights& weights, Between between) {
  Ring<kSlots> before;
  const bool in_turn = Turn::is_taken(pass.is_last);
  if (in_turn) pass.turn.wait();
#pragma unroll 1
  for (int round = 0; round < kBatches; round += kUnrolled) {
#pragma unroll
    for (int batch = round; batch < round + kUnrolled; ++batch) {
      if (kBatches % kUnrolled != 0 && batch >= kBatches) break;
      const int begin = batch * kTogether, end = kChunks % kTogether == 0 || begin + kTogether < kChunks ? begin + kTogether : kChunks;
      const Ring<kSlots> first = slot;
      if (kTerms == 1) {
        wait_for_chunks(pass, first, weights, begin, end);
        multiply_fence();
      }
#pragma unroll
      for (int chunk = begin; chunk < end; ++chunk) {
        const Ring<kSlots> of_chunk = pass.slot_after(first, chunk - begin);
        if (kTerms > 1) {
          wait_for_chunks(pass, of_chunk, weights, chunk, chunk + 1);
          multiply_fence();
        }
        multiply_chunk<kTerms - 1, kTerms < 3 ? 0 : 1>(sums, weights.operand(chunk), pass.operand(of_chunk), chunk > 0);
      }
      if constexpr (kTerms == 3) {
#pragma unroll
        for (int chunk = begin; chunk < end; ++chunk) {
          multiply_chunk<0, 0>(sums, weights.operand(chunk), pass.operand(pass.slot_after(first, chunk - begin)), true);
        }
      }
      multiply_commit();
      if (in_turn && batch + 1 == kBatches) pass.turn.pass_on();
      if (kManyChunks) multiply_wait<1>();
      if (batch > 0) {
        if (!kManyChunks) multiply_wait<1>();
        pass.release(before, kTogether);
        weights.release();
      }
      between(batch, kBatches);
      before = first;
      pass.next(slot, end - begin);
      weights.next();
    }
  }
  multiply_wait<0>();
  sums.settle();
  pass.release(before, kChunks - (kBatches - 1) * kTogether);
  weights.release();
}

// The weights of a chunk as a thread has them, all terms, and the other operand.
struct Fragment {
  u32 terms[kTerms][4], operand;

  // Before a fence and behind a wait for its products: its registers are written before, and no other value takes them in between.
  __device__ __forceinline__ void settle() {
#pragma unroll
    for (int i = 0; i < kTerms * 4; ++i) sepconv::settle(terms[i / 4][i % 4]);
  }
};

__device__ __forceinline__ void multiply_fragment(Sums& sums, Fragment& w, bool adds) {
  w.settle();
  multiply_fence();
#pragma unroll
  for (int both = kTerms - 1; both >= 0; --both) {  // the sum of the terms' numbers
#pragma unroll
    for (int t = 0; t <= both; ++t, adds = true) multiply(sums.of, w.terms[t], further(w.operand, (both - t) * kTermBytes), adds);
  }
  multiply_commit();
}

// Beside so many chunks of a pass results are written, each by code of its own: for all of them it would take a third more time to compile, and
// beside four of 16 they are not written in time.
constexpr int kBusyChunks = !kWait ? 0 : kChunks < 8 ? kChunks : 8;

// Whether there are registers for weights that are loaded before they are needed.
constexpr bool kLoadsAhead = !kInParts || kTile <= 64;

// Chunks of a part of a sum, where sums are added up in parts.
constexpr int kPartChunks = kLongestSum / kChunk;

// The same with weights that are split anew, into registers: those of the next chunk while one is multiplied, and loaded before that. Where
// there are no registers for two chunks, the other group multiplies meanwhile.
constexpr int kFragments = kInParts && kTile > 64 ? 1 : 2;
template <typename Between>
__device__ __forceinline__ void multiply_pass_split(Sums& sums, Ring<kSlots>& slot, const Pass& pass, Weights& weights, Between between) {
  Fragment fragments[kFragments];
  Sums all;
  Ring<kSlots> before;
  Eight next;
  // Of a chunk that exists, for the turn of `loads` or of `splits`; without registers for what is loaded ahead one half after the other.
  const auto prepare = [&](int chunk, bool loads, bool splits) {
    if (chunk >= kChunks) return;
    if (loads) weights.wait_for(chunk);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (loads) next.load(half, weights.address(chunk));
      if (splits) next.split(half, fragments[chunk % kFragments].terms);
    }
    if (loads && ends_part(chunk)) weights.next();
    if (!splits) return;
    Fragment& done = fragments[chunk % kFragments];
    done.settle();
    if (ends_part(chunk)) weights.release(done.terms[0][0] ^ done.terms[0][1]);  // of both halves
  };
  if (kInParts) all.set_zero();
  prepare(0, true, true);
  if (kLoadsAhead) prepare(1, true, false);
  const auto multiply_next = [&](int chunk, bool adds, bool busy) {
    pass.wait_for(slot);
    fragments[chunk % kFragments].operand = pass.operand(slot);
    multiply_fragment(sums, fragments[chunk % kFragments], adds);
    if (kFragments == 1) {
      multiply_wait<0>();
      fragments[0].settle();
      pass.release(slot, 1);
    } else if (adds) {
      multiply_wait<1>();
      fragments[(chunk + 1) % kFragments].settle();
      pass.release(before, 1);
    }
    prepare(chunk + 1, !kLoadsAhead, true);
    if (kLoadsAhead) prepare(chunk + 2, true, false);
    if (busy) between(chunk, kBusyChunks);
    before = slot;
    pass.next(slot);
  };
  const auto finish_part = [&](int chunks) {
    multiply_wait<0>();
    sums.settle();
    if (kFragments == 1) return;
    fragments[(chunks + 1) % kFragments].settle();
    pass.release(before, 1);
  };
  if constexpr (kInParts) {
#pragma unroll(kPartChunks % 2 == 0 ? 1 : 2)
    for (int first = 0; first < kChunks; first += kPartChunks) {
      const int end = first + kPartChunks < kChunks ? first + kPartChunks : kChunks;
#pragma unroll 2
      for (int chunk = first; chunk < end; ++chunk) multiply_next(chunk, chunk > first, false);
      finish_part(end);
      if (end < kChunks) all.take(sums);
    }
    sums.take(all);
  } else {
#pragma unroll
    for (int chunk = 0; chunk < kBusyChunks; ++chunk) multiply_next(chunk, chunk > 0, true);
#pragma unroll 2
    for (int chunk = kBusyChunks; chunk < kChunks; ++chunk) multiply_next(chunk, chunk > 0, false);
    finish_part(kChunks);
  }
}

// A group's work: tile after tile, all passes of each.
class Product {
 public:
  __device__ __forceinline__ Product(const Call& call, u32 weights, u32 slots, u32 staged, u32 bias, const Barriers& barriers, int rank,
                                     int group, int thread)
      : results_(call, staged, bias, barriers.residuals_here()), weights_(weights, barriers, group, thread), turn_{group}, barriers_(barriers),
        slots_(slots + (kChannelsLast ? group * kBlockRows * 128 : 0)), rank_(rank), thread_(thread) {}

  __device__ __forceinline__ void compute(const Parts& parts) {
    Sums held;
    if (kTurns && turn_.group == 1) turn_.pass_on();
    for_items(parts, [&](const Item& item) {
#pragma unroll 1
      for (int row = item.begin; row < item.end; ++row) {
        const Tile tile{row, item.column, item.first_output(rank_)};
#pragma unroll 1
        for (int pass = 0; pass < kPasses; ++pass) compute_pass(held, tile, pass);
        if (kWholeTiles) of_tile_.next(kChunks);
      }
    });
    if (kWait && waiting_.row >= 0) results_.put(held.of, waiting_);
    results_.finish();
  }

 private:
  __device__ __forceinline__ void compute_pass(Sums& held, const Tile& of_all, int pass) {
    const Tile tile{of_all.row, of_all.column, of_all.output + pass * kPassOutputs};
    const Pass one{u32(uniform(unforeseen(slots_))), barriers_, turn_, thread_, pass == 0, pass + 1 == kPasses};
    const auto put_held = [&](int step, int steps) {
      if (step == 0) results_.fetch_ahead(tile);
      if (kWait && waiting_.row >= 0) results_.put_step(held.of, step, steps, waiting_);
    };
    Ring<kSlots> slot = of_tile_;
    Sums sums;
    sums.leave_open();
    weights_.begin(pass);
    results_.prefetch_residual(tile);
    if constexpr (kSplitAnew) multiply_pass_split(sums, slot, one, weights_, put_held);
    else multiply_pass(sums, slot, one, weights_, put_held);
    weights_.end();
    if (!kWholeTiles && one.is_last) of_tile_ = slot;
    if (kWait) held = sums, waiting_ = tile;
    else results_.put(sums.of, tile);
  }

  Results results_;
  Weights weights_;
  const Turn turn_;
  Tile waiting_{-1, 0, 0};
  Ring<kSlots> of_tile_;
  const Barriers& barriers_;
  const u32 slots_;
  const int rank_, thread_;
};

}  // namespace sepconv
