// The forward pass on Hopper as one kernel. A block walks down a strip of the image; its warps have roles: one thread loads input
// rows, eight warps slide the window over them and write the operand of the product, eight warps multiply it with the weights,
// which stay in shared memory, and store. Where there are more output channels than one block computes, the blocks of a cluster
// share the depthwise step: each computes some of the channels and sends them to the others. See docs/kernels.md.
#include "copy.cuh"
#include "product.cuh"
#include "window.cuh"

// Registers of a thread in each role; together no more than what the block is given when it starts, 96 of 640 threads.
constexpr int kCopyRegisters = 56, kDepthwiseRegisters = 104, kProductRegisters = 104;

extern "C" __global__ void
#if SEPCONV_CLUSTER > 1
    __cluster_dims__(SEPCONV_CLUSTER, 1, 1)
#endif
        __launch_bounds__(sepconv::kThreads, 1)
            sepconv_forward(const __grid_constant__ sepconv::Call call) {
  using namespace sepconv;
  extern __shared__ char memory[];
  char* const shared = reinterpret_cast<char*>((reinterpret_cast<u64>(memory) + 1023) / 1024 * 1024);
  const u32 start = shared_address(shared);
  const Barriers barriers{start + kBarriersAt};
  float* const taps = reinterpret_cast<float*>(shared + kTapsAt);
  const int rank = kCluster > 1 ? int(cluster_rank()) : 0;
  if (threadIdx.x == 0) {
    barriers.init(rank);
    fence_barriers();
  }
  load_all_taps(taps, call.depthwise_weight, call.depthwise_bias, rank);
  __syncthreads();
  if (kCluster > 1) cluster_meet();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = threadIdx.x / kGroup;
  if (group == 0) {
    fewer_registers<kCopyRegisters>();
    if (threadIdx.x == 0) load_input(call, start + kStagesAt, barriers, rank);
    if (kCluster > 1 && warp == 1) send_chunks(call, start + kSlotsAt, barriers, rank, lane);
  } else if (group < 3) {
    more_registers<kDepthwiseRegisters>();
    depthwise(call, start + kStagesAt, start + kSlotsAt, taps, barriers, rank, warp - 4, lane);
  } else {
    more_registers<kProductRegisters>();
    product(call, start + kWeightsAt, start + kSlotsAt, start + kStagedAt, barriers, rank, group - 3, threadIdx.x % kGroup);
  }
  __syncwarp();
  if (kCluster > 1) cluster_meet();  // a block whose memory others still write to must not end
}
