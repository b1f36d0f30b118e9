// A CUDA kernel on a CPU, one block after the other: its threads are fibers, which take turns where they wait for one another. What the
// sources say in PTX is said in C++ by the headers beside this file.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <ucontext.h>
#include <vector>

using std::max, std::min;

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __shared__

struct uint4 {
  unsigned x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
struct Place {
  int x, y;
};
Place threadIdx, blockIdx, gridDim;
#ifndef SEPCONV_CLUSTER
#define SEPCONV_CLUSTER 1
#endif
// The blocks of a cluster run together, each on its own part of the memory; everything else that counts threads counts all of them.
constexpr int kOfBlock = SEPCONV_THREADS, kFibers = kOfBlock * SEPCONV_CLUSTER, kSharedMemory = 227 << 10;
alignas(1024) uint4 memory[SEPCONV_CLUSTER * kSharedMemory / 16];
int fiber, first_block;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "the emulated kernel: %s\n", what);
  std::abort();
}

template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
void __stcs(T* p, T value) {
  *p = value;
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
  // Run body() in each of them to its end. Work for later is done when each has had a turn.
  void run(void (*body)()) {
    const std::unique_ptr<char[]> stacks(new char[kFibers * kStack]);  // of which hardly any page is touched
    for (int i = 0; i < kFibers; ++i) {
      getcontext(&contexts_[i]);
      contexts_[i].uc_stack.ss_sp = stacks.get() + i * kStack, contexts_[i].uc_stack.ss_size = kStack;
      contexts_[i].uc_link = &scheduler_;
      makecontext(&contexts_[i], body, 0);
      running_[i] = true;
    }
    for (int left = kFibers; left > 0;) {
      const int before = left;
      left = 0, progress_ = false;
      for (int i = 0; i < kFibers; ++i) {
        if (!running_[i]) continue;
        fiber = i, threadIdx.x = i % kOfBlock, blockIdx.x = first_block + i / kOfBlock, waits_ = false;
        swapcontext(&scheduler_, &contexts_[i]);
        running_[i] = waits_, left += waits_;
      }
      std::vector<std::function<void()>> work;
      work.swap(later_);
      for (auto& one : work) one();
      if (left == before && !progress_ && work.empty()) fail("all threads wait");
    }
  }

  // Let the others have their turns.
  void wait() {
    waits_ = true;
    swapcontext(&contexts_[fiber], &scheduler_);
  }
  void later(std::function<void()> work) { later_.push_back(std::move(work)); }
  // Something that a fiber may wait for has happened.
  void note_progress() { progress_ = true; }

  // Until so many have come to this meeting; whether the flag holds for any of them.
  struct Meeting {
    int arrived = 0, number = 0;
    bool any = false, result = false;
  };
  void arrive(Meeting& meeting, int count, bool flag) {
    meeting.any |= flag;
    if (++meeting.arrived < count) return;
    meeting.result = meeting.any, meeting.any = false, meeting.arrived = 0, ++meeting.number;
    note_progress();
  }
  bool meet(Meeting& meeting, int count, bool flag) {
    const int number = meeting.number;
    arrive(meeting, count, flag);
    while (meeting.number == number) wait();
    return meeting.result;
  }

 private:
  static constexpr std::size_t kStack = 128 << 10;

  ucontext_t scheduler_, contexts_[kFibers];
  bool running_[kFibers], waits_, progress_;
  std::vector<std::function<void()>> later_;
};

Fibers fibers;
Fibers::Meeting blocks[SEPCONV_CLUSTER], warps[kFibers / 32], named[SEPCONV_CLUSTER][16];
bool __syncthreads_or(bool flag) { return fibers.meet(blocks[fiber / kOfBlock], kOfBlock, flag); }
void __syncthreads() { __syncthreads_or(false); }
bool __any_sync(unsigned, bool flag) { return fibers.meet(warps[fiber / 32], 32, flag); }
void warp_meets() { __any_sync(~0u, false); }
void __syncwarp() { warp_meets(); }
unsigned __shfl_xor_sync(unsigned, unsigned value, int mask) {
  static unsigned values[kFibers];
  values[fiber] = value;
  warp_meets();
  const unsigned found = values[fiber ^ mask];
  warp_meets();
  return found;
}

#include SEPCONV_MAIN

static const sepconv::Call* call;

extern "C" long size_of_call() { return sizeof *call; }
extern "C" long size_of_shared_memory() { return sepconv::kSharedBytes; }
extern "C" void run(const sepconv::Call* of_all, int columns, int rows) {
  call = of_all, gridDim = {columns, rows};
  for (int i = 0; i < columns * rows; i += SEPCONV_CLUSTER) {
    first_block = i % columns, blockIdx.y = i / columns;
    std::memset(memory, 0xff, sizeof memory);  // NaN
    for (auto& of_block : named) std::fill(std::begin(of_block), std::end(of_block), Fibers::Meeting{});  // some arrive where nobody waits
    fibers.run([] { SEPCONV_KERNEL(*call); });
  }
}
