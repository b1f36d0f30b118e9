// A tile in channels_last: pixels are the rows of the product, output channels its columns. The depthwise result lies in
// rows, the weights in panels of kPanel output channels.
#pragma once

#include <algorithm>

#include "call.h"
#include "product.h"
#include "team.h"
#include "terms.h"
#include "tile.h"
#include "workspace.h"
#include "window_last.h"

namespace sepconv {

constexpr long kTogether = kUnits == Units::vectors ? 1 : 2;  // rows of the depth that lie side by side in a panel

// The weights of some output channels as a panel, with zeros behind the last of them and behind the last middle channel.
inline void pack_panel(const Call& call, const Element* weights, long outputs, Operand* panel, Largest& seen) {
  const long depth = call.depth(), middle = call.middle();
  Largest largest = seen;
  const auto column = [&](long c, long j) {
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = c < middle && j + i < outputs ? to_float(weights[(j + i) * middle + c]) : 0.f;
    const Vector v = load(lanes);
    largest.see(v);
    return v;
  };
  for (long c = 0; c < depth; c += kTogether) {
    for (long j = 0; j < kPanel; j += kLanes) {
      Operand* to = panel + in_panel(c) + kTogether * j;
      if constexpr (kTogether == 1) store(to, column(c, j));
      else store_pair_terms(to, kTermInPanel, column(c, j), column(c + 1, j));
    }
  }
  seen = largest;
}

// Weights become panels of output channels, with zeros behind the last; taps become vectors of channels.
inline void prepare(const Call& call, const Workspace& space, Member& member) {
  const long middle = call.middle(), pitch = space.padded_middle(), taps = call.taps();
  long begin, end;
  member.share(call.outputs, kPanel, begin, end);
  for (long o = begin; o < end; o += kPanel) {
    Operand* panel = space.weights() + o * call.row();
    const long existing = std::min<long>(kPanel, end - o);
    pack_panel(call, call.pointwise_weight + o * middle, existing, panel, space.seen(member.number)->weights);
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
  member.meet();
}

inline void depthwise_tile(const Call& call, const Workspace& space, const Member& member, const Tile& tile, long begin, long end) {
  const long middle = call.middle(), pitch = space.padded_middle();
  const LastTaps taps{space.taps(), call.depthwise_bias ? space.taps() + call.taps() * pitch : nullptr, pitch, call.depthwise_activation};
  const Piece* pieces = space.pieces(member.number);
  const long count = cut(call, tile, space.pieces(member.number));
  Largest& seen = space.seen(member.number)->results;
  LastResult result{space.result(member.number), call.depth(), space.result_pitch(), 0, 0, seen};
  for (long i = 0; i < count; ++i) {
    for (long c = begin; c < end; c += kLanes) {
      result.pixel = pieces[i].pixel;
      result.channel = c;
      depthwise_last(call, pieces[i], c, std::min<long>(kLanes, middle - c), taps, result);
    }
  }
  seen = result.largest;
  if (end < pitch || pitch >= call.depth()) return;
  for (result.pixel = 0; result.pixel < tile.pixels();) {
    for (result.channel = pitch; result.channel < call.depth(); result.channel += kLanes) result.store_here(Vector{});
    ++result.pixel;
  }
}

// The output channels [begin, end) of pixels that are neighbours in y, from the tile's pixel `pixel` on.
inline void multiply_run(const Call& call, const Workspace& space, const Member& member, Multiplier& multiplier, long pixel,
                         long count, long first, long begin, long end) {
  const long depth = call.depth(), pitch = space.result_pitch();
  for (long o = begin; o < end; o += kPanel) {
    const Operand* panel = space.weights() + o * call.row();
    const Operand* a = space.result(member.number) + pixel * pitch;
    Target target{nullptr, nullptr, call.outputs, call.pointwise_bias ? space.bias() + o : nullptr, call.pointwise_activation,
                  std::min<long>(kPanel, end - o), false};
    for (long p = 0; p < count;) {
      const int rows = block_rows(count - p);
      const long at = (first + p) * call.outputs + o;
      target.y = call.y + at;
      target.residual = call.residual ? call.residual + at : nullptr;
      target.streams = streams(call, target);
      multiplier.block(rows, (target.columns + kLanes - 1) / kLanes, a + p * pitch, pitch, panel, depth, target);
      p += rows;
    }
  }
}

inline void multiply_tile(const Call& call, const Workspace& space, const Member& member, const Tile& tile, long begin, long end) {
  const long first = tile.row * call.out_w + tile.column;
  // Rows that are neighbours in y are one run.
  const bool whole = tile.columns == call.out_w;
  const long runs = whole ? 1 : tile.rows, length = tile.pixels() / runs;
  Multiplier multiplier;
  for (long r = 0; r < runs; ++r) {
    multiply_run(call, space, member, multiplier, r * length, length, first + r * call.out_w, begin, end);
  }
  multiplier.complete();
}

inline long depthwise_items(const Call& call) { return round_up(call.middle(), kLanes); }
constexpr long kDepthwiseGrain = kLanes, kProductGrain = kPanel;

}  // namespace sepconv
