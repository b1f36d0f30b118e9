// The forward pass on any GPU with matrix units of 16 bits (compute capability 8.0 and later), for any problem of one or two axes. A block
// takes a tile of output pixels, counted through all images, so that small maps fill it. For each chunk of middle channels its threads
// slide the window over the input, which they read where it lies, and write the result as one operand of the product; the other one are
// the weights of a block of output channels. Where the operand of all chunks fits into shared memory it is computed once.
#include "portable/ahead.cuh"
#include "portable/results.cuh"
#include "portable/window.cuh"

extern "C" __global__ void __launch_bounds__(sepconv::kThreads, SEPCONV_BLOCKS_OF_SM) sepconv_portable(const __grid_constant__ sepconv::Call call) {
  using namespace sepconv;
  extern __shared__ uint4 memory[];
  float* const taps = reinterpret_cast<float*>(memory);
  u16* const operands = reinterpret_cast<u16*>(taps + 2 * kTapFloats);
  u16* const weights = operands + kOperands * kOperand;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, splits = gridDim.y, own = blockIdx.y;
  const long long tile = blockIdx.x;
  const Window window(call, tile, thread);
  Ahead ahead;
  ahead.fetch(call, own, 0, thread);
  int turn = 0;
#pragma unroll 1
  for (int block = own; block < kBlocks; block += splits) {
    const bool slides = !kResident || block == own;
    Sums sums;
    sums.clear();
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk, turn ^= 1) {
      u16* const operand = operands + (kResident ? chunk : turn) * kOperand;
      u16* const of_chunk = weights + turn * kWeights;
      float* const taps_of_chunk = taps + turn * kTapFloats;
      ahead.put(of_chunk, taps_of_chunk, thread);
      if (slides) {
        if (kTapsInShared) __syncthreads();
        window.compute(operand, taps_of_chunk, chunk);
      }
      __syncthreads();
      const bool is_last = chunk + 1 == kChunks;
      if (!is_last || block + splits < kBlocks) ahead.fetch(call, is_last ? block + splits : block, is_last ? 0 : chunk + 1, thread);
      if constexpr (kTerms == 1) {
        multiply_chunk(sums, operand, of_chunk, warp, lane);
      } else {
        Sums part;
        part.clear();
        multiply_chunk(part, operand, of_chunk, warp, lane);
        sums.take(part);
      }
    }
    put_block(call, sums, tile, block, thread);
  }
}
