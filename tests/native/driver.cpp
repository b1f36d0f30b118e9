// Runs one call of the kernel that is in a file, in a program of its own: under sanitizers, or on another kind of machine.
//
//   driver CALL RESULT
//
// CALL holds the record, then for each operand its bytes (a long, -1 for none) and content, then the bytes of y. Every buffer
// is as large as it has to be and no larger, and what nobody has written is NaN. RESULT is y and a byte, what the kernel returns.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "forward.h"

namespace {

using sepconv::Element;

void* fresh(long bytes) {
  void* memory = std::malloc(std::size_t(bytes));
  if (!memory) std::abort();
  return std::memset(memory, 0xff, std::size_t(bytes));
}

void read_all(void* to, long bytes, std::FILE* file) {
  if (std::fread(to, 1, std::size_t(bytes), file) != std::size_t(bytes)) std::abort();
}

long read_long(std::FILE* file) {
  long value;
  read_all(&value, sizeof value, file);
  return value;
}

const Element* operand(std::FILE* file) {
  const long bytes = read_long(file);
  if (bytes < 0) return nullptr;
  void* memory = fresh(bytes);
  read_all(memory, bytes, file);
  return static_cast<Element*>(memory);
}

}  // namespace

int main(int, char** arguments) {
#if defined(__AMX_TILE__)
  syscall(158, 0x1023, 18);  // arch_prctl: Linux gives a process the state of the matrix units on request only
#endif
  std::FILE* file = std::fopen(arguments[1], "rb");
  if (!file) return 1;
  sepconv::Call call;
  read_all(&call, sizeof call, file);
  for (const Element** p : {&call.x, &call.depthwise_weight, &call.pointwise_weight, &call.depthwise_bias, &call.pointwise_bias,
                            &call.residual}) {
    *p = operand(file);
  }
  const long bytes = read_long(file);
  std::fclose(file);
  call.y = static_cast<Element*>(fresh(bytes));
  call.threads.parallel = nullptr;
  call.workspace = static_cast<char*>(fresh(sepconv::Workspace(call).bytes()));
  const char right = sepconv::forward(call);
  file = std::fopen(arguments[2], "wb");
  if (!file || std::fwrite(call.y, 1, std::size_t(bytes), file) != std::size_t(bytes)) return 1;
  if (std::fwrite(&right, 1, 1, file) != 1) return 1;
  return std::fclose(file);
}
