// The depthwise step with channels last in 16 bits, where windows are whole: matrix units slide the window, of eight channels in each of the
// eight warps. A product multiplies the input of eight neighbouring pixels in two rows with taps on diagonals:
//
//                     row i   row i + 1                         (a block has eight rows and columns, of a channel each)
//   results of row r [ tap i - r    tap i + 1 - r ]   [ row i     of eight pixels ]
//           of r + 1 [ tap i - r - 1    tap i - r ] x [ row i + 1                 ]
//
// The time goes into reading shared memory: so pairs of rows are loaded once for each column of taps, and serve all results they lie under.
#pragma once

#include "activation.cuh"
#include "operands.cuh"
#include "walk.cuh"

namespace sepconv {

static_assert(kDiagonals && kTerms == 1 && kDepthwiseWarps * 8 == kChunk, "eight channels for each warp");
// A unit is eight pixels in each of two rows of a patch. The last ones reach beyond it.
constexpr int kUnitsOfRow = (kPatchColumns + 7) / 8, kUnits = (kPatchRows + 1) / 2 * kUnitsOfRow;
constexpr int kAllUnits = 2 * kUnits;  // of both patches
// Pairs of rows that reach a unit's windows; those of a whole box, of which two are loaded at a time.
constexpr int kDeeps = (kReachH + kStrideH + 1) / 2, kPairs = (kBoxRows + 1) / 2 * kUnitsOfRow, kLoads = (kPairs + 1) / 2;
constexpr bool kInputStays = (kAllUnits + kLoads + kDeeps) * 4 <= 72 && kDeeps * kKernelW <= 28;  // registers, and instructions

// Sums of a unit that a lane has: two neighbouring pixels of a channel, in both rows.
struct UnitSums {
  float v[4];
};

// What one lane of a warp computes.
class DiagonalLane {
 public:
  __device__ __forceinline__ DiagonalLane(u32 stages, u32 slots, int rank, int warp, int lane)
      : first_(rank * kChunk + warp * 8), lane_(lane), slots_(slots), stages_(stages + warp * 16) {
    const int channel = lane / 4;
#pragma unroll
    for (int i = 0; i < (kInputStays ? kLoads : 0); ++i) {
      const int pair = min(2 * i + lane / 16, kPairs - 1), row = min(pair / kUnitsOfRow * 2 + lane / 8 % 2, kBoxRows - 1);
      from_[i] = stages_ + (row * kBoxColumns + column_of(pair % kUnitsOfRow)) * 128;
    }
    taps_ = stages + kTapsOfStage + (warp * 8 + channel) * kKernelH * kKernelW * 2;
    bias_ = stages + kBiasOfStage + (warp * 8 + channel) * 2;
    beside_ = stages + kTapsAt - kStagesAt + warp * kOfWarp + (lane / 8 % 2 * kPixelsBeside + 7 - lane % 8) * 16;
    // A lane has two neighbouring columns of a row of the diagonal matrix: the tap in the first or the second one, or zeros.
    on_diagonal_ = channel / 2 != lane % 4 ? 0x4444 : channel % 2 == 0 ? 0x4410 : 0x1044;
  }

  // All windows of both patches.
  __device__ __forceinline__ void add_windows(UnitSums (&sums)[kAllUnits], u32 stage, int chunk) const {
    const bool exist = kChannels == kChunks * kChunk || chunk * kCluster * kChunk + first_ < kChannels;
    const float bias = kDepthwiseBias && exist ? unpack(load_half(stage + bias_)) : 0.f;
#pragma unroll
    for (int i = 0; i < kAllUnits; ++i) sums[i] = {bias, bias, bias, bias};
    const u32 taps = stage + taps_;
    if constexpr (kInputStays) {
#pragma unroll
      for (int w = 0; w < kKernelW; ++w) add_column(sums, stage, taps, w, exist);
    } else {
#pragma unroll 1
      for (int w = 0; w < kKernelW; ++w) {
#pragma unroll 1
        for (int deep = 0; deep < kDeeps; ++deep) add_rows(sums, stage, taps, w, deep, exist);
      }
    }
  }

  // Into a slot, a unit of both patches' together.
  __device__ __forceinline__ void put(u32 slot, int number, const UnitSums& sums) const {
    const int unit = number % kUnits, lane = unforeseen(lane_), row = unit / kUnitsOfRow * 2 + lane / 8 % 2, column = unit % kUnitsOfRow * 8 + lane % 8;
    const int pixel = row * kPatchColumns + column;
    const u32 in_patch = slot + slots_ + (number / kUnits * kBlockRows + pixel) * 128 + ((first_ / 8 ^ pixel) % 8 << 4);
    const u32 at = column < kPatchColumns ? in_patch : beside_, rows[2] = {pack(sums.v[0], sums.v[1]), pack(sums.v[2], sums.v[3])};
    if (unit / kUnitsOfRow * 2 + 1 < kPatchRows) store_turned(at, rows);
    else store_turned(at, {rows[0]});
  }

