// The roles that move data: one thread loads the input, two others the weights that stream, and one warp sends chunks of the operand to
// the other blocks of a cluster.
#pragma once

#include "walk.cuh"

namespace sepconv {

// Every input row of a tile once, where rows are kept, and rows outside of the image are left out; else all rows of its window.
__device__ __forceinline__ void load_input(const Call& call, u32 stages, const Barriers& barriers, int rank) {
  const u64 policy = cache_policy(call.stays > 0);
  Ring<kStages> ring;
  for_items(call.parts, [&](const Item& item) {
    for_images(item, [&](int image, int first, int end) {
      const int begin = kRolls ? max(0, first - kPaddingH) : first, last = kRolls ? min(kInH, end - 1 - kPaddingH + kKernelH) : end;
#pragma unroll 1
      for (int row = begin; row < last; ++row) {
#pragma unroll 1
        for (int chunk = rank; chunk < kChunks; chunk += kCluster) {
#pragma unroll
          for (int part = 0; part < kParts; ++part, ring.next()) {
            barrier_wait(barriers.stage_empty(ring.at), ring.parity ^ 1);
            barrier_expect(barriers.stage_full(ring.at), kInputBytes);
            load_box(stages + ring.at * kStageBytes, call.x_map, barriers.stage_full(ring.at), item.column * kStrideW - kLead,
                     kRolls ? row : row * kStrideH - kPaddingH, chunk * kChunk + part * kPart, image, policy);
          }
        }
      }
    });
  });
}

// Taps and biases of some channels.
__device__ __forceinline__ void load_weights_of(const Call& call, u32 stage, u32 full, int channel, int count) {
  constexpr int kEach = kKernelH * kKernelW;
  load_bytes(stage + kTapsOfStage, static_cast<const u16*>(call.depthwise_weight) + channel * kEach, count * kEach * 2, full);
  if (kDepthwiseBias) load_bytes(stage + kBiasOfStage, static_cast<const u16*>(call.depthwise_bias) + channel, count * 2, full);
}

// The input of both patches of a tile. Behind the last image there are zeros.
__device__ __forceinline__ void load_patches(const Call& call, u32 stages, const Barriers& barriers, int rank) {
  const u64 policy = cache_policy(false);
  Ring<kStages> ring;
  for_items(call.parts, [&](const Item& item) {
    const Tile tile{item.begin, 0, 0};
    const Spot spots[2] = {spot_of(tile, 0), spot_of(tile, 1)};
#pragma unroll 1
    for (int channel = rank * kChunk; channel < kChunks * kChunk; channel += channel % kChunk + kPart < kChunk ? kPart : kPart + (kCluster - 1) * kChunk) {
      const u32 stage = stages + ring.at * kStageBytes, full = barriers.stage_full(ring.at);
      const int weights = kDiagonals ? max(0, min(kChunk, kChannels - channel)) : 0;  // channels that have taps
      barrier_wait(barriers.stage_empty(ring.at), ring.parity ^ 1);
      barrier_expect(full, kInputBytes + weights * (kKernelH * kKernelW + kDepthwiseBias) * 2);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_box(stage + i * kBoxRoom, call.x_map, full, spots[i].column * kStrideW - kPaddingW, spots[i].row * kStrideH - kPaddingH, channel,
                 spots[i].image, policy);
      }
      if (weights > 0) load_weights_of(call, stage, full, channel, weights);
      ring.next();
    }
  });
}

// A row of input of a tile, which stays in L2, is treated as usual again; by the threads of a role.
__device__ __forceinline__ void let_go_of_row(const Call& call, const Item& item, int row, int rank, int thread) {
  const int bytes = min(kTile, kInW - item.column) * (kChannelsLast ? kChannels : 1) * kElementBytes, lines = (bytes + 127) / 128;
#pragma unroll 1
  for (int i = rank * kRoleThreads + thread; i < lines * (kChannelsLast ? 1 : kChannels); i += kCluster * kRoleThreads) {
    const long long first = index_of<kChannels, kInH, kInW>(row / kOutH, i / lines, min(row % kOutH, kInH - 1), item.column);
    let_go(static_cast<const char*>(call.x) + first * kElementBytes + i % lines * 128);
  }
}

// The input that a block loaded last may be in L2 still: whoever runs next is not to find it taken.
__device__ __forceinline__ void let_go_of_input(const Call& call, int thread) {
  const int block = unforeseen(blockIdx.x), rank = block % kCluster, first = block / kCluster;
  const int walkers = gridDim.x / kCluster, last = kStrips * call.parts.count - 1;
  int left = call.stays;
#pragma unroll 1
  for (int i = first + (last - first) / walkers * walkers; i >= first && left > 0; i -= walkers) {
    const Item item = item_of(call.parts, i);
#pragma unroll 1
    for (int row = item.end - 1; row >= item.begin && left > 0; --row, --left) let_go_of_row(call, item, row, rank, thread);
  }
}

// Each chunk that this block has finished goes to the others.
__device__ __forceinline__ void send_chunks(const Call& call, u32 slots, const Barriers& barriers, int rank, int lane) {
  Ring<kSlots, kCluster> ring{rank};
  for_items(call.parts, [&](const Item& item) {
    for (int left = (item.end - item.begin) * kOwnChunks; left > 0; --left, ring.next()) {
      barrier_wait(barriers.slot_full(ring.at), ring.parity);
      if (lane < kCluster - 1) send(slots + ring.at * kSlotBytes, barriers.slot_full(ring.at), kSlotBytes, (rank + 1 + lane) % kCluster);
      __syncwarp();
    }
  });
}

// A stream of weights, of both product groups or of one: all output channels, or with channels last the block's, for each tile again. An item
// is one tile, since no rows are kept.
__device__ __forceinline__ void stream_weights(const Call& call, u32 weights, const Barriers& barriers, int stream, int rank) {
  weights += stream * kWeightStages * kWeightPartBytes;
  Ring<kWeightStages> ring;
  for_items(call.parts, [&](const Item& item) {
#pragma unroll 1
    for (int output = stream * kBlockRows; output < kPasses * kPassOutputs; output += kStreamCount * kWeightPartBytes / 128) {
#pragma unroll 1
      for (int part = 0; part < kWeightParts; ++part, ring.next()) {
        const u32 full = barriers.weights_full(stream, ring.at);
        barrier_wait(barriers.weights_empty(stream, ring.at), ring.parity ^ 1);
        barrier_expect(full, kWeightPartBytes);
        load_box(weights + ring.at * kWeightPartBytes, call.weight_map, full, part * kWeightPart, item.first_output(rank) + output);
      }
    }
  });
}

}  // namespace sepconv
