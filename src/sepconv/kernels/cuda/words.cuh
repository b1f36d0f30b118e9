// Elements of tensors and 16-bit terms, as their bits and as float32; and how elements lie in tensors.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

namespace sepconv {

enum class Element { float32, float16, bfloat16 };
constexpr Element kElement = Element::SEPCONV_ELEMENT;
constexpr int kElementBytes = SEPCONV_ELEMENT_BYTES;
// Of x and y: the channels of a pixel lie together, else the pixels of a row do.
constexpr bool kChannelsLast = SEPCONV_CHANNELS_LAST;

}  // namespace sepconv

#include "convert.cuh"

namespace sepconv {

// One 16-bit term, or one element of a 16-bit tensor, as float32.
__device__ __forceinline__ float unpack(u16 bits) {
  if constexpr (kElement == Element::float16) return half_to_float(bits);
  else return __uint_as_float(u32(bits) << 16);
}

// An element as a tensor holds it, and as float32.
template <int Bytes>
struct Bits {
  typedef u16 Of;
};
template <>
struct Bits<4> {
  typedef float Of;
};
using Stored = Bits<kElementBytes>::Of;
__device__ __forceinline__ float number(float stored) { return stored; }
__device__ __forceinline__ float number(u16 stored) { return unpack(stored); }

__device__ __forceinline__ float element(const void* tensor, long long index) { return number(static_cast<const Stored*>(tensor)[index]); }

__device__ __forceinline__ void set_element(void* tensor, long long index, float value) {
  if constexpr (kElement == Element::float32) static_cast<float*>(tensor)[index] = value;
  else static_cast<u16*>(tensor)[index] = u16(pack(value, 0.f));
}

}  // namespace sepconv
