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
  long columns;  // how many of the panel's exist
  bool streams;  // past the caches; see `streams`
};

// Whether a block's rows, whole cache lines each, go past the caches: those of a large result. An ordinary store first fetches the
// line that it overwrites, and a core that waits for as many as it can (16) writes no more than 10 GB/s: (1, 64, 512, 512) -> 128 took
// 16 ms instead of 14. What fits into the last-level cache is left there for whoever reads it next: a MobileNet in which results of 1
// to 12 MiB were streamed took 40 ms instead of 36 (2 cores of a Xeon, 2026-11-30).
constexpr long kStreamed = 16 << 20;
SEPCONV_INLINE bool streams(const Call& call, const Target& target) {
  // Parts of lines, as 48 columns of 16 bits have them, would be written to memory one by one: bfloat16 took 14 ms instead of 8.
  if (kPanel * sizeof(Element) % 64 != 0) return false;
  const bool lines = (reinterpret_cast<std::uintptr_t>(target.y) | std::uintptr_t(target.pitch) * sizeof(Element)) % 64 == 0;
  return lines && target.columns == kPanel && call.batch * call.outputs * call.pixels() * long(sizeof(Element)) >= kStreamed;
}

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

#if defined(__AVX512BF16__)
// Two products at a time: a lane of a column holds the bfloat16 of two neighbours in the depth, as a row of `a` has them.
template <int Rows, int Vectors>
SEPCONV_INLINE void add_products(Vector (&sum)[Rows][Vectors], const BFloat16* a, long pitch, const BFloat16* b, long depth) {
  for (long k = 0; k < depth; k += 2) {
    __m512bh column[Vectors];
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; ++j) column[j] = __m512bh(_mm512_loadu_si512(b + k * kPanel + 2 * j * kLanes));
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      int pair;
      std::memcpy(&pair, a + i * pitch + k, sizeof pair);
      const __m512bh row = __m512bh(_mm512_set1_epi32(pair));
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) sum[i][j] = Vector(_mm512_dpbf16_ps(__m512(sum[i][j]), row, column[j]));
    }
  }
}
#endif

// Bias, activation and residual of one vector of results, and its way into y.
SEPCONV_INLINE void finish(Vector sum, const Target& target, int row, int column) {
  const long at = row * target.pitch + column;
  if (target.bias) sum += kChannelsLast ? load(target.bias + column) : fill(target.bias[row]);
  sum = activate<kPointwiseActivation>(sum, target.activation);
  const long existing = target.columns - column;
  const bool whole = existing >= kLanes;
  if (target.residual) sum += whole ? load(target.residual + at) : load_some(target.residual + at, existing);
  if (target.streams) stream(target.y + at, sum);
  else if (whole) store(target.y + at, sum);
  else store_some(target.y + at, sum, existing);
}

// Rows x (Vectors * kLanes) results: `a` holds the rows with `pitch` between them, `b` one panel of kPanel columns.
template <int Rows, int Vectors>
__attribute__((noinline)) void multiply(const Operand* a, long pitch, const Operand* b, long depth, const Target& target) {
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
    for (int j = 0; j < Vectors; ++j) finish(sum[i][j], target, i, j * kLanes);
  }
}

// How many of these rows the next block takes: as many as the registers hold, or a smaller block that is compiled too.
constexpr int block_rows(long rows) {
  if (kUnits == Units::matrices) return rows < kBlock ? int(rows) : kBlock;
  for (int block : {kRows, 8, 4, 2}) {
    if (block <= kRows && rows >= block) return block;
  }
  return 1;
}

#if defined(__AMX_BF16__) || defined(__AMXBF16__)  // what gcc, and what clang defines
}  // namespace sepconv

#include "matrices.h"

namespace sepconv {
#else
static_assert(kUnits != Units::matrices, "this compiler does not say that it knows the matrix units");

// What a thread has to set up before it multiplies: nothing.
struct Session {
  Session() {}
};

template <int Block = kRows, int Vectors = kVectors>
SEPCONV_INLINE void multiply_block(int rows, long vectors, const Operand* a, long pitch, const Operand* b, long depth,
                                   const Target& target) {
  if (rows == Block && vectors == Vectors) return multiply<Block, Vectors>(a, pitch, b, depth, target);
  if constexpr (Vectors > 1) {
    if (vectors < Vectors) return multiply_block<Block, Vectors - 1>(rows, vectors, a, pitch, b, depth, target);
  }
  if constexpr (Block > 1) multiply_block<block_rows(Block - 1), Vectors>(rows, vectors, a, pitch, b, depth, target);
}

class Multiplier {
 public:
  // One block of block_rows(...) rows over the first `vectors` vectors of a panel.
  void block(int rows, long vectors, const Operand* a, long pitch, const Operand* b, long depth, const Target& target) {
    multiply_block(rows, vectors, a, pitch, b, depth, target);
  }

  // Wait for the results of the last block: they are there.
  void complete() {}
};

#endif

}  // namespace sepconv
