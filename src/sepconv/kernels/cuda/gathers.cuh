// The depthwise step where the copy engine cannot load rows, whose bytes would have to be multiples of 16: each of the eight warps copies
// the input of its channels by itself, four bytes at a time, and computes the windows of a patch's pixels, in float32.
#pragma once

#include "activation.cuh"
#include "async.cuh"
#include "operands.cuh"
#include "walk.cuh"

namespace sepconv {

constexpr int kTaps = kKernelH * kKernelW, kBox = kBoxRows * kBoxPitch;
// A unit is four neighbouring pixels of a row, or fewer at its end, that a lane has at a time. Where half of the lanes have all units of a patch,
// the other half has the next channel's.
constexpr int kUnits = kPatchPixels / 4, kSideBySide = kUnits <= 16 ? 2 : 1, kLanes = 32 / kSideBySide, kUnitSteps = (kUnits + kLanes - 1) / kLanes;
static_assert(kWarpChannels % kSideBySide == 0, "a warp's channels side by side");
constexpr int kUnitsOfLane = kWarpChannels / kSideBySide * kUnitSteps, kUnitsTogether = kUnitsOfLane > 1 && kGatheredRead <= 8 ? 2 : 1;

// Where a warp's part of a stage has its boxes, one for each channel, and behind them taps and biases.
struct WarpStage {
  u32 start;

  __device__ __forceinline__ u32 box(int channel) const { return start + channel * kBox * 4; }
  __device__ __forceinline__ u32 taps(int channel) const { return box(kWarpChannels) + channel * kTaps * 4; }
  __device__ __forceinline__ u32 bias(int channel) const { return taps(kWarpChannels) + channel * 4; }
};

// Copies of the chunks that come next, in the order of the work.
class CopiesAhead {
 public:
  __device__ __forceinline__ CopiesAhead(const Call& call, int rank, int warp, int lane)
      : call_(call), rank_(rank), warp_(warp), lane_(lane), item_(unforeseen(blockIdx.x) / kCluster) {
    find_spot();
  }

  // The next chunk of this warp's channels, zeros where there is no input; nothing behind the last one.
  __device__ __forceinline__ void load(const WarpStage& to) {
    if (item_ < kStrips * call_.parts.count * kOutputSets) {
      const int channel = (chunk_ * kCluster + rank_) * kChunk + warp_ * kWarpChannels;
      load_boxes(to, channel);
      const float* const taps = static_cast<const float*>(call_.depthwise_weight) + channel * kTaps;
      load_floats_of(to.taps(0), taps, kWarpChannels * kTaps, (kChannels - channel) * kTaps);
      if (kDepthwiseBias) load_floats_of(to.bias(0), static_cast<const float*>(call_.depthwise_bias) + channel, kWarpChannels, kChannels - channel);
      from_ += kCluster * kChunk * kPlane;
      if (++chunk_ == kOwnChunks) chunk_ = 0, item_ += gridDim.x / kCluster, find_spot();
    }
    close_group();
  }

 private:
  // What this lane copies first of an item's boxes.
  __device__ __forceinline__ void find_spot() {
    const Spot spot = spot_of({item_of(call_.parts, item_).begin, 0, 0}, 0);
    row_ = spot.row * kStrideH - kPaddingH, column_ = spot.column * kStrideW - kPaddingW + lane_;
    from_ = static_cast<const float*>(call_.x) + index_of<kChannels, kInH, kInW>(spot.image, rank_ * kChunk + warp_ * kWarpChannels, row_, column_);
  }
  // A lane has every 32nd column.
  __device__ __forceinline__ void load_boxes(const WarpStage& to, int channel) const {
#pragma unroll
    for (int first = 0; first < kBoxColumns; first += 32) {
      if (first + 32 > kBoxColumns && first + lane_ >= kBoxColumns) continue;
      const bool exists = unsigned(column_ + first) < unsigned(kInW);
#pragma unroll(kBoxRows <= 16 ? kBoxRows : 4)
      for (int row = 0; row < kBoxRows; ++row) {
        const bool here = exists && unsigned(row_ + row) < unsigned(kInH);
#pragma unroll
        for (int c = 0; c < kWarpChannels; ++c) {
          start_copy<4>(to.box(c) + (row * kBoxPitch + first + lane_) * 4, from_ + c * kPlane + row * kInW + first, here && channel + c < kChannels);
        }
      }
    }
  }
  // Some floats, of which only the first ones may exist.
  __device__ __forceinline__ void load_floats_of(u32 to, const float* from, int count, int exist) const {
#pragma unroll 1
    for (int i = lane_; i < count; i += 32) start_copy<4>(to + i * 4, from + i, i < exist);
  }

