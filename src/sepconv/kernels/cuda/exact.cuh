// A part of a tile without matrix units and without padding: right for infinities, for NaN and for the largest numbers, where sums
// of terms are not. Slow, hardly ever needed, and written so that it takes few registers.
#pragma once

#include "activation.cuh"
#include "walk.cuh"

namespace sepconv {

// One depthwise result: taps that lie on padding are left out.
__device__ __forceinline__ float depthwise_exactly(const Call& call, int image, int channel, int row, int column) {
  float sum = call.depthwise_bias ? element(call.depthwise_bias, channel) : 0.f;
#pragma unroll 1
  for (int h = 0; h < kKernelH; ++h) {
    const int in_row = row * kStrideH - kPaddingH + h * kDilationH;
    if (in_row < 0 || in_row >= kInH) continue;
#pragma unroll 1
    for (int w = 0; w < kKernelW; ++w) {
      const int in_column = column * kStrideW - kPaddingW + w * kDilationW;
      if (in_column < 0 || in_column >= kInW) continue;
      sum = fmaf(element(call.depthwise_weight, (channel * kKernelH + h) * kKernelW + w),
                 element(call.x, index_of<kChannels, kInH, kInW>(image, channel, in_row, in_column)), sum);
    }
  }
  return activate<kDepthwiseActivation>(sum, call.depthwise_value);
}

// Some pixels of a row or, row after row, of a patch; some output channels of each.
struct Area {
  Spot spot;
  int first, pixels, output, outputs;
};

__device__ __forceinline__ void compute_exactly(const Call& call, const Area& area, int thread, int threads) {
#pragma unroll 1
  for (int i = thread; i < area.pixels * area.outputs; i += threads) {
    const int pixel = area.first + i % area.pixels, output = area.output + i / area.pixels;
    const auto [row, column, in_patch] = place_of(area.spot, pixel);
    const int image = area.spot.image;
    if (kPatches && (!in_patch || row >= kOutH || image >= call.images)) continue;
    if (column >= kOutW || output >= kOutputs) continue;
    float sum = call.pointwise_bias ? element(call.pointwise_bias, output) : 0.f;
#pragma unroll 1
    for (int channel = 0; channel < kChannels; ++channel) {
      sum = fmaf(element(call.pointwise_weight, (long long)(output) * kChannels + channel),
                 depthwise_exactly(call, image, channel, row, column), sum);
    }
    const long long at = index_of<kOutputs, kOutH, kOutW>(image, output, row, column);
    const float result = activate<kPointwiseActivation>(sum, call.pointwise_value);
    set_element(call.y, at, kResidual ? result + element(call.residual, at) : result);
  }
}

}  // namespace sepconv
