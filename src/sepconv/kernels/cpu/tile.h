// The output in tiles, and a tile in pieces of one image each.
#pragma once

#include <algorithm>

#include "call.h"

namespace sepconv {

// A tile as its first row and column, in rows of all images together.
struct Tile {
  long row, rows, column, columns;
  long pixels() const { return rows * columns; }
};

class Tiles {
 public:
  explicit Tiles(const Call& call)
      : call_(call), rows_(call.batch * call.out_h), across_((call.out_w + call.tile_columns - 1) / call.tile_columns),
        count((rows_ + call.tile_rows - 1) / call.tile_rows * across_) {}

  Tile operator[](long index) const {
    const long row = index / across_ * call_.tile_rows, column = index % across_ * call_.tile_columns;
    return {row, std::min(call_.tile_rows, rows_ - row), column, std::min(call_.tile_columns, call_.out_w - column)};
  }

 private:
  const Call& call_;
  const long rows_, across_;

 public:
  const long count;
};

// Some output rows of one image and one run of their columns; `pixel` is where they begin in the tile, `input` in the patch.
struct Piece {
  long image, row, rows, column, columns;
  long pixel, input;
};

// Input rows that this many neighbouring output rows take.
inline long input_rows(const Call& call, long rows) {
  return (rows - 1) * call.stride_h + (call.kernel_h - 1) * call.dilation_h + 1;
}

// The part of a tile in each image; returns how many there are.
inline long cut(const Call& call, const Tile& tile, Piece* pieces) {
  long count = 0, input = 0;
  for (long row = tile.row; row < tile.row + tile.rows;) {
    const long image = row / call.out_h, first = row % call.out_h;
    const long rows = std::min(call.out_h - first, tile.row + tile.rows - row);
    pieces[count++] = {image, first, rows, tile.column, tile.columns, (row - tile.row) * tile.columns, input};
    input += input_rows(call, rows);
    row += rows;
  }
  return count;
}

}  // namespace sepconv
