// What the arithmetic units can do: multiply-adds of float32 in registers, on as many threads as asked for.
#include <chrono>

#include "team.h"
#include "vector.h"

namespace sepconv {

// Twelve chains that do not wait for one another: two units with a latency of four to six cycles are kept busy.
__attribute__((noinline)) float multiply_add(long rounds) {
  Vector sum[12];
  for (int i = 0; i < 12; ++i) sum[i] = fill(float(i));
  const Vector factor = fill(0.999f), step = fill(1e-3f);
  for (long n = 0; n < rounds; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sum[i] = sum[i] * factor + step;
  }
  for (int i = 1; i < 12; ++i) sum[0] += sum[i];
  return sum[0][0];
}

}  // namespace sepconv

// Floating-point operations a second, a multiply-add counted as two, with `rounds` of twelve vectors on every thread.
extern "C" __attribute__((visibility("default"))) double sepconv_probe(const sepconv::Threads* threads, long rounds) {
  std::atomic<long> members{0};
  std::chrono::steady_clock::time_point start;
  volatile float kept = 0;  // so that no work is left out
  sepconv::run_team(*threads, [&](sepconv::Member& member) {
    member.meet();
    if (member.number == 0) start = std::chrono::steady_clock::now();
    kept = sepconv::multiply_add(rounds);
    ++members;
    member.meet();
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return 2. * 12 * sepconv::kLanes * double(rounds) * double(members) / seconds.count();
}
