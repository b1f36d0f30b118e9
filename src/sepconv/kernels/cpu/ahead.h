// The input of the next tile on its way into the second-level cache, while the product of this tile is computed.
#pragma once

#include "window.h"

namespace sepconv {

// The product leaves the path to memory idle, and the next tile's first access would wait for it: without this, waiting was
// more than half of the depthwise step of (1, 64, 512, 512) with 3x3 (Xeon, 2026-11-29). Hints only: no result hangs on them.
class Ahead {
 public:
  // The channels [begin, end) of the pieces of a tile; `steps` is how often `step` will be called.
  Ahead(const Call& call, const Piece* pieces, long count, long begin, long end, long steps)
      : call_(call), pieces_(pieces), count_(count), begin_(begin / kMultiplier), end_((end + kMultiplier - 1) / kMultiplier) {
    if (kChannelsLast) end_ = begin_ + 1;  // a row of pixels holds all channels
    long rows = 0;
    for (long i = 0; i < count; ++i) rows += Patch::input_rows(call, pieces[i].rows);
    if (count == 0 || steps == 0) return;
    piece_ = -1;
    channel_ = begin_ - 1;
    next_piece();
    lines_ = rows * (end_ - begin_) * ((row_end_ - row_ + kLine - 1) / kLine) / steps + 1;
  }

  void step() {
#ifdef NO_AHEAD
    return;
#endif
    for (long i = 0; i < lines_ && row_ != nullptr; ++i) {
      __builtin_prefetch(row_, 0, 2);
      row_ += kLine;
      if (row_ >= row_end_) next_row();
    }
  }

 private:
  static constexpr long kLine = 64 / sizeof(Element);

  void next_row() {
    if (++input_ < input_end_) return at(input_);
    next_piece();
  }

  void next_piece() {
    row_ = nullptr;
    do {
      if (++piece_ == count_ || channel_ < begin_) {
        piece_ = 0;
        if (++channel_ >= end_) return;
      }
      const Piece& piece = pieces_[piece_];
      const long first = piece.row * call_.stride_h - call_.padding_h;
      input_ = std::max(0l, first);
      input_end_ = std::min(call_.in_h, first + Patch::input_rows(call_, piece.rows));
    } while (input_ >= input_end_);
    at(input_);
  }

  void at(long input) {
    const Piece& piece = pieces_[piece_];
    const long left = std::max(0l, piece.column * call_.stride_w - call_.padding_w);
    const long right = std::min(call_.in_w, (piece.column + piece.columns) * call_.stride_w);
    const Element* row = call_.x + piece.image * call_.x_stride_n + input * call_.x_stride_h;
    if (!kChannelsLast) row += channel_ * call_.x_stride_c;
    row_ = row + std::min(left, right - 1) * call_.x_stride_w;
    row_end_ = row + right * call_.x_stride_w;
  }

  const Call& call_;
  const Piece* const pieces_;
  const long count_;
  long begin_, end_, lines_ = 0;
  long piece_ = 0, channel_ = 0, input_ = 0, input_end_ = 0;
  const Element* row_ = nullptr;
  const Element* row_end_ = nullptr;
};

}  // namespace sepconv
