// The forward pass on any GPU with matrix units of 16 bits (compute capability 8.0 and later), for any problem of one or two axes. A block
// takes a tile of output pixels, counted through all images, so that small maps fill it. For each chunk of middle channels its threads
// slide the window over the input, which they read where it lies, and write the result as one operand of the product; the other one are
// the weights of a block of output channels. Where the operand of all chunks fits into shared memory it is computed once.
#include "activation.cuh"
#include "fragments.cuh"
#include "terms.cuh"

namespace sepconv {

constexpr int kChannels = SEPCONV_CHANNELS, kMultiplier = SEPCONV_MULTIPLIER, kMiddle = kChannels * kMultiplier, kOutputs = SEPCONV_OUTPUTS;
constexpr int kKernelH = SEPCONV_KERNEL_H, kKernelW = SEPCONV_KERNEL_W, kStrideH = SEPCONV_STRIDE_H, kStrideW = SEPCONV_STRIDE_W;
constexpr int kDilationH = SEPCONV_DILATION_H, kDilationW = SEPCONV_DILATION_W, kPaddingH = SEPCONV_PADDING_H, kPaddingW = SEPCONV_PADDING_W;
constexpr int kInH = SEPCONV_IN_H, kInW = SEPCONV_IN_W, kOutH = SEPCONV_OUT_H, kOutW = SEPCONV_OUT_W, kPlane = kOutH * kOutW;
constexpr bool kDepthwiseBias = SEPCONV_DEPTHWISE_BIAS, kPointwiseBias = SEPCONV_POINTWISE_BIAS, kResidual = SEPCONV_RESIDUAL;
constexpr int kTerms = SEPCONV_TERMS;  // 16-bit numbers that an operand's number is the sum of

// How: the pixels of a tile (64, 32 or 16), and whether the operand of all chunks stays in shared memory.
constexpr int kTile = SEPCONV_TILE;
constexpr bool kResident = SEPCONV_RESIDENT;

constexpr int kThreads = 256, kWarps = 8, kChunk = 32, kBlock = 128;
constexpr int kChunks = (kMiddle + kChunk - 1) / kChunk, kBlocks = (kOutputs + kBlock - 1) / kBlock;
// A warp has 32 pixels (or 16) by some output channels: tiles of 16 x 8 results.
constexpr int kTilesM = kTile >= 32 ? 2 : 1, kWarpsM = kTile / (16 * kTilesM), kWarpsN = kWarps / kWarpsM, kTilesN = kBlock / (8 * kWarpsN);
static_assert(kTilesN % 2 == 0, "tiles of output channels are loaded in pairs");
// Rows of operands are 16 bytes longer than a chunk: so neither matrix loads nor stores of 16 bytes meet in a bank.
constexpr int kPitch = kChunk + 8, kOperandTerm = kTile * kPitch, kOperand = kTerms * kOperandTerm;
constexpr int kWeightTerm = kBlock * kPitch, kWeights = kTerms * kWeightTerm;
constexpr int kOperands = kResident ? kChunks : 2;
constexpr int kSharedBytes = (kOperands * kOperand + 2 * kWeights) * 2;
// A thread has so many channels of one pixel at a time in the window's step.
constexpr int kUnit = kTile / 8, kUnits = kChunk / kUnit;

struct Call {
  const Stored *x, *depthwise_weight, *pointwise_weight, *depthwise_bias, *pointwise_bias, *residual;
  Stored* y;
  long long x_strides[4];  // of images, channels, rows and columns, in elements
  long long pixels;        // of all images together
  float depthwise_value, pointwise_value;
};

// An output pixel: its image, and its place there.
struct Pixel {
  long long image;
  int place;  // row * kOutW + column

