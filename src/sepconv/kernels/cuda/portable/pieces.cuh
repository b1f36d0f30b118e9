// Elements on their way between memory and registers: some bytes of a tensor at once, and neighbours of an operand as terms.
#pragma once

#include "../terms.cuh"
#include "problem.cuh"

namespace sepconv {

// As many bytes as are loaded at once.
template <int Bytes>
struct alignas(Bytes) Piece {
  u32 words[Bytes / 4];
};

template <int Count>
__device__ __forceinline__ void store_pairs(u16* to, const u32 (&pairs)[Count]) {
  if constexpr (Count == 4) *reinterpret_cast<uint4*>(to) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  else if constexpr (Count == 2) *reinterpret_cast<uint2*>(to) = {pairs[0], pairs[1]};
  else *reinterpret_cast<u32*>(to) = pairs[0];
}
template <int Count>
__device__ __forceinline__ void store_terms(u16* to, int term_step, float (&v)[Count]) {
#pragma unroll
  for (int t = 0; t < kTerms; ++t) {
    u32 pairs[Count / 2];
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) pairs[i] = take_term<false>(v[2 * i], v[2 * i + 1], t + 1 == kTerms);
    store_pairs(to + t * term_step, pairs);
  }
}

__device__ __forceinline__ u32 bits_of(float stored) { return __float_as_uint(stored); }
__device__ __forceinline__ u32 bits_of(u16 stored) { return stored; }
// One element of some words of a tensor.
template <int Count>
__device__ __forceinline__ float number_in(const u32 (&words)[Count], int i) {
  if constexpr (kElement == Element::float32) return __uint_as_float(words[i]);
  else return unpack(u16(words[i / 2] >> i % 2 * 16));
}

// Neighbouring numbers, which lie on whole vectors.
template <int Count>
__device__ __forceinline__ void load_vector(float (&v)[Count], const float* from) {
  constexpr int kFloats = Count % 4 == 0 ? 4 : Count % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int i = 0; i < Count / kFloats; ++i) {
    const auto piece = reinterpret_cast<const Piece<kFloats * 4>*>(from)[i];
#pragma unroll
    for (int j = 0; j < kFloats; ++j) v[i * kFloats + j] = __uint_as_float(piece.words[j]);
  }
}

}  // namespace sepconv
