// Hopper's instructions that C++ has no words for: barriers in shared memory, the tensor copy engine, matrix products.
#pragma once

#include "words.cuh"

namespace sepconv {

// A tensor map, as the driver encodes it.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

// Where a block's shared memory begins, on a multiple of 1024 bytes.
__device__ __forceinline__ char* whole_kilobytes(uint4* memory) {
  return reinterpret_cast<char*>((reinterpret_cast<u64>(memory) + 1023) / 1024 * 1024);
}
__device__ __forceinline__ u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

// --- barriers in shared memory (mbarrier), by their addresses

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// The same when a value is in its register: an arrival that follows upon loads alone can overtake them, and what comes next overwrites what they
// read. (blockIdx.y is 0, which the compiler does not know.)
__device__ __forceinline__ void barrier_arrive_behind(u32 barrier, u32 value) { barrier_arrive(barrier + (value & blockIdx.y)); }
// Arrive, and have the phase wait for so many bytes that a copy brings.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// At the same barrier of another block of the cluster.
__device__ __forceinline__ void barrier_arrive_at(u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(rank) : "memory");
}
// A thread that waits sleeps until the barrier wakes it, so many nanoseconds at most: one that asks again and again takes its part of the
// shared memory's time.
constexpr u32 kLongestSleep = 10'000'000;
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN_%=:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1, %2;\n"
      "@done bra GO_%=;\nbra AGAIN_%=;\nGO_%=:\n}" ::"r"(barrier), "r"(parity), "r"(kLongestSleep) : "memory");
}

// --- other ways to wait for one another

// What ordinary stores wrote to shared memory is seen by copies and matrix products that start later.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void threads_meet(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Those who meet there need not wait for these threads any longer; these go on.
__device__ __forceinline__ void threads_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// All meet, and learn whether the condition holds for any of them.
__device__ __forceinline__ bool threads_meet_any(int id, int threads, bool condition) {
  u32 any;
  asm volatile(
      "{\n.reg .pred mine, all;\nsetp.ne.u32 mine, %3, 0;\nbarrier.cta.red.or.pred all, %1, %2, mine;\nselp.u32 %0, 1, 0, all;\n}"
      : "=r"(any) : "r"(id), "r"(threads), "r"(u32(condition)) : "memory");
  return any;
}

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// From `Before` registers a thread on, of all threads of the group.
template <int Before, int Registers>
__device__ __forceinline__ void change_registers() {
  if constexpr (Registers < Before) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
  else asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// The same value, of which the compiler computes nothing in advance: for code that is hardly ever reached.
__device__ __forceinline__ int unforeseen(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The same value, which all threads of the warp have: the compiler may keep what follows from it once for all.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(~0u, value, 0); }

// --- copies

// How L2 treats what is loaded: as usual, or it evicts everything else before.
__device__ __forceinline__ u64 cache_policy(bool stays) {
  u64 policy;
  if (stays) asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
  else asm("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
  return policy;
}
// The 128 bytes around an address in global memory are to be treated as usual again.
__device__ __forceinline__ void let_go(const void* p) {
  asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(reinterpret_cast<u64>(p) / 128 * 128) : "memory");
}

// The line around an address in global memory is going to be needed.
__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// A box of a tensor into shared memory.
__device__ __forceinline__ void load_box(u32 to, const TensorMap& map, u32 barrier, int column, int row, int channel, int image, u64 policy) {
  const auto load = [&](int a, int b, int c) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
        ::"r"(to), "l"(&map), "r"(barrier), "r"(a), "r"(b), "r"(c), "r"(image), "l"(policy) : "memory");
  };
  kChannelsLast ? load(channel, column, row) : load(column, row, channel);
}
// A box of a matrix.
__device__ __forceinline__ void load_box(u32 to, const TensorMap& map, u32 barrier, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
               "l"(&map), "r"(barrier), "r"(column), "r"(row) : "memory");
}
// Neighbouring bytes into shared memory: all of them, and both addresses, are multiples of 16.
__device__ __forceinline__ void load_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
               "r"(barrier) : "memory");
}
// A box out of shared memory; what lies outside of the tensor is left out.
__device__ __forceinline__ void store_box(const TensorMap& map, u32 from, int column, int row, int channel, int image) {
  const auto store = [&](int a, int b, int c) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map), "r"(from),
                 "r"(a), "r"(b), "r"(c), "r"(image) : "memory");
  };
  kChannelsLast ? store(channel, column, row) : store(column, row, channel);
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until this thread's stores have read shared memory, or until they are done.
__device__ __forceinline__ void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// The same place of another block of the cluster gets these bytes; the same barrier there gets one arrival and waits for them.
__device__ __forceinline__ void send(u32 at, u32 barrier, u32 bytes, u32 rank) {
  asm volatile(
      "{\n.reg .b32 to, there;\nmapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 there, %1, %3;\n"
      "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [there], %2;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %2, [there];\n}" ::"r"(at),
      "r"(barrier), "r"(bytes), "r"(rank) : "memory");
}

__device__ __forceinline__ void load_words(float (&v)[4], u32 from) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(from));
}
__device__ __forceinline__ float load_float(u32 from) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from));
  return v;
}
__device__ __forceinline__ void load_words(float (&v)[2], u32 from) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "r"(from));
}
__device__ __forceinline__ void load_words(u32 (&v)[1], u32 from) {
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v[0]) : "r"(from));
}
__device__ __forceinline__ void load_words(u32 (&v)[2], u32 from) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(from));
}
__device__ __forceinline__ u32 load_word(u32 from) {
  u32 word[1];
  load_words(word, from);
  return word[0];
}
__device__ __forceinline__ u16 load_half(u32 from) {
  u16 half;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(from));
  return half;
}
__device__ __forceinline__ void store_half(u32 to, u16 half) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(half) : "memory"); }
__device__ __forceinline__ void store_words(u32 to, const u32 (&v)[1]) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v[0]) : "memory");
}
__device__ __forceinline__ void store_words(u32 to, const u32 (&v)[2]) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(v[0]), "r"(v[1]) : "memory");
}
__device__ __forceinline__ void store_words(u32 to, const u32 (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

}  // namespace sepconv
