// The depthwise step where the copy engine cannot load rows, whose bytes would have to be multiples of 16: each of the eight warps copies
// the input of its channels by itself, four bytes at a time, and computes the windows of a patch's pixels, in float32.
#pragma once

#include "activation.cuh"
#include "async.cuh"
#include "operands.cuh"
#include "walk.cuh"

namespace sepconv {

constexpr int kTaps = kKernelH * kKernelW, kBox = kBoxRows * kBoxColumns;
// A lane has a pixel of a patch in each step. All steps of a channel are computed side by side, so that their loads do not wait for one another.
constexpr int kPixelSteps = (kPatchPixels + 31) / 32;
// Few taps stay in registers meanwhile.
constexpr bool kTapsStay = kTaps <= 12;

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
      if (++chunk_ == kOwnChunks) chunk_ = 0, item_ += gridDim.x / kCluster, find_spot();
    }
    close_group();
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
      for (int c = 0; c < kWarpChannels; ++c) start_copy<4>(to.box(c) + i * 4, from + c * (kInH * kInW), exists && channel + c < kChannels);
    }
  }
  // Some floats, of which only the first ones may exist.
  __device__ __forceinline__ void load_floats_of(u32 to, const float* from, int count, int exist) const {
#pragma unroll 1
    for (int i = lane_; i < count; i += 32) start_copy<4>(to + i * 4, from + i, i < exist);
  }

  const Call& call_;
  const int rank_, warp_, lane_;
  int item_, chunk_ = 0, image_, row_, column_;
};

// What one lane of a warp computes.
class GatherLane {
 public:
  __device__ __forceinline__ GatherLane(int warp, int lane) : warp_(warp), lane_(lane) {
#pragma unroll
    for (int i = 0; i < kPixelSteps; ++i) {
      const int pixel = min(i * 32 + lane, kPatchPixels - 1);  // behind the last one there are columns of the product that nobody reads
      from_[i] = (pixel / kPatchColumns * kStrideH * kBoxColumns + pixel % kPatchColumns * kStrideW) * 4;
    }
  }

  // The warp's part of a chunk of the operand.
  __device__ __forceinline__ void compute(const Call& call, u32 slot, const WarpStage& stage) const {
#pragma unroll 1
    for (int channel = 0; channel < kWarpChannels; ++channel) {
      const float bias = kDepthwiseBias ? load_float(stage.bias(channel)) : 0.f;
      float sum[kPixelSteps];
#pragma unroll
      for (int i = 0; i < kPixelSteps; ++i) sum[i] = bias;
      add_windows(sum, stage.box(channel), stage.taps(channel));
#pragma unroll
      for (int i = 0; i < kPixelSteps; ++i) sum[i] = activate<kDepthwiseActivation>(sum[i], call.depthwise_value);
      put(slot, operand_row(warp_ * kWarpChannels + channel), sum);
    }
  }

 private:
  __device__ __forceinline__ void add_windows(float (&sum)[kPixelSteps], u32 box, u32 taps) const {
    float tap[kTapsStay ? kTaps : 1];
#pragma unroll
    for (int i = 0; kTapsStay && i < kTaps; ++i) tap[i] = load_float(taps + i * 4);
#pragma unroll(kTapsStay ? kKernelH : 1)
    for (int h = 0; h < kKernelH; ++h) {
#pragma unroll(kTapsStay ? kKernelW : 4)
      for (int w = 0; w < kKernelW; ++w) {
        const float one = kTapsStay ? tap[(h * kKernelW + w) % (kTapsStay ? kTaps : 1)] : load_float(taps + (h * kKernelW + w) * 4);
        const u32 at = box + (h * kDilationH * kBoxColumns + w * kDilationW) * 4;
#pragma unroll
        for (int i = 0; i < kPixelSteps; ++i) sum[i] = fmaf(one, load_float(at + from_[i]), sum[i]);
      }
    }
  }

  // Into a row of the operand: 64 pixels, or behind them as many more.
  __device__ __forceinline__ void put(u32 slot, int row, const float (&sum)[kPixelSteps]) const {
    const u32 to = slot + row * 128 + (lane_ * 2 ^ row % 8 << 4);
#pragma unroll
    for (int i = 0; i < kPixelSteps; i += 2) {
      float both[2] = {sum[i], i + 1 < kPixelSteps ? sum[i + 1] : 0.f};
      for_terms(both, [&](int t, const u32(&pair)[1]) {
        const u32 at = to + i / 2 * (kChunk * 128) + t * kTermBytes;
        store_half(at, u16(pair[0]));
        if (i + 1 < kPixelSteps) store_half(at ^ 64, u16(pair[0] >> 16));
      });
    }
  }

  const int warp_, lane_;
  u32 from_[kPixelSteps];
};

// The work of one of the eight warps.
__device__ __forceinline__ void gather(const Call& call, u32 stages, u32 slots, const Barriers& barriers, int rank, int warp, int lane) {
  CopiesAhead ahead(call, rank, warp, lane);
  const GatherLane pixels(warp, lane);
  const auto stage_at = [&](int i) { return WarpStage{stages + (i * kDepthwiseWarps + warp) * kWarpStageBytes}; };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) ahead.load(stage_at(i));
  Ring<kStages> input;
  Ring<kSlots, kCluster> output{rank};
  for_items(call.parts, [&](const Item&) {
#pragma unroll 1
    for (int chunk = 0; chunk < kOwnChunks; ++chunk, input.next(), output.next()) {
      wait_groups<kStages - 2>();
      __syncwarp();  // the others' copies are here, and they have read the stage that is loaded next
      ahead.load(stage_at(input.at == 0 ? kStages - 1 : input.at - 1));
      barrier_wait(barriers.slot_empty(output.at), output.parity ^ 1);
      pixels.compute(call, slots + output.at * kSlotBytes, stage_at(input.at));
      fence_async();
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.slot_full(output.at));
    }
  });
}

}  // namespace sepconv
