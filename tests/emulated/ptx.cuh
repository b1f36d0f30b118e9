// Hopper's instructions in C++: barriers in shared memory, the tensor copy engine, threads that meet. A copy is done when every thread has had
// a turn, and not at once: whoever does not wait for it finds what was there before.
#pragma once

#include "async.cuh"
#include "words.cuh"

namespace sepconv {

// A dense tensor and a box of it, the innermost axis first; filled in by the test's driver.
struct alignas(64) TensorMap {
  char* address;
  u64 element_bytes, rank, swizzle, sizes[4], steps[4], box[4];  // steps in bytes
};
static_assert(sizeof(TensorMap) == 128);

// The memory of a block of the cluster, by default the thread's own.
inline int rank_of_fiber() { return fiber / kOfBlock; }
inline char* memory_of(int rank) { return reinterpret_cast<char*>(memory) + rank * kSharedMemory; }
inline char* whole_kilobytes(uint4*) { return memory_of(rank_of_fiber()); }
inline u32 shared_address(const void* p) { return u32(static_cast<const char*>(p) - memory_of(rank_of_fiber())); }
template <typename T>
T& shared(u32 address, int rank = rank_of_fiber()) {
  if (address % sizeof(T) || address + sizeof(T) > kSharedMemory) fail("an address in shared memory");
  return *reinterpret_cast<T*>(memory_of(rank) + address);
}

struct Barrier {
  int all = 0, missing = 0;
  long bytes = 0;
  u32 phase = 0;

