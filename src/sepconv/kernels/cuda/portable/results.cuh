// What becomes of the sums: bias, activation, residual, and their way into y.
#pragma once

#include "../activation.cuh"
#include "pieces.cuh"
#include "plan.cuh"
#include "product.cuh"

namespace sepconv {

// A result without terms and without padding, where an operand does not split: infinities, NaN, and what rounds to one.
__device__ __noinline__ float compute_exactly(const Call& call, long long image, int out_row, int out_column, int output) {
  float sum = kPointwiseBias ? number(call.pointwise_bias[output]) : 0.f;
  const int row = out_row * kStrideH - kPaddingH, column = out_column * kStrideW - kPaddingW;
#pragma unroll 1
  for (int channel = 0; channel < kMiddle; ++channel) {
    float middle = kDepthwiseBias ? number(call.depthwise_bias[channel]) : 0.f;
    const Stored* const from = call.x + image * call.x_strides[0] + channel / kMultiplier * call.x_strides[1];
#pragma unroll 1
    for (int i = 0; i < kKernelH * kKernelW; ++i) {
      const int r = row + i / kKernelW * kDilationH, c = column + i % kKernelW * kDilationW;
      if (r < 0 || r >= kInH || c < 0 || c >= kInW) continue;
      middle = fmaf(number(call.depthwise_weight[channel * (long long)(kTaps) + i]), number(from[r * call.x_strides[2] + c * call.x_strides[3]]), middle);
    }
    sum = fmaf(number(call.pointwise_weight[(long long)(output) * kMiddle + channel]), activate<kDepthwiseActivation>(middle, call.depthwise_value), sum);
  }
  return sum;
}

// `to`: where the result belongs in y.
__device__ __forceinline__ float finished(const Call& call, const Stored* to, float sum) {
  const float value = activate<kPointwiseActivation>(sum, call.pointwise_value);
  return kResidual ? value + number(call.residual[to - call.y]) : value;
}

// Whether neighbours in y come together, two or four of them: then all of them exist or none, and they are stored at once.
__device__ constexpr bool come_together(int count) {
  return kChannelsLast ? kOutputs % count == 0 : kRun % count == 0 && kOutW % count == 0 && kTileColumns % count == 0;
}
constexpr bool kInPairs = come_together(2), kInQuads = kElementBytes == 2 && come_together(4) && !kResidual;
__device__ __forceinline__ void store_pair(Stored* to, float first, float second) {
  if constexpr (kElement == Element::float32) *reinterpret_cast<float2*>(to) = float2{first, second};
  else *reinterpret_cast<u32*>(to) = pack(first, second);
}

// What a thread has of a block's results.
class Results {
 public:
  __device__ __forceinline__ Results(const Call& call, const Plan& plan, int block) : call_(call), plan_(plan), first_output_(block * kBlock) {}

  // All of a thread's sums. Gives back whether they are numbers.
  __device__ __forceinline__ bool put(const Sums& sums, int thread) const {
    const int warp = thread / 32, lane = thread % 32;
    const int row = warp / kWarpsN * 16 * kTilesM + lane / 4, columns = warp % kWarpsN * 8 * kTilesN, column = columns + lane % 4 * 2;
    // Of two tiles' rows of eight, two lanes exchange pairs: then each has four neighbours, the second lane those of the second tile.
    const int of_lane = kInQuads ? columns + lane % 2 * 8 + lane % 4 / 2 * 4 : column;
    constexpr int kTogether = kInQuads ? 2 : 1, kRowSteps = 2 * kTilesM;
    constexpr int kPlaces = kChannelsLast ? kRowSteps : kTilesN, kOthers = kChannelsLast ? kTilesN : kRowSteps;
    const int in_block = first_output_ + (kChannelsLast ? of_lane : row);
    float none[2] = {};
#pragma unroll
    for (int p = 0; p < kPlaces; p += kChannelsLast ? 1 : kTogether) {
      const int place = (kChannelsLast ? row : of_lane) + p * 8, left = left_of(place);
      if (!kInQuads && left <= 0) continue;
      Stored* to = call_.y + first_of(place) + in_block * Pixel::kStep;
      constexpr int kOtherStep = kChannelsLast ? kTogether : 1;
#pragma unroll
      for (int o = 0; o < kOthers; o += kOtherStep, to += kOtherStep * 8 * Pixel::kStep) {
        const int i = kChannelsLast ? p : o, j = kChannelsLast ? o : p, output = in_block + o * 8;
        const bool exists = kOutputs % kBlock == 0 || output < kOutputs;
        const float* const pair = sums.of[i / 2][j] + i % 2 * 2;
        for (int k = 0; k < 2; ++k) none[k] = fmaf(pair[k], 0.f, none[k]);
        if constexpr (kInQuads) {
          const float* const other = sums.of[i / 2][j + 1] + i % 2 * 2;
          for (int k = 0; k < 2; ++k) none[k] = fmaf(other[k], 0.f, none[k]);
          const int output_of_pair = first_output_ + (kChannelsLast ? column : row) + o * 8;
          put_quad(to, exists && left > 0, output_of_pair, pair, other, lane % 2 > 0);
        } else if (exists) {
          put_pair(to, output, kChannelsLast ? kOutputs - output : left, pair);
        }
      }
    }
    return none[0] + none[1] == 0.f;
  }

