// The operands of the product as sums of 16-bit terms, where the matrix units read them: rows of 128 bytes, whose pieces of 16
// bytes lie swizzled by the row's number.
#pragma once

#include "problem.cuh"
#include "ptx.cuh"

namespace sepconv {

// Two numbers less their next term, which is given back as a pair. With CutOff all but the last are cut off, not rounded:
// fewer instructions, and with three terms as exact, since the next one holds the rest.
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

// Where a channel of a chunk has its pixels, from `pixel` (a multiple of four) on, in a slot.
__device__ __forceinline__ u32 operand_offset(int channel, int pixel) {
  const int piece = pixel % 64 / 8;
  return pixel / 64 * kPixelGroupBytes + channel * 128 + ((piece ^ channel % 8) << 4) + pixel % 8 * 2;
}

// Four neighbouring pixels of one channel, all terms.
__device__ __forceinline__ void put_terms(u32 to, float (&v)[4]) {
#pragma unroll
  for (int t = 0; t < kTerms; ++t) {
    const bool is_last = t + 1 == kTerms;
    const u32 low = take_term<kTerms == 3>(v[0], v[1], is_last);
    store_words(to + t * kTermBytes, low, take_term<kTerms == 3>(v[2], v[3], is_last));
  }
}

// The pointwise weights of this block's output channels; zeros where there are none. By `threads` threads.
__device__ __forceinline__ void load_weights(u32 weights, const void* weight, int first, int thread, int threads) {
  constexpr int kPieces = kWeightBlocks * 8;  // of eight channels
  for (int i = thread; i < kBlockOutputs * kPieces; i += threads) {
    const int output = i / kPieces, piece = i % kPieces;
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int channel = piece * 8 + j;
      const bool exists = first + output < kOutputs && channel < kChannels;
      v[j] = exists ? element(weight, (long long)(first + output) * kChannels + channel) : 0.f;
    }
    const u32 to = weights + piece / 8 * kWeightBlockBytes + output * 128 + ((piece % 8 ^ output % 8) << 4);
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      u32 pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) pairs[j] = take_term<false>(v[2 * j], v[2 * j + 1], t + 1 == kTerms);
      store_words(to + t * kWeightTermBytes, pairs);
    }
  }
}

}  // namespace sepconv
