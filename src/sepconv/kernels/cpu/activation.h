// The activations of both steps, on vectors of float32.
#pragma once

#include "vector.h"

namespace sepconv {

// In the order of sepconv.reference.ACTIVATIONS; `any` is one of these that is only known at run time.
enum class Activation { identity, relu, relu6, silu, hardswish, gelu, gelu_tanh, leaky_relu, hardsigmoid, sigmoid, tanh, any };

// An activation with its number.
struct Activate {
  Activation which;
  float value;
};

// A comparison with NaN is false, so a NaN passes through each of these.
SEPCONV_INLINE Vector at_least(Vector x, float low) { return x < low ? fill(low) : x; }
SEPCONV_INLINE Vector at_most(Vector x, float high) { return x > high ? fill(high) : x; }
SEPCONV_INLINE Vector magnitude(Vector x) { return Vector(Bits(x) & 0x7fffffff); }

// e^x to about one unit in the last place: 2^n times the Taylor polynomial of e^r, where x = n ln 2 + r and |r| <= ln 2 / 2.
// Infinite where that is too large, so that what is divided by it comes out as zero, and as NaN for an infinite dividend.
SEPCONV_INLINE Vector exponential(Vector x) {
  constexpr float kShift = 0x1.8p23f;  // added to a small number, it leaves the nearest integer in the low bits
  x = at_most(at_least(x, -87.3f), 89.f);
  const Vector shifted = x * 0x1.715476p0f + kShift;
  const Vector n = shifted - kShift;
  Vector r = x - n * 0x1.62e4p-1f;
  r = r - n * 0x1.7f7d1cp-20f;
  Vector sum = r * (1.f / 5040) + 1.f / 720;
  sum = sum * r + 1.f / 120;
  sum = sum * r + 1.f / 24;
  sum = sum * r + 1.f / 6;
  sum = sum * r + 0.5f;
  sum = sum * (r * r) + r + 1.f;
  // In two steps: 2^128 would be no float.
  const Integers power = Integers(Bits(shifted) - Bits(fill(kShift)));
  const Integers half = power >> 1;
  const Vector first = Vector((half + 127) << 23), second = Vector((power - half + 127) << 23);
  return sum * first * second;
}

SEPCONV_INLINE Vector sigmoid(Vector x) { return 1.f / (1.f + exponential(-x)); }

// Near zero by its Taylor polynomial, elsewhere by the exponential.
SEPCONV_INLINE Vector hyperbolic_tangent(Vector x) {
  const Vector square = x * x;
  Vector sum = square * (-929569.f / 638512875.f) + 21844.f / 6081075.f;
  sum = sum * square - 1382.f / 155925;
  sum = sum * square + 62.f / 2835;
  sum = sum * square - 17.f / 315;
  sum = sum * square + 2.f / 15;
  sum = sum * square - 1.f / 3;
  const Vector near = x + x * square * sum;
  const Vector far = 1.f - 2.f / (exponential(2.f * magnitude(x)) + 1.f);
  const Vector signed_far = Vector(Bits(far) | (Bits(x) & 0x80000000));
  return magnitude(x) < 0.5f ? near : signed_far;
}

// erf(x) = 1 - e^(-x x) P(t) with t = 1 / (1 + x / 2) for x >= 0: P is a least-squares fit, 1e-8 off at most.
SEPCONV_INLINE Vector error_function(Vector x) {
  constexpr float kFit[] = {-0.055158563f, 0.365290701f, -0.944900095f, 1.07632804f, -0.443724841f, 0.48804906f, 0.224997297f, 0.289509892f, -0.000391484151f};
  const Vector size = magnitude(x);
  const Vector t = 1.f / (1.f + 0.5f * size);
  Vector sum = fill(kFit[0]);
  for (unsigned i = 1; i < sizeof kFit / sizeof *kFit; ++i) sum = sum * t + kFit[i];
  const Vector value = 1.f - exponential(-size * size) * sum;
  return Vector(Bits(value) | (Bits(x) & 0x80000000));
}

__attribute__((noinline)) inline Vector activate_any(Vector x, Activate how) {
  switch (how.which) {
    case Activation::relu: return at_least(x, 0.f);
    case Activation::relu6: return at_most(at_least(x, 0.f), 6.f);
    case Activation::silu: return x / (1.f + exponential(-x));
    case Activation::hardswish: return x * (at_most(at_least(x + 3.f, 0.f), 6.f) * (1.f / 6));
    case Activation::gelu: return 0.5f * x * (1.f + error_function(x * 0x1.6a09e6p-1f));
    case Activation::gelu_tanh:
      return 0.5f * x * (1.f + hyperbolic_tangent(0x1.988454p-1f * (x + 0.044715f * x * x * x)));
    case Activation::leaky_relu: return x > 0.f ? x : x * how.value;
    case Activation::hardsigmoid: return at_most(at_least(x + 3.f, 0.f), 6.f) * (1.f / 6);
    case Activation::sigmoid: return sigmoid(x);
    case Activation::tanh: return hyperbolic_tangent(x);
    default: return x;
  }
}

// The frequent ones are compiled in; a call for the others costs less than what they compute.
template <Activation activation>
SEPCONV_INLINE Vector activate(Vector x, Activate how) {
  switch (activation) {
    case Activation::identity: return x;
    case Activation::relu: return at_least(x, 0.f);
    case Activation::relu6: return at_most(at_least(x, 0.f), 6.f);
    default: return activate_any(x, how);
  }
}

}  // namespace sepconv
