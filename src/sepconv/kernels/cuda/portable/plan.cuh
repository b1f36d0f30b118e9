// Which pixels a tile has, and which rows of x they need.
#pragma once

#include "problem.cuh"

namespace sepconv {

// An output pixel.
struct Pixel {
  long long image;
  int row, column;

  // Where it lies in y: its first output channel, and from one to the next.
  static constexpr long long kStep = kChannelsLast ? 1 : kPlane;
  __device__ __forceinline__ long long index() const {
    return image * kOutputs * kPlane + (row * (long long)(kOutW) + column) * (kChannelsLast ? kOutputs : 1);
  }
};

// Some columns of some rows of y, whose rows are counted through all images.
class Tile {
 public:
  __device__ __forceinline__ Tile(const Call& call, int tile) : first_(tile / kColumnTiles * (long long)(kTileRows)) {
    const long long left = call.rows - first_;
    rows_ = left < kTileRows ? int(left) : kTileRows;
    image_ = first_ / kOutH, row_ = int(first_ % kOutH), column = tile % kColumnTiles * kTileColumns;
    columns = kOutW - column < kTileColumns ? kOutW - column : kTileColumns;
  }

  __device__ __forceinline__ bool exists(int row) const { return row < rows_; }
  // How many images further than the first row one is.
  __device__ __forceinline__ int image_of(int row) const { return (u32(row_) + row) / u32(kOutH); }
  // The first pixel of a row of the tile.
  __device__ __forceinline__ Pixel operator[](int row) const { return {image_ + image_of(row), int((u32(row_) + row) % u32(kOutH)), column}; }

  int column, columns;  // the first, and how many

 private:
  long long first_, image_;
  int row_, rows_;
};

constexpr long long kNone = 1ll << 62;
// What all threads know of a tile's rows, in shared memory.
struct Plan {
  long long of_stage[kStages > 0 ? kStageRows : 1];  // where a row of a stage begins in a channel of x, in elements: its column 0
  long long in_y[kTileRowsBegun];                    // where the first pixel of a row of the tile lies
  int stage_row[kTileRowsBegun];                     // the first row of a stage that it needs
  int columns;                                       // of the tile

  __device__ __forceinline__ void make(const Call& call, const Tile& tile, int thread) {
    if (thread == 0) columns = tile.columns;
    if (thread < kTileRowsBegun) {
      const bool exists = thread < kTileRows && tile.exists(thread);
      in_y[thread] = exists ? tile[thread].index() : kNone;
      stage_row[thread] = exists ? row_of_stage(tile, thread) : 0;
    }
    if constexpr (kStages > 0) {
      // A tile of few images needs fewer rows.
#pragma unroll 1
      for (int i = thread; i < kStageRows; i += kThreads) of_stage[i] = kNone;
      __syncthreads();
#pragma unroll 1
      for (int i = thread; i < kTileRows * kRowsOfRow; i += kThreads) put_row(call, tile, i / kRowsOfRow, i % kRowsOfRow);
    }
  }

 private:
  static __device__ __forceinline__ int row_of_stage(const Tile& tile, int row) {
    return row * kRowAdvance + tile.image_of(row) * (kRowsOfRow - kRowAdvance);
  }
  // Rows that several rows of a tile need are put by each of them, and are the same.
  __device__ __forceinline__ void put_row(const Call& call, const Tile& tile, int row, int i) {
    const Pixel first = tile[row];
    const int in_row = first.row * kStrideH - kPaddingH + i * (kOverlap ? 1 : kDilationH);
    const bool exists = tile.exists(row) && unsigned(in_row) < unsigned(kInH);
    of_stage[row_of_stage(tile, row) + i] = exists ? first.image * call.x_strides[0] + in_row * call.x_strides[2] : kNone;
  }
};
static_assert(sizeof(Plan) <= kPlanBytes);

}  // namespace sepconv
