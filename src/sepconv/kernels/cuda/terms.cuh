// Numbers as sums of 16-bit terms: one for 16-bit tensors, two or three for float32.
#pragma once

#include "words.cuh"

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

}  // namespace sepconv
