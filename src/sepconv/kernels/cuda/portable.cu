// The forward pass on any GPU with matrix units of 16 bits (compute capability 8.0 and later), for any problem of one or two axes. A block
// takes a tile of output pixels, whose rows are counted through all images so that small maps fill it. For each chunk of middle channels
// copies bring the input into a stage in shared memory, threads slide the window over it and write the result as one operand of the product;
// the other one are the weights of a block of output channels. Where the operand of all chunks fits into shared memory it is computed once.
#include "portable/direct.cuh"
#include "portable/results.cuh"
#include "portable/weights.cuh"
#include "portable/window.cuh"

namespace sepconv {

// The window's step, chunk by chunk, with what it needs on its way ahead of it.
class Middle {
 public:
  __device__ __forceinline__ Middle(const Call& call, const Tile& tile, const Plan& plan, Stored* stages, float* taps, int thread)
      : call_(call), tile_(tile), window_(call, plan, thread), input_(call, plan, tile.column, thread), stages_(stages), taps_(taps), thread_(thread) {}

  // What step `step` needs, the chunk of which comes with it.
  __device__ __forceinline__ void start_input(int chunk, int step) const {
    if constexpr (kStages > 0) input_.start(stages_ + step % kStages * kStage, chunk);
  }
  __device__ __forceinline__ void fetch_taps(int chunk) { ahead_.fetch(call_, chunk, thread_); }
  __device__ __forceinline__ void put_taps(int step) { ahead_.put(taps_of(step), thread_); }

  __device__ __forceinline__ void compute(u16* operand, int chunk, int step) const {
    if constexpr (kStages > 0) window_.compute(operand, stages_ + step % kStages * kStage, taps_of(step), chunk);
    else compute_directly(call_, tile_, operand, taps_of(step), chunk, thread_);
  }

 private:
  __device__ __forceinline__ float* taps_of(int step) const { return taps_ + step % 2 * kTapFloats; }

  const Call& call_;
  const Tile& tile_;
  const Window window_;
  const Input input_;
  TapsAhead ahead_;
  Stored* const stages_;
  float* const taps_;
  const int thread_;
};

// The operand of all chunks; behind it nobody needs the stages any longer.
__device__ __forceinline__ void compute_all(Middle& middle, u16* operands) {
  constexpr int kAhead = kStages > 1 ? kStages - 1 : 1;
#pragma unroll 1
  for (int chunk = 0; chunk < kAhead; ++chunk) {
    if (chunk < kChunks) middle.start_input(chunk, chunk);
    close_group();
  }
  middle.fetch_taps(0);
#pragma unroll 1
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    middle.put_taps(chunk);
    wait_groups<kAhead - 1>();
    __syncthreads();
    if (chunk + 1 < kChunks) middle.fetch_taps(chunk + 1);
    if (kStages > 1 && chunk + kAhead < kChunks) middle.start_input(chunk + kAhead, chunk + kAhead);
    close_group();
    middle.compute(operands + chunk * kOperand, chunk, chunk);
    if (kStages != 1) continue;
    __syncthreads();
    if (chunk + 1 < kChunks) middle.start_input(chunk + 1, chunk + 1);
    close_group();
  }
  __syncthreads();
}

// All steps of a block of threads: the chunks of its first block of output channels, then those of its next.
struct Steps {
  int block, chunk = 0;

  __device__ __forceinline__ bool exist() const { return block < kBlocks; }
  __device__ __forceinline__ void next() {
    if (++chunk == kChunks) chunk = 0, block += gridDim.y;
  }
};

}  // namespace sepconv

extern "C" __global__ void __launch_bounds__(sepconv::kThreads, SEPCONV_BLOCKS_OF_SM) sepconv_portable(const __grid_constant__ sepconv::Call call) {
  using namespace sepconv;
  extern __shared__ uint4 memory[];
  char* const shared = reinterpret_cast<char*>(memory);
  Plan& plan = *reinterpret_cast<Plan*>(shared);
  u16* const operands = reinterpret_cast<u16*>(shared + kPlanBytes);
  char* const later = shared + kPlanBytes + kOperands * kOperand * 2;
  Stored* const stages = reinterpret_cast<Stored*>(later);
  float* const taps = reinterpret_cast<float*>(later + kStages * kStage * kElementBytes);
  const int thread = threadIdx.x;

  const Tile tile(call, blockIdx.x);
  plan.make(call, tile, thread);
  __syncthreads();
  Middle middle(call, tile, plan, stages, taps, thread);
  WeightsAhead weights(call, reinterpret_cast<u16*>(kResident ? later : later + kWindowBytes), thread);
  const Product product(thread);
  Steps now{int(blockIdx.y)}, ahead = now;
  const auto fetch_first = [&] {
#pragma unroll 1
    for (int i = 0; i < WeightsAhead::kSteps; ++i, ahead.next()) {
      if (!kResident && i == 0) middle.start_input(0, 0), middle.fetch_taps(0);
      if (ahead.exist()) weights.fetch(ahead.block, ahead.chunk, i);
      close_group();
    }
  };
  if (!WeightsAhead::kInPlace) fetch_first();
  if (kResident) compute_all(middle, operands);
  if (WeightsAhead::kInPlace) fetch_first();
  Sums sums, part;
  sums.clear(), part.clear();
#pragma unroll 1
  for (int step = 0; now.exist(); ++step) {
    const Steps done = now;
    now.next();
    if (!kResident) middle.put_taps(step);
    weights.put(step);
    wait_groups<kResident ? WeightsAhead::kSteps - 1 : 0>();
    __syncthreads();
    if (!kResident && now.exist()) {
      middle.fetch_taps(now.chunk);
      if (kStages > 1) middle.start_input(now.chunk, step + 1);
    }
    if (!kResident) {
      middle.compute(operands, done.chunk, step);
      __syncthreads();
      if (kStages == 1 && now.exist()) middle.start_input(now.chunk, step + 1);
    }
    // Not before the window's step, which needs the registers.
    if (ahead.exist()) weights.fetch(ahead.block, ahead.chunk, step + WeightsAhead::kSteps);
    ahead.next();
    close_group();
    u16* const operand = operands + (kResident ? done.chunk * kOperand : 0);
    const bool is_last = done.chunk + 1 == kChunks;
    if constexpr (kChunks <= kPartChunks) {
      product.add(sums, operand, weights.slot(step));
    } else {
      product.add(part, operand, weights.slot(step));
      if (is_last || (done.chunk + 1) % kPartChunks == 0) sums.take(part), part.clear();
    }
    if (!is_last) continue;
    const Results results(call, plan, done.block);
    if (__syncthreads_or(!results.put(sums, thread))) results.compute_again(thread);
    sums.clear();
  }
}
