"""The backends: what can run a problem, the order in which they are asked, and the protocol they keep.

A backend answers with all its reasons against a problem; an empty list means that it can run it. The same list drives
dispatch, error texts, test skips and `explain`. Where it can but should not, it says so apart.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from sepconv.device import Device
from sepconv.problem import Operands, Options, Problem


class Backend(Protocol):
    """What dispatch asks of a backend. A backend keeps no state that a call could change the meaning of.

    `kind` is the type of device that it is made for (None: any): where it is unavailable there, users are warned.
    """

    name: str
    kind: str | None

    def unavailable(self, device: Device) -> list[str]:
        """Why this backend cannot run anything on this device; empty where it can."""

    def reasons(self, problem: Problem, device: Device) -> list[str]:
        """Why this backend cannot run this problem on this device; empty where it can."""

    def slower(self, problem: Problem, device: Device) -> list[str]:
        """Why PyTorch's own kernels would be faster on a problem that this backend can run; empty where they would not be.

        Nobody asks where the user names the backend.
        """

    def is_ready(self, problem: Problem, device: Device) -> bool:
        """Whether a call would run at once, with nothing left to compile or to tune."""

    def configure(self, problem: Problem, device: Device) -> tuple[object | None, str]:
        """How this backend would run a problem that it can run (None: nothing to choose), and who chose that, in a word."""

    def forget(self) -> None:
        """Forget all that hangs on settings, so that changed ones take effect at the next call."""

    def forward(self, problem: Problem, config: Any, operands: Operands, options: Options, device: Device) -> Tensor:
        """y in a fresh tensor with the shape and the strides that the problem names.

        Raises CompilerError or StoreError where that turns out to be impossible; from then on `reasons` says why.
        """

    def direct_call(
        self, problem: Problem, config: Any, like: Operands, options: Options, device: Device
    ) -> Callable[[Operands], Tensor | None] | None:
        """`forward` of a kernel that is loaded, with nothing left to look up; None where there is no such short cut.

        Its operands have the shapes and strides of `like`, and PyTorch has as many threads as now. It gives None for those
        that the kernel cannot compute after all: they take the whole way.
        """

    def gradients(
        self, problem: Problem, grad: Tensor, operands: Operands, options: Options, wanted: list[bool]
    ) -> list[Tensor]:
        """The wanted gradients of x, both weights and both biases, each in a fresh tensor."""


def backends_for(device: Device) -> list[Backend]:
    """The backends that are made for this kind of device, or for any, the fastest first."""
    return [backend for backend in all_backends(device.kind) if backend.kind in (None, device.kind)]


def all_backends(kind: str | None = None) -> tuple[Backend, ...]:
    """Every backend, the fastest first; the last one runs every right call.

    With a kind of device, those that are made for another one may be left out: importing them takes a first call's time.
    """
    found: list[Backend] = []
    if kind in (None, "cuda"):
        from sepconv.backends.cuda import CudaBackend
        from sepconv.backends.portable import PortableBackend

        found += [CudaBackend(), PortableBackend()]
    if kind in (None, "cpu"):
        from sepconv.backends.cpu import CpuBackend

        found.append(CpuBackend())
    from sepconv.backends.eager import EagerBackend

    return (*found, EagerBackend())
