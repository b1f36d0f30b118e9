// The input of a chunk of channels on its way to a stage in shared memory.
#pragma once

#include "../async.cuh"
#include "plan.cuh"

namespace sepconv {

__device__ __forceinline__ int first_input(int chunk) { return chunk * kChunk / kMultiplier; }

class Input {
 public:
  __device__ __forceinline__ Input(const Call& call, const Plan& plan, int tile_column, int thread)
      : call_(call), plan_(plan), first_column_(tile_column * kStrideW - kPaddingW - kLead), thread_(thread) {}

  __device__ __forceinline__ void start(Stored* stage, int chunk) const {
    if (call_.x_in_pieces) start_pieces<kPieceElements>(stage, first_input(chunk));
    else start_pieces<1>(stage, first_input(chunk));
  }

 private:
  // Whether all channels of all chunks do, so that nobody has to ask.
  static constexpr bool kAllExist = kMultiplier == 1 && kChannels % kChunk == 0;

  // Pieces of some elements are of a dense x; one element lies anywhere.
  template <int Elements>
  __device__ __forceinline__ void start_pieces(Stored* stage, int first) const {
    if constexpr (kChannelsLast) start_pixels<Elements>(stage, first);
    else start_rows<Elements>(stage, first);
  }

  // A warp takes some channels, of which a lane has the same pieces.
  template <int Elements>
  __device__ __forceinline__ void start_rows(Stored* stage, int first) const {
    constexpr int kPieces = (kPlacedColumns + Elements - 1) / Elements;
    const long long column_step = Elements > 1 ? 1 : call_.x_strides[3];
    const long long channel_step = Elements > 1 ? kInH * (long long)(kInW) : call_.x_strides[1];
    const int begin = thread_ / 32;
    // Elements of 16 bits are loaded and stored: several have to be on their way at once.
#pragma unroll(Elements * kElementBytes < 4 ? 2 : 1)
    for (int at = thread_ % 32; at < kStageRows * kPieces; at += 32) {
      const int row = at / kPieces, in_row = at % kPieces * Elements, column = first_column_ + in_row;
      const long long in_x = plan_.of_stage[row];
      const bool exists = in_x != kNone && unsigned(column) < unsigned(kInW);
      const Stored* from = call_.x + (exists ? in_x + column * column_step : 0) + (first + begin) * channel_step;
      Stored* const to = stage + row * kRowStep + in_row + begin * kChannelStep;
#pragma unroll
      for (int i = 0; i < kStageChannels; i += kWarps, from += kWarps * channel_step) {
        if (kStageChannels % kWarps > 0 && i + begin >= kStageChannels) break;
        put<Elements>(to + i * kChannelStep, from, exists && (kAllExist || first + begin + i < kChannels));
      }
    }
  }

  template <int Elements>
  __device__ __forceinline__ void start_pixels(Stored* stage, int first) const {
    constexpr int kPieces = (kStageChannels + Elements - 1) / Elements;
    const long long column_step = Elements > 1 ? kChannels : call_.x_strides[3];
    const long long channel_step = Elements > 1 ? 1 : call_.x_strides[1];
#pragma unroll 2
    for (int at = thread_; at < kStageRows * kPlacedColumns * kPieces; at += kThreads) {
      const int pixel = at / kPieces, channel = at % kPieces * Elements;
      const int row = pixel / kPlacedColumns, in_row = pixel % kPlacedColumns, column = first_column_ + in_row;
      const long long in_x = plan_.of_stage[row];
      const bool exists = in_x != kNone && unsigned(column) < unsigned(kInW) && (kAllExist || first + channel < kChannels);
      put<Elements>(stage + row * kRowStep + in_row * kPixelStep + channel,
                    call_.x + in_x + column * column_step + (first + channel) * channel_step, exists);
    }
  }

  template <int Elements>
  __device__ __forceinline__ void put(Stored* to, const Stored* from, bool exists) const {
    if constexpr (Elements * kElementBytes >= 4) start_copy<Elements * kElementBytes>(to, kAllExist && !kChannelsLast || exists ? from : call_.x, exists);
    else *to = exists ? __ldg(from) : Stored{};
  }

  const Call& call_;
  const Plan& plan_;
  int first_column_, thread_;
};

}  // namespace sepconv
