// What one call asks for: the constants that a kernel is compiled for, and the record that a caller fills.
// The record is mirrored by `sepconv.backends.cpu`; all strides are in elements.
#pragma once

#include <type_traits>

#include "activation.h"
#include "team.h"
#include "vector.h"

namespace sepconv {

// Compiled in; a kernel size or a multiplier of 0 means that the window, or the multiplier, is only known at run time.
using Element = SEPCONV_ELEMENT;
constexpr bool kChannelsLast = SEPCONV_CHANNELS_LAST;
constexpr int kMultiplier = SEPCONV_MULTIPLIER;
constexpr int kKernelH = SEPCONV_KERNEL_H, kKernelW = SEPCONV_KERNEL_W;
constexpr int kStrideH = SEPCONV_STRIDE_H, kStrideW = SEPCONV_STRIDE_W;
constexpr bool kAnyWindow = kKernelH == 0;
constexpr Activation kDepthwiseActivation = Activation::SEPCONV_DEPTHWISE_ACTIVATION;
constexpr Activation kPointwiseActivation = Activation::SEPCONV_POINTWISE_ACTIVATION;

// What multiplies: float32 vectors; vectors of bfloat16 pairs; or matrix units that take 16 x 32 by 32 x 16 bfloat16.
enum class Units { vectors, pairs, matrices };
constexpr Units kUnits = Units::SEPCONV_UNITS;
using Operand = std::conditional_t<kUnits == Units::vectors, float, BFloat16>;
constexpr int kTerms = SEPCONV_TERMS;  // an operand of the product is a sum of so many of these; see terms.h
constexpr int kDepthStep = kUnits == Units::vectors ? 1 : kUnits == Units::pairs ? 2 : 32;  // what the depth is padded to
constexpr int kBlock = kUnits == Units::matrices ? 32 : kRows;                     // rows of the product that are computed together
constexpr int kPanel = kUnits == Units::matrices ? 32 : kLanes * kVectors;         // and columns

// Where things lie in an operand with columns: in panels of kPanel columns, in which kDepthStep rows of the depth are together,
// one term after the other. From one term to the next, and the place of an (even, where there are pairs) row:
constexpr long kTermInPanel = kDepthStep * kPanel;
constexpr long in_panel(long row) { return (row / kDepthStep * kDepthStep * kTerms + row % kDepthStep) * kPanel; }
// In an operand with rows that matrix units multiply: blocks of kBlock rows, in the same way.
constexpr long kTermInBlock = kDepthStep * kBlock;
constexpr long in_block(long row, long depth) { return (depth / kDepthStep * kTerms * kBlock + row) * kDepthStep + depth % kDepthStep; }

// An element of a tensor as an operand.
template <typename To = Operand, typename From>
SEPCONV_INLINE To to_operand(From value) {
  if constexpr (std::is_same_v<To, From>) return value;
  else return to_float(value);
}

struct Call {
  const Element* x;
  const Element* depthwise_weight;  // (channels * multiplier, kernel_h, kernel_w), dense
  const Element* pointwise_weight;  // (outputs, channels * multiplier), dense
  const Element* depthwise_bias;    // or null, as the two below
  const Element* pointwise_bias;
  const Element* residual;  // with the strides of y
  Element* y;
  char* workspace;
  long x_stride_n, x_stride_c, x_stride_h, x_stride_w;
  long batch, channels, multiplier, outputs;
  long in_h, in_w, out_h, out_w;
  long kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w;
  long padding_h, padding_w;  // zeros before the first row and the first column
  // How: the output pixels of a tile, whether the threads share each tile (small problems) or take a tile each, and whether y
  // may lie in huge pages.
  long tile_rows, tile_columns, shared, huge_pages;
  Threads threads;
  Activate depthwise_activation, pointwise_activation;

  long middle() const { return channels * multiplier; }
  // The length of the product's sums, with zeros behind the last middle channel.
  long depth() const { return round_up(middle(), kDepthStep); }
  // What a row of the product takes: all terms of its depth.
  long row() const { return kTerms * depth(); }
  // The input channel of a middle channel.
  long channel_of(long middle) const { return kMultiplier == 1 ? middle : middle / multiplier; }
  long taps() const { return kernel_h * kernel_w; }
  long pixels() const { return out_h * out_w; }
};

}  // namespace sepconv
