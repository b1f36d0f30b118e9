// What becomes of the sums: bias, activation, residual, and their way into y.
#pragma once

#include "../activation.cuh"
#include "product.cuh"

namespace sepconv {

// A result without terms and without padding, where an operand does not split: infinities, NaN, and what rounds to one.
__device__ __noinline__ float compute_exactly(const Call& call, const Pixel& at, int output) {
  float sum = kPointwiseBias ? number(call.pointwise_bias[output]) : 0.f;
  const int row = at.row() * kStrideH - kPaddingH, column = at.column() * kStrideW - kPaddingW;
#pragma unroll 1
  for (int channel = 0; channel < kMiddle; ++channel) {
    float middle = kDepthwiseBias ? number(call.depthwise_bias[channel]) : 0.f;
    const Stored* const from = call.x + at.image * call.x_strides[0] + channel / kMultiplier * call.x_strides[1];
#pragma unroll 1
    for (int i = 0; i < kKernelH * kKernelW; ++i) {
      const int r = row + i / kKernelW * kDilationH, c = column + i % kKernelW * kDilationW;
      if (r < 0 || r >= kInH || c < 0 || c >= kInW) continue;
      middle = fmaf(number(call.depthwise_weight[channel * kKernelH * kKernelW + i]), number(from[r * call.x_strides[2] + c * call.x_strides[3]]), middle);
    }
    sum = fmaf(number(call.pointwise_weight[(long long)(output) * kMiddle + channel]), activate<kDepthwiseActivation>(middle, call.depthwise_value), sum);
  }
  return sum;
}

// `index`: where the result lies in y.
__device__ __forceinline__ void put(const Call& call, long long index, float sum) {
  float value = activate<kPointwiseActivation>(sum, call.pointwise_value);
  if (kResidual) value += number(call.residual[index]);
  set_element(call.y, index, value);
}

// The results of a block. All threads learn whether some sum is no number: then its results are computed again.
__device__ __forceinline__ void put_block(const Call& call, const Sums& sums, long long tile, int block, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  const Pixel start(tile * kTile);
  const int left = left_of(call, tile);
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 2 * kTilesM; ++i) {
    const int in_tile = warp / kWarpsN * 16 * kTilesM + i / 2 * 16 + i % 2 * 8 + lane / 4;
    const long long first = start.after(in_tile).index();
#pragma unroll
    for (int j = 0; j < 2 * kTilesN; ++j) {
      const int output = block * kBlock + warp % kWarpsN * 8 * kTilesN + j / 2 * 8 + lane % 4 * 2 + j % 2;
      float sum = sums.of[i / 2][j / 2][i % 2 * 2 + j % 2];
      finite &= sum - sum == 0.f;
      if (in_tile >= left || output >= kOutputs) continue;
      if (kPointwiseBias) sum += number(call.pointwise_bias[output]);
      put(call, first + output * Pixel::kStep, sum);
    }
  }
  if (!__syncthreads_or(!finite)) return;
#pragma unroll 1
  for (int i = thread; i < kTile * kBlock; i += kThreads) {
    const int output = block * kBlock + i / kTile;
    if (i % kTile >= left || output >= kOutputs) continue;
    const Pixel at = start.after(i % kTile);
    put(call, at.index() + output * Pixel::kStep, compute_exactly(call, at, output));
  }
}

}  // namespace sepconv
