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
    const int in_row = row - kPaddingH + h;
    if (in_row < 0 || in_row >= kInH) continue;
#pragma unroll 1
    for (int w = 0; w < kKernelW; ++w) {
      const int in_column = column - kPaddingW + w;
      if (in_column < 0 || in_column >= kInW) continue;
      sum = fmaf(element(call.depthwise_weight, (channel * kKernelH + h) * kKernelW + w),
                 element(call.x, index_of<kChannels, kInH, kInW>(image, channel, in_row, in_column)), sum);
    }
  }
  return activate<kDepthwiseActivation>(sum);
}

// What one product group has of a tile, of one block: pixels from `column` and output channels from `first` on. A thread has one pixel and
// some of the output channels.
__device__ __forceinline__ void compute_exactly(const Call& call, int image, int first, int row, int column, int thread) {
  constexpr int kPixelsOfGroup = kChannelsLast ? kBlockRows : kColumns, kOutputsOfThread = kBlockRows * kColumns / kGroup;
  column += thread % kPixelsOfGroup;
  first += thread / kPixelsOfGroup * kOutputsOfThread;
  if (column >= kOutW) return;
#pragma unroll 1
  for (int output = first; output < min(kOutputs, first + kOutputsOfThread); ++output) {
    float sum = call.pointwise_bias ? element(call.pointwise_bias, output) : 0.f;
#pragma unroll 1
    for (int channel = 0; channel < kChannels; ++channel) {
      sum = fmaf(element(call.pointwise_weight, (long long)(output) * kChannels + channel),
                 depthwise_exactly(call, image, channel, row, column), sum);
    }
    set_element(call.y, index_of<kOutputs, kOutH, kOutW>(image, output, row, column), activate<kPointwiseActivation>(sum));
  }
}

}  // namespace sepconv
