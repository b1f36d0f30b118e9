// A part of a tile without matrix units and without padding: right for infinities, for NaN and for the largest numbers, where sums
// of terms are not. Slow, and hardly ever needed.
#pragma once

#include "activation.cuh"
#include "walk.cuh"

namespace sepconv {

// One depthwise result: taps that lie on padding are left out.
__device__ __forceinline__ float depthwise_exactly(const Call& call, int image, int channel, int row, int column) {
  float sum = call.depthwise_bias ? element(call.depthwise_bias, channel) : 0.f;
  const long long plane = ((long long)(image) * kChannels + channel) * kInH;
  for (int h = 0; h < kKernelH; ++h) {
    const int in_row = row - kPaddingH + h;
    if (in_row < 0 || in_row >= kInH) continue;
    for (int w = 0; w < kKernelW; ++w) {
      const int in_column = column - kPaddingW + w;
      if (in_column < 0 || in_column >= kInW) continue;
      sum = fmaf(element(call.depthwise_weight, (channel * kKernelH + h) * kKernelW + w),
                 element(call.x, (plane + in_row) * kInW + in_column), sum);
    }
  }
  return activate<kDepthwiseActivation>(sum);
}

// The output channels of one group, from `first` on; the threads of the group have one pixel each.
__device__ __forceinline__ void compute_exactly(const Call& call, int image, int first, int row, int column, int thread) {
  column += thread;
  if (column >= kOutW) return;
  for (int output = first; output < min(kOutputs, first + kGroupOutputs); ++output) {
    float sum = call.pointwise_bias ? element(call.pointwise_bias, output) : 0.f;
    for (int channel = 0; channel < kChannels; ++channel) {
      sum = fmaf(element(call.pointwise_weight, (long long)(output) * kChannels + channel),
                 depthwise_exactly(call, image, channel, row, column), sum);
    }
    const long long at = (((long long)(image) * kOutputs + output) * kOutH + row) * kOutW + column;
    set_element(call.y, at, activate<kPointwiseActivation>(sum));
  }
}

}  // namespace sepconv
