// The threads of a call: OpenMP's own, those that PyTorch computes with, or else threads that live as long as the call.
#pragma once

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace sepconv {

// How many threads, and whose: the three functions are OpenMP's, of the runtime that PyTorch has loaded, or null.
struct Threads {
  long count;
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
  int (*number_here)();
  int (*count_here)();
};

// What one thread knows of its team.
class Member {
 public:
  Member(long number, long count, std::atomic<long>& arrived) : number(number), count(count), arrived_(arrived) {}

  const long number, count;

  // Wait until every member has come here as often as this one.
  void meet() {
    if (count == 1) return;
    const long all = ++meetings_ * count;
    arrived_.fetch_add(1, std::memory_order_acq_rel);
    // Spinning is quick where every thread has a core of its own; where not, the others need this one's.
    for (long spins = 0; arrived_.load(std::memory_order_acquire) < all; ++spins) {
      if (spins > 4000) std::this_thread::yield();
      else pause();
    }
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

  std::atomic<long>& arrived_;
  long meetings_ = 0;
};

// Run body(Member&) on at most threads.count threads, the caller's included, and wait for all of them.
template <typename Body>
void run_team(const Threads& threads, Body body) {
  struct Team {
    const Threads& threads;
    Body& body;
    std::atomic<long> arrived{0}, count{0};
  } team{threads, body};
  if (threads.count == 1) {
    Member alone(0, 1, team.arrived);
    body(alone);
  } else if (threads.parallel) {
    const auto enter = [](void* data) {
      Team& team = *static_cast<Team*>(data);
      Member member(team.threads.number_here(), team.threads.count_here(), team.arrived);
      team.body(member);
    };
    threads.parallel(enter, &team, unsigned(threads.count), 0);
  } else {
    const auto enter = [&team](long number) {
      while (!team.count.load(std::memory_order_acquire)) std::this_thread::yield();
      Member member(number, team.count, team.arrived);
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
