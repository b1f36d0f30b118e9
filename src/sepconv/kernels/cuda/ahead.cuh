// Rows of taps that are too many to stay in shared memory: each warp brings the row of its next channels while it slides over this one,
// and lays it out where no other warp reads it.
#pragma once

#include "taps.cuh"

namespace sepconv {

// `Sharing` lanes share a channel, and bring its taps together.
template <int Sharing>
class TapsAhead {
 public:
  __device__ __forceinline__ TapsAhead(const Call& call, int rank) : call_(call), rank_(rank) {}

  // A row of taps of one of the block's own channels, and with the first row the bias.
  __device__ __forceinline__ void fetch(int own, int h) {
    const int channel = channel_of(own, rank_);
    const bool exists = channel < kChannels;
    const Stored* const from = static_cast<const Stored*>(call_.depthwise_weight) + (long long)(channel * kKernelH + h) * kKernelW;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) taps_[i] = exists && tap(i) < kKernelW ? __ldg(from + tap(i)) : Stored(0);
    if (kDepthwiseBias && h == 0) next_bias_ = exists ? __ldg(static_cast<const Stored*>(call_.depthwise_bias) + channel) : Stored(0);
  }
  // What was fetched: put(tap, value) for each; the bias of the channel.
  template <typename Put>
  __device__ __forceinline__ float lay_out(Put put) const {
    __syncwarp();  // nobody reads the row before
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (tap(i) < kKernelW) put(tap(i), taps_[i]);
    }
    __syncwarp();
    return kDepthwiseBias ? number(next_bias_) : 0.f;
  }

 private:
  static constexpr int kOfLane = (kKernelW + Sharing - 1) / Sharing;
  static __device__ __forceinline__ int tap(int i) { return unforeseen(threadIdx.x) % Sharing + i * Sharing; }

  const Call& call_;
  const int rank_;
  Stored taps_[kOfLane], next_bias_;
};

// The row of taps behind one of a team's: of the same channel, of the next step's, of the next chunk's or, behind the last one, of the first.
struct TapRow {
  int part, step, h;

  template <int Steps, int Teams>
  __device__ __forceinline__ TapRow next() const {
    if (h + 1 < kKernelH) return {part, step, h + 1};
    if (step + 1 < Steps) return {part, step + 1, 0};
    return {part + Teams < kOwnChunks ? part + Teams : 0, 0, 0};
  }
};

}  // namespace sepconv
