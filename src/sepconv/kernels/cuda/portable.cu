// The forward pass on any GPU with matrix units of 16 bits (compute capability 8.0 and later), for any problem of one or two axes. A block
// takes a tile of output pixels, counted through all images, so that small maps fill it. For each chunk of middle channels its threads
// slide the window over the input, which they read where it lies, and write the result as one operand of the product; the other one are
// the weights of a block of output channels. Where the operand of all chunks fits into shared memory it is computed once.
#include "portable/ahead.cuh"
#include "portable/results.cuh"
#include "portable/window.cuh"

namespace sepconv {

// The operand of all chunks.
__device__ __forceinline__ void slide_all(const Call& call, const Window& window, float* taps, u16* operands, int thread) {
  TapsAhead ahead;
  ahead.fetch(call, 0, thread);
#pragma unroll 1
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    float* const of_chunk = taps + chunk % 2 * kTapFloats;
    ahead.put(of_chunk, thread);
    __syncthreads();
    if (chunk + 1 < kChunks) ahead.fetch(call, chunk + 1, thread);
    window.compute(operands + chunk * kOperand, of_chunk, chunk);
  }
}

// The operand of one chunk, for one block of output channels.
__device__ __forceinline__ void slide_one(const Call& call, const Window& window, float* taps, u16* operand, int chunk, int thread) {
  TapsAhead now;
  now.fetch(call, chunk, thread);
  now.put(taps, thread);
  __syncthreads();
  window.compute(operand, taps, chunk);
}

__device__ __forceinline__ void multiply_more(Sums& sums, const u16* operand, const u16* weights, int thread) {
  if constexpr (kTerms == 1) {
    multiply_chunk(sums, operand, weights, thread / 32, thread % 32);
  } else {
    Sums part;
    part.clear();
    multiply_chunk(part, operand, weights, thread / 32, thread % 32);
    sums.take(part);
  }
}

}  // namespace sepconv

extern "C" __global__ void __launch_bounds__(sepconv::kThreads, SEPCONV_BLOCKS_OF_SM) sepconv_portable(const __grid_constant__ sepconv::Call call) {
  using namespace sepconv;
  extern __shared__ uint4 memory[];
  float* const taps = reinterpret_cast<float*>(memory);
  u16* const operands = reinterpret_cast<u16*>(taps + 2 * kTapFloats);
  u16* const weights = operands + kOperands * kOperand;
  const int thread = threadIdx.x, splits = gridDim.y, own = blockIdx.y;
  const long long tile = blockIdx.x;
  const Window window(call, tile, thread);
  WeightsAhead ahead;
  ahead.fetch(call, own, 0, thread);
  if (kResident) slide_all(call, window, taps, operands, thread);
  int turn = 0;
#pragma unroll 1
  for (int block = own; block < kBlocks; block += splits) {
    Sums sums;
    sums.clear();
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk, turn ^= 1) {
      u16* const operand = operands + (kResident ? chunk : turn) * kOperand;
      u16* const of_chunk = weights + turn * kWeights;
      ahead.put(of_chunk, thread);
      if (!kResident) slide_one(call, window, taps + turn * kTapFloats, operand, chunk, thread);
      __syncthreads();
      const bool is_last = chunk + 1 == kChunks;
      if (!is_last || block + splits < kBlocks) ahead.fetch(call, is_last ? block + splits : block, is_last ? 0 : chunk + 1, thread);
      multiply_more(sums, operand, of_chunk, thread);
    }
    put_block(call, sums, tile, block, thread);
  }
}
