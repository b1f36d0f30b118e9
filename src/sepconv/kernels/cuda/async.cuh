// Copies from global to shared memory that are on their way while threads go on, in the words of PTX. A thread waits for its own; others
// find what came when they have met it behind that wait.
#pragma once

#include "words.cuh"

namespace sepconv {

// 4, 8 or 16 bytes, on multiples of so many; zeros where there is nothing to copy. `there`: an address in shared memory.
template <int Bytes>
__device__ __forceinline__ void start_copy(u32 there, const void* from, bool exists) {
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(there), "l"(from), "r"(exists ? 16 : 0) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(there), "l"(from), "n"(Bytes), "r"(exists ? Bytes : 0) : "memory");
  }
}
template <int Bytes>
__device__ __forceinline__ void start_copy(void* to, const void* from, bool exists) {
  start_copy<Bytes>(u32(__cvta_generic_to_shared(to)), from, exists);
}
// What was started since the last call is a group.
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all groups but the last few have come.
template <int Left>
__device__ __forceinline__ void wait_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

}  // namespace sepconv
