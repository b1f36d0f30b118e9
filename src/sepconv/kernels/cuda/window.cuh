// The depthwise step: eight warps slide the window over the input in shared memory, in float32, and write the result as chunks of
// the product's operand. What a lane has of a part is a matter of layout and dtype: planes.cuh, bands.cuh and pixels.cuh.
//
// Where a block keeps what a row adds to output rows further down (in registers), it reads each input row once; else a stage has
// all rows of the window.
#pragma once

#include "activation.cuh"
#if SEPCONV_CHANNELS_LAST
#include "pixels.cuh"
#elif SEPCONV_ELEMENT_BYTES == 2
#include "bands.cuh"
#else
#include "planes.cuh"
#endif

namespace sepconv {

constexpr int kTeamChunks = kOwnChunks / kTeams;
// Steps that are computed before any of them is written: matrix units take long for one, and few registers; with patches all have the same
// taps.
constexpr int kMostAtOnce = kPatches ? 4 : !kBands ? 1 : kRolls ? 2 : kSteps, kStepsAtOnce = kMostAtOnce < kSteps ? kMostAtOnce : kSteps;

// Sums of what a lane has at a time; and those of rows that are begun.
struct Done {
  float v[kAtOnce][kPixels];

  __device__ __forceinline__ void begin(const Taps& taps) {
#pragma unroll
    for (int i = 0; i < kAtOnce * kPixels; ++i) v[i / kPixels][i % kPixels] = taps.bias[i / kPixels];
  }
};
struct Kept {
  Done of[kKept > 0 ? kKept : 1];

  // A value that hangs on all input of the last row: channels that a lane has at once are loaded together.
  __device__ __forceinline__ u32 mark() const {
    u32 mark = 0;
#pragma unroll
    for (int i = 0; i < kPixels; ++i) mark ^= __float_as_uint(of[0].v[0][i]);
    return mark;
  }
};

// One input row (zeros where there is none) of some channels: what it adds to the rows that are kept moves one place up, and the
// first of them is finished.
__device__ __forceinline__ void slide(Done& done, Kept& kept, const Lane& lane, int part, int step, const Input& input) {
#pragma unroll
  for (int h = kKernelH - 1; h >= 0; --h) {
    Taps taps;
    lane.load_taps(taps, part, step, h);
    Done& sum = h == kKernelH - 1 ? done : kept.of[kKernelH - 2 - h >= 0 ? kKernelH - 2 - h : 0];
    if (h == 0) sum.begin(taps);
    else sum = kept.of[kKernelH - 1 - h < kKept ? kKernelH - 1 - h : 0];
    add_row(sum.v, taps, input);
  }
}

// Where taps do not stay, a lane brings them by itself. (A template, since only lanes that can are asked.)
template <typename AnyLane>
__device__ __forceinline__ void bring_taps(AnyLane& lane, u32 room, int warp) {
  if constexpr (kManyTaps) lane.bring_taps(room, warp);
}

// All rows of the window, for some steps from `first` on.
template <typename AnyLane>
__device__ __forceinline__ void look_through(Done (&done)[kStepsAtOnce], AnyLane& lane, u32 stage, int part, int first) {
  u32 from[kStepsAtOnce];
#pragma unroll
  for (int i = 0; i < kStepsAtOnce; ++i) from[i] = lane.input_of(stage, first + i);
#pragma unroll
  for (int h = 0; !kManyTaps && h < kKernelH; ++h) {
    Taps taps;
    Input input[kStepsAtOnce];
#pragma unroll
    for (int i = 0; kPatches && i < kStepsAtOnce; ++i) lane.load(input[i], from[i], h);
#pragma unroll
    for (int i = 0; i < kStepsAtOnce; ++i) {
      if (!kPatches || i == 0) lane.load_taps(taps, part, first + i, h);
      if (!kPatches) lane.load(input[i], from[i], h);
      if (h == 0) done[i].begin(taps);
      add_row(done[i].v, taps, input[i]);
    }
  }
  if constexpr (kManyTaps) {
#pragma unroll
    for (int i = 0; i < kStepsAtOnce; ++i) {
#pragma unroll 1
      for (int h = 0; h < kKernelH; ++h) lane.add_many(done[i].v, from[i], {part, first + i, h});
    }
  }
}

__device__ __forceinline__ void put(const Lane& lane, u32 slot, int part, int step, Done& done, float value) {
#pragma unroll
  for (int i = 0; i < kAtOnce * kPixels; ++i) {
    done.v[i / kPixels][i % kPixels] = activate<kDepthwiseActivation>(done.v[i / kPixels][i % kPixels], value);
  }
  lane.put(slot, part, step, done.v);
}

struct KeptOfRow {
  Kept of[kKept > 0 ? kTeamChunks : 1][kParts][kSteps];

