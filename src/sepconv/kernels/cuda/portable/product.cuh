// The product of a tile's operand and the weights of a block of output channels.
#pragma once

#include "../fragments.cuh"
#include "problem.cuh"

namespace sepconv {

struct Sums {
  float of[kTilesM][kTilesN][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kTilesM * kTilesN * 4; ++i) of[i / (4 * kTilesN)][i / 4 % kTilesN][i % 4] = 0.f;
  }
  __device__ __forceinline__ void take(const Sums& more) {
#pragma unroll
    for (int i = 0; i < kTilesM * kTilesN * 4; ++i) of[i / (4 * kTilesN)][i / 4 % kTilesN][i % 4] += more.of[i / (4 * kTilesN)][i / 4 % kTilesN][i % 4];
  }
};

// A warp's part of the product, by where its lanes load from. Rows lie as they are multiplied, and so do columns that are output channels;
// columns that are pixels lie channel by channel, and are turned when they are loaded.
class Product {
 public:
  __device__ __forceinline__ explicit Product(int thread) {
    const int warp = thread / 32, lane = thread % 32, row = warp / kWarpsN * 16 * kTilesM, column = warp % kWarpsN * 8 * kTilesN;
    rows_ = WeightGrid::place(row + lane % 16, lane / 16);
    columns_ = kChannelsLast ? WeightGrid::place(column + lane / 16 * 8 + lane % 8, lane / 8 % 2)
                             : OperandGrid::place(lane / 8 % 2 * 8 + lane % 8, column / 8 + lane / 16);
  }

  // What a chunk adds to the sums: the smallest products first; those of the smallest terms are left out.
  __device__ __forceinline__ void add(Sums& sums, const u16* operand, const u16* weights) const {
#pragma unroll(kTerms == 1 ? 2 : 1)
    for (int deep = 0; deep < kChunk; deep += 16) {
      u32 columns[kTilesN / 2][kTerms][4];
#pragma unroll
      for (int i = 0; i < kTilesN / 2 * kTerms; ++i) load_columns(columns[i / kTerms][i % kTerms], operand, weights, i % kTerms, i / kTerms, deep);
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) {
        u32 rows[kTerms][4];
#pragma unroll
        for (int t = 0; t < kTerms; ++t) {
          load_matrices(rows[t], (kChannelsLast ? operand + t * kOperandTerm : weights + t * kWeightTerm) + m * 16 * kChunk + (rows_ ^ deep));
        }
        multiply(sums.of[m], rows, columns);
      }
    }
  }

 private:
  // Neighbouring pairs of pieces have places that differ in one bit.
  __device__ __forceinline__ void load_columns(u32 (&v)[4], const u16* operand, const u16* weights, int term, int pair, int deep) const {
    if constexpr (kChannelsLast) load_matrices(v, weights + term * kWeightTerm + pair * 16 * kChunk + (columns_ ^ deep));
    else load_turned(v, operand + term * kOperandTerm + deep * kTile + (columns_ ^ pair * 16));
  }
  static __device__ __forceinline__ void multiply(float (&sums)[kTilesN][4], const u32 (&rows)[kTerms][4], const u32 (&columns)[kTilesN / 2][kTerms][4]) {
#pragma unroll
    for (int both = kTerms - 1; both >= 0; --both) {
#pragma unroll
      for (int t = 0; t <= both; ++t) {
#pragma unroll
        for (int n = 0; n < kTilesN; ++n) {
          multiply_small(sums[n], rows[both - t], {columns[n / 2][t][n % 2 * 2], columns[n / 2][t][n % 2 * 2 + 1]});
        }
      }
    }
  }

  int rows_, columns_;  // in elements
};

}  // namespace sepconv
