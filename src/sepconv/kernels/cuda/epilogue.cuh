// What becomes of the sums: bias, activation, and their way into y, by way of shared memory and the copy engine, which writes whole
// rows, or straight from the registers where shared memory is full.
#pragma once

#include "activation.cuh"
#include "exact.cuh"
#include "operands.cuh"
#include "order.cuh"
#include "walk.cuh"

namespace sepconv {

// The bias of the block's output channels, by the threads of a role; zeros where there are none.
__device__ __forceinline__ void load_bias(float* to, const void* bias, int rank, int thread) {
#pragma unroll 1
  for (int i = thread; i < kBiases; i += kRoleThreads) {
    const int output = (i / kBlockBiases * kCluster + rank) * kBlockOutputs + i % kBlockBiases;
    to[i] = output < kOutputs ? element(bias, output) : 0.f;
  }
}

// The sums of a group: thread t of warp w has, of the rows 16 w + t % 32 / 4 and 8 more, the columns 8 j + t % 4 * 2 and 1 more.
// Rows are output channels and columns pixels, or the other way round with channels last.
class Results {
 public:
  __device__ __forceinline__ Results(const Call& call, u32 staged, u32 bias, u32 residuals_here)
      : call_(call), all_staged_(staged), all_bias_(bias), residuals_here_(residuals_here) {
    find_place();
  }

  // A pass's first residuals, where results do not wait: on their way while it is multiplied.
  static constexpr bool kFetchesResidual = kResidual && kStaged > 0 && !kGathers && !(kManyRegisters && !kTurns);
  __device__ __forceinline__ void fetch_ahead(const Tile& tile) const {
    if (kFetchesResidual) fetch_residual(0, tile);
  }

  // Where residuals come straight from memory, they are on their way to L2 meanwhile: of each of the warp's rows a lane has four pixels.
  __device__ __forceinline__ void prefetch_residual(const Tile& tile) const {
    if constexpr (kResidual && !kChannelsLast && (kStaged == 0 || kGathers)) {
      const Spot spot = spot_of(tile, group_);
      const int lane = unforeseen(threadIdx.x) % 32, pixel = lane * 4, output = group_output(tile) + unforeseen(thread_) / 32 * 16;
      const Place place = place_of(spot, pixel);
      if (pixel >= kColumns || place.row >= kOutH || place.column >= kOutW) return;
      const long long first = index_of<kOutputs, kOutH, kOutW>(spot.image, output, place.row, place.column);
      const char* at = static_cast<const char*>(call_.residual) + first * kElementBytes;
#pragma unroll 1
      for (int i = 0; i < 16 && output + i < kOutputs; ++i, at += kPlane * kElementBytes) prefetch(at);
    }
  }

  // All of a pass, as many boxes at a time as are staged.
  __device__ __forceinline__ void put(float (&sum)[kSums], const Tile& tile) {
#pragma unroll
    for (int eight = 0; eight < kEights; eight += kAtATime) put_eights(sum, eight, eight + kAtATime, tile);
  }

  // The same in `steps` steps, of which this is one: between them the group can do other work.
  __device__ __forceinline__ void put_step(float (&sum)[kSums], int step, int steps, const Tile& tile) {
    put_eights(sum, kEights * step / steps, kEights * (step + 1) / steps, tile);
  }

  __device__ __forceinline__ void finish() const {
    if (kStaged > 0 && !kGathers && thread_ == 0) wait_stores();
  }

 private:
  static constexpr long long kPlane = (long long)(kOutH) * kOutW;  // elements of an output channel of an image
  static constexpr int kEights = kColumns / 8, kBoxEights = kBoxColumnsOut / 8;  // eights of columns of the product, and of a box
  static constexpr int kRunEights = kRun / 2;  // that make a run of a thread
  static constexpr bool kWholeOutputs = kOutputs % kClusterOutputs == 0, kWholeRows = kOutW % kTile == 0;  // all tiles are full
  static constexpr int kWriters = kStaged > 0 && !kGathers ? kGroup : 32;  // threads that write together
  static constexpr int kAtATime = kStaged == 0 ? kEights : kStaged * kBoxEights;  // that are staged together

  // Some eights; what is staged together has to come in order.
  __device__ __forceinline__ void put_eights(float (&sum)[kSums], int from, int to, const Tile& tile) {
#pragma unroll
    for (int eight = from; eight < to; ++eight) {
      if (eight % kAtATime == 0) begin(eight, tile);
      if constexpr (kStaged > 0) put_columns(sum, eight, tile);
      else if ((eight + 1) % kRunEights == 0) put_runs(sum, eight + 1 - kRunEights, tile);
      if ((eight + 1) % kAtATime == 0) end(eight + 1 - kAtATime, eight + 1, tile);
    }
  }

