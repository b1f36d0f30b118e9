// The depthwise step where the copy engine cannot load rows, whose bytes would have to be multiples of 16: each of the eight warps copies
// the input of its channels by itself, four bytes at a time, and slides the window down the columns of a patch, in float32.
#pragma once

#include "activation.cuh"
#include "operands.cuh"
#include "walk.cuh"

namespace sepconv {

constexpr int kTaps = kKernelH * kKernelW, kBox = kBoxRows * kBoxColumns;
// A lane computes a strip at a time: so many pixels of a patch one below the other. Of few taps all stay in registers meanwhile, and a
// row of input is read once for all pixels of the strip.
constexpr bool kTapsStay = kTaps <= 12;
constexpr __device__ int strips_of(int rows) { return kPatchRows / rows * kPatchColumns * kWarpChannels; }
// Instructions of a warp, about: loads of input and taps, and of each pixel its multiply-adds and its way into the operand.
constexpr __device__ int cost_of(int rows) {
  return (strips_of(rows) + 31) / 32 * (((rows - 1) * kStrideH + kReachH) * kKernelW + kTaps + rows * (kTaps + 12));
}
constexpr __device__ int best_strip() {
  int best = 1;
  for (int rows = 2; kTapsStay && rows <= 8 && rows <= kPatchRows; ++rows) {
    if (kPatchRows % rows == 0 && cost_of(rows) < cost_of(best)) best = rows;
  }
  return best;
}
constexpr int kStrip = best_strip(), kStripCount = strips_of(kStrip), kStripSteps = (kStripCount + 31) / 32;

// Where a warp's part of a stage has its boxes, one for each channel, and behind them taps and biases.
struct WarpStage {
  u32 start;

  __device__ __forceinline__ u32 box(int channel) const { return start + channel * kBox * 4; }
  __device__ __forceinline__ u32 taps(int channel) const { return box(kWarpChannels) + channel * kTaps * 4; }
  __device__ __forceinline__ u32 bias(int channel) const { return taps(kWarpChannels) + channel * 4; }
};

// Copies of the chunks that come next, in the order of the work.
class Ahead {
 public:
  __device__ __forceinline__ Ahead(const Call& call, int rank, int warp, int lane)
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
      if (++chunk_ == kOwnChunks) chunk_ = 0, item_ += gridDim.x / kCluster, find_spot();
    }
    commit_copies();
  }

 private:
  __device__ __forceinline__ void find_spot() {
    const Spot spot = spot_of({item_of(call_.parts, item_).begin, 0, 0}, 0);
    image_ = spot.image, row_ = spot.row * kStrideH - kPaddingH, column_ = spot.column * kStrideW - kPaddingW;
  }
  __device__ __forceinline__ void load_boxes(const WarpStage& to, int channel) const {
    const float* const first = static_cast<const float*>(call_.x) + index_of<kChannels, kInH, kInW>(image_, channel, 0, 0);
#pragma unroll 4
    for (int i = lane_; i < kBox; i += 32) {
      const int row = row_ + i / kBoxColumns, column = column_ + i % kBoxColumns;
      const bool exists = unsigned(row) < unsigned(kInH) && unsigned(column) < unsigned(kInW);
      const float* const from = first + (exists ? row * kInW + column : 0);
#pragma unroll
      for (int c = 0; c < kWarpChannels; ++c) copy_four(to.box(c) + i * 4, from + c * (kInH * kInW), exists && channel + c < kChannels);
    }
  }
  // Some floats, of which only the first ones may exist.
  __device__ __forceinline__ void load_floats_of(u32 to, const float* from, int count, int exist) const {
#pragma unroll 1
    for (int i = lane_; i < count; i += 32) copy_four(to + i * 4, from + i, i < exist);
  }

  const Call& call_;
  const int rank_, warp_, lane_;
  int item_, chunk_ = 0, image_, row_, column_;
};

// One strip of a patch: its channel of the warp's, its column, and its first row.
struct Strip {
  int channel, row, column;
  bool exists;
};
__device__ __forceinline__ Strip strip_of(int step, int lane) {
  const int number = step * 32 + lane, strip = min(number, kStripCount - 1), in_channel = strip % (kStripCount / kWarpChannels);
  return {strip / (kStripCount / kWarpChannels), in_channel / kPatchColumns * kStrip, in_channel % kPatchColumns, number < kStripCount};
}

