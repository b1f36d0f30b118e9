// The schedule of the forward pass.
//
// A tile is `tile_rows` rows of `tile_columns` output pixels; rows run on from image to image. Its depthwise result, all
// channels of it, is one operand of the product and the weights are the other:
//
//   channels_first  rows are output channels, columns are pixels: `panels` holds the depthwise result, kPanel pixels a panel
//   channels_last   rows are pixels, columns are output channels: `panels` holds the weights, kPanel channels a panel
#pragma once

#include <algorithm>
#include <atomic>

#include "call.h"
#include "pages.h"
#include "product.h"
#include "team.h"
#include "window.h"
#include "window_last.h"

namespace sepconv {

// How the workspace is divided: what all threads share, and what each has for itself. Sizes are in floats.
class Workspace {
 public:
  explicit Workspace(const Call& call) : call_(call) {
    const long middle = call.middle(), tile = call.tile_rows * call.tile_columns;
    const bool as_they_are = !kChannelsLast && sizeof(Element) == 4;
    bias_ = round_up(call.outputs, kPanel);
    if (kChannelsLast) {
      weights_ = round_up(call.outputs, kPanel) * middle;
      taps_ = (call.taps() + 1) * padded_middle();
      result_ = tile * result_pitch();
    } else {
      weights_ = as_they_are ? 0 : round_up(call.outputs * middle, 16);
      result_ = round_up(tile, kPanel) * middle;
      patch_ = round_up(Patch::size(call, input_rows(), call.tile_columns), 16);
      line_ = round_up(tile, kPanel) + kPanel;
      own_taps_ = round_up(call.taps(), 16);
      offsets_ = kAnyWindow ? round_up(2 * call.taps(), 16) : 0;
      places_ = round_up(2 * ((tile + kPanel - 1) / kPanel), 16);
    }
    pieces_ = round_up(max_pieces() * long(sizeof(Piece)) / 4, 16);
    block_ = 2 * kRows * kPanel;
    shared_ = bias_ + weights_ + taps_ + (call.shared ? result_ : 0);
    own_ = (call.shared ? 0 : result_) + 2 * patch_ + 2 * line_ + own_taps_ + offsets_ + pieces_ + places_ + block_;
  }

  long bytes() const { return (shared_ + own_ * call_.threads.count) * 4 + 64; }

  float* bias() const { return start(); }
  float* weights() const { return bias() + bias_; }
  float* taps() const { return weights() + weights_; }
  float* result(long thread) const { return call_.shared ? taps() + taps_ : own(thread); }
  // Two of each: while one channel is computed, the next one is on its way.
  float* patch(long thread, long channel) const { return own(thread) + (call_.shared ? 0 : result_) + channel % 2 * patch_; }
  float* line(long thread, long channel) const { return patch(thread, 0) + 2 * patch_ + channel % 2 * line_; }
  float* own_taps(long thread) const { return line(thread, 0) + 2 * line_; }
  long* offsets(long thread) const { return reinterpret_cast<long*>(own_taps(thread) + own_taps_); }
  Piece* pieces(long thread) const { return reinterpret_cast<Piece*>(own_taps(thread) + own_taps_ + offsets_); }
  long* places(long thread) const { return reinterpret_cast<long*>(own_taps(thread) + own_taps_ + offsets_ + pieces_); }
  Element* block(long thread) const { return reinterpret_cast<Element*>(places(thread)) + places_ * 4 / long(sizeof(Element)); }

  long padded_middle() const { return round_up(call_.middle(), kLanes); }
  // An odd number of cache lines, so that neighbouring pixels do not compete for the same places in the cache.
  long result_pitch() const { return (round_up(call_.middle(), 16) / 16 | 1) * 16; }

 private:
  // A tile's rows lie in this many images at most.
  long max_pieces() const { return (call_.tile_rows - 1) / call_.out_h + 2; }
  // Input rows of all pieces of a tile.
  long input_rows() const { return max_pieces() * Patch::input_rows(call_, 1) + call_.tile_rows * call_.stride_h; }

  float* start() const { return reinterpret_cast<float*>(round_up(reinterpret_cast<long>(call_.workspace), 64)); }
  float* own(long thread) const { return start() + shared_ + own_ * thread; }

  const Call& call_;
  long bias_ = 0, weights_ = 0, taps_ = 0, result_ = 0, patch_ = 0, line_ = 0, own_taps_ = 0, offsets_ = 0, pieces_ = 0;
  long places_ = 0, block_ = 0, shared_ = 0, own_ = 0;
};

// A tile as its first row and column, in rows of all images together.
struct Tile {
  long row, rows, column, columns;
  long pixels() const { return rows * columns; }
};

class Tiles {
 public:
  explicit Tiles(const Call& call)
      : call_(call), rows_(call.batch * call.out_h), across_((call.out_w + call.tile_columns - 1) / call.tile_columns),
        count((rows_ + call.tile_rows - 1) / call.tile_rows * across_) {}