  // Everything that follows from the thread: found anew in each pass where the products before need all registers, and there the column
  // whenever it is wanted.
  static constexpr bool kFindsAnew = kSplitAnew || (kStaged == 0 && !kTurns);
  __device__ __forceinline__ void find_place() {
    const int thread = unforeseen(threadIdx.x);
    group_ = thread / kGroup - 3, thread_ = thread % kGroup;
    row_ = thread_ / 32 * 16 + place_of_row(thread_ % 32 / 4), column_ = column_of(thread_);
    staged_ = all_staged_ + group_ * kStaged * kResultBytes;
    to_ = staged_ + row_ * 128 + ((column_ * kElementBytes / 16 ^ row_ % 8) << 4) + column_ * kElementBytes % 16;
    bias_ = all_bias_ + (kChannelsLast ? column_ : group_ * kBlockRows + row_) * 4;
  }

  // A thread's first column.
  __device__ __forceinline__ int column() const { return kFindsAnew ? column_of(unforeseen(threadIdx.x)) : column_; }
  static __device__ __forceinline__ int column_of(int thread) { return thread % 4 * (kInRuns ? kRun : 2); }

  // The first output channel and pixel of the group's part of a tile, and of this thread's.
  __device__ __forceinline__ int group_output(const Tile& tile) const {
    return tile.output + (kChannelsLast ? 0 : group_ * kBlockRows);
  }
  __device__ __forceinline__ int output(const Tile& tile) const {
    return group_output(tile) + (kChannelsLast ? column() : row_);
  }
  __device__ __forceinline__ int pixel(const Tile& tile) const { return spot_of(tile, group_).column + (kChannelsLast ? row_ : column()); }
  // Whether its first row, or the one 8 rows further down, is one of the patch.
  __device__ __forceinline__ bool is_of_patch(int half) const {
    return !kPatches || kPatchPixels == kBlockRows || row_ + 8 * half < kPatchPixels;
  }

  // A sum, or nothing where its column is none of the patch.
  __device__ __forceinline__ float of_patch(const float (&sum)[kSums], int eight, int half, int i) const {
    return eight * 8 + 8 <= kPatchPixels || eight * 8 + column() + i < kPatchPixels ? sum[4 * eight + 2 * half + i] : 0.f;
  }

  // The bias of a pass's first output channel, in bytes.
  static __device__ __forceinline__ u32 bias_of(const Tile& tile) {
    if (kOutputSets > 1) return tile.output / kClusterOutputs * kBlockBiases * 4;
    return kAllOutputs ? tile.output * 4 : kPasses > 1 ? tile.output % kBlockOutputs * 4 : 0;
  }

  // Whether all sums are numbers: then so is the sum of their products in pairs, unless these are huge. In parts where there are
  // registers for them, since each addition waits for the one before.
  __device__ __forceinline__ void note(float one, float other, int eight) { all_[eight % kChains] = fmaf(one, other, all_[eight % kChains]); }
  __device__ __forceinline__ bool finite() const {
    float all = 0.f;
#pragma unroll
    for (int i = 0; i < kChains; ++i) all += all_[i];
    return all - all == 0.f;
  }

  __device__ __forceinline__ void begin(int eight, const Tile& tile) {
    if (eight == 0) {
      if (kFindsAnew) find_place();
#pragma unroll
      for (int i = 0; i < kChains; ++i) all_[i] = 0.f;
    }
    if (kStaged == 0) {
      const long long at = index_of<kOutputs, kOutH, kOutW>(tile.image(), output(tile), tile.row_of_image(), pixel(tile));
      to_y_ = static_cast<char*>(call_.y) + at * kElementBytes;
      return;
    }
    if constexpr (kGathers) {
      __syncwarp();
    } else if constexpr (kResidual) {
      if (eight > 0 || !kFetchesResidual) fetch_residual(eight, tile);
      barrier_wait(residual_here(), residual_parity_);
      residual_parity_ ^= 1;
    } else {
      if (thread_ == 0) wait_stores_read();
      threads_meet(1 + group_, kGroup);
    }
  }

