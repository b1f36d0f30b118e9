// What becomes of the sums: bias, activation, and their way into y, by way of shared memory and the copy engine, which writes whole
// rows, or straight from the registers where shared memory is full.
#pragma once

#include "activation.cuh"
#include "exact.cuh"
#include "walk.cuh"

namespace sepconv {

// The sums of a group: thread t of warp w has, of the rows 16 w + t % 32 / 4 and 8 more, the columns 8 j + t % 4 * 2 and 1 more.
class Results {
 public:
  __device__ __forceinline__ Results(const Call& call, u32 staged, int first, int group, int thread)
      : call_(call), staged_(staged), first_(first), group_(group), thread_(thread), row_(thread / 32 * 16 + thread % 32 / 4),
        column_(thread % 4 * 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = first + row_ + 8 * half;
      bias_[half] = kPointwiseBias && output < kOutputs ? element(call.pointwise_bias, output) : 0.f;
    }
  }

  __device__ __forceinline__ void put(float (&sum)[64], int image, int row, int column) {
    // Where an operand does not split into terms (infinities, and what rounds to one), some sum is no number, and neither is
    // the sum of all.
    float all = 0.f;
#pragma unroll
    for (int i = 0; i < 64; ++i) all += sum[i];
    const bool finite = all - all == 0.f;
#pragma unroll
    for (int i = 0; i < 64; ++i) sum[i] = activate<kPointwiseActivation>(kPointwiseBias ? sum[i] + bias_[i / 2 % 2] : sum[i]);
    bool wrong;
    if constexpr (kStaged == 0) {
      put_direct(sum, image, row, column);
      wrong = threads_meet_any(1 + group_, kGroup, !finite);
    } else {
      wrong = put_staged<0>(sum, !finite, image, row, column);
    }
    if (wrong) put_exactly(image, row, column);
  }

  __device__ __forceinline__ void finish() const {
    if (kStaged > 0 && thread_ == 0) wait_stores();
  }

 private:
  // The boxes from Box on, kStaged at a time. Returns whether any thread of the group says that something is wrong.
  template <int Box>
  __device__ __forceinline__ bool put_staged(float (&sum)[64], bool wrong, int image, int row, int column) {
    if (thread_ == 0) wait_stores_read();
    threads_meet(1 + group_, kGroup);
    constexpr int kColumns = kBoxPixels / 8;  // eights of columns in a box
    const u32 to = staged_ + row_ * 128 + ((column_ * kElementBytes / 16 ^ row_ % 8) << 4) + column_ * kElementBytes % 16;
#pragma unroll
    for (int j = 0; j < kStaged * kColumns; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = 4 * (Box * kColumns + j) + 2 * half;
        const u32 at = (to ^ u32(j % kColumns * 8 * kElementBytes)) + j / kColumns * kResultBytes + half * 1024;
        if constexpr (kElement == Element::float32) store_words(at, __float_as_uint(sum[i]), __float_as_uint(sum[i + 1]));
        else store_words(at, pack(sum[i], sum[i + 1]));
      }
    }
    fence_async();
    bool any = threads_meet_any(1 + group_, kGroup, wrong);
    if (thread_ == 0) {
#pragma unroll
      for (int box = 0; box < kStaged; ++box) {
        store_box(call_.y_map, staged_ + box * kResultBytes, column + (Box + box) * kBoxPixels, row, first_, image);
      }
      commit_stores();
    }
    if constexpr (Box + kStaged < kBoxes) any |= put_staged<Box + kStaged>(sum, false, image, row, column);
    return any;
  }

  __device__ __forceinline__ void put_direct(const float (&sum)[64], int image, int row, int column) const {
    const long long plane = (long long)(kOutH) * kOutW;
    const long long start = ((long long)(image) * kOutputs + first_ + row_) * plane + (long long)(row) * kOutW + column + column_;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (first_ + row_ + 8 * half >= kOutputs) continue;
#pragma unroll
      for (int j = 0; j < kTile / 8; ++j) {
        const long long at = start + half * 8 * plane + 8 * j;
        const int i = 4 * j + 2 * half;
        if (column + column_ + 8 * j >= kOutW) continue;  // a pair is inside or outside: rows are whole 16 bytes
        if constexpr (kElement == Element::float32) *reinterpret_cast<float2*>(static_cast<float*>(call_.y) + at) = {sum[i], sum[i + 1]};
        else *reinterpret_cast<u32*>(static_cast<u16*>(call_.y) + at) = pack(sum[i], sum[i + 1]);
      }
    }
  }

  // The group's part of the tile again, as the reference computes it.
  __device__ __forceinline__ void put_exactly(int image, int row, int column) const {
    if (kStaged > 0 && thread_ == 0) wait_stores();
    threads_meet(1 + group_, kGroup);
    compute_exactly(call_, image, first_, row, column, thread_);
  }

  const Call& call_;
  const u32 staged_;
  const int first_, group_, thread_, row_, column_;
  float bias_[2];
};

}  // namespace sepconv
