// The window's step: a thread slides the window over a run of neighbouring pixels, whose input it loads from a stage once for each row of taps;
// of one channel, or with channels last of some.
#pragma once

#include "../activation.cuh"
#include "stage.cuh"
#include "taps.cuh"

namespace sepconv {

// Channels that a thread has at once, of all pixels of a run.
constexpr int kDeep = kChannelsLast ? 4 : 1;

// Columns of input that a thread has for some taps of a row. Those that many taps and strides far apart need are loaded where they are used.
template <int Columns>
class Span {
 public:
  static constexpr bool kFits = Columns <= 40;

  // `copy`: which of the middle channels of one input channel is the first.
  __device__ __forceinline__ Span(const Stored* first, int copy) : first_(first), copy_(copy) {
    if constexpr (kFits && !kChannelsLast) load_all();
  }
  __device__ __forceinline__ void at(float (&v)[kDeep], int column) const {
    if constexpr (kFits && !kChannelsLast) {
      v[0] = number_in(words_, kLead + column);
    } else if constexpr (kChannelsLast && kMultiplier == 1) {
      const auto piece = *reinterpret_cast<const Piece<kChannelsLast ? kDeep * kElementBytes : 4>*>(first_ + column * kPixelStep);
#pragma unroll
      for (int i = 0; i < kDeep; ++i) v[i] = number_in(piece.words, i);
    } else {
#pragma unroll
      for (int i = 0; i < kDeep; ++i) v[i] = number(first_[kLead + column * kPixelStep + (copy_ + i) / kMultiplier]);
    }
  }

 private:
  static constexpr int kWhole = kRun * kElementBytes < 16 ? kRun * kElementBytes : 16, kWords = kFits ? whole_vectors(kLead + Columns) * kElementBytes / 4 : 1;

  // In vectors, or in what of the first and the last one is needed.
  __device__ __forceinline__ void load_all() {
#pragma unroll
    for (int i = 0; i < kWords * 4 / kWhole; ++i) {
      const int begin = max(kLead * kElementBytes - i * kWhole, 0), end = min((kLead + Columns) * kElementBytes - i * kWhole, kWhole);
      if (end > 0 && begin < kWhole) load_part<kWhole>(i * kWhole, begin, end);
    }
  }
  template <int Bytes>
  __device__ __forceinline__ void load_part(int at, int begin, int end) {
    if constexpr (Bytes > 4) {
      if (end <= Bytes / 2) return load_part<Bytes / 2>(at, begin, end);
      if (begin >= Bytes / 2) return load_part<Bytes / 2>(at + Bytes / 2, begin - Bytes / 2, end - Bytes / 2);
    }
    const auto piece = *reinterpret_cast<const Piece<Bytes>*>(reinterpret_cast<const char*>(first_) + at);
#pragma unroll
    for (int i = 0; i < Bytes / 4; ++i) words_[at / 4 + i] = piece.words[i];
  }

  const Stored* first_;
  int copy_;
  u32 words_[kWords];
};

// A thread has one run of pixels; with channels last some channels of it, else one after the other.
class Window {
 public:
  __device__ __forceinline__ Window(const Call& call, const Plan& plan, int thread)
      : call_(call), run_(kChannelsLast ? thread / kDeeps : thread % kRuns), channel_(kChannelsLast ? thread % kDeeps * kDeep : thread / kRuns),
        in_stage_(plan.stage_row[run_ % kRuns / kRowRuns] * kRowStep + run_ % kRowRuns * kRun * kStrideW * kPixelStep) {}

  // A chunk of the operand.
  __device__ __forceinline__ void compute(u16* operand, const Stored* stage, const float* taps, int chunk) const {
    if constexpr (kChannelsLast) {
      if (run_ < kRuns) slide(operand, stage + in_stage_, Taps(call_, taps, chunk, channel_), chunk, run_, channel_);
    } else {
// While sums wait in registers there are few others.
#pragma unroll(kResident ? 8 : 1)
      for (int i = 0; i < kChunk; i += kThreads / kRuns) {
        const int channel = channel_ + i;
        if (kThreads / kRuns <= kChunk || channel < kChunk) slide(operand, stage + in_stage_, Taps(call_, taps, chunk, channel), chunk, run_, channel);
      }
    }
  }

