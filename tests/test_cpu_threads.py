"""The CPU backend among threads and processes: whose threads it runs on, and what a forked child may do."""

import ctypes
import os

from sepconv.backends.workspace import workspace


def test_a_forked_child_has_scratch_memory_of_its_own() -> None:
    scratch = workspace(64)
    ctypes.memset(scratch.address, 1, 64)
    child = os.fork()
    if not child:
        ctypes.memset(scratch.address, 2, 64)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert ctypes.string_at(scratch.address, 64) == b"\x01" * 64
