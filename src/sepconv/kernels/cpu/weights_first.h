// The weights and biases of a block of output channels in channels_first, as the rows of the product.
#pragma once

#include <algorithm>

#include "call.h"
#include "team.h"
#include "terms.h"
#include "workspace.h"

namespace sepconv {

// A block of `rows` rows of weights as operands, from `output` on, with zeros behind the last channel. Matrix units read whole blocks,
// which are written from their beginning to their end: row by row took 10 clocks a vector instead of 7 (Xeon, 2026-11-30).
inline void pack_block(const Call& call, long output, long rows, Operand* packed, Largest& seen) {
  const Element* weights = call.pointwise_weight + output * call.middle();
  if constexpr (kUnits == Units::matrices) {
    Largest largest = seen;
    for (long c = 0; c < call.depth(); c += kDepthStep) {
      for (long i = 0; i < kBlock; ++i) {
        const Element* row = weights + i * call.middle() + c;
        const long count = i < rows ? call.middle() - c : 0;
        const Vector first = load_some(row, count), second = load_some(row + kLanes, count - kLanes);
        largest.see(first), largest.see(second);
        store_exact_terms(packed + in_block(i, c), kTermInBlock, first, second);
      }
    }
    seen = largest;
  } else {  // nothing is split
    (void)seen;
    for (long i = 0; i < rows; ++i, weights += call.middle(), packed += call.row()) {
      for (long c = 0; c < call.middle(); ++c) packed[c] = to_operand(weights[c]);
      std::fill(packed + call.middle(), packed + call.depth(), Operand{});
    }
  }
}

// All blocks, where they are packed beforehand. Where the threads share each tile, a block is packed by the one that multiplies with it.
inline void prepare(const Call& call, const Workspace& space, Member& member) {
  if (!Workspace::weights_once(call)) return;
  long begin, end;
  member.share(call.outputs, kBlock, begin, end);
  for (long o = begin; o < end; o += kBlock) {
    pack_block(call, o, std::min<long>(kBlock, end - o), space.weights() + o * call.row(), space.seen(member.number)->weights);
  }
  if (!call.shared) member.meet();
}

// What the product reads of a block: the weights where they lie, or as they were packed before, or else packed now.
inline const Operand* weights_of_block(const Call& call, const Workspace& space, const Member& member, long output, long rows) {
  if (Workspace::weights_as_they_are(call)) return reinterpret_cast<const Operand*>(call.pointwise_weight) + output * call.row();
  if (Workspace::weights_once(call)) return space.weights() + output * call.row();
  Operand* packed = space.block_weights(member.number);
  pack_block(call, output, rows, packed, space.seen(member.number)->weights);
  return packed;
}

inline const float* bias_of_block(const Call& call, const Workspace& space, const Member& member, long output, long rows) {
  if (!call.pointwise_bias) return nullptr;
  float* bias = space.block_bias(member.number, output / kBlock);
  for (long i = 0; i < rows; ++i) bias[i] = to_float(call.pointwise_bias[output + i]);
  return bias;
}

}  // namespace sepconv