  static constexpr long long kPlane = (long long)(kInH) * kInW;
  const Call& call_;
  const int rank_, warp_, lane_;
  int item_, chunk_ = 0, row_, column_;
  const float* from_;
};

// What one lane of a warp computes.
class GatherLane {
 public:
  __device__ __forceinline__ GatherLane(int warp, int lane) : channel_(warp * kWarpChannels), side_(lane / kLanes), unit_(lane % kLanes) { move_to(0); }

  // On to a patch that begins behind so many pixels of its first row.
  __device__ __forceinline__ void move_to(int lead) {
#pragma unroll
    for (int i = 0; i < kUnitSteps; ++i) {
      const int pixel = lead + min(unit_ + i * kLanes, kUnits - 1) * 4;
      column_[i] = pixel % kPatchPitch;
      from_[i] = (pixel / kPatchPitch * kStrideH * kBoxPitch + column_[i] * kStrideW) * 4;
    }
  }

  // The warp's part of a chunk of the operand: units of one or two channels at a time, whose loads then do not wait for one another. What is
  // done before the first result is written, `before_results()`, waits no sooner.
  template <typename F>
  __device__ __forceinline__ void compute(const Call& call, u32 slot, const WarpStage& stage, F before_results) const {
#pragma unroll 1
    for (int first = 0; first < kUnitsOfLane; first += kUnitsTogether) {
      int channels[kUnitsTogether];
      u32 boxes[kUnitsTogether], taps[kUnitsTogether];
      float sums[kUnitsTogether][4];
#pragma unroll
      for (int i = 0; i < kUnitsTogether; ++i) {
        channels[i] = (first + i) / kUnitSteps * kSideBySide + side_;
        boxes[i] = stage.box(channels[i]) + from_[(first + i) % kUnitSteps], taps[i] = stage.taps(channels[i]);
#pragma unroll
        for (int p = 0; p < 4; ++p) sums[i][p] = kDepthwiseBias ? load_float(stage.bias(channels[i])) : 0.f;
      }
      add_windows(sums, boxes, taps);
      if (first == 0) before_results();
#pragma unroll
      for (int i = 0; i < kUnitsTogether; ++i) {
#pragma unroll
        for (int p = 0; p < 4; ++p) sums[i][p] = activate<kDepthwiseActivation>(sums[i][p], call.depthwise_value);
        const int step = (first + i) % kUnitSteps;
        put(slot, operand_row(channel_ + channels[i]), unit_ + step * kLanes, column_[step], sums[i]);
      }
    }
  }