  __device__ __forceinline__ u32 mark(int chunk, int part) const {
    u32 mark = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) mark ^= of[chunk][part][step].mark();
    return mark;
  }
};

// The eight warps' work: rows of a team's chunks, one after the other.
class Rows {
 public:
  __device__ __forceinline__ Rows(const Call& call, u32 stages, u32 slots, u32 taps, const Barriers& barriers, int rank, int warp, int lane)
      : call_(call), lane_(call, stages, slots, taps + warp / kTeamWarps * kChunk * kTapBytes, rank, warp % kTeamWarps, lane), barriers_(barriers),
        output_{rank}, is_first_(lane == 0) {
    bring_taps(lane_, taps, warp);
    input_.next(warp / kTeamWarps * kParts);
    output_.next(warp / kTeamWarps);
  }

  // One input row, which may not exist, where rows are kept; else one output row.
  __device__ __forceinline__ void compute(KeptOfRow& kept, bool exists, bool finishes) {
#pragma unroll(kRolls ? kTeamChunks : 1)
    for (int i = 0; i < kTeamChunks; ++i) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const u32 stage = input_.at * kStageBytes, slot = output_.at * kSlotBytes;
        if (exists) barrier_wait(barriers_.stage_full(input_.at), input_.parity);
#pragma unroll
        for (int first = 0; first < kSteps; first += kStepsAtOnce) {
          const int part_of_all = i * kTeams * kParts + part;
          Done done[kStepsAtOnce];
          if constexpr (!kRolls) look_through(done, lane_, stage, part_of_all, first);
#pragma unroll
          for (int step = first; kRolls && step < first + kStepsAtOnce; ++step) {
            Input input = {};
            if (exists) lane_.load(input, lane_.input_of(stage, step), 0);
            slide(done[step - first], kept.of[i][part][step], lane_, part_of_all, step, input);
          }
          if (!finishes) continue;
          if (part == 0 && first == 0) barrier_wait(barriers_.slot_empty(output_.at), output_.parity ^ 1);
#pragma unroll
          for (int step = first; step < first + kStepsAtOnce && step < kSteps; ++step) put(lane_, slot, part, step, done[step - first], call_.depthwise_value);
        }
        if (exists) release_stage(part, finishes ? 0 : kept.mark(i, part));
      }
      if (finishes) hand_over();
    }
  }

 private:
  __device__ __forceinline__ void release_stage(int part, u32 loaded) {
    __syncwarp();
    if (is_first_) barrier_arrive_behind(barriers_.stage_empty(input_.at), loaded);
    input_.next(part + 1 < kParts ? 1 : 1 + (kTeams - 1) * kParts);
  }
  __device__ __forceinline__ void hand_over() {
    fence_async();
    __syncwarp();
    if (is_first_) barrier_arrive(barriers_.slot_full(output_.at));
    output_.next(kTeams);
  }

  const Call& call_;
  Lane lane_;
  const Barriers barriers_;
  Ring<kStages> input_;
  Ring<kSlots, kCluster> output_;
  const bool is_first_;
};

__device__ __forceinline__ void depthwise(const Call& call, Rows rows) {
  for_items(call.parts, [&](const Item& item) {
    if constexpr (kRolls) {
      for_images(item, [&](int, int first, int end) {
        KeptOfRow kept;
        const int begin = first - kPaddingH, last = end - kPaddingH + kKept;
#pragma unroll 1
        for (int row = begin; row < last; ++row) rows.compute(kept, row >= 0 && row < kInH, row - begin >= kKept);
      });
    } else {
      KeptOfRow none;
#pragma unroll 1
      for (int left = item.end - item.begin; left > 0; --left) rows.compute(none, true, true);
    }
  });
}

}  // namespace sepconv
