// The pointwise weights: their way into shared memory, all at once or as a stream, and where the product finds them there.
#pragma once

#include "operands.cuh"
#include "walk.cuh"
#include "wgmma.cuh"

namespace sepconv {

// Eight neighbouring channels of a row of weights; zeros where there are none.
__device__ __forceinline__ void load_eight(float (&v)[8], const void* weight, int output, int channel, bool aligned) {
  const long long at = (long long)(output) * kChannels + channel;
  const char* const from = static_cast<const char*>(weight) + at * kElementBytes;
  if (kChannels % 8 == 0 && aligned && output < kOutputs && channel < kChannels) {
    u32 words[2 * kElementBytes];
#pragma unroll
    for (int i = 0; i < 2 * kElementBytes; i += 4) {
      const uint4 four = __ldg(reinterpret_cast<const uint4*>(from) + i / 4);
      words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if constexpr (kElement == Element::float32) v[j] = __uint_as_float(words[j]);
      else v[j] = unpack(u16(words[j / 2] >> j % 2 * 16));
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = output < kOutputs && channel + j < kChannels ? element(weight, at + j) : 0.f;
}

// The weights that a lane has of a product of 16 channels: of a row of its warp's and the row 8 further down, four channels each.
struct Eight {
  float of[2][4];

  // One half; `row` is where the first of all lie.
  __device__ __forceinline__ void load(int half, u32 row) { load_words(of[half], row + half * 8 * 128); }
  __device__ __forceinline__ void split(int half, u32 (&terms)[kTerms][4]) {
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
#pragma unroll
      for (int j = 0; j < 2; ++j) terms[t][2 * j + half] = take_term<false>(of[half][2 * j], of[half][2 * j + 1], t + 1 == kTerms);
    }
  }
};

// The pointwise weights of this block's output channels, by the threads of a role.
__device__ __forceinline__ void load_weights(u32 weights, const void* weight, int first, int thread) {
  constexpr int kPieces = kWeightParts * kWeightPart / 8;  // of eight channels
  const bool aligned = reinterpret_cast<u64>(weight) % 16 == 0;
#pragma unroll 4
  for (int i = thread; i < kBlockOutputs * kPieces; i += kRoleThreads) {
    const int output = i / kPieces, piece = i % kPieces;
    float v[8];
    load_eight(v, weight, first + output, piece * 8, aligned);
    if constexpr (kSplitAnew) {
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const u32 to = weights + piece / 4 * kWeightPartBytes + output * 128 + ((piece % 4 * 2 + j / 4 ^ output % 8) << 4);
        store_words(to, {__float_as_uint(v[j]), __float_as_uint(v[j + 1]), __float_as_uint(v[j + 2]), __float_as_uint(v[j + 3])});
      }
      continue;
    }
    const int row = kChannelsLast ? column_of(output) : output;
    const u32 to = weights + piece / 8 * kWeightPartBytes + row * 128 + ((piece % 8 ^ row % 8) << 4);
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      u32 pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) pairs[j] = take_term<false>(v[2 * j], v[2 * j + 1], t + 1 == kTerms);
      store_words(to + t * kWeightTermBytes, pairs);
    }
  }
}

constexpr __device__ int stream_of(int group) { return kStreamCount == 1 ? 0 : group; }
// Where a product group's weights of a chunk lie; with weights that are split anew a thread's fragment of them.
__device__ __forceinline__ u32 weights_of_group(u32 weights, int group, int thread) {
  if (!kChannelsLast) weights += kAllOutputs ? stream_of(group) * kWeightStages * kWeightPartBytes : group * kBlockRows * 128;
  if constexpr (kSplitAnew) {
    const int row = thread / 32 * 16 + place_of_row(thread % 32 / 4);
    weights += row * 128 + (thread % 4 ^ row % 8) * 16;
  }
  return weights;
}
constexpr __device__ bool ends_part(int chunk) { return (chunk + 1) * kChunk % kWeightPart == 0 || chunk + 1 == kChunks; }

// The weights of a product group, pass after pass and chunk after chunk: all there, or a stream of parts.
class Weights {
 public:
  __device__ __forceinline__ Weights(u32 start, const Barriers& barriers, int group, int thread)
      : start_(weights_of_group(start, group, thread)), pass_(start_), barriers_(barriers), stream_(stream_of(group)), thread_(thread) {
    if (kTurns && group == 1) skip_turn();
  }

  // On to the output channels of a pass; those that stream come by themselves.
  __device__ __forceinline__ void begin(int pass) {
    if (!kStreams && kPasses > 1) pass_ = start_ + pass * kPassOutputs * 128;
  }
  // Behind a pass: what comes next in the stream is the other group's.
  __device__ __forceinline__ void end() {
    if (kTurns) skip_turn();
  }
  __device__ __forceinline__ void wait_for(int chunk) const {
    if (kStreams && chunk * kChunk % kWeightPart == 0) barrier_wait(barriers_.weights_full(stream_, ring_.at), ring_.parity);
  }
  // The weights of a chunk: as an operand of a product, of the first term, or where they lie that are split anew.
  __device__ __forceinline__ u32 operand(int chunk) const {
    const u32 first = kStreams ? part() : unforeseen(part());  // else the operands of all chunks would be kept in registers
    return further(describe(first, 16), place(chunk) + in_part(chunk) * 2);
  }
  __device__ __forceinline__ u32 address(int chunk) const { return part() + place(chunk) ^ in_part(chunk) * 4; }
  // On to the next part.
  __device__ __forceinline__ void next() {
    if (kStreams) ring_.next();
  }
  // This group (or warp, where each loads its own: `loaded` hangs on all that it loaded) has read the first part that it has not released.
  __device__ __forceinline__ void release(u32 loaded = 0) {
    if (!kStreams) return;
    if (kSplitAnew) __syncwarp();
    if ((kSplitAnew ? thread_ % 32 : thread_) == 0) barrier_arrive_behind(barriers_.weights_empty(stream_, read_.at), loaded);
    read_.next();
  }

 private:
  __device__ __forceinline__ void skip_turn() { ring_.template skip<kWeightParts>(), read_.template skip<kWeightParts>(); }
  __device__ __forceinline__ u32 part() const { return kStreams ? start_ + ring_.at * kWeightPartBytes : pass_; }
  static constexpr __device__ int place(int chunk) { return kStreams ? 0 : chunk * kChunk / kWeightPart * kWeightPartBytes; }
  static constexpr __device__ int in_part(int chunk) { return chunk * kChunk % kWeightPart; }

  const u32 start_;
  u32 pass_;
  const Barriers& barriers_;
  const int stream_, thread_;
  Ring<kStreams ? kWeightStages : 1> ring_, read_;
};

}  // namespace sepconv