  // All of the block, by all its threads.
  __device__ __forceinline__ void compute_again(int thread) const {
    const Tile tile(call_, blockIdx.x);
#pragma unroll 1
    for (int i = thread; i < kTile * kBlock; i += kThreads) {
      const int place = i % kTile, output = first_output_ + i / kTile;
      if (left_of(place) <= 0 || output >= kOutputs) continue;
      Stored* const to = call_.y + first_of(place) + output * Pixel::kStep;
      const Pixel first = tile[place / kRowPlaces];
      set_element(to, 0, finished(call_, to, compute_exactly(call_, first.image, first.row, first.column + place % kRowPlaces, output)));
    }
  }

 private:
  // How many pixels of its row there are from a place of the tile on.
  __device__ __forceinline__ int left_of(int place) const {
    return plan_.in_y[place / kRowPlaces] == kNone ? 0 : plan_.columns - place % kRowPlaces;
  }
  // Where its pixel lies in y.
  __device__ __forceinline__ long long first_of(int place) const {
    return plan_.in_y[place / kRowPlaces] + place % kRowPlaces * (kChannelsLast ? kOutputs : 1);
  }

  // Two neighbouring sums, or the first of them.
  __device__ __forceinline__ void put_pair(Stored* to, int output, int count, const float* pair) const {
    const float first = finished(call_, to, with_bias(pair[0], output));
    if (!kInPairs) set_element(to, 0, first);
    if (!kInPairs && count < 2) return;
    const float second = finished(call_, to + 1, with_bias(pair[1], output + kChannelsLast));
    if (kInPairs) store_pair(to, first, second);
    else set_element(to, 1, second);
  }
  // Two pairs, of which a lane gives one for another: `output` is that of the pairs, `to` and `exists` speak of what it has then.
  __device__ __forceinline__ void put_quad(Stored* to, bool exists, int output, const float* pair, const float* other, bool is_second) const {
    const u32 one = finished_pair(output, pair), two = finished_pair(output + (kChannelsLast ? 8 : 0), other);
    const u32 had = __shfl_xor_sync(~0u, is_second ? one : two, 1);
    if (exists) *reinterpret_cast<uint2*>(to) = {is_second ? had : one, is_second ? two : had};
  }
  __device__ __forceinline__ u32 finished_pair(int output, const float* pair) const {
    return pack(finished(call_, nullptr, with_bias(pair[0], output)), finished(call_, nullptr, with_bias(pair[1], output + kChannelsLast)));
  }
  __device__ __forceinline__ float with_bias(float sum, int output) const {
    const bool exists = kPointwiseBias && (kOutputs % kBlock == 0 || output < kOutputs);
    return exists ? sum + number(call_.pointwise_bias[output]) : sum;
  }

  const Call& call_;
  const Plan& plan_;
  const int first_output_;
};

}  // namespace sepconv
