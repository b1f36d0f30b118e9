// The operands of the product as sums of 16-bit terms, where the matrix units read them: rows of 128 bytes, whose pieces of 16
// bytes lie swizzled by the row's number.
#pragma once

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

// Neighbouring elements of a row of the operand (pixels or, with channels last, channels), all terms; `to` is a multiple of
// their bytes.
template <int Count>
__device__ __forceinline__ void put_terms(u32 to, float (&v)[Count]) {
#pragma unroll
  for (int t = 0; t < kTerms; ++t) {
    const bool is_last = t + 1 == kTerms;
    u32 pairs[Count / 2];
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) pairs[i] = take_term<kTerms == 3>(v[2 * i], v[2 * i + 1], is_last);
    store_words(to + t * kTermBytes, pairs);
  }
}

// Eight neighbouring channels of a row of weights; zeros where there are none.
__device__ __forceinline__ void load_eight(float (&v)[8], const void* weight, int output, int channel, bool aligned) {
  const long long at = (long long)(output) * kChannels + channel;
  const char* const from = static_cast<const char*>(weight) + at * kElementBytes;
  if (kChannels % 8 == 0 && aligned && output < kOutputs && channel < kChannels) {
    u32 words[2 * kElementBytes];
#pragma unroll
    for (int i = 0; i < 2 * kElementBytes; i += 4) {
      const uint4 four = __ldg(reinterpret_cast<const uint4*>(from) + i / 4);
      words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if constexpr (kElement == Element::float32) v[j] = __uint_as_float(words[j]);
      else v[j] = unpack(u16(words[j / 2] >> j % 2 * 16));
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = output < kOutputs && channel + j < kChannels ? element(weight, at + j) : 0.f;
}

// The weights of a product as its threads hold them: of 16 channels and the 16 rows of a warp, lane l has the rows l / 4 and 8
// more, and of those the channels l % 4 * 2 and 1 more, and 8 more. In shared memory lie, for each chunk and each 16 rows, the
// first four of every lane and then the others.
constexpr int kFragmentBytes = 32 * 8 * 4;

__device__ __forceinline__ void put_fragments(u32 weights, int output, int piece, const float (&v)[8]) {
  const u32 at = weights + (piece / 2 * (kBlockOutputs / 16) + output / 16) * kFragmentBytes;
  const u32 to = at + piece % 2 * (kFragmentBytes / 2) + output % 8 * 4 * 16 + output % 16 / 8 * 8;
#pragma unroll
  for (int j = 0; j < 4; ++j) store_words(to + j * 16, {__float_as_uint(v[2 * j]), __float_as_uint(v[2 * j + 1])});
}

// The first terms of a lane's part, `fragment` being where its first four lie.
template <int Terms>
__device__ __forceinline__ void load_fragment(u32 (&terms)[Terms][4], u32 fragment) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float v[4];
    load_words(v, fragment + half * (kFragmentBytes / 2));
#pragma unroll
    for (int t = 0; t < Terms; ++t) {
#pragma unroll
      for (int j = 0; j < 2; ++j) terms[t][2 * half + j] = take_term<false>(v[2 * j], v[2 * j + 1], t + 1 == kTerms);
    }
  }
}

// The pointwise weights of this block's output channels, by all threads.
__device__ __forceinline__ void load_weights(u32 weights, const void* weight, int first) {
  constexpr int kPieces = kSplitAnew ? kChunks * kChunk / 8 : kWeightBlocks * 8;  // of eight channels
  const bool aligned = reinterpret_cast<u64>(weight) % 16 == 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < kBlockOutputs * kPieces; i += kThreads) {
    const int output = i / kPieces, piece = i % kPieces;
    float v[8];
    load_eight(v, weight, first + output, piece * 8, aligned);
    if constexpr (kSplitAnew) {
      put_fragments(weights, output, piece, v);
      continue;
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
