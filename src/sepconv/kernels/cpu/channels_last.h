// A tile in channels_last: pixels are the rows of the product, output channels its columns. The depthwise result lies in
// rows, the weights in panels of kPanel output channels.
#pragma once

#include <algorithm>

#include "call.h"
#include "product.h"
#include "team.h"
#include "tile.h"
#include "workspace.h"
#include "window_last.h"

namespace sepconv {

// Weights become panels of output channels, with zeros behind the last; taps become vectors of channels.
inline void prepare(const Call& call, const Workspace& space, const Member& member) {
  const long middle = call.middle(), depth = call.depth(), pitch = space.padded_middle(), taps = call.taps();
  constexpr long together = kUnits == Units::vectors ? 1 : 2;  // neighbours in the depth that lie side by side
  long begin, end;
  member.share(call.outputs, kPanel, begin, end);
  for (long o = begin; o < end; o += kPanel) {
    Operand* panel = space.weights() + o * depth;
    const long existing = std::min<long>(kPanel, end - o);
    std::fill(panel, panel + (existing == kPanel && depth == middle ? 0 : depth * kPanel), Operand{});
    for (long j = 0; j < existing; ++j) {
      const Element* row = call.pointwise_weight + (o + j) * middle;
      for (long c = 0; c < middle; ++c) {
        panel[c / together * together * kPanel + j * together + c % together] = to_operand(row[c]);
      }
    }
    for (long j = 0; j < kPanel; ++j) {
      space.bias()[o + j] = call.pointwise_bias && j < existing ? to_float(call.pointwise_bias[o + j]) : 0.f;
    }
  }
  member.share(pitch, kLanes, begin, end);
  for (long c = begin; c < end; ++c) {
    const bool exists = c < middle;
    for (long t = 0; t < taps; ++t) {
      space.taps()[t * pitch + c] = exists ? to_float(call.depthwise_weight[c * taps + t]) : 0.f;
    }
    space.taps()[taps * pitch + c] = exists && call.depthwise_bias ? to_float(call.depthwise_bias[c]) : 0.f;
  }
}

inline bool needs_preparing(const Call&) { return true; }

inline void depthwise_tile(const Call& call, const Workspace& space, const Member& member, const Tile& tile, long begin, long end) {
  const long middle = call.middle(), pitch = space.padded_middle();
  const LastTaps taps{space.taps(), call.depthwise_bias ? space.taps() + call.taps() * pitch : nullptr, pitch, call.depthwise_activation};
  const Piece* pieces = space.pieces(member.number);
  const long count = cut(call, tile, space.pieces(member.number));
  for (long i = 0; i < count; ++i) {
    Operand* out = space.result(member.number) + pieces[i].pixel * space.result_pitch();
    for (long c = begin; c < end; c += kLanes) {
      depthwise_last(call, pieces[i], c, std::min<long>(kLanes, middle - c), taps, out, space.result_pitch());
    }
  }
  if (end < pitch || pitch >= call.depth()) return;
  for (long p = 0; p < tile.pixels(); ++p) {
    Operand* pixel = space.result(member.number) + p * space.result_pitch();
    std::fill(pixel + pitch, pixel + call.depth(), Operand{});
  }
}

// One block of pixels over the last panel of output channels, which is not whole.
inline void multiply_apart(const Call& call, const Workspace& space, const Member& member, int rows, long at, long existing,
                           const Operand* a, const Operand* panel, Target target) {
  Element* results = space.block(member.number);
  Element* residuals = results + kBlock * kPanel;
  target.y = results;
  target.pitch = kPanel;
  if (call.residual) {
    target.residual = residuals;
    for (int i = 0; i < rows; ++i) std::copy_n(call.residual + at + i * call.outputs, existing, residuals + i * kPanel);
  }
  multiply_block(rows, (existing + kLanes - 1) / kLanes, a, space.result_pitch(), panel, call.depth(), target);
  for (int i = 0; i < rows; ++i) std::copy_n(results + i * kPanel, existing, call.y + at + i * call.outputs);
}

// The output channels [begin, end) of pixels that are neighbours in y, from the tile's pixel `pixel` on.
inline void multiply_run(const Call& call, const Workspace& space, const Member& member, long pixel, long count, long first,
                         long begin, long end) {
  const long depth = call.depth(), pitch = space.result_pitch();
  for (long o = begin; o < end; o += kPanel) {
    const Operand* panel = space.weights() + o * depth;
    const Operand* a = space.result(member.number) + pixel * pitch;
    const long existing = std::min<long>(kPanel, end - o);
    Target target{nullptr, nullptr, call.outputs, call.pointwise_bias ? space.bias() + o : nullptr, call.pointwise_activation};
    for (long p = 0; p < count;) {
      const int rows = block_rows(count - p);
      const long at = (first + p) * call.outputs + o;
      if (existing < kPanel) {
        multiply_apart(call, space, member, rows, at, existing, a + p * pitch, panel, target);
      } else {
        target.y = call.y + at;
        target.residual = call.residual ? call.residual + at : nullptr;
        multiply_block(rows, kPanel / kLanes, a + p * pitch, pitch, panel, depth, target);
      }
      p += rows;
    }
  }
}

inline void multiply_tile(const Call& call, const Workspace& space, const Member& member, const Tile& tile, long begin, long end) {
  const long first = tile.row * call.out_w + tile.column;
  if (tile.columns == call.out_w) return multiply_run(call, space, member, 0, tile.pixels(), first, begin, end);
  for (long r = 0; r < tile.rows; ++r) {
    multiply_run(call, space, member, r * tile.columns, tile.columns, first + r * call.out_w, begin, end);
  }
}

inline long depthwise_items(const Call& call) { return round_up(call.middle(), kLanes); }
constexpr long kDepthwiseGrain = kLanes, kProductGrain = kPanel;

}  // namespace sepconv
