// A CUDA kernel on a CPU, one block after the other: its threads are fibers, which take turns where they wait for one another. What the
// sources say in PTX is said in C++ by the headers beside this file.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__

struct uint4 {
  unsigned x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct Place {
  int x, y;
};
Place threadIdx, blockIdx, gridDim;
constexpr int kFibers = 256;
alignas(16) uint4 memory[(227 << 10) / 16];  // what a block has of shared memory

template <typename T>
T __ldg(const T* p) {
  return *p;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
// Each four bits of `which` name a byte of the eight.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
  const unsigned long long bytes = low | static_cast<unsigned long long>(high) << 32;
  unsigned found = 0;
  for (int i = 0; i < 4; ++i) found |= unsigned(bytes >> (which >> 4 * i & 7) * 8 & 255) << 8 * i;
  return found;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

class Fibers {
 public:
  // Run body() in each of them to its end.
  void run(void (*body)()) {
    static std::vector<char> stacks(kFibers * kStack);
    for (int i = 0; i < kFibers; ++i) {
      getcontext(&contexts_[i]);
      contexts_[i].uc_stack.ss_sp = stacks.data() + i * kStack, contexts_[i].uc_stack.ss_size = kStack;
      contexts_[i].uc_link = &scheduler_;
      makecontext(&contexts_[i], body, 0);
      running_[i] = true;
    }
    for (int left = kFibers; left > 0;) {
      left = 0;
      for (int i = 0; i < kFibers; ++i) {
        if (!running_[i]) continue;
        threadIdx.x = i, waits_ = false;
        swapcontext(&scheduler_, &contexts_[i]);
        running_[i] = waits_, left += waits_;
      }
    }
  }

  // Until so many have come to this meeting; whether the flag holds for any of them.
  struct Meeting {
    int arrived = 0, number = 0;
    bool any = false, result = false;
  };
  bool meet(Meeting& meeting, int count, bool flag) {
    const int number = meeting.number;
    meeting.any |= flag;
    if (++meeting.arrived == count) meeting.result = meeting.any, meeting.any = false, meeting.arrived = 0, ++meeting.number;
    while (meeting.number == number) wait();
    return meeting.result;
  }

 private:
  static constexpr std::size_t kStack = 128 << 10;

  void wait() {
    const int fiber = threadIdx.x;
    waits_ = true;
    swapcontext(&contexts_[fiber], &scheduler_);
  }

  ucontext_t scheduler_, contexts_[kFibers];
  bool running_[kFibers], waits_;
};

Fibers fibers;
Fibers::Meeting block, warps[kFibers / 32];
bool __syncthreads_or(bool flag) { return fibers.meet(block, kFibers, flag); }
void __syncthreads() { __syncthreads_or(false); }
void warp_meets() { fibers.meet(warps[threadIdx.x / 32], 32, false); }

#include SEPCONV_MAIN

static const sepconv::Call* call;

extern "C" long size_of_call() { return sizeof *call; }
extern "C" long size_of_shared_memory() { return sepconv::kSharedBytes; }
extern "C" void run(const sepconv::Call* of_all, int columns, int rows) {
  call = of_all, gridDim = {columns, rows};
  for (int i = 0; i < columns * rows; ++i) {
    blockIdx = {i % columns, i / columns};
    std::memset(memory, 0xff, sizeof memory);  // NaN
    fibers.run([] { SEPCONV_KERNEL(*call); });
  }
}
