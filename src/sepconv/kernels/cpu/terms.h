// float32 as a sum of bfloat16 terms: what lets matrix units of bfloat16 multiply float32 (kTerms = 3) and float16 (kTerms = 2).
//
// A float32 has 24 significant bits and is exactly the sum of three bfloat16 of 8 bits each, as long as none of them is so small
// that it counts as zero. Of the nine products of two such sums the six largest are enough: what is left out is about 2^-24 of
// the result, as much as float32 rounds. (The method: G. Henry, P. Tang, A. Heinecke, "Leveraging the bfloat16 artificial
// intelligence datatype for higher-precision computations", ARITH 2019.)
#pragma once

#include "call.h"

namespace sepconv {

// Whether the terms stand for their numbers. Infinities do not split, sums of huge numbers overflow term by term, and the terms
// of tiny numbers vanish. A tensor whose largest absolute value is between these bounds loses nothing that could be seen in the
// result: 2^-40 * 2^-40, with 24 bits below it, is still a normal number, and 2^60 * 2^60 may be summed up 2^7 times.
constexpr std::uint32_t kSmallestMaximum = (127u - 40) << 23, kLargestMaximum = (127u + 60) << 23;

// The largest absolute value of what it has seen, by the bits: NaN and infinity are larger than every number.
struct Largest {
  Bits bits{};

  SEPCONV_INLINE void see(Vector v) {
    const Bits magnitude = reinterpret_cast<Bits>(v) & 0x7fffffff;
    bits = magnitude > bits ? magnitude : bits;
  }
  void see(const Largest& other) { bits = other.bits > bits ? other.bits : bits; }

  bool splits() const {
    std::uint32_t largest = 0;
    for (int i = 0; i < kLanes; ++i) largest = bits[i] > largest ? bits[i] : largest;
    return largest == 0 || (largest >= kSmallestMaximum && largest <= kLargestMaximum);
  }
};

// What one thread has seen of the two operands that were split.
struct Seen {
  Largest results, weights;
};

// The terms of a vector, one `step` after the other, each the nearest to what is left.
SEPCONV_INLINE void store_terms(Operand* p, long step, Vector v) {
#pragma GCC unroll 3
  for (int t = 0; t < kTerms; ++t) {
    store(p + t * step, v);
    if (t + 1 < kTerms) v -= load(p + t * step);
  }
}

// The same for two vectors, the second behind the first; all their terms together hold them exactly. Ties go away from zero.
SEPCONV_INLINE void store_exact_terms(Operand* p, long step, Vector first, Vector second) {
#pragma GCC unroll 3
  for (int t = 0; t < kTerms; ++t) {
    const Bits low = reinterpret_cast<Bits>(first) + 0x8000, high = reinterpret_cast<Bits>(second) + 0x8000;
    const Words term = every_second<1>(reinterpret_cast<Words>(low), reinterpret_cast<Words>(high));
    std::memcpy(p + t * step, &term, sizeof term);
    first -= reinterpret_cast<Vector>(low & 0xffff0000);
    second -= reinterpret_cast<Vector>(high & 0xffff0000);
  }
}

// The terms of two vectors lane by lane as pairs. Each but a single one is cut off, not rounded: half the instructions, and as
// exact, since the next term holds the rest. For one operand only: with both cut off, the products that are left out would all
// have the sign of the result (an Xception of 36 layers was 1.3e-6 off instead of 0.3e-6).
SEPCONV_INLINE void store_pair_terms(Operand* p, long step, Vector first, Vector second) {
  if constexpr (kTerms == 1) return store_pairs(reinterpret_cast<BFloat16*>(p), first, second);
#pragma GCC unroll 3
  for (int t = 0; t < kTerms; ++t) {
    const Bits low = reinterpret_cast<Bits>(first), high = reinterpret_cast<Bits>(second) & 0xffff0000;
    const Bits pairs = low >> 16 | high;
    std::memcpy(p + t * step, &pairs, sizeof pairs);
    first -= reinterpret_cast<Vector>(low & 0xffff0000);
    second -= reinterpret_cast<Vector>(high);
  }
}

}  // namespace sepconv
