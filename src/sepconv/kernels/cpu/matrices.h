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

// The sums of one block; Two says whether there is a second tile of rows, and of columns.
template <bool TwoRows, bool TwoColumns>
SEPCONV_INLINE void multiply_tiles(const BFloat16* a, long pitch, const BFloat16* b, long depth, float* sums) {
  constexpr int kRowBytes = kPanel * 4;  // of the panel, for two neighbours in the depth, and of the sums
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (long k = 0; k < depth; k += kDepthStep, b += kDepthStep * kPanel) {
    _tile_loadd(4, a + k, pitch * 2);
    _tile_loadd(6, b, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (TwoColumns) {
      _tile_loadd(7, b + 32, kRowBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (TwoRows) {
      _tile_loadd(5, a + 16 * pitch + k, pitch * 2);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (TwoColumns) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kRowBytes);
  if constexpr (TwoColumns) _tile_stored(1, sums + 16, kRowBytes);
  if constexpr (TwoRows) _tile_stored(2, sums + 16 * kPanel, kRowBytes);
  if constexpr (TwoRows && TwoColumns) _tile_stored(3, sums + 16 * kPanel + 16, kRowBytes);
}

// One block of at most kBlock rows over the first `vectors` vectors of a panel. The rows of `a` up to the next multiple of 16
// exist, whatever they hold.
inline void multiply_block(int rows, long vectors, const BFloat16* a, long pitch, const BFloat16* b, long depth,
                           const Target& target) {
  alignas(64) float sums[kBlock * kPanel];
  if (rows > 16 && vectors > 1) multiply_tiles<true, true>(a, pitch, b, depth, sums);
  else if (rows > 16) multiply_tiles<true, false>(a, pitch, b, depth, sums);
  else if (vectors > 1) multiply_tiles<false, true>(a, pitch, b, depth, sums);
  else multiply_tiles<false, false>(a, pitch, b, depth, sums);
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < vectors; ++j) finish(load(sums + i * kPanel + j * kLanes), target, i, j * kLanes);
  }
}

}  // namespace sepconv