  __device__ __forceinline__ explicit Pixel(long long pixel) : image(pixel / kPlane), place(int(pixel % kPlane)) {}
  __device__ __forceinline__ int row() const { return place / kOutW; }
  __device__ __forceinline__ int column() const { return place % kOutW; }
  __device__ __forceinline__ long long index(int output) const {
    return kChannelsLast ? (image * kPlane + place) * kOutputs + output : (image * kOutputs + output) * kPlane + place;
  }
};

template <int Count>
__device__ __forceinline__ void store_pairs(u16* to, const u32 (&pairs)[Count]) {
  if constexpr (Count == 4) *reinterpret_cast<uint4*>(to) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  else if constexpr (Count == 2) *reinterpret_cast<uint2*>(to) = {pairs[0], pairs[1]};
  else *reinterpret_cast<u32*>(to) = pairs[0];
}
template <int Count>
__device__ __forceinline__ void store_terms(u16* to, int term_step, float (&v)[Count]) {
#pragma unroll
  for (int t = 0; t < kTerms; ++t) {
    u32 pairs[Count / 2];
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) pairs[i] = take_term<false>(v[2 * i], v[2 * i + 1], t + 1 == kTerms);
    store_pairs(to + t * term_step, pairs);
  }
}

// The window's step: this thread's pixel, and some of the channels of a chunk.
class Window {
 public:
  __device__ __forceinline__ Window(const Call& call, long long tile, int thread) : call_(call) {
    in_tile_ = kChannelsLast ? thread / kUnits : thread % kTile;
    unit_ = kChannelsLast ? thread % kUnits : thread / kTile;
    const long long pixel = tile * kTile + in_tile_;
    exists_ = pixel < call.pixels;
    const Pixel at(exists_ ? pixel : 0);
    row_ = at.row() * kStrideH - kPaddingH, column_ = at.column() * kStrideW - kPaddingW;
    image_ = call.x + at.image * call.x_strides[0];
  }

  __device__ __forceinline__ void compute(u16* operand, int chunk) const {
    const int first = chunk * kChunk + unit_ * kUnit;
    float sum[kUnit];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) sum[i] = kDepthwiseBias && first + i < kMiddle ? number(call_.depthwise_bias[first + i]) : 0.f;
    if (exists_) add(sum, first);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const bool is_number = exists_ && first + i < kMiddle;
      sum[i] = is_number ? activate<kDepthwiseActivation>(sum[i], call_.depthwise_value) : 0.f;
    }
    store_terms(operand + in_tile_ * kPitch + unit_ * kUnit, kOperandTerm, sum);
  }

 private:
  static constexpr int kTaps = kKernelH * kKernelW;
  static constexpr bool kUnrolls = kTaps <= 9;

  __device__ __forceinline__ void add(float (&sum)[kUnit], int first) const {
#pragma unroll(kUnrolls ? kKernelH : 1)
    for (int h = 0; h < kKernelH; ++h) {
      const int row = row_ + h * kDilationH;
      if (row < 0 || row >= kInH) continue;
#pragma unroll(kUnrolls ? kKernelW : 1)
      for (int w = 0; w < kKernelW; ++w) {
        const int column = column_ + w * kDilationW;
        if (column < 0 || column >= kInW) continue;
        add_tap(sum, first, h * kKernelW + w, image_ + row * call_.x_strides[2] + column * call_.x_strides[3]);
      }
    }
  }
  __device__ __forceinline__ void add_tap(float (&sum)[kUnit], int first, int tap, const Stored* from) const {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const int channel = first + i;
      if (kMiddle % kUnit != 0 && channel >= kMiddle) continue;
      if (kMiddle % kUnit == 0 && first >= kMiddle) continue;
      sum[i] = fmaf(number(__ldg(call_.depthwise_weight + channel * kTaps + tap)),
                    number(__ldg(from + channel / kMultiplier * call_.x_strides[1])), sum[i]);
    }
  }

  const Call& call_;
  const Stored* image_;
  int in_tile_, unit_, row_, column_;
  bool exists_;
};