  Tile operator[](long index) const {
    const long row = index / across_ * call_.tile_rows, column = index % across_ * call_.tile_columns;
    return {row, std::min(call_.tile_rows, rows_ - row), column, std::min(call_.tile_columns, call_.out_w - column)};
  }

 private:
  const Call& call_;
  const long rows_, across_;

 public:
  const long count;
};

// The part of a tile in each image; returns how many there are.
inline long cut(const Call& call, const Tile& tile, Piece* pieces) {
  long count = 0, input = 0;
  for (long row = tile.row; row < tile.row + tile.rows;) {
    const long image = row / call.out_h, first = row % call.out_h;
    const long rows = std::min(call.out_h - first, tile.row + tile.rows - row);
    pieces[count++] = {image, first, rows, tile.column, tile.columns, (row - tile.row) * tile.columns, input};
    input += Patch::input_rows(call, rows);
    row += rows;
  }
  return count;
}

#if !SEPCONV_CHANNELS_LAST

inline void prepare(const Call& call, const Workspace& space, const Member& member) {
  long begin, end;
  if (sizeof(Element) != 4) {
    member.share(call.outputs * call.middle(), kLanes, begin, end);
    for (long i = begin; i < end; ++i) space.weights()[i] = to_float(call.pointwise_weight[i]);
  }
  member.share(call.pointwise_bias ? call.outputs : 0, 1, begin, end);
  for (long i = begin; i < end; ++i) space.bias()[i] = to_float(call.pointwise_bias[i]);
}

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

inline bool needs_preparing(const Call& call) { return sizeof(Element) != 4 || call.pointwise_bias; }

// The depthwise result of the middle channels [begin, end) of a tile, as panels of pixels.
//
// A channel goes through three steps: its input is copied, the window slides over it, the result goes into the panels. The
// steps of three neighbouring channels take turns, so that none reads what was stored just before: a load that overlaps two
// stores still on their way to the cache waits for both (a third of the time of this step on a Xeon, 2026-11-29).
inline void depthwise_tile(const Call& call, const Workspace& space, const Member& member, const Tile& tile, long begin, long end) {
  const long thread = member.number, middle = call.middle();
  Piece* pieces = space.pieces(thread);
  const long count = cut(call, tile, pieces);
  const long column = tile.column, columns = tile.columns;
  Patch patches[2] = {{call, space.patch(thread, 0), column, columns}, {call, space.patch(thread, 1), column, columns}};
  long* offsets = space.offsets(thread);
  if (kAnyWindow) patches[0].offsets(offsets);
  for (long c = begin; c < end + 2; ++c) {
    if (c < end) {
      for (long i = 0; i < count; ++i) patches[c % 2].take(pieces[i], call.channel_of(c));
    }
    if (c > begin && c <= end) {
      const Taps of_channel = taps_of(call, c - 1, space.own_taps(thread));
      for (long i = 0; i < count; ++i) {
        float* line = space.line(thread, c - 1) + pieces[i].pixel;
        const Ahead ahead(call, pieces[i], call.channel_of(std::min(c + 1, end - 1)));
        if (of_channel.finite) slide_piece(call, pieces[i], patches[(c - 1) % 2], of_channel, offsets, ahead, line);
        else slide_exactly(call, pieces[i], call.channel_of(c - 1), of_channel, line);
      }
    }
    if (c > begin + 1) {
      const float* line = space.line(thread, c);
      float* panel = space.result(thread) + (c - 2) * kPanel;
      for (const float* end_of_line = line + tile.pixels(); line < end_of_line; line += kPanel, panel += middle * kPanel) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) store(panel + j * kLanes, load(line + j * kLanes));
      }
    }
  }
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

// One block of output channels over one panel whose results are not kPanel neighbours in y: by way of a small block.
inline void multiply_apart(const Call& call, const Workspace& space, const Member& member, const Tile& tile, long pixel, int rows,
                           long output, const float* weights, const float* panel, Target target) {
  const long count = std::min<long>(kPanel, tile.pixels() - pixel), plane = call.pixels();
  Element* results = space.block(member.number);
  Element* residuals = results + kRows * kPanel;
  const long first = output * plane;
  target.y = results;
  target.pitch = kPanel;
  if (call.residual) {
    target.residual = residuals;
    for_runs(call, tile, pixel, count, [&](long done, long run, long offset) {
      for (int i = 0; i < rows; ++i) std::copy_n(call.residual + first + i * plane + offset, run, residuals + i * kPanel + done);
    });
  }
  multiply_block(rows, (count + kLanes - 1) / kLanes, weights, call.middle(), panel, call.middle(), target);
  for_runs(call, tile, pixel, count, [&](long done, long run, long offset) {
    for (int i = 0; i < rows; ++i) std::copy_n(results + i * kPanel + done, run, call.y + first + i * plane + offset);
  });
}

