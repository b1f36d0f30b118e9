// Hopper's matrix products (wgmma) of a group of four warps: 64 rows by 128 or 64 columns, 16 deep; half as many sums in registers of each
// thread as there are columns.
#pragma once

#include "problem.cuh"

namespace sepconv {

// An operand in shared memory whose rows of 128 bytes are swizzled, 1024 bytes to the next eight rows: its address and `lead`, the bytes to
// the next 64 elements of a row. (In a cluster the upper bits of an address say whose memory it is.) What is the same for all operands is
// put in front of it in multiply().
constexpr u64 kSwizzledRows = 1024 >> 4 | 1u << 30;
__device__ __forceinline__ u32 describe(u32 address, u32 lead) { return (address & 0x3ffff) >> 4 | lead >> 4 << 16; }
// The operand so many bytes further on.
constexpr __device__ u32 further(u32 operand, int bytes) { return operand + bytes / 16; }

#define SEPCONV_EIGHT(i) \
  "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define SEPCONV_32(i) SEPCONV_EIGHT(i), SEPCONV_EIGHT(i + 8), SEPCONV_EIGHT(i + 16), SEPCONV_EIGHT(i + 24)
// The sums and what comes behind them, by their numbers in the instruction.
#if SEPCONV_TILE == 128
#define SEPCONV_COLUMNS "n128"
#define SEPCONV_SUMS SEPCONV_32(0), SEPCONV_32(32)
#define SEPCONV_0 "%64"
#define SEPCONV_1 "%65"
#define SEPCONV_2 "%66"
#define SEPCONV_3 "%67"
#define SEPCONV_4 "%68"
#define SEPCONV_5 "%69"
#define SEPCONV_NUMBERS \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
  "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#else
#define SEPCONV_COLUMNS "n64"
#define SEPCONV_SUMS SEPCONV_32(0)
#define SEPCONV_0 "%32"
#define SEPCONV_1 "%33"
#define SEPCONV_2 "%34"
#define SEPCONV_3 "%35"
#define SEPCONV_4 "%36"
#define SEPCONV_5 "%37"
#define SEPCONV_NUMBERS \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31}"
#endif
#define SEPCONV_MULTIPLY(type, b_along_columns)                                                                            \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.u32 adds, " SEPCONV_2 ", 0;\nwgmma.mma_async.sync.aligned.m64" SEPCONV_COLUMNS  \
               "k16.f32." type "." type " " SEPCONV_NUMBERS ", " SEPCONV_0 ", " SEPCONV_1 ", adds, 1, 1, 0, " b_along_columns ";\n}" \
               : SEPCONV_SUMS : "l"(kSwizzledRows << 32 | a), "l"(kSwizzledRows << 32 | b), "r"(u32(adds)))

// sum = A . B, or with `adds` sum += A . B: A with rows along the depth, B with rows along the columns or, with channels last, along the depth.
__device__ __forceinline__ void multiply(float (&sum)[kSums], u32 a, u32 b, bool adds) {
  if constexpr (kElement == Element::float16) {
    if constexpr (kChannelsLast) SEPCONV_MULTIPLY("f16", "0");
    else SEPCONV_MULTIPLY("f16", "1");
  } else {
    if constexpr (kChannelsLast) SEPCONV_MULTIPLY("bf16", "0");
    else SEPCONV_MULTIPLY("bf16", "1");
  }
}

// The same with A from registers, and B with rows along the columns.
__device__ __forceinline__ void multiply(float (&sum)[kSums], const u32 (&a)[4], u32 b, bool adds) {
  asm volatile("{\n.reg .pred adds;\nsetp.ne.u32 adds, " SEPCONV_5 ", 0;\nwgmma.mma_async.sync.aligned.m64" SEPCONV_COLUMNS
               "k16.f32.bf16.bf16 " SEPCONV_NUMBERS ", {" SEPCONV_0 ", " SEPCONV_1 ", " SEPCONV_2 ", " SEPCONV_3 "}, " SEPCONV_4
               ", adds, 1, 1, 1;\n}"
               : SEPCONV_SUMS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(kSwizzledRows << 32 | b), "r"(u32(adds)));
}

// Any value, at no cost.
__device__ __forceinline__ void set_open(float& sum) { asm volatile("" : "=f"(sum)); }
// A register of a product, at a place in the program: nothing reads a sum before, and nothing changes an operand.
__device__ __forceinline__ void settle(float& sum) { asm volatile("" : "+f"(sum)); }
__device__ __forceinline__ void settle(u32& operand) { asm volatile("" : "+r"(operand)::"memory"); }

__device__ __forceinline__ void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `Pending` committed groups are under way.
template <int Pending>
__device__ __forceinline__ void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

}  // namespace sepconv