 private:
  using Sums = float[kUnitsTogether][4];
  using Addresses = u32[kUnitsTogether];
  __device__ __forceinline__ static void add_windows(Sums& sums, Addresses& boxes, Addresses& taps) {
    constexpr int kBlocks = kKernelW / kGatheredTaps, kLeft = kKernelW % kGatheredTaps;
#pragma unroll(kTaps <= 12 ? kKernelH : 1)
    for (int h = 0; h < kKernelH; ++h) {
#pragma unroll(kTaps <= 12 ? kBlocks : 1)
      for (int w = 0; w < kBlocks; ++w) add_taps<kGatheredTaps>(sums, boxes, taps);
      if constexpr (kLeft > 0) add_taps<kLeft>(sums, boxes, taps);
#pragma unroll
      for (int i = 0; i < kUnitsTogether; ++i) boxes[i] += (kDilationH * kBoxPitch - kKernelW * kDilationW) * 4;
    }
  }
  // Neighbouring taps of a row, and on to the next ones.
  template <int Count>
  __device__ __forceinline__ static void add_taps(Sums& sums, Addresses& boxes, Addresses& taps) {
    float input[kUnitsTogether][kGatheredRead];
#pragma unroll
    for (int i = 0; i < kUnitsTogether; ++i) {
      if constexpr (Count > 1) {
#pragma unroll
        for (int j = 0; j < columns_of_taps(Count); j += 4) load_floats<4>(&input[i][j], boxes[i] + j * 4);
      } else {
#pragma unroll
        for (int p = 0; p < 4; ++p) input[i][p * kStrideW] = load_float(boxes[i] + p * kStrideW * 4);
      }
    }
#pragma unroll
    for (int i = 0; i < kUnitsTogether; ++i) {
#pragma unroll
      for (int k = 0; k < Count; ++k) {
        const float tap = load_float(taps[i] + k * 4);
#pragma unroll
        for (int p = 0; p < 4; ++p) sums[i][p] = fmaf(tap, input[i][p * kStrideW + k * kDilationW], sums[i][p]);
      }
      boxes[i] += Count * kDilationW * 4, taps[i] += Count * 4;
    }
  }

  // Into a row of the operand: zeros behind the end of a row of the patch.
  __device__ __forceinline__ static void put(u32 slot, int row, int unit, int column, float (&sum)[4]) {
    if (kUnits % kLanes != 0 && unit >= kUnits) return;
    const int pixel = unit * 4;
#pragma unroll
    for (int p = 0; p < 4; ++p) sum[p] = kPatchPitch == kPatchColumns || column + p < kPatchColumns ? sum[p] : 0.f;
    const u32 to = slot + pixel / 64 * (kChunk * 128) + row * 128 + ((pixel % 64 / 8 ^ row % 8) << 4) + pixel % 8 * 2;
    for_terms(sum, [&](int t, const u32(&pairs)[2]) { store_words(to + t * kTermBytes, pairs); });
  }

  const int channel_, side_, unit_;  // the warp's first channel, which of those side by side, the first unit
  int column_[kUnitSteps];
  u32 from_[kUnitSteps];
};

// The work of one of the eight warps.
__device__ __forceinline__ void compute_windows(const Call& call, u32 stages, u32 slots, const Barriers& barriers, int rank, int warp, int lane) {
  CopiesAhead ahead(call, rank, warp, lane);
  GatherLane pixels(warp, lane);
  const auto stage_at = [&](int i) { return WarpStage{stages + (i * kDepthwiseWarps + warp) * kWarpStageBytes}; };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) ahead.load(stage_at(i));
  Ring<kStages> input;
  Ring<kSlots, kCluster> output{rank};
  for_items(call.parts, [&](const Item& item) {
    if (kFlows) pixels.move_to(spot_of({item.begin, 0, 0}, 0).lead);
#pragma unroll 1
    for (int chunk = 0; chunk < kOwnChunks; ++chunk, input.next(), output.next()) {
      wait_groups<kStages - 2>();
      __syncwarp();  // the others' copies are here, and they have read the stage that is loaded next
      pixels.compute(call, slots + output.at * kSlotBytes, stage_at(input.at), [&] {
        ahead.load(stage_at(input.at == 0 ? kStages - 1 : input.at - 1));
        barrier_wait(barriers.slot_empty(output.at), output.parity ^ 1);
      });
      fence_async();
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.slot_full(output.at));
    }
  });
}

}  // namespace sepconv
