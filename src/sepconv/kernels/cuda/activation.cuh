// The activations that are compiled in. NaN passes through all of them, as in PyTorch.
#pragma once

namespace sepconv {

enum class Activation { identity, relu, relu6 };

template <Activation Which>
__device__ __forceinline__ float activate(float x) {
  if constexpr (Which == Activation::identity) return x;
  x = x < 0.f ? 0.f : x;
  return Which == Activation::relu6 && x > 6.f ? 6.f : x;
}

constexpr Activation kDepthwiseActivation = Activation::SEPCONV_DEPTHWISE_ACTIVATION;
constexpr Activation kPointwiseActivation = Activation::SEPCONV_POINTWISE_ACTIVATION;

}  // namespace sepconv
