// The operands of the product as sums of 16-bit terms, where the matrix units read them: rows of 128 bytes, whose pieces of 16
// bytes lie swizzled by the row's number.
#pragma once

#include "fragments.cuh"
#include "order.cuh"
#include "problem.cuh"
#include "ptx.cuh"

namespace sepconv {

// Two numbers less their next term, which is given back as a pair. With CutOff all but the last are cut off, not rounded:
// fewer instructions, and with three terms as exact, since the next one holds the rest. Of one operand of a product only: the
// products that are left out would all have one sign.
template <bool CutOff>
__device__ __forceinline__ u32 take_term(float& first, float& second, bool is_last) {
  if (CutOff && !is_last) {
    const u32 a = __float_as_uint(first), b = __float_as_uint(second);
    first -= __uint_as_float(a & 0xffff0000);
    second -= __uint_as_float(b & 0xffff0000);
    return __byte_perm(a, b, 0x7632);
  }
  const u32 pair = pack(first, second);
  if (is_last) return pair;
  first -= unpack(u16(pair));
  second -= unpack(u16(pair >> 16));
  return pair;
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
