// The pointwise step: blocks of a matrix product whose sums stay in registers until they are finished results.
#pragma once

#include "call.h"

namespace sepconv {

// Where a block of results goes. Rows are output channels and columns pixels; in channels_last it is the other way round.
struct Target {
  Element* y;
  const Element* residual;  // or null
  long pitch;               // from one row to the next, of y and of the residual
  const float* bias;        // or null; of the first row (in channels_last: of the first column)
  float value;              // of the activation
  bool streaming;
};

// Past the caches where that is asked for and aligned: y is not read again here, and must not drive the operands out.
SEPCONV_INLINE void put(Element* p, Vector v, bool streaming) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Element) == 4) {
    if (streaming) return _mm512_stream_ps(reinterpret_cast<float*>(p), __m512(v));
  }
#endif
  (void)streaming;
  store(p, v);
}

// Rows x (Vectors * kLanes) results: `a` holds the rows with `pitch` between them, `b` one panel of kPanel columns.
template <int Rows, int Vectors>
__attribute__((noinline)) void multiply(const float* a, long pitch, const float* b, long depth, const Target& target) {
  Vector sum[Rows][Vectors] = {};
  for (long k = 0; k < depth; ++k) {
    Vector column[Vectors];
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; ++j) column[j] = load(b + k * kPanel + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) sum[i][j] += a[i * pitch + k] * column[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; ++j) {
      const long at = i * target.pitch + j * kLanes;
      Vector v = sum[i][j];
      if (target.bias) v += kChannelsLast ? load(target.bias + j * kLanes) : fill(target.bias[i]);
      v = activate<kPointwiseActivation>(v, target.value);
      if (target.residual) v += load(target.residual + at);
      put(target.y + at, v, target.streaming);
    }
  }
}

// How many of these rows the next block takes: as many as the registers hold, or a smaller block that is compiled too.
constexpr int block_rows(long rows) {
  for (int block : {kRows, 8, 4, 2}) {
    if (block <= kRows && rows >= block) return block;
  }
  return 1;
}

// One block of block_rows(...) rows over one panel, of which only the first vector is computed where that is enough.
template <int Block = kRows>
SEPCONV_INLINE void multiply_block(int rows, bool whole, const float* a, long pitch, const float* b, long depth,
                                   const Target& target) {
  if (rows == Block) {
    if (whole) return multiply<Block, kVectors>(a, pitch, b, depth, target);
    return multiply<Block, 1>(a, pitch, b, depth, target);
  }
  if constexpr (Block > 1) {
    multiply_block<block_rows(Block - 1)>(rows, whole, a, pitch, b, depth, target);
  }
}

}  // namespace sepconv
