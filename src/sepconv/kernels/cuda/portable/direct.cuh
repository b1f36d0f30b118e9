// The window's step where no stage has room for its input: each thread computes one number at a time, and reads x where it lies.
#pragma once

#include "../activation.cuh"
#include "plan.cuh"
#include "taps.cuh"

namespace sepconv {

// One depthwise result: taps that lie on padding are left out.
__device__ __forceinline__ float depthwise_at(const Call& call, const Taps& taps, const Pixel& at, int channel) {
  const Stored* const x = call.x + at.image * call.x_strides[0] + channel / kMultiplier * call.x_strides[1];
  const int row = at.row * kStrideH - kPaddingH, column = at.column * kStrideW - kPaddingW;
  float sum[1];
  taps.load(sum, kTaps);
#pragma unroll 1
  for (int h = 0; h < kKernelH; ++h) {
    const int in_row = row + h * kDilationH;
    if (unsigned(in_row) >= unsigned(kInH)) continue;
#pragma unroll 1
    for (int w = 0; w < kKernelW; ++w) {
      const int in_column = column + w * kDilationW;
      if (unsigned(in_column) >= unsigned(kInW)) continue;
      float tap[1];
      taps.load(tap, h * kKernelW + w);
      sum[0] = fmaf(tap[0], number(__ldg(x + in_row * call.x_strides[2] + in_column * call.x_strides[3])), sum[0]);
    }
  }
  return activate<kDepthwiseActivation>(sum[0], call.depthwise_value);
}

// A chunk of the operand.
__device__ __forceinline__ void compute_directly(const Call& call, const Tile& tile, u16* operand, const float* taps, int chunk, int thread) {
#pragma unroll 1
  for (int i = thread; i < kTile * kChunk; i += kThreads) {
    const int place = kChannelsLast ? i / kChunk : i % kTile, in_chunk = kChannelsLast ? i % kChunk : i / kTile;
    const int row = place / kRowPlaces, column = place % kRowPlaces, channel = chunk * kChunk + in_chunk;
    float value = 0.f, none = 0.f;
    if (row < kTileRows && tile.exists(row) && column < tile.columns && channel < kMiddle) {
      Pixel at = tile[row];
      at.column += column;
      value = depthwise_at(call, Taps(call, taps, chunk, in_chunk), at, channel);
    }
    const int line = kChannelsLast ? place : in_chunk, in_line = kChannelsLast ? in_chunk : place;
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      operand[t * kOperandTerm + OperandGrid::place(line, in_line / 8) + in_line % 8] = u16(take_term<false>(value, none, t + 1 == kTerms));
    }
  }
}

}  // namespace sepconv
