// The threads of a call: OpenMP's own, those that PyTorch computes with, or else threads that live as long as the call.
#pragma once

#include <algorithm>
#include <atomic>
#include <climits>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sepconv {

// How many threads, and whose: the three functions are OpenMP's, of the runtime that PyTorch has loaded, or null.
struct Threads {
  long count;
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
  int (*number_here)();
  int (*count_here)();
};

// How often the members of a team have come to a meeting, in all, and how many of them sleep until the others have.
struct Meetings {
  std::atomic<int> arrived{0}, asleep{0};

  void sleep(int seen) {
    ++asleep;
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<int*>(&arrived), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
    if (arrived.load() == seen) std::this_thread::yield();
#endif
    --asleep;
  }

  void wake() {
#if defined(__linux__)
    if (asleep) syscall(SYS_futex, reinterpret_cast<int*>(&arrived), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#endif
  }
};

// What one thread knows of its team.
class Member {
 public:
  Member(long number, long count, Meetings& meetings) : number(number), count(count), meetings_(meetings) {}

  const long number, count;

  // Wait until every member has come here as often as this one. Spinning is quick where every thread has a core of its own;
  // where not, a thread that goes on spinning keeps the one it waits for from the core for milliseconds.
  void meet() {
    if (count == 1) return;
    const int all = int(++met_ * count);
    if (++meetings_.arrived >= all) return meetings_.wake();
    for (int spins = 0; spins < 1000; ++spins) {
      if (meetings_.arrived.load(std::memory_order_acquire) >= all) return;
      pause();
    }
    for (int seen; (seen = meetings_.arrived.load()) < all;) meetings_.sleep(seen);
  }

  // The half-open share of this member in `items`, cut at multiples of `grain`.
  void share(long items, long grain, long& begin, long& end) const {
    const long grains = (items + grain - 1) / grain;
    begin = std::min(items, grains * number / count * grain);
    end = std::min(items, grains * (number + 1) / count * grain);
  }

 private:
  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }

  Meetings& meetings_;
  long met_ = 0;
};

// Run body(Member&) on at most threads.count threads, the caller's included, and wait for all of them.
template <typename Body>
void run_team(const Threads& threads, Body body) {
  struct Team {
    const Threads& threads;
    Body& body;
    Meetings meetings;
    std::atomic<long> count{0};
  } team{threads, body, {}, {}};
  if (threads.count == 1) {
    Member alone(0, 1, team.meetings);
    body(alone);
  } else if (threads.parallel) {
    const auto enter = [](void* data) {
      Team& team = *static_cast<Team*>(data);
      Member member(team.threads.number_here(), team.threads.count_here(), team.meetings);
      team.body(member);
    };
    threads.parallel(enter, &team, unsigned(threads.count), 0);
  } else {
    const auto enter = [&team](long number) {
      while (!team.count.load(std::memory_order_acquire)) std::this_thread::yield();
      Member member(number, team.count, team.meetings);
      team.body(member);
    };
    std::vector<std::thread> others;
    try {
      while (long(others.size()) + 1 < threads.count) others.emplace_back(enter, long(others.size()) + 1);
    } catch (const std::system_error&) {  // no more threads to be had: fewer do the work
    }
    team.count.store(long(others.size()) + 1, std::memory_order_release);
    enter(0);
    for (std::thread& other : others) other.join();
  }
}

}  // namespace sepconv