 private:
  // One column of taps, with all input of both patches.
  __device__ __forceinline__ void add_column(UnitSums (&sums)[kAllUnits], u32 stage, u32 taps, int w, bool exist) const {
    u32 tap[kKernelH], a[kDeeps][4];
#pragma unroll
    for (int h = 0; h < kKernelH; ++h) tap[h] = exist ? on_diagonal(taps, h, w) : 0;
#pragma unroll
    for (int i = 0; i < kDeeps * 4; ++i) {
      const int h = row_of_window(i / 4, i % 4);
      a[i / 4][i % 4] = has_tap(h) ? tap[h / kDilationH % kKernelH] : 0;
    }
#pragma unroll
    for (int patch = 0; patch < 2; ++patch) {
      u32 input[kLoads][4];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) load_matrices(input[i], swizzled(stage + patch * kBoxRoom + from_[i] + w * kDilationW * 128));
#pragma unroll
      for (int i = 0; i < kUnits * kDeeps; ++i) {
        const int unit = i % kUnits, deep = i / kUnits, pair = (unit / kUnitsOfRow * kStrideH + deep) * kUnitsOfRow + unit % kUnitsOfRow;
        if (pair >= kPairs) continue;  // under a row behind the patch
        const u32 b[2] = {input[pair / 2 % kLoads][pair % 2 * 2], input[pair / 2 % kLoads][pair % 2 * 2 + 1]};
        multiply_small(sums[patch * kUnits + unit].v, a[deep], b);
      }
    }
  }

  // Two rows of the window of one column, where there are too many of them for registers.
  __device__ __forceinline__ void add_rows(UnitSums (&sums)[kAllUnits], u32 stage, u32 taps, int w, int deep, bool exist) const {
    u32 a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int h = row_of_window(deep, i);
      a[i] = exist && has_tap(h) ? on_diagonal(taps, h / kDilationH, w) : 0;
    }
#pragma unroll
    for (int patch = 0; patch < 2; ++patch) {
#pragma unroll
      for (int unit = 0; unit < kUnits; unit += 2) {
        const int of_lane = min(unit + lane_ / 16, kUnits - 1);
        const int row = min(of_lane / kUnitsOfRow * 2 * kStrideH + 2 * deep + lane_ / 8 % 2, kBoxRows - 1);
        u32 input[4];
        load_matrices(input, swizzled(stage + patch * kBoxRoom + stages_ + (row * kBoxColumns + column_of(of_lane % kUnitsOfRow) + w * kDilationW) * 128));
#pragma unroll
        for (int i = 0; i < 2 && unit + i < kUnits; ++i) multiply_small(sums[patch * kUnits + unit + i].v, a, {input[2 * i], input[2 * i + 1]});
      }
    }
  }

  // Which row of the window lies where, in one of the four blocks of a product.
  static constexpr __device__ int row_of_window(int deep, int block) { return 2 * deep + block / 2 - block % 2 * kStrideH; }
  static constexpr __device__ bool has_tap(int h) { return h >= 0 && h < kReachH && h % kDilationH == 0; }
  __device__ __forceinline__ u32 on_diagonal(u32 taps, int h, int w) const {
    return __byte_perm(load_half(taps + (h * kKernelW + w) * 2), 0, on_diagonal_);
  }

  // Of the box, where the first window of a lane's pixel begins. (Behind the last pixel there are sums that nobody reads.)
  __device__ __forceinline__ int column_of(int unit_of_row) const {
    return min(unit_of_row * 8 + lane_ % 8, kPatchColumns - 1) * kStrideW;
  }
  static __device__ __forceinline__ u32 swizzled(u32 address) { return address ^ (address >> 3 & 0x70); }  // as the copy engine does it

  const int first_, lane_;  // of the warp's channels
  const u32 slots_, stages_;
  u32 from_[kInputStays ? kLoads : 1], taps_, bias_, beside_, on_diagonal_;
};

// A value that hangs on all sums, and so on all input.
__device__ __forceinline__ u32 mark(const UnitSums (&sums)[kAllUnits]) {
  u32 mark = 0;
#pragma unroll
  for (int i = 0; i < kAllUnits; ++i) mark ^= __float_as_uint(sums[i].v[0]);
  return mark;
}

// The work of one of the eight warps.
__device__ __forceinline__ void compute_windows(const Call& call, u32 stages, u32 slots, const Barriers& barriers, int rank, int warp, int lane) {
  const DiagonalLane channels(stages, slots, rank, warp, lane);
  Ring<kStages> input;
  Ring<kSlots, kCluster> output{rank};
  for_items(call.parts, [&](const Item&) {
#pragma unroll 1
    for (int chunk = 0; chunk < kOwnChunks; ++chunk, input.next(), output.next()) {
      UnitSums sums[kAllUnits];
      barrier_wait(barriers.stage_full(input.at), input.parity);
      channels.add_windows(sums, input.at * kStageBytes, chunk);
      __syncwarp();
      if (lane == 0) barrier_arrive_behind(barriers.stage_empty(input.at), mark(sums));
#pragma unroll
      for (int i = 0; i < kAllUnits * 4; ++i) {
        float& sum = sums[i / 4].v[i % 4];
        sum = activate<kDepthwiseActivation>(sum, call.depthwise_value);
      }
      barrier_wait(barriers.slot_empty(output.at), output.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kAllUnits; ++i) channels.put(output.at * kSlotBytes, i, sums[i]);
      fence_async();
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.slot_full(output.at));
    }
  });
}

}  // namespace sepconv
