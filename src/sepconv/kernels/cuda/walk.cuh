// The order of the work, the same for all roles: a block (or cluster) takes items, an item is a strip of columns and a part of the
// rows of all images, and it is walked down row by row. And the rings that roles hand data over in.
#pragma once

#include "problem.cuh"
#include "ptx.cuh"

namespace sepconv {

constexpr int kStrips = kPatches ? 1 : (kOutW + kTile - 1) / kTile;  // where there are patches, a row is one or two of them

struct Item {
  int column;      // the first of the tile
  int begin, end;  // output rows of all images together
  int set;         // of output channels

  __device__ __forceinline__ int first_output(int rank) const { return (set * kCluster + rank) * kBlockOutputs; }
};

__device__ __forceinline__ Item item_of(const Parts& parts, int i) {
  const int set = i % kOutputSets, part = i / kOutputSets / kStrips, begin = part * parts.rows + min(part, parts.longer);
  return {i / kOutputSets % kStrips * kTile, begin, begin + parts.rows + (part < parts.longer), set};
}

template <typename F>
__device__ __forceinline__ void for_items(const Parts& parts, F f) {
#pragma unroll 1
  for (int i = unforeseen(blockIdx.x) / kCluster; i < kStrips * parts.count * kOutputSets; i += gridDim.x / kCluster) f(item_of(parts, i));
}

struct Tile {
  int row, column, output;  // the output row of all images together, the first column, the block's first output channel

  __device__ __forceinline__ int image() const { return row / kOutH; }
  __device__ __forceinline__ int row_of_image() const { return row % kOutH; }
};

// Where the pixels of a product group begin: the same for both or, with channels last, each its own. Where patches flow the first `lead` pixels of
// the row are those of the patch above.
struct Spot {
  int image, row, column, lead = 0;
};
__device__ __forceinline__ Spot spot_of(const Tile& tile, int group) {
  if constexpr (!kPatches) return {tile.image(), tile.row_of_image(), tile.column + (kChannelsLast ? group * kBlockRows : 0)};
  constexpr int kAcross = (kOutW + kPatchColumns - 1) / kPatchColumns;
  constexpr int kDown = kFlows ? (kOutH * kPatchPitch + kTile - 1) / kTile : (kOutH + kPatchRows - 1) / kPatchRows;
  const int patch = kGathers ? tile.row : 2 * tile.row + group, image = patch / (kAcross * kDown), down = patch / kAcross % kDown;
  const int column = patch % kAcross * kPatchColumns;
  if (kFlows) return {image, down * kTile / kPatchPitch, column, down * kTile % kPatchPitch};
  return {image, down * kPatchRows, column};
}

// Where a pixel lies, counted from the first one of a spot: along a row or, row after row, in a patch, if it is one of the patch.
struct Place {
  int row, column;
  bool in_patch;
};
__device__ __forceinline__ Place place_of(const Spot& spot, int pixel) {
  if constexpr (!kPatches) return {spot.row, spot.column + pixel, true};
  const int at = spot.lead + pixel, column = at % kPatchPitch;
  return {spot.row + at / kPatchPitch, spot.column + column, pixel < kPatchPixels && column < kPatchColumns};
}

// Call f(image, first output row, end) for each image of an item.
template <typename F>
__device__ __forceinline__ void for_images(const Item& item, F f) {
#pragma unroll 1
  for (int row = item.begin; row < item.end;) {
    const int image = row / kOutH, first = row % kOutH, end = min(kOutH, first + item.end - row);
    f(image, first, end);
    row += end - first;
  }
}

// Slots that are used one after the other, again and again: which one is next, and the parity of its barriers.
template <int Count, int Step = 1>
struct Ring {
  int at = 0;
  u32 parity = 0;

  __device__ __forceinline__ void next(int n = 1) {
    at += n * Step;
    if (at >= Count) at -= Count, parity ^= 1;
  }
  // Any number of slots further on.
  template <int N>
  __device__ __forceinline__ void skip() {
    parity ^= N / Count % 2;
    next(N % Count);
  }
};

// Who says that a part of a stream of weights was read: a group, when its products have read it, or each of its warps, which loads it; or both
// groups.
constexpr int kWeightReaders = (kSplitAnew ? 4 : 1) * (kBeside ? 2 : 1);

// The barriers of the rings: an input stage is full or empty, and so is a slot of the operand.
struct Barriers {
  u32 start;

  __device__ __forceinline__ u32 stage_full(int i) const { return start + 8 * i; }
  __device__ __forceinline__ u32 stage_empty(int i) const { return start + 8 * (kStages + i); }
  __device__ __forceinline__ u32 slot_full(int i) const { return start + 8 * (2 * kStages + i); }
  __device__ __forceinline__ u32 slot_empty(int i) const { return start + 8 * (2 * kStages + kSlots + i); }
  __device__ __forceinline__ u32 weights_full(int stream, int i) const {
    return start + 8 * (2 * (kStages + kSlots) + stream * kWeightStages + i);
  }
  __device__ __forceinline__ u32 weights_empty(int stream, int i) const { return weights_full(kStreamCount + stream, i); }

  // The residuals of each product group.
  __device__ __forceinline__ u32 residuals_here() const { return start + 8 * 2 * (kStages + kSlots + kStreamed); }

  // A block's own slots are filled by its depthwise warps, those of other blocks by one copy. A slot is empty again when
  // both product groups of every block have read it; its owner is told.
  __device__ __forceinline__ void init(int rank) const {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(stage_full(i), 1);
      barrier_init(stage_empty(i), kTeamWarps);
    }
    for (int i = 0; i < kSlots; ++i) {
      barrier_init(slot_full(i), i % kCluster == rank ? kTeamWarps : 1);
      barrier_init(slot_empty(i), 2 * kCluster);
    }
    for (int i = 0; kResidual && i < 2; ++i) barrier_init(residuals_here() + 8 * i, 1);
    for (int i = 0; i < kStreamed; ++i) {
      barrier_init(weights_full(0, i), 1);
      barrier_init(weights_empty(0, i), kWeightReaders);
    }
  }
};

}  // namespace sepconv
