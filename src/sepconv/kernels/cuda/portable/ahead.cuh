// What the next chunk needs from global memory: taken on its way while a chunk is computed, and put into shared memory before the next.
#pragma once

#include "problem.cuh"
#include "window.cuh"

namespace sepconv {

// A thread's part: half a row of the weights of a block of output channels, and some taps.
class Ahead {
 public:
  __device__ __forceinline__ void fetch(const Call& call, int block, int chunk, int thread) {
    fetch_weights(call, block, chunk, thread);
    if constexpr (kTapsInShared) fetch_taps(call, chunk, thread);
  }
  __device__ __forceinline__ void put(u16* weights, float* taps, int thread) const {
    put_weights(weights, thread);
    if constexpr (kTapsInShared) put_taps(taps, thread);
  }

 private:
  static constexpr int kHalf = kChunk / 2, kVector = 16 / int(sizeof(Stored)), kTapsOfThread = (kTaps * kChunk + kThreads - 1) / kThreads;

  __device__ __forceinline__ void fetch_weights(const Call& call, int block, int chunk, int thread) {
    const int output = block * kBlock + thread / 2, first = chunk * kChunk + thread % 2 * kHalf;
    const Stored* const from = call.pointwise_weight + (long long)(output) * kMiddle + first;
    const bool aligned = kMiddle % kVector == 0 && reinterpret_cast<u64>(call.pointwise_weight) % 16 == 0;
    const int count = output < kOutputs ? kMiddle - first : 0;
#pragma unroll
    for (int i = 0; i < kHalf / kVector; ++i) {
      if (aligned && i * kVector < count) weights_[i] = reinterpret_cast<const Piece<16>*>(from)[i];
      else gather(weights_[i], from + i * kVector, count - i * kVector);
    }
  }
  // The first elements of a vector, one by one, and zeros behind them.
  static __device__ __forceinline__ void gather(Piece<16>& piece, const Stored* from, int count) {
    constexpr int kInWord = 4 / int(sizeof(Stored));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 word = 0;
#pragma unroll
      for (int j = 0; j < kInWord; ++j) {
        if (i * kInWord + j < count) word |= bits_of(__ldg(from + i * kInWord + j)) << 16 * j;
      }
      piece.words[i] = word;
    }
  }
  __device__ __forceinline__ void put_weights(u16* weights, int thread) const {
#pragma unroll
    for (int i = 0; i < kHalf; i += 8) {
      float v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = number_in(weights_[(i + j) / kVector], (i + j) % kVector);
      store_terms(weights + thread / 2 * kPitch + thread % 2 * kHalf + i, kWeightTerm, v);
    }
  }

  // The taps of a chunk lie one after the other, those of a channel together.
  __device__ __forceinline__ void fetch_taps(const Call& call, int chunk, int thread) {
    const int first = chunk * kChunk;
#pragma unroll
    for (int i = 0; i < kTapsOfThread; ++i) {
      const int at = first * kTaps + i * kThreads + thread;
      taps_[i] = at < kMiddle * kTaps ? __ldg(call.depthwise_weight + at) : Stored{};
    }
    const int channel = first + thread % kChunk;
    bias_ = kDepthwiseBias && channel < kMiddle ? __ldg(call.depthwise_bias + channel) : Stored{};
  }
  __device__ __forceinline__ void put_taps(float* taps, int thread) const {
#pragma unroll
    for (int i = 0; i < kTapsOfThread; ++i) {
      const int at = i * kThreads + thread;
      if (at < kChunk * kTaps) taps[at % kTaps * kChunk + at / kTaps] = number(taps_[i]);
    }
    if (thread < kChunk) taps[kTaps * kChunk + thread] = number(bias_);
  }

  Piece<16> weights_[kHalf / kVector];
  Stored taps_[kTapsOfThread], bias_;
};

}  // namespace sepconv
