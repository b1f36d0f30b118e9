// The schedule of the forward pass: tiles of output pixels. The depthwise result of a tile, all channels of it, is one operand of
// a product whose other operand is the weights.
#pragma once

#include <atomic>

#include "call.h"
#include "pages.h"
#include "team.h"
#include "terms.h"
#include "tile.h"
#include "workspace.h"

#if SEPCONV_CHANNELS_LAST
#include "channels_last.h"
#else
#include "channels_first.h"
#endif

namespace sepconv {

// Every thread takes tiles of its own, one after the other.
inline void run_tiles(const Call& call, const Workspace& space, const Tiles& tiles, Member& member, std::atomic<long>& next) {
  for (long i = next.fetch_add(1); i < tiles.count; i = next.fetch_add(1)) {
    depthwise_tile(call, space, member, tiles[i], 0, depthwise_items(call));
    multiply_tile(call, space, member, tiles[i], 0, call.outputs);
  }
}

// All threads work on one tile after the other: on some channels each, then on some output channels each.
inline void share_tiles(const Call& call, const Workspace& space, const Tiles& tiles, Member& member) {
  for (long i = 0; i < tiles.count; ++i) {
    long begin, end;
    member.share(depthwise_items(call), kDepthwiseGrain, begin, end);
    depthwise_tile(call, space, member, tiles[i], begin, end);
    member.meet();
    member.share(call.outputs, kProductGrain, begin, end);
    multiply_tile(call, space, member, tiles[i], begin, end);
    member.meet();
  }
}

// Whether the operands that all threads have seen may be split.
inline bool all_split(const Call& call, const Workspace& space) {
  Seen all;
  for (long i = 0; i < call.threads.count; ++i) {
    all.results.see(space.seen(i)->results);
    all.weights.see(space.seen(i)->weights);
  }
  return all.results.splits() && all.weights.splits();
}

// Compute y. Returns false where it is not right, since an operand does not split into terms: a kernel without them has to
// compute it.
inline bool forward(const Call& call) {
  const Workspace space(call);
  const Tiles tiles(call);
  const Pages pages(call.y, call.huge_pages ? call.batch * call.outputs * call.pixels() * long(sizeof(Element)) : 0);
  advise_huge(pages);
  std::atomic<long> next{0};
  for (long i = 0; i < call.threads.count; ++i) *space.seen(i) = {};
  run_team(call.threads, [&](Member& member) {
    const Session session;
    touch(pages, member);
    space.clear(member.number);
    prepare(call, space, member);
    if (call.shared) share_tiles(call, space, tiles, member);
    else run_tiles(call, space, tiles, member, next);
    end_streams();
  });
  return kTerms == 1 || all_split(call, space);
}

}  // namespace sepconv