  __device__ __forceinline__ void put_columns(float (&sum)[kSums], int eight, const Tile& tile) {
    float bias[2] = {};  // of the two columns or, of output channels as rows, of the two rows
    const u32 at = bias_ + bias_of(tile);
    if (kPointwiseBias && kChannelsLast) load_words(bias, at + eight * 8 * 4);
    if (kPointwiseBias && !kChannelsLast) {
      bias[0] = load_float(at), bias[1] = load_float(at + 8 * 4);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kGathers) note(of_patch(sum, eight, half, 0), of_patch(sum, eight, half, 1), eight);
      else if (is_of_patch(half)) note(sum[4 * eight + 2 * half], sum[4 * eight + 2 * half + 1], eight);
      float pair[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float one = sum[4 * eight + 2 * half + i];
        pair[i] = activate<kPointwiseActivation>(kPointwiseBias ? one + bias[kChannelsLast ? i : half] : one, call_.pointwise_value);
      }
      put_staged(pair, half, eight);
    }
  }

  // Of the eights that are staged together, into the boxes that their results are going to take.
  __device__ __forceinline__ void fetch_residual(int begin, const Tile& tile) const {
    if (thread_ != 0) return;
    wait_stores_read();
    barrier_expect(residual_here(), kStaged * (kChannelsLast ? kPatchPixels : kBlockRows) * 128);
    for_boxes(begin, tile, [&](u32 box, int column, int row, int channel, int image) {
      load_box(box, call_.residual_map, residual_here(), column, row, channel, image, cache_policy(false));
    });
  }
  __device__ __forceinline__ u32 residual_here() const { return residuals_here_ + 8 * group_; }

  __device__ __forceinline__ void put_staged(float (&pair)[2], int half, int eight) const {
    const int box = eight / kBoxEights % (kStaged > 0 ? kStaged : 1);
    const u32 at = (to_ ^ u32(eight % kBoxEights * 8 * kElementBytes)) + box * kResultBytes + half * 1024;
    if constexpr (kResidual && !kGathers) {
      float more[2];
      load_elements<2>(more, at);
      pair[0] += more[0], pair[1] += more[1];
    }
    if constexpr (kElement == Element::float32) store_words(at, {__float_as_uint(pair[0]), __float_as_uint(pair[1])});
    else store_words(at, {pack(pair[0], pair[1])});
  }

