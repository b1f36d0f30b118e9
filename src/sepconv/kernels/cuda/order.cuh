// Where rows and columns of the product change places, so that a thread of it has what lies together in memory.
#pragma once

#include "problem.cuh"

namespace sepconv {

// Which row of a chunk of the operand a channel is. A thread that has weights in registers needs, for each row of the product, the
// channels 2 i, 2 i + 1, 2 i + 8 and 2 i + 9: so that they are four neighbours, 4 i to 4 i + 3, the channels change places.
constexpr __device__ int operand_row(int channel) {
  return kSplitAnew ? channel / 4 * 2 + channel % 4 / 2 * 8 + channel % 2 : channel;
}

// Weights that are split anew would be loaded from the same banks of shared memory for two rows that lie one below the other, and float32
// results stored to the same. So the bits of the numbers of eight rows are read backwards: row 1 is the output channel 4.
constexpr __device__ int place_of_row(int row) { return kSplitAnew ? row % 2 * 4 + row % 4 / 2 * 2 + row / 4 : row; }

// Which column of the product an output pixel is, or with channels last an output channel. Where results are written from
// registers the columns change places, so that a thread has a run of neighbours in one row, 16 bytes, and four threads have four.
constexpr bool kInRuns = kStaged == 0;
constexpr int kRun = 16 / kElementBytes;
constexpr __device__ int column_of(int i) {
  return kInRuns ? i / (4 * kRun) * (4 * kRun) + i % kRun / 2 * 8 + i / kRun % 4 * 2 + i % 2 : i;
}

}  // namespace sepconv
