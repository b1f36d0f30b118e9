// What a portable kernel is compiled for, how it runs, and its parameter. All values come from `sepconv.backends.portable`;
// `sepconv.tuning.portable` mirrors what leads to kSharedBytes.
#pragma once

#include "../words.cuh"

namespace sepconv {

constexpr int kChannels = SEPCONV_CHANNELS, kMultiplier = SEPCONV_MULTIPLIER, kMiddle = kChannels * kMultiplier, kOutputs = SEPCONV_OUTPUTS;
constexpr int kKernelH = SEPCONV_KERNEL_H, kKernelW = SEPCONV_KERNEL_W, kStrideH = SEPCONV_STRIDE_H, kStrideW = SEPCONV_STRIDE_W;
constexpr int kDilationH = SEPCONV_DILATION_H, kDilationW = SEPCONV_DILATION_W, kPaddingH = SEPCONV_PADDING_H, kPaddingW = SEPCONV_PADDING_W;
constexpr int kInH = SEPCONV_IN_H, kInW = SEPCONV_IN_W, kOutH = SEPCONV_OUT_H, kOutW = SEPCONV_OUT_W, kPlane = kOutH * kOutW;
constexpr bool kDepthwiseBias = SEPCONV_DEPTHWISE_BIAS, kPointwiseBias = SEPCONV_POINTWISE_BIAS, kResidual = SEPCONV_RESIDUAL;
constexpr int kTerms = SEPCONV_TERMS;  // 16-bit numbers that an operand's number is the sum of

// How. A tile has kTile places for pixels: runs of kRun neighbours, some of which are a row of kTileColumns pixels (behind which the last
// places of its last run may be empty). Does the operand of all chunks stay in shared memory? Over so many chunks matrix units add up.
constexpr int kTile = SEPCONV_TILE, kRun = SEPCONV_RUN, kTileColumns = SEPCONV_TILE_COLUMNS, kBlock = SEPCONV_BLOCK;
constexpr int kTileImages = SEPCONV_TILE_IMAGES;  // the most that rows of a tile are of
constexpr int kStages = SEPCONV_STAGES, kPartChunks = SEPCONV_PART_CHUNKS;
constexpr bool kResident = SEPCONV_RESIDENT;

constexpr int kThreads = 256, kWarps = 8, kChunk = 32;
constexpr int kChunks = (kMiddle + kChunk - 1) / kChunk, kBlocks = (kOutputs + kBlock - 1) / kBlock;
constexpr int kRowRuns = (kTileColumns + kRun - 1) / kRun, kRowPlaces = kRowRuns * kRun, kTileRows = kTile / kRowPlaces;
constexpr int kTileRowsBegun = (kTile + kRowPlaces - 1) / kRowPlaces;
constexpr int kColumnTiles = (kOutW + kTileColumns - 1) / kTileColumns;

// Stages of input: the rows that the rows of a tile need. Those of one image overlap, or each has its own, whichever are fewer.
constexpr int kHeight = (kKernelH - 1) * kDilationH + 1;
constexpr int kOverlapping = (kTileRows - 1) * kStrideH + (kTileImages - 1) * (kHeight - kStrideH) + kHeight;
constexpr bool kOverlap = kHeight >= kStrideH && kOverlapping < kTileRows * kKernelH;
constexpr int kRowsOfRow = kOverlap ? kHeight : kKernelH, kRowAdvance = kOverlap ? kStrideH : kKernelH;
constexpr int kTapAdvance = kOverlap ? kDilationH : 1;
constexpr int kStageRows = kOverlap ? kOverlapping : kTileRows * kKernelH;
// Of a row: columns from the first of a whole piece on, kLead of them before the window. What comes in pieces is on a multiple of their bytes.
constexpr int kPieceBytes = SEPCONV_PIECE_BYTES, kPieceElements = kPieceBytes / kElementBytes;
constexpr int kLead = kChannelsLast ? 0 : (kPieceElements - kPaddingW % kPieceElements) % kPieceElements;
constexpr int kWidth = (kKernelW - 1) * kDilationW + 1;
constexpr int kPlacedColumns = kLead + (kRowPlaces - 1) * kStrideW + kWidth;  // those of empty places too, which are to be numbers
__device__ constexpr int whole_vectors(int elements) { return (elements * kElementBytes + 15) / 16 * 16 / kElementBytes; }
// The channels of x that a chunk needs; and steps between neighbours in a stage, in elements: no two of 16 bytes that threads load at once
// lie in the same banks.
constexpr int kStageChannels = kMultiplier == 1 ? kChunk : (kChunk - 2) / kMultiplier + 2;
constexpr int kPixelStep = kChannelsLast ? whole_vectors(kStageChannels) + (kElementBytes == 2 && kRun > 1 ? (kRun == 2 ? 16 : 8) : 0) : 1;
constexpr int kRowStep = whole_vectors(kPlacedColumns * kPixelStep), kChannelStep = kChannelsLast || kStages == 0 ? 1 : kStageRows * kRowStep;
constexpr int kStage = kStages == 0 ? 0 : kChannelsLast ? kStageRows * kRowStep : kStageChannels * kChannelStep;

// The columns of the product are neighbours in y: output channels with channels last, else pixels. The others are its rows. A warp has some
// tiles of 16 x 8 results.
constexpr int kRows = kChannelsLast ? kTile : kBlock, kColumns = kChannelsLast ? kBlock : kTile;
constexpr int kTilesM = kRows * kColumns >= 128 * 128 ? 4 : kRows * kColumns >= 128 * 32 && kRows >= 32 ? 2 : 1;
constexpr int kWarpsM = kRows / (16 * kTilesM), kWarpsN = kWarps / kWarpsM, kTilesN = kColumns / (8 * kWarpsN);
static_assert(kTilesN % 2 == 0, "tiles of columns are loaded in pairs");

// Numbers of 16 bits in rows of so many pieces of 16 bytes: pieces change places, so that those of neighbouring rows lie in other banks.
template <int Pieces>
struct Grid {
  static constexpr int kRowsOfLine = Pieces < 8 ? 8 / Pieces : 1, kOthers = (Pieces < 8 ? Pieces : 8) - 1;

