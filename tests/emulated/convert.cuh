// From 16 bits to float32 and back, as PTX's instructions do it.
#pragma once

namespace sepconv {

inline float half_to_float(u16 bits) {
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return float(half);
}

// To the nearest, ties to even.
inline u16 to_half(float value) {
  const _Float16 half = _Float16(value);
  u16 bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
inline u16 to_bfloat16(float value) {
  const u32 bits = __float_as_uint(value);
  if (value != value) return 0x7fff;
  return u16(bits + 0x7fff + (bits >> 16 & 1) >> 16);
}
inline u32 pack(float first, float second) {
  if (kElement == Element::float16) return to_half(first) | u32(to_half(second)) << 16;
  return to_bfloat16(first) | u32(to_bfloat16(second)) << 16;
}

}  // namespace sepconv
