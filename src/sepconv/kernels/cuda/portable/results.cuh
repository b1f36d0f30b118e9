// What becomes of the sums: bias, activation, residual, and their way into y.
#pragma once

#include "../activation.cuh"
#include "pieces.cuh"
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
__device__ __forceinline__ float finished(const Call& call, long long index, float sum) {
  const float value = activate<kPointwiseActivation>(sum, call.pointwise_value);
  return kResidual ? value + number(call.residual[index]) : value;
}

// Whether neighbours in y come in pairs: then both exist or none, and they are stored at once.
constexpr bool kInPairs = (kChannelsLast ? kOutputs : kPlane) % 2 == 0;
__device__ __forceinline__ void store_pair(const Call& call, long long index, float first, float second) {
  if constexpr (kElement == Element::float32) {
    *reinterpret_cast<Piece<8>*>(call.y + index) = {__float_as_uint(first), __float_as_uint(second)};
  } else {
    *reinterpret_cast<Piece<4>*>(call.y + index) = {pack(first, second)};
  }
}

// What a thread has of a block's results.
class Results {
 public:
  __device__ __forceinline__ Results(const Call& call, long long tile, int block)
      : call_(call), start_(tile * kTile), left_(left_of(call, tile)), first_output_(block * kBlock) {}

  __device__ __forceinline__ bool exists(int in_tile, int output) const { return in_tile < left_ && first_output_ + output < kOutputs; }
  __device__ __forceinline__ long long index(int in_tile, int output) const {
    return start_.after(in_tile).index() + (first_output_ + output) * Pixel::kStep;
  }

  // Two neighbouring sums of a row of the product.
  __device__ __forceinline__ void put_pair(int row, int column, float first, float second) const {
    if (!exists_at(row, column)) return;
    const long long index = index_at(row, column);
    const float one = finished(call_, index, first + bias(row, column));
    if constexpr (kInPairs) {
      store_pair(call_, index, one, finished(call_, index + 1, second + bias(row, column + 1)));
      return;
    }
    set_element(call_.y, index, one);
    if (!exists_at(row, column + 1)) return;
    const long long next = index_at(row, column + 1);
    set_element(call_.y, next, finished(call_, next, second + bias(row, column + 1)));
  }

  // All of the block, by all its threads.
  __device__ __forceinline__ void compute_again(int thread) const {
#pragma unroll 1
    for (int i = thread; i < kTile * kBlock; i += kThreads) {
      const int in_tile = i % kTile, output = i / kTile;
      if (!exists(in_tile, output)) continue;
      const long long at = index(in_tile, output);
      set_element(call_.y, at, finished(call_, at, compute_exactly(call_, start_.after(in_tile), first_output_ + output)));
    }
  }

 private:
  __device__ __forceinline__ bool exists_at(int row, int column) const {
    return kChannelsLast ? exists(row, column) : exists(column, row);
  }
  __device__ __forceinline__ long long index_at(int row, int column) const {
    return kChannelsLast ? index(row, column) : index(column, row);
  }
  __device__ __forceinline__ float bias(int row, int column) const {
    return kPointwiseBias ? number(call_.pointwise_bias[first_output_ + (kChannelsLast ? column : row)]) : 0.f;
  }

  const Call& call_;
  const Pixel start_;  // the tile's first
  const int left_, first_output_;
};

// The results of a block. All threads learn whether some sum is no number: then its results are computed again.
__device__ __forceinline__ void put_block(const Call& call, const Sums& sums, long long tile, int block, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  const Results results(call, tile, block);
  bool finite = true;
#pragma unroll
  for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
    for (int i = 0; i < 2 * kTilesM; ++i) {
      const int row = warp / kWarpsN * 16 * kTilesM + i * 8 + lane / 4;
      const float first = sums.of[i / 2][j][i % 2 * 2], second = sums.of[i / 2][j][i % 2 * 2 + 1];
      finite &= first - first == 0.f && second - second == 0.f;
      results.put_pair(row, warp % kWarpsN * 8 * kTilesN + j * 8 + lane % 4 * 2, first, second);
    }
  }
  if (__syncthreads_or(!finite)) results.compute_again(thread);
}

}  // namespace sepconv
