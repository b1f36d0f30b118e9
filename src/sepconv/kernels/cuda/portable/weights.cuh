// The weights of a block of output channels and a chunk on their way into shared memory, while those before them are multiplied: of 16 bits by
// copies, two steps ahead; of float32 in registers, one step ahead, and from there as terms.
#pragma once

#include "../async.cuh"
#include "pieces.cuh"

namespace sepconv {

// A thread's part: some pieces of eight channels.
class WeightsAhead {
 public:
  static constexpr bool kInPlace = kElement != Element::float32;  // copies go to where stages are, if all operands are computed first
  static constexpr int kSteps = kInPlace ? 2 : 1;                 // so far ahead

  __device__ __forceinline__ WeightsAhead(const Call& call, u16* slots, int thread) : call_(call), slots_(slots), thread_(thread) {}

  // `step`: which of all steps this is.
  __device__ __forceinline__ void fetch(int block, int chunk, int step) {
    for_pieces([&](int i, int row, int piece) {
      const int output = block * kBlock + row, first = chunk * kChunk + piece * 8, count = output < kOutputs ? kMiddle - first : 0;
      const Stored* const from = call_.pointwise_weight + (long long)(output) * kMiddle + first;
      if constexpr (kInPlace) {
        u16* const to = slot(step) + WeightGrid::place(row, piece);
        if (kWhole) start_copy<16>(to, count > 0 ? from : call_.pointwise_weight, count > 0);
        else gather(reinterpret_cast<Piece<16>*>(to)->words, from, count);
      } else if (kWhole) {
#pragma unroll
        for (int j = 0; j < 2; ++j) load(words_[i], j, count > 0 ? reinterpret_cast<const Piece<16>*>(from)[j] : Piece<16>{});
      } else {
        gather(words_[i], from, count);
      }
    });
  }
  // What was fetched for a step is there when all threads have met behind this (and behind the wait for its copies).
  __device__ __forceinline__ void put(int step) {
    if constexpr (kInPlace) return;
    for_pieces([&](int i, int row, int piece) {
      float v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = __uint_as_float(words_[i][j]);
      store_terms(slot(step) + WeightGrid::place(row, piece), kWeightTerm, v);
    });
  }

  __device__ __forceinline__ u16* slot(int step) const { return slots_ + step % kWeightSlots * kWeights; }

 private:
  static constexpr int kPieces = (kBlock * 4 + kThreads - 1) / kThreads;
  static constexpr bool kWhole = kMiddle % 8 == 0;  // all rows begin with whole pieces

  template <typename F>
  __device__ __forceinline__ void for_pieces(F f) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = i * kThreads + thread_;
      if (kBlock * 4 % kThreads == 0 || at < kBlock * 4) f(i, at / 4, at % 4);
    }
  }
  static __device__ __forceinline__ void load(u32 (&words)[8], int half, const Piece<16>& piece) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[half * 4 + i] = piece.words[i];
  }
  // The first elements of a piece, one by one, and zeros behind them.
  template <int Count>
  static __device__ __forceinline__ void gather(u32 (&words)[Count], const Stored* from, int count) {
    constexpr int kInWord = 4 / kElementBytes;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      u32 word = 0;
#pragma unroll
      for (int j = 0; j < kInWord; ++j) {
        if (i * kInWord + j < count) word |= bits_of(__ldg(from + i * kInWord + j)) << 16 * j;
      }
      words[i] = word;
    }
  }

  const Call& call_;
  u16* const slots_;
  const int thread_;
  u32 words_[kPieces][8];  // of float32
};

}  // namespace sepconv
