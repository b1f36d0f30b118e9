// Small matrices of 16-bit numbers, of which each lane of a warp has some, in the words of PTX.
#pragma once

#include "words.cuh"

namespace sepconv {

// Four matrices of 8 x 8 from shared memory: a lane names a row of 16 bytes (lanes 0 to 7 those of the first matrix), and has of each
// matrix two neighbours of row lane / 4.
__device__ __forceinline__ void load_matrices(u32 (&v)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(row) : "memory");
}
__device__ __forceinline__ void load_matrices(u32 (&v)[4], const u16* row) { load_matrices(v, u32(__cvta_generic_to_shared(row))); }

// The same with each matrix turned: a lane has of each two neighbours of column lane / 4.
__device__ __forceinline__ void load_turned(u32 (&v)[4], const u16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(u32(__cvta_generic_to_shared(row))) : "memory");
}

// One or two such matrices turned and stored: the first lanes name the rows.
__device__ __forceinline__ void store_turned(u32 row, const u32 (&v)[1]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(row), "r"(v[0]) : "memory");
}
__device__ __forceinline__ void store_turned(u32 row, const u32 (&v)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(v[0]), "r"(v[1]) : "memory");
}

// A product of one warp: 16 rows by 8 columns, 16 deep, added to the sums. With half the sums the last 8 rows are left out.
#define SEPCONV_MULTIPLY_SMALL(type)                                                                                                    \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(more[0]), "+f"(more[1])                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <int Count>
__device__ __forceinline__ void multiply_small(float (&sum)[Count], const u32 (&a)[4], const u32 (&b)[2]) {
  float none[2] = {};
  float* const more = Count > 2 ? &sum[Count > 2 ? 2 : 0] : none;
  if constexpr (kElement == Element::float16) SEPCONV_MULTIPLY_SMALL("f16");
  else SEPCONV_MULTIPLY_SMALL("bf16");
}
#undef SEPCONV_MULTIPLY_SMALL

}  // namespace sepconv