  void arrive() { --missing, complete(); }
  void complete() {
    if (missing < 0) fail("too many arrivals at a barrier");
    if (missing == 0 && bytes == 0) missing = all, phase ^= 1, fibers.note_progress();
  }
};
inline Barrier& barrier_at(u32 address, int rank = rank_of_fiber()) {
  static Barrier all[SEPCONV_CLUSTER][kSharedMemory / 8];
  if (address % 8 || address >= kSharedMemory) fail("the address of a barrier");
  return all[rank][address / 8];
}
inline void barrier_init(u32 barrier, u32 arrivals) { barrier_at(barrier) = {int(arrivals), int(arrivals)}; }
inline void barrier_arrive(u32 barrier) { barrier_at(barrier).arrive(); }
inline void barrier_arrive_behind(u32 barrier, u32) { barrier_arrive(barrier); }
inline void barrier_expect(u32 barrier, u32 bytes) { barrier_at(barrier).bytes += bytes, barrier_arrive(barrier); }
inline void barrier_wait(u32 barrier, u32 parity) {
  while (barrier_at(barrier).phase == parity) fibers.wait();
}

inline void fence_async() {}
inline void fence_barriers() {}
inline Fibers::Meeting& meeting_of(int id) { return named[rank_of_fiber()][id]; }
inline bool threads_meet_any(int id, int threads, bool condition) { return fibers.meet(meeting_of(id), threads, condition); }
inline void threads_meet(int id, int threads) { threads_meet_any(id, threads, false); }
inline void threads_arrive(int id, int threads) { fibers.arrive(meeting_of(id), threads, false); }

inline u32 cluster_rank() { return rank_of_fiber(); }
inline void cluster_meet() {
  static Fibers::Meeting all;
  fibers.meet(all, kFibers, false);
}
inline void barrier_arrive_at(u32 barrier, u32 rank) { barrier_at(barrier, rank).arrive(); }
inline void send(u32 at, u32 barrier, u32 bytes, u32 rank) {
  barrier_at(barrier, rank).bytes += bytes, barrier_arrive_at(barrier, rank);
  fibers.later([=, from = rank_of_fiber()] {
    std::memcpy(&shared<char>(at, rank), &shared<char>(at, from), bytes);
    barrier_at(barrier, rank).bytes -= bytes, barrier_at(barrier, rank).complete();
  });
}

template <int, int>
void change_registers() {}
inline int unforeseen(int value) { return value; }
inline int uniform(int value) { return value; }
inline u64 cache_policy(bool) { return 0; }
inline void prefetch(const void*) {}
inline void let_go(const void*) {}

// Call f(address in shared memory, address in the tensor or null) for each element of a box.
template <typename F>
void for_box(const TensorMap& map, u32 at, const int (&first)[4], F f) {
  if (at % (map.swizzle ? 1024 : 128)) fail("the place of a box");
  const u64 *box = map.box, *sizes = map.sizes;
  for (u64 d = 0; d < box[3]; ++d) {
    for (u64 c = 0; c < box[2]; ++c) {
      for (u64 b = 0; b < box[1]; ++b) {
        for (u64 a = 0; a < box[0]; ++a, at += map.element_bytes) {
          const u64 i[4] = {first[0] + a, first[1] + b, first[2] + c, first[3] + d};  // before the first is far behind the last
          char* element = map.address;
          for (int axis = 0; axis < 4; ++axis) {
            if (element) element = i[axis] < sizes[axis] ? element + i[axis] * map.steps[axis] : nullptr;
          }
          f(map.swizzle ? at ^ (at >> 7 & 7) << 4 : at, element);
        }
      }
    }
  }
}
inline void load_elements_of_box(u32 to, const TensorMap& map, u32 barrier, const int (&first)[4]) {
  fibers.later([=, rank = rank_of_fiber()] {
    long bytes = 0;
    for_box(map, to, first, [&](u32 at, const char* element) {
      char* const there = &shared<char>(at, rank);
      if (element) std::memcpy(there, element, map.element_bytes);
      else std::memset(there, 0, map.element_bytes);
      bytes += map.element_bytes;
    });
    barrier_at(barrier, rank).bytes -= bytes, barrier_at(barrier, rank).complete();
  });
}
inline void load_box(u32 to, const TensorMap& map, u32 barrier, int column, int row, int channel, int image, u64) {
  if (kChannelsLast) load_elements_of_box(to, map, barrier, {channel, column, row, image});
  else load_elements_of_box(to, map, barrier, {column, row, channel, image});
}
inline void load_box(u32 to, const TensorMap& map, u32 barrier, int column, int row) {
  load_elements_of_box(to, map, barrier, {column, row, 0, 0});
}
inline void load_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
  if (to % 16 || reinterpret_cast<u64>(from) % 16 || bytes % 16) fail("the place of neighbouring bytes");
  fibers.later([=, rank = rank_of_fiber()] {
    std::memcpy(&shared<char>(to, rank), from, bytes);
    barrier_at(barrier, rank).bytes -= bytes, barrier_at(barrier, rank).complete();
  });
}
// Of each thread, the stores that are not done; what it waits for is done at once.
inline std::vector<std::function<void()>>& stores() {
  static std::vector<std::function<void()>> all[kFibers];
  return all[fiber];
}
inline void store_box(const TensorMap& map, u32 from, int column, int row, int channel, int image) {
  stores().push_back([=] {
    const auto store = [&](u32 at, char* element) {
      if (element) std::memcpy(element, &shared<char>(at), map.element_bytes);
    };
    if (kChannelsLast) for_box(map, from, {channel, column, row, image}, store);
    else for_box(map, from, {column, row, channel, image}, store);
  });
}
inline void commit_stores() {}
inline void wait_stores() {
  for (auto& store : stores()) store();
  stores().clear();
}
inline void wait_stores_read() { wait_stores(); }

// Into shared memory by its address, where async.cuh knows pointers.
template <int Bytes>
void start_copy(u32 to, const void* from, bool exists) {
  start_copy<Bytes>(static_cast<void*>(&shared<char>(to)), from, exists);
}

template <int Count>
void load_words(float (&v)[Count], u32 from) {
  if (from % sizeof v) fail("the address of a vector");
  for (int i = 0; i < Count; ++i) v[i] = shared<float>(from + 4 * i);
}
template <int Count>
void load_words(u32 (&v)[Count], u32 from) {
  if (from % sizeof v) fail("the address of a vector");
  for (int i = 0; i < Count; ++i) v[i] = shared<u32>(from + 4 * i);
}
inline float load_float(u32 from) { return shared<float>(from); }
inline u32 load_word(u32 from) { return shared<u32>(from); }
inline u16 load_half(u32 from) { return shared<u16>(from); }
inline const u16* in_shared_memory(u32 address) { return &shared<u16>(address); }
inline void store_half(u32 to, u16 half) { shared<u16>(to) = half; }
template <int Count>
void store_words(u32 to, const u32 (&v)[Count]) {
  if (to % sizeof v) fail("the address of a vector");
  for (int i = 0; i < Count; ++i) shared<u32>(to + 4 * i) = v[i];
}

}  // namespace sepconv