  static __device__ __forceinline__ constexpr int place(int row, int piece) { return (row * Pieces + (piece ^ (row / kRowsOfLine & kOthers))) * 8; }
};
// Channels of an output; and of the operand what the window's step writes at once: channels of a pixel, else pixels of a channel.
using WeightGrid = Grid<kChunk / 8>;
using OperandGrid = Grid<kChannelsLast ? kChunk / 8 : kTile / 8>;
constexpr int kOperandTerm = kTile * kChunk, kOperand = kTerms * kOperandTerm, kOperands = kResident ? kChunks : 1;
constexpr int kWeightTerm = kBlock * kChunk, kWeights = kTerms * kWeightTerm, kWeightSlots = kTerms == 1 ? 3 : 2;

// The taps of a chunk and its biases lie in shared memory where there are not too many: those of a channel together, or of a tap.
constexpr int kTaps = kKernelH * kKernelW, kTapStep = kChannelsLast ? kChunk : 1;
constexpr bool kTapsInShared = kTaps < 64, kTapsHeld = !kChannelsLast && kTaps < 12;  // where the window's step knows which one it takes
constexpr int kTapChannelStep = kChannelsLast ? 1 : kTapsHeld ? (kTaps + 4) / 4 * 4 : (kTaps + 1) | 1;
constexpr int kTapFloats = !kTapsInShared ? 0 : kChannelsLast ? (kTaps + 1) * kChunk : kTapChannelStep * kChunk;

// Shared memory. While the weights are there no stage is, where the operand of all chunks stays.
constexpr int kPlanBytes = ((kStages > 0 ? kStageRows : 1) * 8 + kTileRowsBegun * 12 + 8 + 127) / 128 * 128;
constexpr int kWindowBytes = kStages * kStage * kElementBytes + 2 * kTapFloats * 4, kWeightBytes = kWeightSlots * kWeights * 2;
constexpr int kLater = kResident ? (kWindowBytes > kWeightBytes ? kWindowBytes : kWeightBytes) : kWindowBytes + kWeightBytes;
constexpr int kSharedBytes = kPlanBytes + kOperands * kOperand * 2 + kLater;

struct Call {
  const Stored *x, *depthwise_weight, *pointwise_weight, *depthwise_bias, *pointwise_bias, *residual;  // pointwise weights on multiples of 16 bytes
  Stored* y;
  long long x_strides[4];  // of images, channels, rows and columns, in elements
  long long rows;          // of y, of all images together
  int x_in_pieces;         // whether x is dense in the order of y and lies on whole pieces
  float depthwise_value, pointwise_value;
};

}  // namespace sepconv
