// The depthwise step: eight warps slide the window over the input in shared memory, in float32, and write the result as chunks of
// the product's operand. A warp has two channels of each chunk, a lane four neighbouring pixels.
//
// The block walks down the image and reads each input row once: what it adds to output rows further down stays in registers.
#pragma once

#include "activation.cuh"
#include "operands.cuh"
#include "walk.cuh"

namespace sepconv {

constexpr int kPixels = 4, kChannelsOfWarp = kChunk / kDepthwiseWarps;
// Input that a lane reads, in whole vectors of four columns.
constexpr int kLeft = (kPaddingW + 3) / 4, kRight = (kKernelW - 1 - kPaddingW + 3) / 4, kRead = 4 * (1 + kLeft + kRight);
constexpr int kKept = kKernelH - 1;  // output rows that are begun and not finished

// The taps of this block's channels, (channel, kernel row, kTapRow) with the bias in the last place of the first row.
__device__ __forceinline__ void load_all_taps(float* taps, const void* weight, const void* bias, int rank) {
  for (int i = threadIdx.x; i < kOwnChunks * kChunk * kTapFloats; i += kThreads) {
    const int own = i / kTapFloats, row = i % kTapFloats / kTapRow, column = i % kTapRow;
    const int channel = (own / kChunk * kCluster + rank) * kChunk + own % kChunk;
    float value = 0.f;
    if (channel < kChannels && column < kKernelW) value = element(weight, (channel * kKernelH + row) * kKernelW + column);
    else if (channel < kChannels && bias && row == 0 && column == kTapRow - 1) value = element(bias, channel);
    taps[i] = value;
  }
}

__device__ __forceinline__ void load_taps(float (&tap)[kTapRow], const float* from) {
#pragma unroll
  for (int i = 0; i < kTapRow; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    tap[i] = four.x, tap[i + 1] = four.y, tap[i + 2] = four.z, tap[i + 3] = four.w;
  }
}

__device__ __forceinline__ void load_columns(float (&v)[kRead], u32 from) {
#pragma unroll
  for (int i = 0; i < kRead; i += 4) {
    if constexpr (kElement == Element::float32) {
      float four[4];
      load_words(four, from + 4 * i);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i + j] = four[j];
    } else {
      u32 pairs[2];
      load_words(pairs, from + 2 * i);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i + j] = unpack(u16(pairs[j / 2] >> j % 2 * 16));
    }
  }
}

// One row of taps on one row of input, added to four pixels.
__device__ __forceinline__ void add_row(float (&sum)[kPixels], const float (&tap)[kTapRow], const float (&v)[kRead]) {
#pragma unroll
  for (int k = 0; k < kKernelW; ++k) {
#pragma unroll
    for (int p = 0; p < kPixels; ++p) sum[p] = fmaf(tap[k], v[4 * kLeft - kPaddingW + p + k], sum[p]);
  }
}

// One input row (zeros where there is none) of one channel: what it adds to the rows that are kept moves one place up, and the
// first of them is finished.
__device__ __forceinline__ void slide(float (&done)[kPixels], float (&kept)[kKept > 0 ? kKept : 1][kPixels], const float* taps,
                                      const float (&v)[kRead]) {
#pragma unroll
  for (int h = kKernelH - 1; h >= 0; --h) {
    float tap[kTapRow];
    load_taps(tap, taps + h * kTapRow);
    float(&sum)[kPixels] = h == kKernelH - 1 ? done : kept[kKernelH - 2 - h >= 0 ? kKernelH - 2 - h : 0];
#pragma unroll
    for (int p = 0; p < kPixels; ++p) sum[p] = h == 0 ? tap[kTapRow - 1] : kept[kKernelH - 1 - h < kKept ? kKernelH - 1 - h : 0][p];
    add_row(sum, tap, v);
  }
}

__device__ __forceinline__ void put(u32 to, float (&done)[kPixels]) {
#pragma unroll
  for (int p = 0; p < kPixels; ++p) done[p] = activate<kDepthwiseActivation>(done[p]);
  put_terms(to, done);
}

__device__ __forceinline__ void depthwise(const Call& call, u32 stages, u32 slots, const float* taps, const Barriers& barriers,
                                          int rank, int warp, int lane) {
  Ring<kStages> input;
  Ring<kSlots, kCluster> output{rank};
  const int channel = kChannelsOfWarp * warp;
  const u32 from = stages + (channel * kBoxColumns + kLead + kPixels * lane - 4 * kLeft) * kElementBytes;
  const u32 to = slots + operand_offset(channel, kPixels * lane);
  taps += channel * kTapFloats;
  for_items(call.sizes, [&](const Item& item) {
    for_images(item, [&](int, int first, int end) {
      float kept[kKept > 0 ? kOwnChunks : 1][kChannelsOfWarp][kKept > 0 ? kKept : 1][kPixels];
      for (int row = first - kPaddingH; row < end - kPaddingH + kKept; ++row) {
        const bool exists = row >= 0 && row < kInH, finishes = row + kPaddingH - kKept >= first;
#pragma unroll
        for (int chunk = 0; chunk < kOwnChunks; ++chunk) {
          if (exists) barrier_wait(barriers.stage_full(input.at), input.parity);
          if (kKept > 0 && finishes) barrier_wait(barriers.slot_empty(output.at), output.parity ^ 1);
          float done[kChannelsOfWarp][kPixels];
#pragma unroll
          for (int i = 0; i < kChannelsOfWarp; ++i) {
            float v[kRead] = {};
            if (exists) load_columns(v, from + input.at * kStageBytes + i * kBoxColumns * kElementBytes);
            slide(done[i], kept[kKept > 0 ? chunk : 0][i], taps + (chunk * kChunk + i) * kTapFloats, v);
            if (kKept > 0 && finishes) put((to + output.at * kSlotBytes + i * 128) ^ (i << 4), done[i]);
          }
          if (exists) {
            __syncwarp();
            if (lane == 0) barrier_arrive(barriers.stage_empty(input.at));
            input.next();
          }
          if (!finishes) continue;
          if (kKept == 0) {
            // Only now: the next input is on its way while the product catches up.
            barrier_wait(barriers.slot_empty(output.at), output.parity ^ 1);
#pragma unroll
            for (int i = 0; i < kChannelsOfWarp; ++i) put((to + output.at * kSlotBytes + i * 128) ^ (i << 4), done[i]);
          }
          fence_async();
          __syncwarp();
          if (lane == 0) barrier_arrive(barriers.slot_full(output.at));
          output.next();
        }
      }
    });
  });
}

}  // namespace sepconv
