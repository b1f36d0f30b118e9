// Hopper's matrix products in C++, for each thread its own sums. They are computed when they are waited for: operands that are overwritten
// before, in registers or in shared memory, give a wrong result.
#pragma once

#include "problem.cuh"

namespace sepconv {

inline u32 describe(u32 address, u32 lead) { return (address & 0x3ffff) >> 4 | lead >> 4 << 16; }
constexpr u32 further(u32 operand, int bytes) { return operand + bytes / 16; }

// An element of an operand in swizzled rows of 128 bytes, by its row and its place there; `lead`: from 64 elements of a row to the next.
inline float element_of(u32 operand, int row, int column) {
  const u32 lead = operand >> 16 << 4, first = (operand & 0xffff) << 4;
  const u32 at = first + column / 64 * lead + row / 8 * 1024 + row % 8 * 128 + column % 64 * 2;
  return unpack(shared<u16>(at ^ (at >> 7 & 7) << 4));
}

struct Multiplication {
  float* sums;
  const u32* fragment;  // or null: `a` is in shared memory
  u32 a, b;
  bool adds;
  int group;  // of products that are committed together
};
struct Unit {
  std::vector<Multiplication> pending;
  int group = 0;
};
inline Unit units[kFibers];

// The rows of A and the columns of B along the depth.
inline float of_a(const Multiplication* const (&quad)[4], int half, int k) {
  if (!quad[0]->fragment) return element_of(quad[0]->a, threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half, k);
  return unpack(u16(quad[k % 8 / 2]->fragment[half + k / 8 * 2] >> k % 2 * 16));
}
inline float of_b(const Multiplication& m, int column, int k) {
  return kChannelsLast ? element_of(m.b, column, k) : element_of(m.b, k, column);
}
inline void multiply_now(std::size_t index) {
  const Multiplication* quad[4];
  for (int i = 0; i < 4; ++i) quad[i] = &units[fiber / 4 * 4 + i].pending[index];
  const Multiplication& own = units[fiber].pending[index];
  float a[2][16];
  for (int i = 0; i < 32; ++i) a[i / 16][i % 16] = of_a(quad, i / 16, i % 16);
  for (int column = 0; column < 2 * kSums / 4; ++column) {
    float b[16];
    for (int k = 0; k < 16; ++k) b[k] = of_b(own, column / 2 * 8 + threadIdx.x % 4 * 2 + column % 2, k);
    for (int half = 0; half < 2; ++half) {
      float& sum = own.sums[column / 2 * 4 + half * 2 + column % 2];
      double exact = own.adds ? sum : 0;
      for (int k = 0; k < 16; ++k) exact += double(a[half][k]) * b[k];
      sum = float(exact);
    }
  }
}

inline void multiply(float (&sum)[kSums], u32 a, u32 b, bool adds) {
  units[fiber].pending.push_back({sum, nullptr, a, b, adds, units[fiber].group});
}
inline void multiply(float (&sum)[kSums], const u32 (&a)[4], u32 b, bool adds) {
  units[fiber].pending.push_back({sum, a, 0, b, adds, units[fiber].group});
}
inline void set_open(float& sum) { sum = __uint_as_float(0x7fc00000); }
inline void settle(float&) {}
inline void settle(u32&) {}
inline void multiply_fence() {}
inline void multiply_commit() { ++units[fiber].group; }
template <int Pending>
void multiply_wait() {
  Unit& unit = units[fiber];
  std::size_t done = 0;
  while (done < unit.pending.size() && unit.pending[done].group < unit.group - Pending) ++done;
  warp_meets();
  for (std::size_t i = 0; i < done; ++i) multiply_now(i);
  warp_meets();
  unit.pending.erase(unit.pending.begin(), unit.pending.begin() + done);
}

}  // namespace sepconv
