// What a kernel is compiled for, and what follows from it: sizes of tiles and rings, and the plan of shared memory.
// All values come from `sepconv.backends.cuda`, which mirrors none of the arithmetic but kSharedBytes (a test compares them).
#pragma once

#include "ptx.cuh"

namespace sepconv {

constexpr int kChannels = SEPCONV_CHANNELS, kOutputs = SEPCONV_OUTPUTS;
constexpr int kKernelH = SEPCONV_KERNEL_H, kKernelW = SEPCONV_KERNEL_W, kPaddingH = SEPCONV_PADDING_H, kPaddingW = SEPCONV_PADDING_W;
constexpr int kInH = SEPCONV_IN_H, kInW = SEPCONV_IN_W, kOutH = SEPCONV_OUT_H, kOutW = SEPCONV_OUT_W;
// How: blocks in a cluster, stages of input, slots of operand chunks, boxes of results that each product group stages (0: it
// stores from registers).
constexpr int kCluster = SEPCONV_CLUSTER, kStages = SEPCONV_STAGES, kSlots = SEPCONV_SLOTS, kStaged = SEPCONV_STAGED;
constexpr bool kPointwiseBias = SEPCONV_POINTWISE_BIAS;
// An operand of the product is a sum of so many 16-bit terms: 1 for 16-bit tensors, 2 or 3 for float32.
constexpr int kTerms = SEPCONV_TERMS;

// A tile is kTile pixels of one output row. Channels come in chunks; chunk c belongs to block c % kCluster of a cluster.
constexpr int kTile = 128, kChunk = 16;
constexpr int kOwnChunks = ((kChannels + kChunk - 1) / kChunk + kCluster - 1) / kCluster, kChunks = kOwnChunks * kCluster;
// A block computes so many output channels, each of its two product groups one half of them.
constexpr int kBlockOutputs = 128, kGroupOutputs = 64;

// Threads: one group that moves data, two for the depthwise step, two for the product. A group is four warps.
constexpr int kGroup = 128, kDepthwiseWarps = 8, kThreads = 5 * kGroup;

// A box of input is one row of a chunk's channels, with kLead columns before and behind the tile: 32 bytes, since a box that
// starts on 32 bytes is loaded a third faster than one that starts on 16 (H200, 2026-11-29).
constexpr int kLead = 32 / kElementBytes, kBoxColumns = kTile + 2 * kLead;
constexpr int kInputBytes = kChunk * kBoxColumns * kElementBytes, kStageBytes = (kInputBytes + 127) / 128 * 128;

// A chunk of the operand: for each term, two groups of 64 pixels, in each a row of 128 bytes for every channel.
constexpr int kPixelGroupBytes = kChunk * 128, kTermBytes = 2 * kPixelGroupBytes, kSlotBytes = kTerms * kTermBytes;
// The weights: for each term and each 64 channels, a row of 128 bytes for every output channel of the block.
constexpr int kWeightBlocks = (kChunks + 3) / 4, kWeightBlockBytes = kBlockOutputs * 128;
constexpr int kWeightTermBytes = kWeightBlocks * kWeightBlockBytes, kWeightBytes = kTerms * kWeightTermBytes;
// A box of results: 128 bytes of pixels for each of a group's output channels.
constexpr int kBoxPixels = 128 / kElementBytes, kBoxes = kTile / kBoxPixels, kResultBytes = kGroupOutputs * 128;
// The taps of a channel in rows of whole 16 bytes with room for the bias in the last place of the first row.
constexpr int kTapRow = kKernelW / 4 * 4 + 4, kTapFloats = kKernelH * kTapRow;

// Shared memory, from 1024 bytes on a multiple of which it begins.
constexpr int kWeightsAt = 0, kSlotsAt = kWeightsAt + kWeightBytes, kStagedAt = kSlotsAt + kSlots * kSlotBytes;
constexpr int kStagesAt = kStagedAt + 2 * kStaged * kResultBytes, kTapsAt = kStagesAt + kStages * kStageBytes;
constexpr int kBarriersAt = kTapsAt + kOwnChunks * kChunk * kTapFloats * 4;
constexpr int kSharedBytes = kBarriersAt + 8 * 2 * (kStages + kSlots) + 1024;

static_assert(kSlots % kCluster == 0, "a slot belongs to one block of the cluster");
static_assert(kPaddingW <= kLead && kKernelW - 1 - kPaddingW <= kLead, "the window reaches beyond the box");

struct Sizes {
  int batch;  // images
  int parts;  // how many parts the rows of all images are cut into
};

// The one parameter of a kernel; mirrored by `sepconv.backends.cuda`. x, weights and y are dense, a bias may be null.
struct Call {
  TensorMap x_map, y_map;
  const void *x, *depthwise_weight, *pointwise_weight, *depthwise_bias, *pointwise_bias;
  void* y;
  Sizes sizes;
};

}  // namespace sepconv
