"""Processes of their own for the tests of what is shared between processes; they start fast, without torch."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "sepconv"
_PACKAGE = f"""
import os, signal, sys, threading, time, types
from pathlib import Path
package = types.ModuleType("sepconv")
package.__path__ = [{str(SOURCE)!r}]
sys.modules["sepconv"] = package
sys.path.insert(0, {str(Path(__file__).parent)!r})
"""


def start(code: str, **environment: str) -> "subprocess.Popen[str]":
    """Run code in a new process, with `sepconv` importable without its top (and so without torch)."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _PACKAGE + code],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]", status: int = 0, limit: float = 60) -> str:
    """What a process prints; it must end with this status (minus the signal) within a limit in seconds."""
    try:
        printed, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == status, errors
    return printed


def wait_until(happened: Callable[[], object], limit: float = 30) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + limit
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)