// The weights of a block of output channels for a chunk: each thread half a row.
__device__ __forceinline__ void load_weights(u16* weights, const Call& call, int block, int chunk, int thread) {
  constexpr int kHalf = kChunk / 2;
  const int row = thread / 2, output = block * kBlock + row, first = chunk * kChunk + thread % 2 * kHalf;
  const Stored* const from = call.pointwise_weight + (long long)(output) * kMiddle + first;
#pragma unroll
  for (int part = 0; part < kHalf; part += 8) {
    float v[8];
    constexpr int kVector = 16 / int(sizeof(Stored));  // elements of 16 bytes
    const bool aligned = kMiddle % kVector == 0 && reinterpret_cast<u64>(call.pointwise_weight) % 16 == 0;
    if (aligned && output < kOutputs && first + part + 8 <= kMiddle) {
#pragma unroll
      for (int i = 0; i < 8; i += kVector) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(from + part + i));
        Stored stored[kVector];
        *reinterpret_cast<uint4*>(stored) = four;
#pragma unroll
        for (int j = 0; j < kVector; ++j) v[i + j] = number(stored[j]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = output < kOutputs && first + part + i < kMiddle ? number(from[part + i]) : 0.f;
    }
    store_terms(weights + row * kPitch + thread % 2 * kHalf + part, kWeightTerm, v);
  }
}

struct Sums {
  float of[kTilesM][kTilesN][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kTilesM * kTilesN * 4; ++i) of[i / (4 * kTilesN)][i / 4 % kTilesN][i % 4] = 0.f;
  }
  __device__ __forceinline__ void take(const Sums& more) {
#pragma unroll
    for (int i = 0; i < kTilesM * kTilesN * 4; ++i) of[i / (4 * kTilesN)][i / 4 % kTilesN][i % 4] += more.of[i / (4 * kTilesN)][i / 4 % kTilesN][i % 4];
  }
};

// What a warp adds to its sums of a chunk: the smallest products first; those of the smallest terms are left out.
__device__ __forceinline__ void multiply_chunk(Sums& sums, const u16* operand, const u16* weights, int warp, int lane) {
  const u16* const a = operand + (warp / kWarpsN * 16 * kTilesM + lane % 16) * kPitch + lane / 16 * 8;
  const u16* const b = weights + (warp % kWarpsN * 8 * kTilesN + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 8;
#pragma unroll 1
  for (int deep = 0; deep < kChunk; deep += 16) {
    u32 pixels[kTerms][kTilesM][4];
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) load_matrices(pixels[t][m], a + t * kOperandTerm + m * 16 * kPitch + deep);
    }
#pragma unroll
    for (int n = 0; n < kTilesN; n += 2) {
      u32 outputs[kTerms][4];
#pragma unroll
      for (int t = 0; t < kTerms; ++t) load_matrices(outputs[t], b + t * kWeightTerm + n * 8 * kPitch + deep);
#pragma unroll
      for (int both = kTerms - 1; both >= 0; --both) {
#pragma unroll
        for (int t = 0; t <= both; ++t) {
#pragma unroll
          for (int m = 0; m < kTilesM; ++m) {
            multiply_small(sums.of[m][n], pixels[both - t][m], {outputs[t][0], outputs[t][1]});
            multiply_small(sums.of[m][n + 1], pixels[both - t][m], {outputs[t][2], outputs[t][3]});
          }
        }
      }
    }
  }
}

