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
  Activate activation;
};

// Sums run over so many products at most before they are added up: rounding errors grow with the length of a sum.
constexpr long kRun = 256;

template <int Rows, int Vectors>
SEPCONV_INLINE void add_products(Vector (&sum)[Rows][Vectors], const float* a, long pitch, const float* b, long depth) {
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
}

// Rows x (Vectors * kLanes) results: `a` holds the rows with `pitch` between them, `b` one panel of kPanel columns.
template <int Rows, int Vectors>
__attribute__((noinline)) void multiply(const float* a, long pitch, const float* b, long depth, const Target& target) {
  Vector sum[Rows][Vectors] = {};
  if (depth <= kRun) {
    add_products(sum, a, pitch, b, depth);
  } else {
    Vector total[Rows][Vectors] = {};
    for (long k = 0; k < depth; k += kRun) {
      Vector part[Rows][Vectors] = {};
      add_products(part, a + k, pitch, b + k * kPanel, depth - k < kRun ? depth - k : kRun);
      for (int i = 0; i < Rows; ++i) {
        for (int j = 0; j < Vectors; ++j) total[i][j] += part[i][j];
      }
    }
    for (int i = 0; i < Rows; ++i) {
      for (int j = 0; j < Vectors; ++j) sum[i][j] = total[i][j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; ++j) {
      const long at = i * target.pitch + j * kLanes;
      Vector v = sum[i][j];
      if (target.bias) v += kChannelsLast ? load(target.bias + j * kLanes) : fill(target.bias[i]);
      v = activate<kPointwiseActivation>(v, target.activation);
      if (target.residual) v += load(target.residual + at);
      store(target.y + at, v);
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

// One block of block_rows(...) rows over the first `vectors` vectors of a panel.
template <int Block = kRows, int Vectors = kVectors>
SEPCONV_INLINE void multiply_block(int rows, long vectors, const float* a, long pitch, const float* b, long depth,
                                   const Target& target) {
  if (rows == Block && vectors == Vectors) return multiply<Block, Vectors>(a, pitch, b, depth, target);
  if constexpr (Vectors > 1) {
    if (vectors < Vectors) return multiply_block<Block, Vectors - 1>(rows, vectors, a, pitch, b, depth, target);
  }
  if constexpr (Block > 1) multiply_block<block_rows(Block - 1), Vectors>(rows, vectors, a, pitch, b, depth, target);
}

}  // namespace sepconv
