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

// How: the pixels of a tile (64, 32 or 16), and whether the operand of all chunks stays in shared memory.
constexpr int kTile = SEPCONV_TILE;
constexpr bool kResident = SEPCONV_RESIDENT;

constexpr int kThreads = 256, kWarps = 8, kChunk = 32, kBlock = 128;
constexpr int kChunks = (kMiddle + kChunk - 1) / kChunk, kBlocks = (kOutputs + kBlock - 1) / kBlock;
// The columns of the product are neighbours in y: output channels with channels last, else pixels. The others are its rows. A warp has some
// tiles of 16 x 8 results.
constexpr int kRows = kChannelsLast ? kTile : kBlock, kColumns = kChannelsLast ? kBlock : kTile;
constexpr int kTilesM = kRows >= 32 && kColumns >= 32 ? 2 : 1, kWarpsM = kRows / (16 * kTilesM), kWarpsN = kWarps / kWarpsM;
constexpr int kTilesN = kColumns / (8 * kWarpsN);
static_assert(kTilesN % 2 == 0, "tiles of columns are loaded in pairs");
// Rows of operands are 16 bytes longer than a chunk: so neither matrix loads nor stores of 16 bytes meet in a bank.
constexpr int kPitch = kChunk + 8, kOperandTerm = kTile * kPitch, kOperand = kTerms * kOperandTerm;
constexpr int kWeightTerm = kBlock * kPitch, kWeights = kTerms * kWeightTerm;
constexpr int kOperands = kResident ? kChunks : 2;
// The taps of a chunk, and its biases behind them, lie in shared memory as rows of one tap of all channels, where there are not too many.
constexpr int kTaps = kKernelH * kKernelW, kTapFloats = kTaps < 64 ? (kTaps + 1) * kChunk : 0;
constexpr bool kTapsInShared = kTapFloats > 0;
constexpr int kSharedBytes = (kOperands * kOperand + 2 * kWeights) * 2 + 2 * kTapFloats * 4;
// A thread has so many channels of one pixel at a time in the window's step.
constexpr int kUnit = kTile / 8, kUnits = kChunk / kUnit;

struct Call {
  const Stored *x, *depthwise_weight, *pointwise_weight, *depthwise_bias, *pointwise_bias, *residual;
  Stored* y;
  long long x_strides[4];  // of images, channels, rows and columns, in elements
  long long pixels;        // of all images together
  int dense;               // whether x is dense in the order of y, some channels make whole input channels or, with channels last, whole vectors
  float depthwise_value, pointwise_value;
};

// An output pixel: its image, and its place there.
struct Pixel {
  long long image;
  int place;  // row * kOutW + column

  __device__ __forceinline__ explicit Pixel(long long pixel) : Pixel(pixel / kPlane, int(pixel % kPlane)) {}
  __device__ __forceinline__ Pixel(long long image, int place) : image(image), place(place) {}
  // The pixel so many further on: no more than a tile, whose first pixel costs a division of 64 bits.
  __device__ __forceinline__ Pixel after(int count) const { return Pixel(image + (u32(place) + count) / kPlane, int((u32(place) + count) % kPlane)); }
  __device__ __forceinline__ int row() const { return place / kOutW; }
  __device__ __forceinline__ int column() const { return place % kOutW; }
  // Where it lies in y: its first output channel, and from one to the next.
  static constexpr long long kStep = kChannelsLast ? 1 : kPlane;
  __device__ __forceinline__ long long index() const { return image * kOutputs * kPlane + (long long)(place) * (kChannelsLast ? kOutputs : 1); }
};

// How many pixels a tile has; the last one may not be full.
__device__ __forceinline__ int left_of(const Call& call, long long tile) {
  const long long left = call.pixels - tile * kTile;
  return left < kTile ? int(left) : kTile;
}

}  // namespace sepconv
