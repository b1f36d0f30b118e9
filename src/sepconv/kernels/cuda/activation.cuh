// The activations of both steps. NaN passes through all of them, as in PyTorch.
#pragma once

namespace sepconv {

// In the words of sepconv.reference.ACTIVATIONS.
enum class Activation { identity, relu, relu6, silu, hardswish, gelu, gelu_tanh, leaky_relu, hardsigmoid, sigmoid, tanh };

// A comparison with NaN is false.
__device__ __forceinline__ float between(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

template <Activation Which>
__device__ __forceinline__ float activate(float x, float value = 0.f) {
  if constexpr (Which == Activation::relu) return x < 0.f ? 0.f : x;
  else if constexpr (Which == Activation::relu6) return between(x, 0.f, 6.f);
  else if constexpr (Which == Activation::silu) return x / (1.f + expf(-x));
  else if constexpr (Which == Activation::hardswish) return x * (between(x + 3.f, 0.f, 6.f) * (1.f / 6));
  else if constexpr (Which == Activation::gelu) return 0.5f * x * (1.f + erff(x * 0.70710678118654752f));
  else if constexpr (Which == Activation::gelu_tanh) return 0.5f * x * (1.f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
  else if constexpr (Which == Activation::leaky_relu) return x > 0.f ? x : x * value;
  else if constexpr (Which == Activation::hardsigmoid) return between(x + 3.f, 0.f, 6.f) * (1.f / 6);
  else if constexpr (Which == Activation::sigmoid) return 1.f / (1.f + expf(-x));
  else if constexpr (Which == Activation::tanh) return tanhf(x);
  else return x;
}

constexpr Activation kDepthwiseActivation = Activation::SEPCONV_DEPTHWISE_ACTIVATION;
constexpr Activation kPointwiseActivation = Activation::SEPCONV_POINTWISE_ACTIVATION;

}  // namespace sepconv
