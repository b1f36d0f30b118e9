// What a lane of the depthwise step has where the channels of a pixel lie together, in float32: two neighbouring channels of a part, and
// of its warp's pixels some, four of a row at a time. Four warps have a patch.
#pragma once

#include "lane.cuh"

namespace sepconv {

constexpr int kAtOnce = 2, kPairs = kPart / kAtOnce;
// A unit is kPixels pixels of a row of a patch, or fewer at its end; each step of a warp has one, or more side by side.
constexpr int kUnitsOfRow = (kPatchColumns + kPixels - 1) / kPixels, kUnits = kPatchRows * kUnitsOfRow, kSideBySide = 32 / kPairs;
constexpr int kPatchWarps = kTeamWarps / 2, kSteps = (kUnits + kPatchWarps * kSideBySide - 1) / (kPatchWarps * kSideBySide);
constexpr int kRead = (kPixels - 1) * kStrideW + kReachW, kBefore = 0;

// Whether any of a unit's windows has a tap on this column of it.
constexpr __device__ bool is_read(int column) {
  for (int p = 0; p < kPixels; ++p) {
    const int in_window = column - p * kStrideW;
    if (in_window >= 0 && in_window < kReachW && in_window % kDilationW == 0) return true;
  }
  return false;
}

struct Input {
  float v[kRead][kAtOnce];
};
using Taps = FloatTaps<kAtOnce>;

__device__ __forceinline__ void add_row(float (&sum)[kAtOnce][kPixels], const Taps& taps, const Input& input) {
  FloatInput<kAtOnce, kRead> numbers;
#pragma unroll
  for (int i = 0; i < kRead; ++i) {
    if (!is_read(i)) continue;
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) numbers.v[c][i] = input.v[i][c];
  }
  add_taps<kBefore>(sum, taps, numbers);
}

class Lane {
 public:
  __device__ __forceinline__ Lane(const Call&, u32 stages, u32 slots, u32 taps, int, int warp, int lane)
      : first_(warp % kPatchWarps * kSteps * kSideBySide + lane / kPairs), channel_(lane % kPairs * kAtOnce) {
    const int patch = warp / kPatchWarps, row = patch * kBlockRows + (kPatches ? 0 : first_ * kPixels);
    from_ = stages + (kPatches ? patch * kBoxBytes : row * 128) + channel_ * kElementBytes;
    to_ = slots + row * 128 + ((kPatches ? 0 : channel_ / 8 ^ row % 8) << 4) + channel_ % 8 * 2;
    taps_ = taps + channel_ * 4;
  }

  // Where the taps of a channel of the block's lie, in floats.
  static __device__ __forceinline__ int tap_index(int channel, int h, int w) {
    return ((channel / kPart * kKernelH + h) * kTapRow + w) * kPart + channel % kPart;
  }

  __device__ __forceinline__ void load_taps(Taps& taps, int part, int, int h) const {
#pragma unroll
    for (int w = 0; w < (h == 0 ? kTapRow : kKernelW); ++w) {
      float both[2];
      load_words(both, taps_ + tap_index(part * kPart, h, w) * 4);
      taps.v[0][w] = both[0], taps.v[1][w] = both[1];
    }
    if (h == 0) taps.bias[0] = taps.v[0][kTapRow - 1], taps.bias[1] = taps.v[1][kTapRow - 1];
  }

  // Where the input of a step begins.
  __device__ __forceinline__ u32 input_of(u32 stage, int step) const {
    const Unit unit = unit_of(step);
    return stage + from_ + (kPatches ? unit.row * kStrideH * kBoxColumns + unit.column * kStrideW : step * kStepPixels) * 128;
  }
  __device__ __forceinline__ void load(Input& input, u32 from, int h) const {
    from += h * kDilationH * kBoxColumns * 128;
#pragma unroll
    for (int i = 0; i < kRead; ++i) {
      if (is_read(i)) load_words(input.v[i], from + i * 128);
    }
  }

  __device__ __forceinline__ void put(u32 slot, int part, int step, float (&done)[2][kPixels]) const {
    const Unit unit = unit_of(step);
    if (!unit.exists) return;
#pragma unroll
    for (int p = 0; p < kPixels; ++p) {
      if (kPatches && unit.column + p >= kPatchColumns) continue;
      float both[2] = {done[0][p], done[1][p]};
      const u32 to = place(slot, part, unit, step, p);
      for_terms(both, [&](int t, const u32(&pairs)[1]) { store_words(to + t * kTermBytes, pairs); });
    }
  }

 private:
  static constexpr int kStepPixels = kSideBySide * kPixels;  // where a patch is part of a row

  // Its row and its first column in the patch. Instead of units behind the last one that is computed again, and not put. Found anew whenever
  // it is wanted: those of all steps would take registers.
  struct Unit {
    int row, column;
    bool exists;
  };
  __device__ __forceinline__ Unit unit_of(int step) const {
    if constexpr (!kPatches) return {0, 0, true};
    const int number = unforeseen(first_) + step * kSideBySide, unit = min(number, kUnits - 1);
    return {unit / kUnitsOfRow, unit % kUnitsOfRow * kPixels, number < kUnits};
  }

  // Where a pixel of a step goes. The pieces of 16 bytes of a pixel's channels lie swizzled by the pixel's number.
  __device__ __forceinline__ u32 place(u32 slot, int part, const Unit& unit, int step, int p) const {
    const int piece = part % kParts * kPart / 8, pixel = step * kStepPixels + p;
    if constexpr (!kPatches) return ((slot + to_) ^ ((piece ^ pixel % 8) << 4)) + pixel * 128;
    const int in_patch = unit.row * kPatchColumns + unit.column + p;
    return slot + to_ + in_patch * 128 + ((piece + channel_ / 8 ^ in_patch % 8) << 4);
  }

  const int first_, channel_;
  u32 from_, to_, taps_;
};

__device__ __forceinline__ void load_all_taps(char* taps, const void* weight, const void* bias, int rank, int thread) {
  load_float_taps<Lane>(reinterpret_cast<float*>(taps), weight, bias, rank, thread);
}

}  // namespace sepconv
