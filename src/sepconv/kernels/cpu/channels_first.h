// A tile in channels_first: output channels are the rows of the product, pixels its columns. The depthwise result lies in
// panels of kPanel pixels, the weights in rows.
#pragma once

#include <algorithm>

#include "call.h"
#include "product.h"
#include "team.h"
#include "terms.h"
#include "tile.h"
#include "workspace.h"
#include "weights_first.h"
#include "window_first.h"

namespace sepconv {

// The taps of one middle channel; 16-bit weights are converted into `buffer`.
inline Taps taps_of(const Call& call, long channel, float* buffer) {
  const Element* source = call.depthwise_weight + channel * call.taps();
  bool finite = true;
  for (long t = 0; t < call.taps(); ++t) {
    buffer[t] = to_float(source[t]);
    finite &= (float_to_bits(buffer[t]) & 0x7f800000) != 0x7f800000;
  }
  return {buffer, call.depthwise_bias ? to_float(call.depthwise_bias[channel]) : 0.f, call.depthwise_activation, finite};
}

// One channel's line as a row of the panels. Of two channels that make a pair the second one, or the last of all, puts both.
inline void put_channel(const Call& call, const Workspace& space, long thread, long pixels, long channel, bool is_last) {
  const float* line = space.line(thread, channel);
  const long step = call.row() * kPanel;
  if constexpr (kUnits == Units::vectors) {
    float* panel = reinterpret_cast<float*>(space.result(thread)) + in_panel(channel);
    for (long p = 0; p < pixels; p += kPanel, panel += step) {
#pragma GCC unroll 8
      for (int j = 0; j < kPanel; j += kLanes) store(panel + j, load(line + p + j));
    }
  } else if (channel % 2 || is_last) {
    const long even = channel / 2 * 2;
    const float* before = space.line(thread, even);
    Operand* panel = space.result(thread) + in_panel(even);
    Largest& of_thread = space.seen(thread)->results;
    Largest largest = of_thread;
    for (long p = 0; p < pixels; p += kPanel, panel += step) {
#pragma GCC unroll 8
      for (int j = 0; j < kPanel; j += kLanes) {
        const long existing = pixels - p - j;  // behind the last pixel the lines hold anything
        const Vector first = load_some(before + p + j, existing);
        const Vector second = load_some(line + p + j, channel == even ? 0 : existing);
        if constexpr (kTerms > 1) largest.see(first), largest.see(second);
        store_pair_terms(panel + 2 * j, kTermInPanel, first, second);
      }
    }
    of_thread = largest;
  }
}

// Zeros for the rows [begin, end) of the panels, behind the last channel.
inline void clear_channels(const Call& call, const Workspace& space, long thread, long pixels, long begin, long end) {
  if (begin >= end) return;
  Operand* panel = space.result(thread) + in_panel(begin);
  for (long p = 0; p < pixels; p += kPanel, panel += call.row() * kPanel) {
    for (int t = 0; t < kTerms; ++t) std::fill_n(panel + t * kTermInPanel, (end - begin) * kPanel, Operand{});
  }
}

// One middle channel of a tile, as a line. The input that is read next is fetched meanwhile, that of a channel before `end`.
inline void slide_channel(const Call& call, const Workspace& space, long thread, const Piece* pieces, long count, long channel, long end,
                          const Patch& patch, const long* offsets) {
  const Taps of_channel = taps_of(call, channel, space.own_taps(thread));
  const long from = call.channel_of(channel), next = call.channel_of(std::min(channel + (reads_input(call) ? 1 : 2), end - 1));
  for (long i = 0; i < count; ++i) {
    float* line = space.line(thread, channel) + pieces[i].pixel;
    const Ahead ahead(call, pieces[i], next);
    if (of_channel.finite) slide_piece(call, pieces[i], from, patch, of_channel, offsets, ahead, line);
    else slide_exactly(call, pieces[i], from, of_channel, line);
  }
}

// The depthwise result of the middle channels [begin, end) of a tile, as panels of pixels.
//
// A channel goes through three steps: its input is copied, the window slides over it, the result goes into the panels. The
// steps of three neighbouring channels take turns, so that none reads what was stored just before: a load that overlaps two
// stores still on their way to the cache waits for both (a third of the time of this step on a Xeon, 2026-11-29).
inline void depthwise_tile(const Call& call, const Workspace& space, const Member& member, const Tile& tile, long begin, long end) {
  const long thread = member.number, middle = call.middle();
  Piece* pieces = space.pieces(thread);
  const long count = cut(call, tile, pieces);
  Patch patches[2] = {{call, space.patch(thread, 0), tile.columns}, {call, space.patch(thread, 1), tile.columns}};
  long* offsets = space.offsets(thread);
  if (kAnyWindow) patches[0].offsets(offsets);
  const bool copies = !reads_input(call);
  for (long c = begin - copies; c <= end; ++c) {
    if (copies && c + 1 < end) {
      for (long i = 0; i < count; ++i) patches[(c + 1) & 1].take(pieces[i], call.channel_of(c + 1));
    }
    if (c >= begin && c < end) slide_channel(call, space, thread, pieces, count, c, end, patches[c & 1], offsets);
    if (c > begin) put_channel(call, space, thread, tile.pixels(), c - 1, c == end);
  }
  if (end == middle) clear_channels(call, space, thread, tile.pixels(), round_up(middle, 2), call.depth());
}

// Call f(first pixel of the panel, how many, offset in y) for each run of a panel whose pixels are neighbours in y.
template <typename F>
SEPCONV_INLINE void for_runs(const Call& call, const Tile& tile, long pixel, long count, F f) {
  for (long done = 0; done < count;) {
    const long row = tile.row + (pixel + done) / tile.columns, column = (pixel + done) % tile.columns;
    const long image = row / call.out_h;
    long run = tile.columns - column;
    if (tile.columns == call.out_w) run += ((image + 1) * call.out_h - row - 1) * call.out_w;
    run = std::min(run, count - done);
    f(done, run, image * call.outputs * call.pixels() + row % call.out_h * call.out_w + tile.column + column);
    done += run;
  }
}

// One block of output channels over one panel whose results are no neighbours in y: by way of a small block.
inline void multiply_apart(const Call& call, const Workspace& space, const Member& member, const Tile& tile, Multiplier& multiplier,
                           long pixel, int rows, long output, const Operand* weights, const Operand* panel, Target target) {
  const long count = target.columns, plane = call.pixels();
  Element* results = space.block(member.number);
  Element* residuals = results + kBlock * kPanel;
  const long first = output * plane;
  target.y = results;
  target.streams = false;
  target.pitch = kPanel;
  if (call.residual) {
    target.residual = residuals;
    for_runs(call, tile, pixel, count, [&](long done, long run, long offset) {
      for (int i = 0; i < rows; ++i) std::copy_n(call.residual + first + i * plane + offset, run, residuals + i * kPanel + done);
    });
  }
  multiplier.block(rows, (count + kLanes - 1) / kLanes, weights, call.row(), panel, call.depth(), target);
  multiplier.complete();
  for_runs(call, tile, pixel, count, [&](long done, long run, long offset) {
    for (int i = 0; i < rows; ++i) std::copy_n(results + i * kPanel + done, run, call.y + first + i * plane + offset);
  });
}

// The output channels [begin, end) of a tile.
inline void multiply_tile(const Call& call, const Workspace& space, const Member& member, const Tile& tile, long begin, long end) {
  const Operand* result = space.result(member.number);
  const long depth = call.depth(), row = call.row(), plane = call.pixels(), pixels = tile.pixels();
  // Where each panel's first pixel lies in y, or -1 where the panel is no run of neighbours.
  long* places = space.places(member.number);
  for (long p = 0; p < pixels; p += kPanel) {
    for_runs(call, tile, p, std::min<long>(kPanel, pixels - p), [&](long done, long run, long offset) {
      if (done == 0) places[p / kPanel] = run == std::min<long>(kPanel, pixels - p) ? offset : -1;
    });
  }
  Multiplier multiplier;
  for (long o = begin; o < end;) {
    const int rows = block_rows(end - o);
    const Operand* weights = weights_of_block(call, space, member, o, rows);
    const float* bias = bias_of_block(call, space, member, o, rows);
    Target target{nullptr, nullptr, plane, bias, call.pointwise_activation, kPanel, false};
    for (long p = 0; p < pixels; p += kPanel) {
      const Operand* panel = result + p * row;
      const long place = places[p / kPanel];
      target.columns = std::min<long>(kPanel, pixels - p);
      if (place < 0) {
        multiply_apart(call, space, member, tile, multiplier, p, rows, o, weights, panel, target);
        continue;
      }
      target.y = call.y + o * plane + place;
      target.streams = streams(call, target);
      target.residual = call.residual ? call.residual + o * plane + place : nullptr;
      multiplier.block(rows, (target.columns + kLanes - 1) / kLanes, weights, row, panel, depth, target);
    }
    o += rows;
  }
  multiplier.complete();
}

inline long depthwise_items(const Call& call) { return call.middle(); }
constexpr long kDepthwiseGrain = kUnits == Units::vectors ? 1 : 2, kProductGrain = kBlock;

}  // namespace sepconv
