// Copies to shared memory as PTX's instructions do them: when a thread waits for them, and not before.
#pragma once

#include "words.cuh"

namespace sepconv {

struct Groups {
  std::vector<std::function<void()>> open;
  std::vector<std::vector<std::function<void()>>> closed;
};
inline Groups& groups() {
  static Groups all[kFibers];
  return all[fiber];
}
template <int Bytes>
void start_copy(void* to, const void* from, bool exists) {
  if (reinterpret_cast<u64>(to) % Bytes || exists && reinterpret_cast<u64>(from) % Bytes) fail("the addresses of a copy");
  if (!exists) from = nullptr;
  groups().open.push_back([=] {
    if (from) std::memcpy(to, from, Bytes);
    else std::memset(to, 0, Bytes);
  });
}
inline void close_group() {
  groups().closed.push_back(std::move(groups().open));
  groups().open.clear();
}
template <int Left>
void wait_groups() {
  auto& closed = groups().closed;
  while (closed.size() > Left) {
    for (auto& copy : closed.front()) copy();
    closed.erase(closed.begin());
  }
}

}  // namespace sepconv
