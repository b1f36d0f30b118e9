// The forward pass on Hopper as one kernel. A block walks down a strip of the image; its warps have roles: one thread loads input
// rows, eight warps slide the window over them and write the operand of the product, eight warps multiply it with the weights
// and store. The weights stay in shared memory, or stream through it for each tile; where they can do neither, the blocks of a cluster
// share the depthwise step: each computes some of the channels and sends them to the others. See docs/kernels.md.
#include "copy.cuh"
#include "product.cuh"
#if SEPCONV_GATHERS
#include "gathers.cuh"
#elif SEPCONV_DIAGONALS
#include "diagonals.cuh"
#else
#include "window.cuh"
#endif

// Registers of a thread when the block starts, and in each role; together no more than those of all threads at the start.
constexpr int kFirstRegisters = 96, kCopyRegisters = 32;
constexpr bool kHolds = sepconv::kWait || sepconv::kInParts;  // more than sums
constexpr int kOfSplit = sepconv::kTile <= 64 ? 144 : kHolds ? 176 : 144;
constexpr int kMore = sepconv::kSplitAnew ? kOfSplit : sepconv::kTurns || sepconv::kBeside ? 128 : 160;
constexpr int kProductRegisters = sepconv::kManyRegisters ? kMore : sepconv::kManyChunks ? 120 : 104;
constexpr int kDepthwiseRegisters = (kFirstRegisters * 5 - kCopyRegisters) / 2 / 8 * 8 - kProductRegisters;

extern "C" __global__ void
#if SEPCONV_CLUSTER > 1
    __cluster_dims__(SEPCONV_CLUSTER, 1, 1)
#endif
        __launch_bounds__(sepconv::kThreads, 1)
            sepconv_forward(const __grid_constant__ sepconv::Call call) {
  using namespace sepconv;
  extern __shared__ uint4 memory[];
  char* const shared = whole_kilobytes(memory);
  u32 start = shared_address(shared);
  Barriers barriers{start + kBarriersAt};
  const int rank = kCluster > 1 ? int(cluster_rank()) : 0;
  if (threadIdx.x == 0) {
    barriers.init(rank);
    fence_barriers();
  }
  // Matrix units multiply up to 32 bytes behind a stage by zeros: they have to be numbers.
  if (kManyTaps && kBands && threadIdx.x < kStages * 8) store_words(start + kStagesAt + threadIdx.x / 8 * kStageBytes + threadIdx.x % 8 * 4, {0u}), fence_async();
  __syncthreads();
  if (kCluster > 1) cluster_meet();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = threadIdx.x / kGroup;
  // Each role computes its addresses by itself: what the compiler finds to be common to them would take registers in all.
  const auto begin_role = [&] { start = unforeseen(start), barriers = {start + kBarriersAt}; };
  if (group == 0) {
    change_registers<kFirstRegisters, kCopyRegisters>();
    begin_role();
    if (threadIdx.x == 0) {
      if constexpr (kGathers) {
      } else if constexpr (kPatches) load_patches(call, start + kStagesAt, barriers, rank);
      else load_input(call, start + kStagesAt, barriers, rank);
    }
    if (kStreams && warp >= 1 && warp <= kStreamCount && lane == 0) stream_weights(call, start + kWeightsAt, barriers, warp - 1, rank);
    if (kCluster > 1 && warp == 3) send_chunks(call, start + kSlotsAt, barriers, rank, lane);
  } else if (group < 3) {
    change_registers<kFirstRegisters, kDepthwiseRegisters>();
#if SEPCONV_GATHERS || SEPCONV_DIAGONALS
    begin_role();
    compute_windows(call, start + kStagesAt, start + kSlotsAt, barriers, rank, warp - 4, lane);
#else
    load_all_taps(shared + kTapsAt, call.depthwise_weight, call.depthwise_bias, rank, unforeseen(threadIdx.x) - kGroup);
    threads_meet(3, kRoleThreads);
    begin_role();
    depthwise(call, Rows(call, start + kStagesAt, start + kSlotsAt, start + kTapsAt, barriers, rank, warp - 4, lane));
    let_go_of_input(call, unforeseen(threadIdx.x) - kGroup);
#endif
  } else {
    change_registers<kFirstRegisters, kProductRegisters>();
    const int thread = threadIdx.x - 3 * kGroup;
    if (!kStreams) load_weights(start + kWeightsAt, call.pointwise_weight, rank * kBlockOutputs, thread);
    if (kPointwiseBias) load_bias(reinterpret_cast<float*>(shared + kBiasAt), call.pointwise_bias, rank, thread);
    fence_async();
    threads_meet(4, kRoleThreads);
    begin_role();
    const int of_group = unforeseen(threadIdx.x) % kGroup;
    Product product(call, start + kWeightsAt, start + kSlotsAt, start + kStagedAt, start + kBiasAt, barriers, rank,
                    uniform(group - 3), of_group);
    product.compute(call.parts);
  }
  __syncwarp();
  if (kCluster > 1) cluster_meet();  // a block whose memory others still write to must not end
}