 private:
  static constexpr int kRuns = kTile / kRun, kDeeps = kChunk / kDeep;
  static_assert(!kChannelsLast || kRuns * kDeeps <= kThreads);
  // Taps of a row that a thread has at once: whole vectors of columns further on are the next ones.
  static constexpr int kAtOnce = kKernelW < 12 ? kKernelW : 8;

  __device__ __forceinline__ void slide(u16* operand, const Stored* stage, const Taps& taps, int chunk, int run, int channel) const {
    const int first = chunk * kChunk + channel, in_stage = kMultiplier == 1 ? channel : first / kMultiplier - first_input(chunk);
    const Stored* row = stage + in_stage * kChannelStep;
    float sums[kRun][kDeep], bias[kDeep];
    taps.load(bias, kTaps);
#pragma unroll
    for (int i = 0; i < kRun * kDeep; ++i) sums[i / kDeep][i % kDeep] = bias[i % kDeep];
#pragma unroll(kTaps <= 25 ? kKernelH : 1)
    for (int h = 0; h < kKernelH; ++h, row += kTapAdvance * kRowStep) {
#pragma unroll 1
      for (int w = 0; w < kKernelW / kAtOnce * kAtOnce; w += kAtOnce) add<kAtOnce>(sums, taps, row, h, w, first % kMultiplier);
      if constexpr (kKernelW % kAtOnce > 0) add<kKernelW % kAtOnce>(sums, taps, row, h, kKernelW / kAtOnce * kAtOnce, first % kMultiplier);
    }
    put(operand, sums, first, run, channel);
  }

  // Some taps of a row of the window, from column w on.
  template <int Count>
  __device__ __forceinline__ void add(float (&sums)[kRun][kDeep], const Taps& taps, const Stored* row, int h, int w, int copy) const {
    constexpr int kColumns = (kRun - 1) * kStrideW + (Count - 1) * kDilationW + 1;
    using Columns = Span<kColumns>;
    float tap[Count][kDeep];
#pragma unroll
    for (int i = 0; i < Count; ++i) taps.load(tap[i], h * kKernelW + w + i);
    const Columns columns(row + w * kDilationW * kPixelStep, copy);
#pragma unroll
    for (int at = 0; at < (Columns::kFits ? kColumns : 0); ++at) {
      float x[kDeep];
      columns.at(x, at);
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        const int pixel = (at - i * kDilationW) / kStrideW;
        if (at >= i * kDilationW && (at - i * kDilationW) % kStrideW == 0 && pixel < kRun) add_one(sums[pixel], tap[i], x);
      }
    }
#pragma unroll
    for (int i = 0; i < (Columns::kFits ? 0 : Count); ++i) {
#pragma unroll
      for (int pixel = 0; pixel < kRun; ++pixel) {
        float x[kDeep];
        columns.at(x, i * kDilationW + pixel * kStrideW);
        add_one(sums[pixel], tap[i], x);
      }
    }
  }
  static __device__ __forceinline__ void add_one(float (&sum)[kDeep], const float (&tap)[kDeep], const float (&x)[kDeep]) {
#pragma unroll
    for (int i = 0; i < kDeep; ++i) sum[i] = fmaf(tap[i], x[i], sum[i]);
  }

  // What places without a pixel have comes from x, or is zero, and nobody reads it; channels that do not exist are zeros.
  __device__ __forceinline__ void put(u16* operand, float (&sums)[kRun][kDeep], int first, int run, int channel) const {
    float v[kChannelsLast ? kRun : 1][kChannelsLast ? kDeep : kRun];
#pragma unroll
    for (int i = 0; i < kRun * kDeep; ++i) {
      const bool exists = kMiddle % kChunk == 0 || first + i % kDeep < kMiddle;
      v[kChannelsLast ? i / kDeep : 0][kChannelsLast ? i % kDeep : i] =
          exists ? activate<kDepthwiseActivation>(sums[i / kDeep][i % kDeep], call_.depthwise_value) : 0.f;
    }
    if constexpr (kChannelsLast) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) store_terms(operand + OperandGrid::place(run * kRun + i, channel / 8) + channel % 8, kOperandTerm, v[i]);
    } else {
      store_terms(operand + OperandGrid::place(channel, run * kRun / 8) + run * kRun % 8, kOperandTerm, v[0]);
    }
  }

  const Call& call_;
  const int run_, channel_, in_stage_;
};

}  // namespace sepconv
