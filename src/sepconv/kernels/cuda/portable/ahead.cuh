// What the next chunk needs from global memory: on its way while a chunk is computed, and put into shared memory before the next.
#pragma once

#include "pieces.cuh"

namespace sepconv {

// A thread's part of the weights of a block of output channels: half a row.
class WeightsAhead {
 public:
  __device__ __forceinline__ void fetch(const Call& call, int block, int chunk, int thread) {
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
  __device__ __forceinline__ void put(u16* weights, int thread) const {
#pragma unroll
    for (int i = 0; i < kHalf; i += 8) {
      float v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = number_in(weights_[(i + j) / kVector], (i + j) % kVector);
      store_terms(weights + thread / 2 * kPitch + thread % 2 * kHalf + i, kWeightTerm, v);
    }
  }

 private:
  static constexpr int kHalf = kChunk / 2, kVector = 16 / int(sizeof(Stored));

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

  Piece<16> weights_[kHalf / kVector];
};

// A thread's part of the taps of a chunk, where these go to shared memory. They lie one after the other, those of a channel together.
class TapsAhead {
 public:
  __device__ __forceinline__ void fetch(const Call& call, int chunk, int thread) {
    if constexpr (!kTapsInShared) return;
    const int first = chunk * kChunk;
#pragma unroll
    for (int i = 0; i < kTapsOfThread; ++i) {
      const int at = first * kTaps + i * kThreads + thread;
      taps_[i] = at < kMiddle * kTaps ? __ldg(call.depthwise_weight + at) : Stored{};
    }
    const int channel = first + thread % kChunk;
    bias_ = kDepthwiseBias && channel < kMiddle ? __ldg(call.depthwise_bias + channel) : Stored{};
  }
  __device__ __forceinline__ void put(float* taps, int thread) const {
    if constexpr (!kTapsInShared) return;
#pragma unroll
    for (int i = 0; i < kTapsOfThread; ++i) {
      const int at = i * kThreads + thread;
      if (at < kChunk * kTaps) taps[at % kTaps * kChunk + at / kTaps] = number(taps_[i]);
    }
    if (thread < kChunk) taps[kTaps * kChunk + thread] = number(bias_);
  }

 private:
  static constexpr int kTapsOfThread = (kTaps * kChunk + kThreads - 1) / kThreads;

  Stored taps_[kTapsOfThread], bias_;
};

}  // namespace sepconv
