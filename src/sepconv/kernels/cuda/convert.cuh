// From 16 bits to float32 and back, in the words of PTX.
#pragma once

namespace sepconv {

__device__ __forceinline__ float half_to_float(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Two float32 rounded to the type of the terms (float16 for float16 tensors, else bfloat16): the first in the lower half.
__device__ __forceinline__ u32 pack(float first, float second) {
  u32 pair;
  if constexpr (kElement == Element::float16) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

}  // namespace sepconv
