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

// A block of rows of this many bytes stays in the first-level cache from one panel to the next: fetching it again took 3 % of
// (1, 64, 512, 512) -> 128 (the same machine).
constexpr long kStays = 24 << 10;

// A block whose sums are complete, and whose results are yet to be stored: a few rows at a time while the units multiply the next
// block. All at once, its stores fill the queue of the core, and the units wait.
class Sums {
 public:
  alignas(64) float values[kBlock * kPanel];

  void begin(int rows, int vectors, const Target& target) { rows_ = rows, vectors_ = vectors, row_ = 0, target_ = target; }

  void finish() { finish_some(kBlock); }
  SEPCONV_INLINE void finish_some(int count) {
    if (row_ < rows_) finish_rows(count);
  }

 private:
  __attribute__((noinline)) void finish_rows(int count) {
    const Target target = target_;  // a copy, which no store can change
    const int begin = row_, end = count < rows_ - row_ ? row_ + count : rows_;
    row_ = end;
    for (int i = begin; i < end; ++i) {
      sepconv::finish(load(values + i * kPanel), target, i, 0);
      if (vectors_ > 1) sepconv::finish(load(values + i * kPanel + kLanes), target, i, kLanes);
    }
  }

  int rows_ = 0, vectors_ = 0, row_ = 0;
  Target target_{};
};

// The sums of one block over [begin, end) of the depth, added to what is there unless they are fresh. Two says whether there is a
// second tile of rows, and of columns. After each product `rows` rows of the block before this one are finished.
template <bool TwoRows, bool TwoColumns>
SEPCONV_INLINE void multiply_tiles(const BFloat16* a, const BFloat16* b, long begin, long end, bool fresh, float* sums,
                                   Sums& before, int rows) {
  constexpr int kDepthBytes = kDepthStep * 2;  // of a row of a block
  constexpr int kRowBytes = kPanel * 4;  // of the panel, for two neighbours in the depth, and of the sums
  const bool stays = kTerms * kBlock * end * long(sizeof *a) <= kStays;
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
      if (!stays) fetch(a + in_block(0, k + kDepthStep), i);
      fetch(b + in_panel(k + kDepthStep), i);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (TwoColumns) _tile_dpbf16ps(1, 4, 7);
      if constexpr (TwoRows) _tile_dpbf16ps(2, 5, 6);
      if constexpr (TwoRows && TwoColumns) _tile_dpbf16ps(3, 5, 7);
      before.finish_some(rows);
    }
  }
  _tile_stored(0, sums, kRowBytes);
  if constexpr (TwoColumns) _tile_stored(1, sums + 16, kRowBytes);
  if constexpr (TwoRows) _tile_stored(2, sums + 16 * kPanel, kRowBytes);
  if constexpr (TwoRows && TwoColumns) _tile_stored(3, sums + 16 * kPanel + 16, kRowBytes);
}

// How many rows of a block that is finished are stored after each product of another one with this depth, so that all are.
inline int rows_each(long depth) {
  const long products = depth / kDepthStep * kProducts;
  return int((kBlock + products - 1) / products);
}

inline void multiply_part(long rows, long vectors, const BFloat16* a, const BFloat16* b, long begin, long end, bool fresh, float* sums,
                          Sums& before) {
  const int each = rows_each(end - begin);
  if (rows > 16 && vectors > 1) multiply_tiles<true, true>(a, b, begin, end, fresh, sums, before, each);
  else if (rows > 16) multiply_tiles<true, false>(a, b, begin, end, fresh, sums, before, each);
  else if (vectors > 1) multiply_tiles<false, true>(a, b, begin, end, fresh, sums, before, each);
  else multiply_tiles<false, false>(a, b, begin, end, fresh, sums, before, each);
}

// float32 rounds each time that it adds to a sum. Longer ones than this are summed up in parts, and the parts after that.
constexpr long kLongestSum = 512;

// One part of the depth after the other, from 0 on.
inline void add_part(long rows, long vectors, const BFloat16* a, const BFloat16* b, long begin, long end, float* sums, Sums& before) {
  if (begin == 0 || kTerms < 3) return multiply_part(rows, vectors, a, b, begin, end, begin == 0, sums, before);
  alignas(64) float part[kBlock * kPanel];
  multiply_part(rows, vectors, a, b, begin, end, true, part, before);
  for (long i = 0; i < kPanel * (rows < kBlock ? rows : kBlock); i += kLanes) store(sums + i, load(sums + i) + load(part + i));
}

// Blocks of at most kBlock rows over the first `vectors` vectors of a panel, each finished while the next is multiplied.
class Multiplier {
 public:
  // `a` holds a whole block, whatever is in the rows beyond `rows`; it has no pitch.
  void block(int rows, long vectors, const BFloat16* a, long, const BFloat16* b, long depth, const Target& target) {
    Sums &before = sums_[turn_], &now = sums_[turn_ ^= 1];
    for (long k = 0; k < depth; k += kLongestSum) {
      add_part(rows, vectors, a, b, k, depth - k < kLongestSum ? depth : k + kLongestSum, now.values, before);
    }
    before.finish();
    now.begin(rows, int(vectors), target);
    if (rows_each(depth) > (target.streams ? kMostStreamed : kMost)) now.finish();
  }

  // Finish the last block.
  void complete() { sums_[turn_].finish(); }

 private:
  // Where more rows than these would have to be stored after a product, all at once is faster (the same machine, 2026-11-30).
  static constexpr int kMost = 1, kMostStreamed = 3;

  Sums sums_[2];
  int turn_ = 0;
};

}  // namespace sepconv
