// Small matrices of 16-bit numbers, of which each lane of a warp has some, as PTX's instructions do it.
#pragma once

#include "words.cuh"

namespace sepconv {

// Find two elements (row, column) of each of four matrices.
template <typename F>
void load_pairs(u32 (&v)[4], const u16* row, F place) {
  static const u16* rows[kFibers];
  if (reinterpret_cast<u64>(row) % 16) std::abort();
  rows[fiber] = row;
  warp_meets();
  for (int i = 0; i < 4; ++i) {
    u16 pair[2];
    for (int j = 0; j < 2; ++j) {
      const auto [at, column] = place(threadIdx.x % 32 / 4, threadIdx.x % 4 * 2 + j);
      pair[j] = rows[fiber / 32 * 32 + 8 * i + at][column];
    }
    std::memcpy(&v[i], pair, 4);
  }
  warp_meets();
}
inline void load_matrices(u32 (&v)[4], const u16* row) {
  load_pairs(v, row, [](int one, int other) { return std::pair(one, other); });
}
inline const u16* in_shared_memory(u32 address);  // ptx.cuh
inline void load_matrices(u32 (&v)[4], u32 row) { load_matrices(v, in_shared_memory(row)); }
inline void load_turned(u32 (&v)[4], const u16* row) {
  load_pairs(v, row, [](int one, int other) { return std::pair(other, one); });
}

template <int Matrices>
void store_turned(u32 row, const u32 (&v)[Matrices]) {
  static u16* rows[kFibers];
  rows[fiber] = const_cast<u16*>(in_shared_memory(row));
  if (row % 16 && threadIdx.x % 32 < 8 * Matrices) std::abort();
  warp_meets();
  for (int i = 0; i < 2 * Matrices; ++i) {
    rows[fiber / 32 * 32 + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2][threadIdx.x % 32 / 4] = u16(v[i / 2] >> i % 2 * 16);
  }
  warp_meets();
}

template <int Count>
void multiply_small(float (&sum)[Count], const u32 (&a)[4], const u32 (&b)[2]) {
  static u32 all_a[kFibers][4], all_b[kFibers][2];
  std::memcpy(all_a[fiber], a, sizeof a), std::memcpy(all_b[fiber], b, sizeof b);
  warp_meets();
  const int warp = fiber / 32 * 32, lane = threadIdx.x % 32;
  for (int i = 0; i < Count; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    double exact = sum[i];
    for (int k = 0; k < 16; ++k) {
      const u32 first = all_a[warp + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], second = all_b[warp + column * 4 + k % 8 / 2][k / 8];
      exact += double(unpack(u16(first >> k % 2 * 16))) * unpack(u16(second >> k % 2 * 16));
    }
    sum[i] = float(exact);
  }
  warp_meets();
}

}  // namespace sepconv
