// The window's step: each thread has one output pixel of the tile and some channels of a chunk at a time, and reads x where it lies.
#pragma once

#include "../activation.cuh"
#include "pieces.cuh"

namespace sepconv {

// Where x is dense in the order of y (a Dense window), the compiler knows all steps in it; else they come with the call.
class Window {
 public:
  __device__ __forceinline__ Window(const Call& call, long long tile, int thread) : call_(call) {
    in_tile_ = kChannelsLast ? thread / kUnits : thread % kTile;
    unit_ = kChannelsLast ? thread % kUnits : thread / kTile;
    exists_ = in_tile_ < left_of(call, tile);
    const Pixel at = Pixel(tile * kTile).after(in_tile_);
    row_ = at.row() * kStrideH - kPaddingH, column_ = at.column() * kStrideW - kPaddingW;
    first_ = call.x + (call.dense ? at.image * kImageStep + row_ * kRowStep + column_ * kColumnStep
                                  : at.image * call.x_strides[0] + row_ * call.x_strides[2] + column_ * call.x_strides[3]);
  }

  // A chunk of the operand. `taps`: those of the chunk, in shared memory.
  __device__ __forceinline__ void compute(u16* operand, const float* taps, int chunk) const {
    const int channel = chunk * kChunk + unit_ * kUnit;
    float sum[kUnit];
    load_taps(sum, taps, kTaps, channel);
    if (call_.dense) add<true>(sum, taps, channel);
    else add<false>(sum, taps, channel);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const bool is_number = exists_ && is_middle(channel, i);
      sum[i] = is_number ? activate<kDepthwiseActivation>(sum[i], call_.depthwise_value) : 0.f;
    }
    store_terms(operand + in_tile_ * kPitch + unit_ * kUnit, kOperandTerm, sum);
  }

 private:
  // In elements.
  static constexpr long long kChannelStep = kChannelsLast ? 1 : kInH * (long long)(kInW), kColumnStep = kChannelsLast ? kChannels : 1;
  static constexpr long long kRowStep = kInW * kColumnStep, kImageStep = kInH * (long long)(kInW) * kChannels;
  // Taps of a row whose loads are on their way at once in a dense window: more of them would take too many registers.
  static constexpr int kAtOnce = kKernelW * kUnit <= 40 ? kKernelW : 24 / kUnit;
  // Elements that are loaded at once where channels lie together.
  static constexpr int kVector = kUnit * kElementBytes < 16 ? kUnit : 16 / kElementBytes;

  // Whether one of some channels from `channel` on exists.
  static __device__ __forceinline__ bool is_middle(int channel, int i) {
    if (kMiddle % kChunk == 0) return true;
    return (kMiddle % kUnit == 0 ? channel : channel + i) < kMiddle;
  }

  // One tap of some channels, or behind the last tap their biases.
  __device__ __forceinline__ void load_taps(float (&v)[kUnit], const float* taps, int tap, int channel) const {
    if constexpr (kTapsInShared) {
      load_vector(v, taps + tap * kChunk + unit_ * kUnit);
    } else {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) v[i] = is_middle(channel, i) ? tap_of(tap, channel + i) : 0.f;
    }
  }
  __device__ __forceinline__ float tap_of(int tap, int channel) const {
    if (tap < kTaps) return number(__ldg(call_.depthwise_weight + channel * kTaps + tap));
    return kDepthwiseBias ? number(__ldg(call_.depthwise_bias + channel)) : 0.f;
  }

  template <bool Dense>
  __device__ __forceinline__ void add(float (&sum)[kUnit], const float* taps, int channel) const {
    const Stored* row = first_ + (Dense ? channel / kMultiplier * kChannelStep : 0);
#pragma unroll 1
    for (int h = 0; h < kKernelH; ++h, row += kDilationH * (Dense ? kRowStep : call_.x_strides[2])) {
      const bool has_row = exists_ && unsigned(row_ + h * kDilationH) < unsigned(kInH);
#pragma unroll(Dense ? kAtOnce : 1)
      for (int w = 0; w < kKernelW; ++w) {
        const bool exists = has_row && unsigned(column_ + w * kDilationW) < unsigned(kInW);
        const Stored* const pixel = row + w * kDilationW * (Dense ? kColumnStep : call_.x_strides[3]);
        float x[kUnit], tap[kUnit];
        if constexpr (!Dense) load_strided(x, pixel, channel, exists);
        else if constexpr (kChannelsLast) load_together(x, pixel, channel, exists);
        else load_apart(x, pixel, channel, exists);
        load_taps(tap, taps, h * kKernelW + w, channel);
#pragma unroll
        for (int i = 0; i < kUnit; ++i) sum[i] = fmaf(tap[i], x[i], sum[i]);
      }
    }
  }

  // Some channels of a pixel of x, zeros where it does not exist: a tap that is no number makes a result that is none, which is computed again.
  static __device__ __forceinline__ float load(const Stored* from, bool exists) {
    Stored stored = {};
    if (exists) stored = __ldg(from);
    return number(stored);
  }
  static __device__ __forceinline__ void load_apart(float (&v)[kUnit], const Stored* pixel, int channel, bool exists) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) v[i] = load(pixel + i / kMultiplier * kChannelStep, exists && is_middle(channel, i));
  }
  static __device__ __forceinline__ void load_together(float (&v)[kUnit], const Stored* pixel, int channel, bool exists) {
#pragma unroll
    for (int i = 0; i < kUnit; i += kVector) {
      Piece<kVector * kElementBytes> piece = {};
      if (exists && is_middle(channel, i)) piece = *reinterpret_cast<const Piece<kVector * kElementBytes>*>(pixel + i);
#pragma unroll
      for (int j = 0; j < kVector; ++j) v[i + j] = number_in(piece, j);
    }
  }
  __device__ __forceinline__ void load_strided(float (&v)[kUnit], const Stored* pixel, int channel, bool exists) const {
    const Stored* from = pixel + channel / kMultiplier * call_.x_strides[1];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      v[i] = load(from, exists && is_middle(channel, i));
      if ((channel + i + 1) % kMultiplier == 0) from += call_.x_strides[1];
    }
  }

  const Call& call_;
  const Stored* first_;  // the first pixel of the window, which may lie outside of x
  int in_tile_, unit_, row_, column_;
  bool exists_;
};

}  // namespace sepconv
