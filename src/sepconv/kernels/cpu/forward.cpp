// The forward pass as one kernel: tiles of output pixels, whose depthwise result stays in the caches as an operand of the
// pointwise product. See docs/kernels.md.
#include "forward.h"

extern "C" {

// The bytes of workspace that a call of this form takes.
__attribute__((visibility("default"))) long sepconv_workspace(const sepconv::Call* call) {
  return sepconv::Workspace(*call).bytes();
}

// Compute y; 0 where an operand is of a kind that only a kernel without terms can multiply (terms.h).
__attribute__((visibility("default"))) int sepconv_forward(const sepconv::Call* call) { return sepconv::forward(*call); }

// The bytes of the records that callers mirror.
__attribute__((visibility("default"))) void sepconv_sizes(long sizes[3]) {
  sizes[0] = sizeof(sepconv::Call), sizes[1] = sizeof(sepconv::Threads), sizes[2] = sizeof(sepconv::Activate);
}
}