// The output channels [begin, end) of a tile.
inline void multiply_tile(const Call& call, const Workspace& space, const Member& member, const Tile& tile, long begin, long end) {
  const float* weights = sizeof(Element) == 4 ? reinterpret_cast<const float*>(call.pointwise_weight) : space.weights();
  const float* result = space.result(member.number);
  const long middle = call.middle(), plane = call.pixels(), pixels = tile.pixels();
  // Where each panel's first pixel lies in y, or -1 where the panel is no run of neighbours.
  long* places = space.places(member.number);
  for (long p = 0; p < pixels; p += kPanel) {
    for_runs(call, tile, p, std::min<long>(kPanel, pixels - p), [&](long done, long run, long offset) {
      if (done == 0) places[p / kPanel] = run == kPanel ? offset : -1;
    });
  }
  for (long o = begin; o < end;) {
    const int rows = block_rows(end - o);
    const float* bias = call.pointwise_bias ? space.bias() + o : nullptr;
    Target target{nullptr, nullptr, plane, bias, call.pointwise_activation};
    for (long p = 0; p < pixels; p += kPanel) {
      const float* panel = result + p * middle;
      const long place = places[p / kPanel];
      if (place < 0) {
        multiply_apart(call, space, member, tile, p, rows, o, weights + o * middle, panel, target);
        continue;
      }
      target.y = call.y + o * plane + place;
      target.residual = call.residual ? call.residual + o * plane + place : nullptr;
      multiply_block(rows, kVectors, weights + o * middle, middle, panel, middle, target);
    }
    o += rows;
  }
}

inline long depthwise_items(const Call& call) { return call.middle(); }
constexpr long kDepthwiseGrain = 1, kProductGrain = kRows;

#else

// Weights become panels of output channels, with zeros behind the last; taps become vectors of channels.
inline void prepare(const Call& call, const Workspace& space, const Member& member) {
  const long middle = call.middle(), pitch = space.padded_middle(), taps = call.taps();
  long begin, end;
  member.share(call.outputs, kPanel, begin, end);
  for (long o = begin; o < end; o += kPanel) {
    float* panel = space.weights() + o * middle;
    const long existing = std::min<long>(kPanel, end - o);
    for (long c = 0; c < middle; ++c) {
      for (long j = 0; j < kPanel; ++j) {
        panel[c * kPanel + j] = j < existing ? to_float(call.pointwise_weight[(o + j) * middle + c]) : 0.f;
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
    float* out = space.result(member.number) + pieces[i].pixel * space.result_pitch();
    for (long c = begin; c < end; c += kLanes) {
      depthwise_last(call, pieces[i], c, std::min<long>(kLanes, middle - c), taps, out, space.result_pitch());
    }
  }
}

// One block of pixels over the last panel of output channels, which is not whole.
inline void multiply_apart(const Call& call, const Workspace& space, const Member& member, int rows, long at, long existing,
                           const float* a, const float* panel, Target target) {
  Element* results = space.block(member.number);
  Element* residuals = results + kRows * kPanel;
  target.y = results;
  target.pitch = kPanel;
  if (call.residual) {
    target.residual = residuals;
    for (int i = 0; i < rows; ++i) std::copy_n(call.residual + at + i * call.outputs, existing, residuals + i * kPanel);
  }
  multiply_block(rows, (existing + kLanes - 1) / kLanes, a, space.result_pitch(), panel, call.middle(), target);
  for (int i = 0; i < rows; ++i) std::copy_n(results + i * kPanel, existing, call.y + at + i * call.outputs);
}

// The output channels [begin, end) of pixels that are neighbours in y, from the tile's pixel `pixel` on.
inline void multiply_run(const Call& call, const Workspace& space, const Member& member, long pixel, long count, long first,
                         long begin, long end) {
  const long middle = call.middle(), pitch = space.result_pitch();
  for (long o = begin; o < end; o += kPanel) {
    const float* panel = space.weights() + o * middle;
    const float* a = space.result(member.number) + pixel * pitch;
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
        multiply_block(rows, kVectors, a + p * pitch, pitch, panel, middle, target);
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

#endif

inline void forward(const Call& call) {
  const Workspace space(call);
  const Tiles tiles(call);
  const Pages pages(call.y, call.huge_pages ? call.batch * call.outputs * call.pixels() * long(sizeof(Element)) : 0);
  advise_huge(pages);
  std::atomic<long> next{0};
  run_team(call.threads, [&](Member& member) {
    touch(pages, member);
    if (needs_preparing(call)) {
      prepare(call, space, member);
      member.meet();
    }
    if (!call.shared) {
      for (long i = next.fetch_add(1); i < tiles.count; i = next.fetch_add(1)) {
        depthwise_tile(call, space, member, tiles[i], 0, depthwise_items(call));
        multiply_tile(call, space, member, tiles[i], 0, call.outputs);
      }
      return;
    }
    for (long i = 0; i < tiles.count; ++i) {
      long begin, end;
      member.share(depthwise_items(call), kDepthwiseGrain, begin, end);
      depthwise_tile(call, space, member, tiles[i], begin, end);
      member.meet();
      member.share(call.outputs, kProductGrain, begin, end);
      multiply_tile(call, space, member, tiles[i], begin, end);
      member.meet();
    }
  });
}

}  // namespace sepconv
