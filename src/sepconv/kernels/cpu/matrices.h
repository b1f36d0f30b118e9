// The product by matrix units (AMX): blocks of up to 32 x 32 results, two by two tiles of 16 x 16.
#pragma once

#include "product.h"

namespace sepconv {

// Gives a thread's eight tile registers their shape, 16 rows of 64 bytes, for as long as this object lives.
class Session {
 public:
  Session() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } shape;
    for (int i = 0; i < 8; ++i) shape.row_bytes[i] = 64, shape.rows[i] = 16;
    _tile_loadconfig(&shape);
  }
  ~Session() { _tile_release(); }
  Session(const Session&) = delete;
};

// Which terms are multiplied: all pairs but the smallest, in an order in which each differs from the one before in one of the two
// where that is possible, the largest last.
struct TermsOf {
  int a, b;
};
constexpr TermsOf kOfOne[] = {{0, 0}}, kOfTwo[] = {{1, 0}, {0, 1}, {0, 0}};
constexpr TermsOf kOfThree[] = {{0, 2}, {0, 1}, {1, 1}, {1, 0}, {2, 0}, {0, 0}};
constexpr const TermsOf* kTermsOf = kTerms == 1 ? kOfOne : kTerms == 2 ? kOfTwo : kOfThree;
constexpr int kProducts = kTerms * (kTerms + 1) / 2;

// Both operands come from the second-level cache or from beyond, and the units wait for them: the next step of the depth is fetched
// while this one is multiplied, a part of it before each product ((1, 728, 19, 19) -> 728: 970 us instead of 1170, 2026-11-30). Behind
// the last step lies the next panel, or whatever; hints only.
SEPCONV_INLINE void fetch(const BFloat16* step, int product) {
  constexpr int kLine = 32, kLines = (kTerms * int(kTermInPanel) / kLine + kProducts - 1) / kProducts;
#pragma GCC unroll 32
  for (int i = 0; i < kLines; ++i) __builtin_prefetch(step + (product * kLines + i) * kLine, 0, 3);
}

// The sums of one block over [begin, end) of the depth, added to what is there unless they are fresh. Two says whether there is a
// second tile of rows, and of columns.
template <bool TwoRows, bool TwoColumns>
SEPCONV_INLINE void multiply_tiles(const BFloat16* a, const BFloat16* b, long begin, long end, bool fresh, float* sums) {
  constexpr int kDepthBytes = kDepthStep * 2;  // of a row of a block
  constexpr int kRowBytes = kPanel * 4;  // of the panel, for two neighbours in the depth, and of the sums
  if (fresh) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kRowBytes);
    if constexpr (TwoColumns) _tile_loadd(1, sums + 16, kRowBytes);
    if constexpr (TwoRows) _tile_loadd(2, sums + 16 * kPanel, kRowBytes);
    if constexpr (TwoRows && TwoColumns) _tile_loadd(3, sums + 16 * kPanel + 16, kRowBytes);
  }
  for (long k = begin; k < end; k += kDepthStep) {
#pragma GCC unroll 8
    for (int i = 0; i < kProducts; ++i) {
      const BFloat16* row = a + in_block(0, k) + kTermsOf[i].a * kTermInBlock;
      const BFloat16* column = b + in_panel(k) + kTermsOf[i].b * kTermInPanel;
      if (i == 0 || kTermsOf[i].a != kTermsOf[i - 1].a) {
        _tile_loadd(4, row, kDepthBytes);
        if constexpr (TwoRows) _tile_loadd(5, row + 16 * kDepthStep, kDepthBytes);
      }
      if (i == 0 || kTermsOf[i].b != kTermsOf[i - 1].b) {
        _tile_loadd(6, column, kRowBytes);
        if constexpr (TwoColumns) _tile_loadd(7, column + 32, kRowBytes);
      }
      fetch(a + in_block(0, k + kDepthStep), i);
      fetch(b + in_panel(k + kDepthStep), i);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (TwoColumns) _tile_dpbf16ps(1, 4, 7);
      if constexpr (TwoRows) _tile_dpbf16ps(2, 5, 6);
      if constexpr (TwoRows && TwoColumns) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kRowBytes);
  if constexpr (TwoColumns) _tile_stored(1, sums + 16, kRowBytes);
  if constexpr (TwoRows) _tile_stored(2, sums + 16 * kPanel, kRowBytes);
  if constexpr (TwoRows && TwoColumns) _tile_stored(3, sums + 16 * kPanel + 16, kRowBytes);
}

inline void multiply_part(long rows, long vectors, const BFloat16* a, const BFloat16* b, long begin, long end, bool fresh, float* sums) {
  if (rows > 16 && vectors > 1) multiply_tiles<true, true>(a, b, begin, end, fresh, sums);
  else if (rows > 16) multiply_tiles<true, false>(a, b, begin, end, fresh, sums);
  else if (vectors > 1) multiply_tiles<false, true>(a, b, begin, end, fresh, sums);
  else multiply_tiles<false, false>(a, b, begin, end, fresh, sums);
}

// float32 rounds each time that it adds to a sum. Longer ones than this are summed up in parts, and the parts after that.
constexpr long kLongestSum = 512;

// One part of the depth after the other, from 0 on.
inline void add_part(long rows, long vectors, const BFloat16* a, const BFloat16* b, long begin, long end, float* sums) {
  if (begin == 0 || kTerms < 3) return multiply_part(rows, vectors, a, b, begin, end, begin == 0, sums);
  alignas(64) float part[kBlock * kPanel];
  multiply_part(rows, vectors, a, b, begin, end, true, part);
  for (long i = 0; i < kPanel * (rows < kBlock ? rows : kBlock); i += kLanes) store(sums + i, load(sums + i) + load(part + i));
}

// One block of at most kBlock rows over the first `vectors` vectors of a panel. `a` holds a whole block, whatever is in the rows
// beyond `rows`; it has no pitch.
inline void multiply_block(int rows, long vectors, const BFloat16* a, long, const BFloat16* b, long depth,
                           const Target& target) {
  alignas(64) float sums[kBlock * kPanel];
  for (long k = 0; k < depth; k += kLongestSum) {
    add_part(rows, vectors, a, b, k, depth - k < kLongestSum ? depth : k + kLongestSum, sums);
  }
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < vectors; ++j) finish(load(sums + i * kPanel + j * kLanes), target, i, j * kLanes);
  }
}

}  // namespace sepconv
