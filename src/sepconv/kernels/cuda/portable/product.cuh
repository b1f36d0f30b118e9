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

// What a warp adds to its sums of a chunk: the smallest products first; those of the smallest terms are left out.
__device__ __forceinline__ void multiply_chunk(Sums& sums, const u16* operand, const u16* weights, int warp, int lane) {
  constexpr int kTermA = kChannelsLast ? kOperandTerm : kWeightTerm, kTermB = kChannelsLast ? kWeightTerm : kOperandTerm;
  const u16* const a = (kChannelsLast ? operand : weights) + (warp / kWarpsN * 16 * kTilesM + lane % 16) * kPitch + lane / 16 * 8;
  const u16* const b = (kChannelsLast ? weights : operand) + (warp % kWarpsN * 8 * kTilesN + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 8;
#pragma unroll 1
  for (int deep = 0; deep < kChunk; deep += 16) {
    u32 rows[kTerms][kTilesM][4];
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) load_matrices(rows[t][m], a + t * kTermA + m * 16 * kPitch + deep);
    }
#pragma unroll
    for (int n = 0; n < kTilesN; n += 2) {
      u32 columns[kTerms][4];
#pragma unroll
      for (int t = 0; t < kTerms; ++t) load_matrices(columns[t], b + t * kTermB + n * 8 * kPitch + deep);
#pragma unroll
      for (int both = kTerms - 1; both >= 0; --both) {
#pragma unroll
        for (int t = 0; t <= both; ++t) {
#pragma unroll
          for (int m = 0; m < kTilesM; ++m) {
            multiply_small(sums.of[m][n], rows[both - t][m], {columns[t][0], columns[t][1]});
            multiply_small(sums.of[m][n + 1], rows[both - t][m], {columns[t][2], columns[t][3]});
          }
        }
      }
    }
  }
}

}  // namespace sepconv