// Add the window of each pixel of a strip.
__device__ __forceinline__ void add_windows(float (&sum)[kStrip], const WarpStage& stage, const Strip& strip) {
  const u32 from = stage.box(strip.channel) + (strip.row * kStrideH * kBoxColumns + strip.column * kStrideW) * 4, taps = stage.taps(strip.channel);
  if constexpr (kTapsStay) {
    float tap[kTaps];
#pragma unroll
    for (int i = 0; i < kTaps; ++i) tap[i] = load_float(taps + i * 4);
#pragma unroll
    for (int row = 0; row < (kStrip - 1) * kStrideH + kReachH; ++row) {
#pragma unroll
      for (int w = 0; w < kKernelW; ++w) {
        const float x = load_float(from + (row * kBoxColumns + w * kDilationW) * 4);
#pragma unroll
        for (int p = 0; p < kStrip; ++p) {
          const int in_window = row - p * kStrideH;
          if (in_window >= 0 && in_window < kReachH && in_window % kDilationH == 0) sum[p] = fmaf(tap[in_window / kDilationH * kKernelW + w], x, sum[p]);
        }
      }
    }
  } else {
#pragma unroll 1
    for (int h = 0; h < kKernelH; ++h) {
#pragma unroll 8
      for (int w = 0; w < kKernelW; ++w) {
        const float tap = load_float(taps + (h * kKernelW + w) * 4), x = load_float(from + (h * kDilationH * kBoxColumns + w * kDilationW) * 4);
        sum[0] = fmaf(tap, x, sum[0]);
      }
    }
  }
}

// Where a pixel of a patch lies in a channel's row of an operand.
__device__ __forceinline__ u32 place_of(u32 slot, int row, int pixel) {
  const int byte = pixel * 2;
  return slot + row * 128 + (byte % 128 ^ row % 8 << 4) + (kTile > 64 ? byte / 128 * (kChunk * 128) : 0);
}

__device__ __forceinline__ void put_strip(u32 slot, int warp, const Strip& strip, float (&sum)[kStrip]) {
  if (!strip.exists) return;
  const int row = operand_row(warp * kWarpChannels + strip.channel), first = strip.row * kPatchColumns + strip.column;
#pragma unroll
  for (int p = 0; p < kStrip; p += 2) {
    float both[2] = {sum[p], p + 1 < kStrip ? sum[p + 1] : 0.f};
    for_terms(both, [&](int t, const u32(&pair)[1]) {
      store_half(place_of(slot, row, first + p * kPatchColumns) + t * kTermBytes, u16(pair[0]));
      if (p + 1 < kStrip) store_half(place_of(slot, row, first + (p + 1) * kPatchColumns) + t * kTermBytes, u16(pair[0] >> 16));
    });
  }
}

// A warp's part of a chunk of the operand.
__device__ __forceinline__ void compute_strips(const Call& call, u32 slot, const WarpStage& stage, int warp, int lane) {
#pragma unroll 1
  for (int step = 0; step < kStripSteps; ++step) {
    const Strip strip = strip_of(step, lane);
    const float bias = kDepthwiseBias ? load_float(stage.bias(strip.channel)) : 0.f;
    float sum[kStrip];
#pragma unroll
    for (int p = 0; p < kStrip; ++p) sum[p] = bias;
    add_windows(sum, stage, strip);
#pragma unroll
    for (int p = 0; p < kStrip; ++p) sum[p] = activate<kDepthwiseActivation>(sum[p], call.depthwise_value);
    put_strip(slot, warp, strip, sum);
  }
}

// The work of one of the eight warps.
__device__ __forceinline__ void gather(const Call& call, u32 stages, u32 slots, const Barriers& barriers, int rank, int warp, int lane) {
  Ahead ahead(call, rank, warp, lane);
  const auto stage_at = [&](int i) { return WarpStage{stages + (i * kDepthwiseWarps + warp) * kWarpStageBytes}; };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) ahead.load(stage_at(i));
  Ring<kStages> input;
  Ring<kSlots, kCluster> output{rank};
  for_items(call.parts, [&](const Item&) {
#pragma unroll 1
    for (int chunk = 0; chunk < kOwnChunks; ++chunk, input.next(), output.next()) {
      wait_copies<kStages - 2>();
      __syncwarp();  // the others' copies are here, and they have read the stage that is loaded next
      ahead.load(stage_at(input.at == 0 ? kStages - 1 : input.at - 1));
      barrier_wait(barriers.slot_empty(output.at), output.parity ^ 1);
      compute_strips(call, slots + output.at * kSlotBytes, stage_at(input.at), warp, lane);
      fence_async();
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.slot_full(output.at));
    }
  });
}

}  // namespace sepconv