// A result without terms and without padding, where an operand does not split: infinities, NaN, and what rounds to one.
__device__ __noinline__ float compute_exactly(const Call& call, const Pixel& at, int output) {
  float sum = kPointwiseBias ? number(call.pointwise_bias[output]) : 0.f;
  const int row = at.row() * kStrideH - kPaddingH, column = at.column() * kStrideW - kPaddingW;
#pragma unroll 1
  for (int channel = 0; channel < kMiddle; ++channel) {
    float middle = kDepthwiseBias ? number(call.depthwise_bias[channel]) : 0.f;
    const Stored* const from = call.x + at.image * call.x_strides[0] + channel / kMultiplier * call.x_strides[1];
#pragma unroll 1
    for (int i = 0; i < kKernelH * kKernelW; ++i) {
      const int r = row + i / kKernelW * kDilationH, c = column + i % kKernelW * kDilationW;
      if (r < 0 || r >= kInH || c < 0 || c >= kInW) continue;
      middle = fmaf(number(call.depthwise_weight[channel * kKernelH * kKernelW + i]), number(from[r * call.x_strides[2] + c * call.x_strides[3]]), middle);
    }
    sum = fmaf(number(call.pointwise_weight[(long long)(output) * kMiddle + channel]), activate<kDepthwiseActivation>(middle, call.depthwise_value), sum);
  }
  return sum;
}

__device__ __forceinline__ void put(const Call& call, const Pixel& at, int output, float sum) {
  const long long index = at.index(output);
  float value = activate<kPointwiseActivation>(sum, call.pointwise_value);
  if (kResidual) value += number(call.residual[index]);
  set_element(call.y, index, value);
}

// The results of a block. All threads learn whether some sum is no number: then its results are computed again.
__device__ __forceinline__ void put_block(const Call& call, const Sums& sums, long long tile, int block, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 2 * kTilesM; ++i) {
    const long long pixel = tile * kTile + warp / kWarpsN * 16 * kTilesM + i / 2 * 16 + i % 2 * 8 + lane / 4;
    const Pixel at(pixel);
#pragma unroll
    for (int j = 0; j < 2 * kTilesN; ++j) {
      const int output = block * kBlock + warp % kWarpsN * 8 * kTilesN + j / 2 * 8 + lane % 4 * 2 + j % 2;
      float sum = sums.of[i / 2][j / 2][i % 2 * 2 + j % 2];
      finite &= sum - sum == 0.f;
      if (pixel >= call.pixels || output >= kOutputs) continue;
      if (kPointwiseBias) sum += number(call.pointwise_bias[output]);
      put(call, at, output, sum);
    }
  }
  if (!__syncthreads_or(!finite)) return;
#pragma unroll 1
  for (int i = thread; i < kTile * kBlock; i += kThreads) {
    const long long pixel = tile * kTile + i % kTile;
    const int output = block * kBlock + i / kTile;
    if (pixel >= call.pixels || output >= kOutputs) continue;
    const Pixel at(pixel);
    put(call, at, output, compute_exactly(call, at, output));
  }
}

}  // namespace sepconv

extern "C" __global__ void __launch_bounds__(sepconv::kThreads, SEPCONV_BLOCKS_OF_SM) sepconv_portable(const __grid_constant__ sepconv::Call call) {
  using namespace sepconv;
  extern __shared__ uint4 memory[];
  u16* const operands = reinterpret_cast<u16*>(memory);
  u16* const weights = operands + kOperands * kOperand;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const long long tile = blockIdx.x;
  const Window window(call, tile, thread);
  int turn = 0;
#pragma unroll 1
  for (int block = blockIdx.y; block < kBlocks; block += gridDim.y) {
    Sums sums;
    sums.clear();
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk, turn ^= 1) {
      u16* const operand = operands + (kResident ? chunk : turn) * kOperand;
      u16* const of_chunk = weights + turn * kWeights;
      load_weights(of_chunk, call, block, chunk, thread);
      if (!kResident || block == int(blockIdx.y)) window.compute(operand, chunk);
      __syncthreads();
      if constexpr (kTerms == 1) {
        multiply_chunk(sums, operand, of_chunk, warp, lane);
      } else {
        Sums part;
        part.clear();
        multiply_chunk(part, operand, of_chunk, warp, lane);
        sums.take(part);
      }
    }
    put_block(call, sums, tile, block, thread);
  }
}
