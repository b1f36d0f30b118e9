// What a kernel is compiled for, and what follows from it: sizes of tiles and rings, and the plan of shared memory.
// All values come from `sepconv.backends.cuda`; `sepconv.tuning.hopper` mirrors what leads to kSharedBytes (a test compares them).
#pragma once

#include "ptx.cuh"

namespace sepconv {

constexpr int kChannels = SEPCONV_CHANNELS, kOutputs = SEPCONV_OUTPUTS;
constexpr int kKernelH = SEPCONV_KERNEL_H, kKernelW = SEPCONV_KERNEL_W, kPaddingH = SEPCONV_PADDING_H, kPaddingW = SEPCONV_PADDING_W;
constexpr int kStrideH = SEPCONV_STRIDE_H, kStrideW = SEPCONV_STRIDE_W, kDilationH = SEPCONV_DILATION_H, kDilationW = SEPCONV_DILATION_W;
constexpr int kInH = SEPCONV_IN_H, kInW = SEPCONV_IN_W, kOutH = SEPCONV_OUT_H, kOutW = SEPCONV_OUT_W;
// How: blocks in a cluster, which share the depthwise step; output channels of a block; whether each input row is loaded once, and what it
// adds to rows further down is kept; stages of input, slots of operand chunks, boxes of results that each product group stages
// (0: it stores from registers).
constexpr int kCluster = SEPCONV_CLUSTER, kBlockOutputs = SEPCONV_BLOCK_OUTPUTS;
constexpr bool kRolls = SEPCONV_ROLLS;
constexpr int kStages = SEPCONV_STAGES, kSlots = SEPCONV_SLOTS, kStaged = SEPCONV_STAGED;
// Parts of the pointwise weights that are under way to shared memory at a time, in each stream (0: the weights of a block stay there).
constexpr int kWeightStages = SEPCONV_WEIGHT_STAGES;
constexpr bool kStreams = kWeightStages > 0;
// They pass by beside the chunks of the operand; else a block keeps the operand of a tile and computes all output channels.
constexpr bool kBeside = SEPCONV_BESIDE, kAllOutputs = kStreams && !kBeside;
static_assert(!kBeside || kStreams, "only weights that stream pass by");
static_assert(!kAllOutputs || kCluster == 1, "a block that computes all output channels needs no other");
constexpr bool kDepthwiseBias = SEPCONV_DEPTHWISE_BIAS, kPointwiseBias = SEPCONV_POINTWISE_BIAS, kResidual = SEPCONV_RESIDUAL;
// An operand of the product is a sum of so many 16-bit terms: 1 for 16-bit tensors, 2 or 3 for float32.
constexpr int kTerms = SEPCONV_TERMS;

// A tile is kTile pixels of one output row. With channels last it is two patches of output pixels, one for each product group: rows of a part
// of an image or, where rows are kept, the halves of one row. Channels come in chunks; chunk c belongs to block c % kCluster of a cluster. A chunk
// of input comes in parts, each a stage: with channels last, 128 bytes of every pixel.
constexpr int kTile = SEPCONV_TILE, kChunk = kChannelsLast ? 64 : 16;
static_assert(kTile == 128 || (kTile == 64 && !kChannelsLast), "tiles of 128 pixels, or 64 where they lie together");
constexpr int kPatchRows = SEPCONV_PATCH_ROWS, kPatchColumns = SEPCONV_PATCH_COLUMNS;
// Where the copy engine cannot load rows: each warp of the depthwise step gathers the input of a tile by itself, which is one patch.
constexpr bool kGathers = SEPCONV_GATHERS, kPatches = kGathers || (kChannelsLast && !kRolls);
// Of what is gathered four pixels of a row are computed together, so that a row of a patch takes up whole fours of the product's columns. Where
// the rows are more than fill a tile, patches flow: each begins where the one above it ends, anywhere in a row, and fills its tile.
constexpr int kPatchPitch = kGathers ? (kPatchColumns + 3) / 4 * 4 : kPatchColumns;
constexpr bool kFlows = kGathers && kPatchRows * kPatchPitch > kTile;
constexpr int kPatchPixels = kFlows ? kTile : kPatchRows * kPatchPitch;
static_assert(!kGathers || (!kChannelsLast && kElementBytes == 4), "float32 is gathered, of channels that lie apart");
static_assert(kPatches || !(kChannelsLast || kRolls) || (kStrideH == 1 && kStrideW == 1 && kDilationH == 1 && kDilationW == 1),
              "only whole windows have steps");
// Weights of one term that pass by come in parts of 64 channels, whose chunks are multiplied together.
constexpr int kWholeChunks = kBeside && kTerms == 1 ? 64 / kChunk : 1;
constexpr int kOwnChunks = ((kChannels + kChunk * kWholeChunks - 1) / (kChunk * kWholeChunks) * kWholeChunks + kCluster - 1) / kCluster, kChunks = kOwnChunks * kCluster;
constexpr int kPart = kChannelsLast ? 128 / kElementBytes : kChunk, kParts = kChunk / kPart;
// The product's rows are output channels and its columns pixels or, with channels last, the other way round. Each of the two
// product groups has 64 rows by 128 columns, or a tile's, at a time; a thread has so many sums of them. In a pass the groups compute
// 128 output channels.
constexpr int kBlockRows = 64, kColumns = kChannelsLast ? 128 : kTile, kSums = kColumns / 2, kPassOutputs = 128;
constexpr int kPasses = (kAllOutputs ? kOutputs + kPassOutputs - 1 : kBlockOutputs) / kPassOutputs;
// Where weights pass by, a cluster computes a tile again for other output channels.
constexpr int kClusterOutputs = kCluster * kBlockOutputs;
constexpr int kOutputSets = kBeside ? (kOutputs + kClusterOutputs - 1) / kClusterOutputs : 1;

// Threads: one group that moves data, two for the depthwise step, two for the product. A group is four warps. The depthwise warps
// work on a chunk together or, where chunks, stages and slots come in pairs, as two teams on every other chunk each: fewer threads
// then wait for one another. (Each stage has to stay with one team: the other would not see that a barrier is a round behind.)
constexpr int kGroup = 128, kDepthwiseWarps = 8, kRoleThreads = 2 * kGroup, kThreads = kGroup + 2 * kRoleThreads;
// The teams of a kernel that keeps rows of float32 would need more registers than there are.
constexpr int kKept = kRolls ? kKernelH - 1 : 0;  // output rows that are begun and not finished
constexpr bool kEnoughRegisters = kKept == 0 || kElementBytes == 2;
constexpr bool kInPairs = kOwnChunks % 2 == 0 && kStages % 2 == 0 && kSlots % (2 * kCluster) == 0;
constexpr bool kInTeams = !kChannelsLast && !kGathers && kInPairs && kEnoughRegisters;
constexpr int kTeams = kInTeams ? 2 : 1, kTeamWarps = kDepthwiseWarps / kTeams;

// The product may have most of the registers where the depthwise step keeps no rows, and a lane has one channel at a time.
constexpr bool kManyRegisters = kKept == 0 && !kChannelsLast;

// A stage of input is one row of a part's channels, or all rows of a window, with the columns before and behind the tile that the
// window reaches; or the boxes of two patches. Where pixels lie together these are whole 32 bytes, since a box that starts on 32 bytes is loaded a third faster
// than one that starts on 16 (H200, 2026-11-29).
constexpr __device__ int whole_32_bytes(int elements) { return (elements * kElementBytes + 31) / 32 * (32 / kElementBytes); }
constexpr int kReachH = (kKernelH - 1) * kDilationH + 1, kReachW = (kKernelW - 1) * kDilationW + 1;  // of the window, in rows and columns of x
constexpr int kLead = kChannelsLast ? kPaddingW : whole_32_bytes(kPaddingW), kBehind = kReachW - 1 - kPaddingW;
constexpr int kRowColumns = kChannelsLast ? kTile + kKernelW - 1 : kLead + kTile * kStrideW + whole_32_bytes(kBehind > 0 ? kBehind : 0);
constexpr int kBoxColumns = kPatches ? (kPatchColumns - 1) * kStrideW + kReachW : kRowColumns;
constexpr int kBoxRows = kPatches ? (kPatchRows - 1) * kStrideH + kReachH : kRolls ? 1 : kReachH;
constexpr int kBoxBytes = kPart * kBoxRows * kBoxColumns * kElementBytes, kInputBytes = (kPatches ? 2 : 1) * kBoxBytes;
// Patches in 16 bits: boxes swizzled as matrix units read them, with the taps and the biases of their channels behind them (diagonals.cuh).
#define SEPCONV_DIAGONALS (SEPCONV_CHANNELS_LAST && SEPCONV_ELEMENT_BYTES == 2)
constexpr bool kDiagonals = SEPCONV_DIAGONALS;
static_assert(!kDiagonals || kPatches, "with channels last in 16 bits windows are whole");
constexpr int kBoxRoom = kDiagonals ? (kBoxBytes + 1023) / 1024 * 1024 : kBoxBytes;
constexpr int kTapsOfStage = 2 * kBoxRoom, kBiasOfStage = kTapsOfStage + kChunk * kKernelH * kKernelW * 2;
constexpr int kDiagonalStageBytes = (kBiasOfStage + (kDepthwiseBias ? kChunk * 2 : 0) + 1023) / 1024 * 1024;
// Of what is gathered each warp has its channels' boxes, with their taps and biases behind them. So many taps of a row are added up at a time, for
// which a lane reads so many columns: those of a whole row, of four taps, or of one (and not those in between).
constexpr __device__ int columns_of_taps(int taps) { return (3 * kStrideW + (taps - 1) * kDilationW + 4) / 4 * 4; }
constexpr int kMostGathered = 16, kGatheredTaps = columns_of_taps(kKernelW) <= kMostGathered ? kKernelW : columns_of_taps(4) <= kMostGathered ? 4 : 1;
constexpr int kGatheredRead = columns_of_taps(kGatheredTaps);
constexpr int kBoxPitch = (kPatchPitch - 4) * kStrideW + columns_of_taps((kKernelW + kGatheredTaps - 1) / kGatheredTaps * kGatheredTaps);
constexpr int kWarpChannels = kChunk / kDepthwiseWarps;
constexpr int kWarpStageBytes = (kWarpChannels * (kBoxRows * kBoxPitch + kKernelH * kKernelW + 1) * 4 + 15) / 16 * 16;
constexpr int kStageBytes = kDiagonals ? kDiagonalStageBytes : ((kGathers ? kDepthwiseWarps * kWarpStageBytes : kInputBytes) + 127) / 128 * 128;

// A chunk of the operand, for each term: rows of 128 bytes, of 64 pixels of one channel, or of 64 channels of one pixel.
constexpr int kTermBytes = kTile * kChunk * 2, kSlotBytes = kTerms * kTermBytes;
// The weights lie in parts, of every term: a row of 128 bytes, 64 channels, for each output channel of the block. Where they stream as
// float32, or where there are three terms and registers to spare, they stay float32 (32 channels a row) and are split anew each time:
// the products take them from registers. Where they stream as they are through a block that computes all output channels, a product group
// writes its results at once, and meanwhile the other one multiplies: they take turns, at one stream. Where they pass by, both read the same
// stream. Else each has its own.
constexpr bool kSplitAnew = kManyRegisters && (kTerms == 3 || (kTerms > 1 && kStreams));
constexpr int kWeightPart = kSplitAnew ? 32 : 64, kWeightParts = (kChunks * kChunk + kWeightPart - 1) / kWeightPart;
constexpr int kWeightPartBytes = (kAllOutputs ? kBlockRows : kBlockOutputs) * 128, kWeightTermBytes = kWeightParts * kWeightPartBytes;
constexpr bool kTurns = kAllOutputs && !kSplitAnew;
constexpr int kStreamCount = kTurns || kBeside ? 1 : 2, kStreamed = kStreamCount * kWeightStages;
constexpr int kWeightBytes = kStreams ? kStreamed * kWeightPartBytes : (kSplitAnew ? 1 : kTerms) * kWeightTermBytes;
constexpr int kBlockBiases = kPasses * kPassOutputs, kBiases = kPointwiseBias ? kOutputSets * kBlockBiases : 0;
// A box of results: 128 bytes of each row of a block.
constexpr int kBoxColumnsOut = 128 / kElementBytes, kResultBytes = kBlockRows * 128;
// The taps of a channel: rows with room for the bias in the last place of the first; where a lane reads four at once, whole 16
// bytes.
constexpr int kTapRow = kChannelsLast ? kKernelW + 1 : kKernelW / 4 * 4 + 4, kTapFloats = kKernelH * kTapRow;
// Where matrix units slide the window (bands.cuh) they are pairs of 16 bits: of each tap and its neighbours, and zeros at the end. The bias
// comes after all rows.
constexpr bool kBands = !kChannelsLast && kElementBytes == 2;
constexpr int kPairs16 = kKernelW + 2;
// Taps of rows that reach further do not stay: each warp brings those of its next channels, and has room for one row of these
// (ahead.cuh). Matrix units take pairs from before the first tap and from behind the last one, zeros.
constexpr bool kManyTaps = !kChannelsLast && !kGathers && (kBands ? kReachW > 33 || kStrideW > 1 || kDilationW > 1 : kKernelW > 17 || kReachW + 3 * kStrideW > 32);
constexpr int kBandDeeps = (7 * kStrideW + kReachW + 16) / 16, kPairsBefore = 7 * kStrideW + 1;
constexpr int kRowBytes = kBands ? (kPairsBefore + 16 * kBandDeeps) * 4 : kTapRow * 4;
constexpr int kTapBytes = kManyTaps || kGathers || kDiagonals ? 0 : kBands ? kKernelH * kPairs16 * 4 + 4 : kTapFloats * 4;
// What warps have for themselves: of such rows as many at a time as channels; of patches in 16 bits a place for the pixels that a unit of
// two rows of eight has beside the patch (diagonals.cuh).
constexpr int kPixelsBeside = (8 - kPatchColumns % 8) % 8;
constexpr int kOfWarp = kManyTaps ? (kBands ? 1 : 128 / kTile) * kRowBytes : kDiagonals ? 2 * kPixelsBeside * 16 : 0;
constexpr int kScratchBytes = kDepthwiseWarps * kOfWarp;

// Four pixels of a patch that are computed together may reach beyond the last box.
constexpr int kBeyondStages = kPatches && !kGathers && !kDiagonals ? (3 - (kPatchColumns + 3) % 4) * kStrideW * 128 : 0;

// Shared memory, from 1024 bytes on a multiple of which it begins.
constexpr int kWeightsAt = 0, kSlotsAt = kWeightsAt + kWeightBytes, kStagedAt = kSlotsAt + kSlots * kSlotBytes;
constexpr int kStagesAt = kStagedAt + 2 * kStaged * kResultBytes, kTapsAt = kStagesAt + kStages * kStageBytes + kBeyondStages;
constexpr int kBiasAt = kTapsAt + kOwnChunks * kChunk * kTapBytes + kScratchBytes, kBarriersAt = kBiasAt + kBiases * 4;
constexpr int kSharedBytes = kBarriersAt + 8 * 2 * (kStages + kSlots + kStreamed + kResidual) + 1024;

static_assert(kSlots % kCluster == 0, "a slot belongs to one block of the cluster");
static_assert(kChunks == 1 || kSlots > 1, "the product gives a slot back when it has the next chunk");
static_assert(kPasses == 1 || kSlots >= kChunks, "the operand of a tile stays for all passes");
static_assert(!kChannelsLast || kPatchPixels <= kBlockRows, "a patch is what a product group has rows for");
static_assert(!kGathers || kPatchPixels <= kTile, "a tile has room for a patch");
static_assert(!kPatches || kStaged > 0, "results of patches go by way of shared memory");
static_assert(!kStreams || !kChannelsLast || (kBeside && kPatches && kTerms == 1), "nothing splits weights that stream with channels last");
static_assert(!kManyTaps || !kRolls, "rows that are kept have few taps");

// The rows of all images together are cut into parts of `rows` rows each, and the first `longer` of one more.
struct Parts {
  int count, rows, longer;
};

// The one parameter of a kernel; mirrored by `sepconv.backends.cuda`. x, weights and y are dense, the residual lies as y, a bias may be null. Where `stays` is no
// zero, L2 evicts x after everything else, and of that so many rows that a block loads last are let go in the end.
struct Call {
  TensorMap x_map, y_map, weight_map, residual_map;
  const void *x, *depthwise_weight, *pointwise_weight, *depthwise_bias, *pointwise_bias, *residual;
  void* y;
  Parts parts;
  int stays, images;
  float depthwise_value, pointwise_value;  // of the activations that have one
};

// Where an element lies in x or y.
template <int Channels, int Height, int Width>
__device__ __forceinline__ long long index_of(int image, int channel, int row, int column) {
  if constexpr (kChannelsLast) return (((long long)(image) * Height + row) * Width + column) * Channels + channel;
  else return (((long long)(image) * Channels + channel) * Height + row) * Width + column;
}

}  // namespace sepconv
