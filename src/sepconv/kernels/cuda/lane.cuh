// What the lanes of both layouts share: elements and taps from shared memory, and the taps' way into it.
#pragma once

#include "operands.cuh"
#include "taps.cuh"
#include "walk.cuh"

namespace sepconv {

constexpr int kPixels = 4;  // neighbouring ones that a lane has at a time

// What multiply-adds slide over: columns of an input row, and a row of taps.
template <int AtOnce, int Read>
struct FloatInput {
  float v[AtOnce][Read];
};
template <int AtOnce>
struct FloatTaps {
  float v[AtOnce][kTapRow], bias[AtOnce];
};

// One row of taps on one row of input, added up; the first window begins at column `Before`.
template <int Before, int AtOnce, int Pixels, int Read>
__device__ __forceinline__ void add_taps(float (&sum)[AtOnce][Pixels], const FloatTaps<AtOnce>& taps, const FloatInput<AtOnce, Read>& input) {
#pragma unroll
  for (int c = 0; c < AtOnce; ++c) {
#pragma unroll
    for (int k = 0; k < kKernelW; ++k) {
#pragma unroll
      for (int p = 0; p < Pixels; ++p) sum[c][p] = fmaf(taps.v[c][k], input.v[c][Before + p * kStrideW + k * kDilationW], sum[c][p]);
    }
  }
}

// The taps of this block's channels, by the threads of a role, as its lanes read them, with the bias in the last place of the first row.
template <typename Lane>
__device__ __forceinline__ void load_float_taps(float* taps, const void* weight, const void* bias, int rank, int thread) {
  move_taps<kKernelH * kKernelW>(static_cast<const Stored*>(weight), rank, thread, [&](int channel, int i, Stored tap) {
    taps[Lane::tap_index(channel, i / kKernelW, i % kKernelW)] = number(tap);
    if (!kDepthwiseBias && i == 0) taps[Lane::tap_index(channel, 0, kTapRow - 1)] = 0.f;
  });
  if (!kDepthwiseBias) return;
  move_taps<1>(static_cast<const Stored*>(bias), rank, thread, [&](int channel, int, Stored one) {
    taps[Lane::tap_index(channel, 0, kTapRow - 1)] = number(one);
  });
}

}  // namespace sepconv
