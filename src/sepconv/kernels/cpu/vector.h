// Vectors of float32 by the compiler's vector extensions, and how the elements of a tensor become float32 and back.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define SEPCONV_INLINE inline __attribute__((always_inline))

namespace sepconv {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRows = 9, kVectors = 3;  // 27 sums, 3 columns and 1 row of the product in 32 registers
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32, kRows = 6, kVectors = 2;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kRows = 6, kVectors = 4;
#else
constexpr int kVectorBytes = 16, kRows = 6, kVectors = 2;
#endif
constexpr int kLanes = kVectorBytes / 4;

typedef float Vector __attribute__((vector_size(kVectorBytes)));
typedef float UnalignedVector __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef std::int32_t Integers __attribute__((vector_size(kVectorBytes)));
typedef std::uint32_t Bits __attribute__((vector_size(kVectorBytes)));
typedef std::uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
typedef std::uint16_t Words __attribute__((vector_size(kVectorBytes)));

SEPCONV_INLINE Vector fill(float value) { return value - Vector{}; }  // no -0.0 is lost, as with a sum

SEPCONV_INLINE Vector load(const float* p) { return *reinterpret_cast<const UnalignedVector*>(p); }
SEPCONV_INLINE void store(float* p, Vector v) { *reinterpret_cast<UnalignedVector*>(p) = v; }

// Elements of 16 bits are kept as their bits in a type of their own.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

SEPCONV_INLINE Halves load_bits(const void* p) {
  Halves bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}

// 16 bits as 32. Of 16 lanes g++ makes two halves, six instructions instead of one (12.2).
#if defined(__AVX512F__)
SEPCONV_INLINE Bits widen(Halves bits) { return Bits(_mm512_cvtepu16_epi32(__m256i(bits))); }
#else
SEPCONV_INLINE Bits widen(Halves bits) { return __builtin_convertvector(bits, Bits); }
#endif

SEPCONV_INLINE Vector load(const BFloat16* p) { return reinterpret_cast<Vector>(widen(load_bits(p)) << 16); }

// To bfloat16, the nearest, ties to even; a NaN stays one. The instruction for it takes subnormal numbers for zero.
#if defined(__AVX512BF16__)
SEPCONV_INLINE Halves round_to_bfloat16(Vector v) { return Halves(_mm512_cvtneps_pbh(__m512(v))); }
#else
SEPCONV_INLINE Halves round_to_bfloat16(Vector v) {
  const Bits bits = reinterpret_cast<Bits>(v);
  const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return __builtin_convertvector(v == v ? rounded : (bits >> 16) | 0x40, Halves);
}
#endif

SEPCONV_INLINE void store(BFloat16* p, Vector v) {
  const Halves bits = round_to_bfloat16(v);
  std::memcpy(p, &bits, sizeof bits);
}

// Two vectors lane by lane as pairs of bfloat16.
SEPCONV_INLINE void store_pairs(BFloat16* p, Vector first, Vector second) {
  const Bits pairs = widen(round_to_bfloat16(first)) | widen(round_to_bfloat16(second)) << 16;
  std::memcpy(p, &pairs, sizeof pairs);
}

SEPCONV_INLINE float bits_to_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

SEPCONV_INLINE std::uint32_t float_to_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

SEPCONV_INLINE float to_float(float value) { return value; }
SEPCONV_INLINE float to_float(BFloat16 value) { return bits_to_float(std::uint32_t(value.bits) << 16); }

inline float to_float(Float16 value) {
  const std::uint32_t sign = std::uint32_t(value.bits & 0x8000) << 16, magnitude = value.bits & 0x7fff;
  if (magnitude >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);  // inf and NaN
  // A power of two puts the exponent right for normal and subnormal numbers alike.
  return bits_to_float(sign | float_to_bits(bits_to_float(magnitude << 13) * 0x1p112f));
}

inline std::uint16_t round_to_float16(float value) {
  const std::uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return std::uint16_t(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return std::uint16_t(sign | 0x7c00);  // what rounds to 65536 and above
  if (magnitude < 0x38800000) {  // subnormal: adding 0.5 rounds to its last place, 2^-24
    return std::uint16_t(sign | (float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000));
  }
  return std::uint16_t(sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13);
}

#if defined(__AVX512F__)
SEPCONV_INLINE Vector load(const Float16* p) { return Vector(_mm512_cvtph_ps(__m256i(load_bits(p)))); }
SEPCONV_INLINE void store(Float16* p, Vector v) {
  const Halves bits = Halves(_mm512_cvtps_ph(__m512(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  std::memcpy(p, &bits, sizeof bits);
}
#elif defined(__AVX2__)
SEPCONV_INLINE Vector load(const Float16* p) { return Vector(_mm256_cvtph_ps(__m128i(load_bits(p)))); }
SEPCONV_INLINE void store(Float16* p, Vector v) {
  const Halves bits = Halves(_mm256_cvtps_ph(__m256(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  std::memcpy(p, &bits, sizeof bits);
}
#else
SEPCONV_INLINE Vector load(const Float16* p) {
  Vector v;
  for (int i = 0; i < kLanes; ++i) v[i] = to_float(p[i]);
  return v;
}
SEPCONV_INLINE void store(Float16* p, Vector v) {
  for (int i = 0; i < kLanes; ++i) p[i].bits = round_to_float16(v[i]);
}
#endif

// A store past the caches, to an address that is a multiple of the vector's bytes in T; before another thread reads what was stored so,
// this one has to call `end_streams`.
#if defined(__AVX512F__)
SEPCONV_INLINE void stream(float* p, Vector v) { _mm512_stream_ps(p, __m512(v)); }
template <typename T>
SEPCONV_INLINE void stream(T* p, Vector v) {
  T elements[kLanes];
  store(elements, v);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), __m256i(load_bits(elements)));
}
inline void end_streams() { _mm_sfence(); }
#else
template <typename T>
SEPCONV_INLINE void stream(T* p, Vector v) {
  store(p, v);
}
inline void end_streams() {}
#endif

// The lanes [begin, end) of the vector at p, which alone have to exist; zeros elsewhere.
template <typename T>
SEPCONV_INLINE Vector load_between_slowly(const T* p, long begin, long end) {
  Vector v{};
  for (int i = 0; i < kLanes; ++i) {
    if (i >= begin && i < end) v[i] = to_float(p[i]);
  }
  return v;
}

#if defined(__AVX512F__)
SEPCONV_INLINE std::uint32_t lanes_between(long begin, long end) {
  const auto below = [](long n) { return n <= 0 ? 0u : n >= kLanes ? 0xffffu : (1u << n) - 1; };
  return below(end) & ~below(begin);
}
SEPCONV_INLINE Vector load_lanes(const float* p, std::uint32_t lanes) {
  return Vector(_mm512_maskz_loadu_ps(__mmask16(lanes), p));
}
SEPCONV_INLINE Vector load_lanes(const BFloat16* p, std::uint32_t lanes) {
  const Halves bits = Halves(_mm256_maskz_loadu_epi16(__mmask16(lanes), p));
  return load(reinterpret_cast<const BFloat16*>(&bits));
}
SEPCONV_INLINE Vector load_lanes(const Float16* p, std::uint32_t lanes) {
  const Halves bits = Halves(_mm256_maskz_loadu_epi16(__mmask16(lanes), p));
  return load(reinterpret_cast<const Float16*>(&bits));
}
#endif

template <typename T>
SEPCONV_INLINE Vector load_between(const T* p, long begin, long end) {
  if (begin <= 0 && end >= kLanes) return load(p);
#if defined(__AVX512F__)
  return load_lanes(p, lanes_between(begin, end));
#else
  return load_between_slowly(p, begin, end);
#endif
}

// The first `lanes` elements; zeros behind them.
template <typename T>
SEPCONV_INLINE Vector load_some(const T* p, long lanes) {
  return load_between(p, 0, lanes);
}

// A store of the first `lanes` elements.
template <typename T>
SEPCONV_INLINE void store_some(T* p, Vector v, long lanes) {
#if defined(__AVX512F__)
  const std::uint32_t existing = lanes_between(0, lanes);
  if constexpr (sizeof(T) == sizeof(float)) {
    _mm512_mask_storeu_ps(p, __mmask16(existing), __m512(v));
  } else {
    T elements[kLanes];
    store(elements, v);
    _mm256_mask_storeu_epi16(p, __mmask16(existing), __m256i(load_bits(elements)));
  }
#else
  T elements[kLanes];
  store(elements, v);
  for (int i = 0; i < kLanes && i < lanes; ++i) p[i] = elements[i];
#endif
}

// Every second lane of two vectors, from lane `First` on.
#if defined(__clang__)
template <int First, typename V, int... Lane>
SEPCONV_INLINE V every_second(V a, V b, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(a, b, (2 * Lane + First)...);
}
template <int First, typename V>
SEPCONV_INLINE V every_second(V a, V b) {
  return every_second<First>(a, b, std::make_integer_sequence<int, int(sizeof(V) / sizeof a[0])>());
}
#else
template <int First, typename V>
SEPCONV_INLINE V every_second(V a, V b) {
  std::conditional_t<sizeof a[0] == 4, Integers, Words> lanes;
  for (int i = 0; i < int(sizeof(V) / sizeof a[0]); ++i) lanes[i] = 2 * i + First;
  return __builtin_shuffle(a, b, lanes);
}
#endif

constexpr long round_up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace sepconv