  // A thread's run of columns, of both its rows, straight to y.
  __device__ __forceinline__ void put_runs(float (&sum)[kSums], int eight, const Tile& tile) {
    const int along = eight * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float run[kRun];
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const float one = sum[4 * (eight + i / 2) + 2 * half + i % 2];
        if (i % 2 == 0) note(one, sum[4 * (eight + i / 2) + 2 * half + 1], eight + i / 2);
        const u32 bias = bias_ + bias_of(tile) + (kChannelsLast ? along + i : half * 8) * 4;
        run[i] = activate<kPointwiseActivation>(kPointwiseBias ? one + load_float(bias) : one, call_.pointwise_value);
      }
      const int on = half * 8;  // rows further down
      const bool is_output = kWholeOutputs || output(tile) + (kChannelsLast ? along : on) < kOutputs;
      const bool is_pixel = kWholeRows || pixel(tile) + (kChannelsLast ? on : along) < kOutW;
      if (!is_output || !is_pixel) continue;
      constexpr long long kRowStep = kChannelsLast ? kOutputs : kPlane;
      if constexpr (kResidual) add_residual(run, to_y_ - static_cast<char*>(call_.y) + (on * kRowStep + along) * kElementBytes);
      store_run(to_y_ + (on * kRowStep + along) * kElementBytes, run);  // inside or outside of y: its rows are whole runs
    }
  }
  // So many bytes behind its beginning; in two pieces, for the sake of registers.
  __device__ __forceinline__ void add_residual(float (&run)[kRun], long long at) const {
    const uint2* const from = reinterpret_cast<const uint2*>(static_cast<const char*>(call_.residual) + at);
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
      const uint2 both = from[piece];
      const u32 words[2] = {both.x, both.y};
#pragma unroll
      for (int i = 0; i < kRun / 2; ++i) {
        if constexpr (kElement == Element::float32) run[piece * kRun / 2 + i] += __uint_as_float(words[i]);
        else run[piece * kRun / 2 + i] += unpack(u16(words[i / 2] >> i % 2 * 16));
      }
    }
  }
  static __device__ __forceinline__ void store_run(char* to, const float (&run)[kRun]) {
    if constexpr (kElement == Element::float32) __stcs(reinterpret_cast<float4*>(to), {run[0], run[1], run[2], run[3]});
    else __stcs(reinterpret_cast<uint4*>(to), {pack(run[0], run[1]), pack(run[2], run[3]), pack(run[4], run[5]), pack(run[6], run[7])});
  }

  // What was staged goes to y. Where an operand does not split into terms (infinities, and what rounds to one), some sum is no
  // number, and neither is the sum of all: then the part of the tile of those who wrote together is computed again, as the reference
  // computes it.
  __device__ __forceinline__ void end(int begin, int end, const Tile& tile) {
    bool wrong = false;
    if (kStaged == 0 || kGathers) {
      if constexpr (kGathers) store_rows(begin, tile);
      if (end == kEights) wrong = __any_sync(~0u, !finite());
      if (wrong) __syncwarp();
    } else {
      fence_async();
      if (end == kEights) wrong = threads_meet_any(1 + group_, kGroup, !finite());
      else threads_meet(1 + group_, kGroup);
      if (thread_ == 0) store_boxes(begin, tile, wrong);
      if (wrong) threads_meet(1 + group_, kGroup);
    }
    if (!wrong) return;
    if (kFindsAnew) find_place();  // no register keeps until here what nothing else needs
    compute_exactly(call_, area(tile), unforeseen(thread_) % kWriters, kWriters);
  }

  __device__ __forceinline__ void store_boxes(int begin, const Tile& tile, bool wait) const {
    for_boxes(begin, tile, [&](u32 box, int column, int row, int channel, int image) {
      store_box(call_.y_map, box, column, row, channel, image);
    });
    commit_stores();
    if (wait) wait_stores();
  }
  static constexpr int kRowsAtOnce = 8;  // whose residuals are loaded together
  // The rows of this warp that are staged, from some eight on, by the warp itself: a lane has one pixel of each.
  __device__ __forceinline__ void store_rows(int begin, const Tile& tile) const {
    __syncwarp();
    const Spot spot = spot_of(tile, group_);
    const int lane = unforeseen(threadIdx.x) % 32, first = unforeseen(thread_) / 32 * 16, output = group_output(tile) + first;
#pragma unroll
    for (int box = 0; box < kStaged; ++box) {
      const Place place = place_of(spot, begin * 8 + box * kBoxColumnsOut + lane);
      if (!place.in_patch || place.row >= kOutH || place.column >= kOutW) continue;
      const long long at = index_of<kOutputs, kOutH, kOutW>(spot.image, output, place.row, place.column);
#pragma unroll 1
      for (int some = 0; some < 16; some += kRowsAtOnce) {
        float results[kRowsAtOnce];
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          const bool exists = kWholeOutputs || output + some + i < kOutputs;
          results[i] = kResidual && exists ? element(call_.residual, at + (some + i) * kPlane) : 0.f;
        }
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          const int in_box = first + some + i;
          results[i] += load_float(staged_ + box * kResultBytes + in_box * 128 + ((lane / 4 ^ in_box % 8) << 4) + lane % 4 * 4);
          if (kWholeOutputs || output + some + i < kOutputs) set_element(call_.y, at + (some + i) * kPlane, results[i]);
        }
      }
    }
  }

  // Call f(box, first column, row, channel, image) for each box that is staged, from some eight on.
  template <typename F>
  __device__ __forceinline__ void for_boxes(int begin, const Tile& tile, F f) const {
    const Spot spot = spot_of(tile, group_);
#pragma unroll
    for (int box = 0; box < kStaged; ++box) {
      const int along = begin * 8 + box * kBoxColumnsOut;
      f(staged_ + box * kResultBytes, spot.column + (kChannelsLast ? 0 : along), spot.row, group_output(tile) + (kChannelsLast ? along : 0),
        spot.image);
    }
  }

  // Of a tile, what those threads have that write together: the group, or a warp where each writes by itself.
  __device__ __forceinline__ Area area(const Tile& tile) const {
    constexpr int kRows = kWriters == kGroup ? kBlockRows : 16;
    const int first = unforeseen(thread_) / kWriters * kRows;
    return {spot_of(tile, group_), kChannelsLast ? first : 0, kChannelsLast ? kRows : kColumns, group_output(tile) + (kChannelsLast ? 0 : first),
            kChannelsLast ? kColumns : kRows};
  }

  const Call& call_;
  const u32 all_staged_, all_bias_, residuals_here_;  // of both groups
  int group_, thread_, row_, column_;
  u32 staged_, to_, bias_;  // where the group's boxes, this thread's first pair and its bias lie
  static constexpr int kChains = kSplitAnew ? 1 : 4;
  float all_[kChains];
  char* to_y_;
  u32 residual_parity_ = 0;
};

}  // namespace sepconv
