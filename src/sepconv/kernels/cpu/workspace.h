// How the workspace is divided.
#pragma once

#include <algorithm>
#include <cstdint>

#include "call.h"
#include "terms.h"
#include "tile.h"
#include "window_first.h"

namespace sepconv {

// What all threads share, and what each has for itself. Sizes are in bytes, multiples of a cache line.
class Workspace {
 public:
  explicit Workspace(const Call& call) : call_(call) {
    const long tile = call.tile_rows * call.tile_columns, panels = (tile + kPanel - 1) / kPanel;
    if (kChannelsLast) {
      bias_ = lines<float>(round_up(call.outputs, kPanel));
      weights_ = lines<Operand>(round_up(call.outputs, kPanel) * call.row());
      taps_ = lines<float>((call.taps() + 1) * padded_middle());
      result_ = lines<Operand>(round_up(tile, kBlock) * result_pitch());
    } else {
      weights_ = weights_once(call) ? lines<Operand>(round_up(call.outputs, kBlock) * call.row()) : 0;
      block_weights_ = weights_as_they_are(call) || weights_once(call) ? 0 : lines<Operand>(kBlock * call.row());
      block_bias_ = lines<float>(2 * round_up(kBlock, kLanes));
      result_ = lines<Operand>(panels * kPanel * call.row());
      patch_ = lines<float>(Patch::size(call, input_rows(), call.tile_columns));
      line_ = lines<float>(panels * kPanel + kPanel);
      own_taps_ = lines<float>(call.taps());
      offsets_ = kAnyWindow ? lines<long>(call.taps()) : 0;
      places_ = lines<long>(panels);
    }
    pieces_ = lines<Piece>(max_pieces());
    block_ = lines<Element>(2 * kBlock * kPanel);
    seen_ = lines<Seen>(1);
    shared_ = bias_ + weights_ + taps_ + (call.shared ? result_ : 0);
    own_ = (call.shared ? 0 : result_) + 2 * patch_ + kLines * line_ + own_taps_ + offsets_ + pieces_ + places_ + block_ + seen_ +
           block_weights_ + block_bias_;
  }

  // Whether the product reads the weights where they lie: rows of float32, or pairs of bfloat16 that need no padding.
  static bool weights_as_they_are(const Call& call) {
    if (kUnits == Units::vectors) return sizeof(Element) == sizeof(float);
    return kUnits == Units::pairs && call.depth() == call.middle();
  }

  // Whether the weights are packed before the first tile, and not block by block in each of them: where a thread comes to a block
  // a second time. Otherwise a block is packed when it is multiplied with, and is in the cache then: (1, 512, 14, 14) -> 512 took
  // 0.30 ms instead of 0.35 (2 cores of a Xeon, 2026-11-30).
  static bool weights_once(const Call& call) {
    return !weights_as_they_are(call) && Tiles(call).count > (call.shared ? 1 : call.threads.count);
  }

  long bytes() const { return shared_ + own_ * call_.threads.count + kCacheLine; }

  float* bias() const { return at<float>(0); }
  Operand* weights() const { return at<Operand>(bias_); }
  float* taps() const { return at<float>(bias_ + weights_); }
  Operand* result(long thread) const { return call_.shared ? at<Operand>(bias_ + weights_ + taps_) : own<Operand>(thread, 0); }
  // Several of each: while one channel is computed, its neighbours are on their way.
  float* patch(long thread, long channel) const { return own<float>(thread, patches() + channel % 2 * patch_); }
  float* line(long thread, long channel) const { return own<float>(thread, patches() + 2 * patch_ + channel % kLines * line_); }
  float* own_taps(long thread) const { return own<float>(thread, behind_lines()); }
  long* offsets(long thread) const { return own<long>(thread, behind_lines() + own_taps_); }
  Piece* pieces(long thread) const { return own<Piece>(thread, behind_lines() + own_taps_ + offsets_); }
  long* places(long thread) const { return own<long>(thread, behind_lines() + own_taps_ + offsets_ + pieces_); }
  Element* block(long thread) const { return own<Element>(thread, behind_lines() + own_taps_ + offsets_ + pieces_ + places_); }

  // Zeros for a thread's patches and lines. Whole vectors are computed with, beyond the last column too, and what another call
  // left there may be subnormal: each such number holds the units up ((1, 1024, 10, 10) took 5.6 ms instead of 1.4).
  void clear(long thread) const {
    char* begin = own<char>(thread, patches());
    std::fill(begin, begin + 2 * patch_ + kLines * line_, 0);
  }

  Seen* seen(long thread) const { return own<Seen>(thread, behind_lines() + own_taps_ + offsets_ + pieces_ + places_ + block_); }
  Operand* block_weights(long thread) const { return own<Operand>(thread, own_ - block_weights_ - block_bias_); }
  // Of two neighbouring blocks: one is finished while the next is multiplied.
  float* block_bias(long thread, long block) const { return own<float>(thread, own_ - block_bias_) + block % 2 * round_up(kBlock, kLanes); }

  long padded_middle() const { return round_up(call_.middle(), kLanes); }
  // Blocks for matrix units have no gaps; else an odd number of cache lines, so that neighbouring pixels do not compete for the same places in the cache.
  long result_pitch() const {
    if (kUnits == Units::matrices) return call_.row();
    constexpr long line = kCacheLine / long(sizeof(Operand));
    return ((call_.row() + line - 1) / line | 1) * line;
  }

 private:
  static constexpr long kCacheLine = 64, kLines = 4;

  template <typename T>
  static constexpr long lines(long count) {
    return round_up(count * long(sizeof(T)), kCacheLine);
  }

  // A tile's rows lie in this many images at most.
  long max_pieces() const { return (call_.tile_rows - 1) / call_.out_h + 2; }
  // Input rows of all pieces of a tile.
  long input_rows() const { return max_pieces() * sepconv::input_rows(call_, 1) + call_.tile_rows * call_.stride_h; }

  long patches() const { return call_.shared ? 0 : result_; }
  long behind_lines() const { return patches() + 2 * patch_ + kLines * line_; }

  template <typename T>
  T* at(long offset) const {
    const std::uintptr_t start = (reinterpret_cast<std::uintptr_t>(call_.workspace) + kCacheLine - 1) / kCacheLine * kCacheLine;
    return reinterpret_cast<T*>(start + std::uintptr_t(offset));
  }
  template <typename T>
  T* own(long thread, long offset) const {
    return at<T>(shared_ + own_ * thread + offset);
  }

  const Call& call_;
  long bias_ = 0, weights_ = 0, taps_ = 0, result_ = 0, patch_ = 0, line_ = 0, own_taps_ = 0, offsets_ = 0, pieces_ = 0;
  long places_ = 0, block_ = 0, seen_ = 0, block_weights_ = 0, block_bias_ = 0, shared_ = 0, own_ = 0;
};

}  // namespace sepconv
