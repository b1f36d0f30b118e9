// The taps of a chunk: on their way in registers while the chunk before is computed, and then in shared memory as float32.
#pragma once

#include "pieces.cuh"

namespace sepconv {

// A thread's part.
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
      if (at < kChunk * kTaps) taps[at % kTaps * kTapStep + at / kTaps * kTapChannelStep] = number(taps_[i]);
    }
    if (thread < kChunk) taps[kTaps * kTapStep + thread * kTapChannelStep] = number(bias_);
  }

 private:
  static constexpr int kTapsOfThread = kTapsInShared ? (kTaps * kChunk + kThreads - 1) / kThreads : 1;

  Stored taps_[kTapsOfThread], bias_;
};

// Those of a channel of a chunk, with channels last of some neighbours too: few of one channel in registers, else where they lie.
class Taps {
 public:
  __device__ __forceinline__ Taps(const Call& call, const float* of_chunk, int chunk, int in_chunk)
      : call_(call), of_channel_(of_chunk + in_chunk * kTapChannelStep), channel_(chunk * kChunk + in_chunk) {
    if constexpr (kTapsHeld) load_vector(held_, of_channel_);
  }

  // Tap kTaps is the bias.
  template <int Count>
  __device__ __forceinline__ void load(float (&v)[Count], int tap) const {
    if constexpr (kTapsHeld) {
      v[0] = held_[tap];
    } else if constexpr (kTapsInShared) {
      load_vector(v, of_channel_ + tap * kTapStep);
    } else {
#pragma unroll
      for (int i = 0; i < Count; ++i) v[i] = channel_ + i < kMiddle ? tap_of(tap, channel_ + i) : 0.f;
    }
  }

 private:
  __device__ __forceinline__ float tap_of(int tap, int channel) const {
    if (tap < kTaps) return number(__ldg(call_.depthwise_weight + channel * (long long)(kTaps) + tap));
    return kDepthwiseBias ? number(__ldg(call_.depthwise_bias + channel)) : 0.f;
  }

  const Call& call_;
  const float* of_channel_;
  float held_[kTapsHeld ? kTapChannelStep : 1];
  int channel_;
};

}  // namespace sepconv
