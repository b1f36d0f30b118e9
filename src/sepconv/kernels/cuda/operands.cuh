// The operands of the product as sums of 16-bit terms, where the matrix units read them: rows of 128 bytes, whose pieces of 16
// bytes lie swizzled by the row's number.
#pragma once

#include "fragments.cuh"
#include "order.cuh"
#include "problem.cuh"
#include "ptx.cuh"
#include "terms.cuh"

namespace sepconv {

template <int Count>
__device__ __forceinline__ void load_floats(float* v, u32 from) {
  float words[Count];
  load_words(words, from);
#pragma unroll
  for (int i = 0; i < Count; ++i) v[i] = words[i];
}

// Neighbouring elements of input as float32.
template <int Count>
__device__ __forceinline__ void load_elements(float* v, u32 from) {
  if constexpr (kElement == Element::float32) {
    load_floats<Count>(v, from);
  } else {
    u32 pairs[Count / 2];
    load_words(pairs, from);
#pragma unroll
    for (int i = 0; i < Count; ++i) v[i] = unpack(u16(pairs[i / 2] >> i % 2 * 16));
  }
}

// Neighbouring elements of the operand (pixels or, with channels last, channels), all terms: store(term, pairs) for each.
template <int Count, typename Store>
__device__ __forceinline__ void for_terms(float (&v)[Count], Store store) {
#pragma unroll
  for (int t = 0; t < kTerms; ++t) {
    const bool is_last = t + 1 == kTerms;
    u32 pairs[Count / 2];
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) pairs[i] = take_term<kTerms == 3>(v[2 * i], v[2 * i + 1], is_last);
    store(t, pairs);
  }
}

}  // namespace sepconv
