"""What `sepconv try` does: a model as it is against the same model fused, in error, time and memory."""

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sepconv.bench.budget import Errors, budget, errors, within
from sepconv.bench.data import in_layout
from sepconv.bench.loading import Loaded
from sepconv.bench.memory import Peak, peak_growth
from sepconv.bench.models import randomize_batchnorm
from sepconv.bench.timing import WARM_UPS, Timer, Times, summary
from sepconv.device import describe, in_full_float32
from sepconv.errors import ArgumentTypeError, ArgumentValueError
from sepconv.fuse import fuse
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
DEVICES = ("cpu", "cuda")
DEFAULT_BATCH = 8
_DEFAULT_SIZES = {1: (512,), 2: (224, 224), 3: (32, 32, 32)}
_MEMORY_FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 200
_SHAPE_HINT = "Give the shape of one example without the batch, as in `--shape 3x224x224` or `--shape 64x512`."
_UNKNOWN = Errors(math.inf, math.inf)
Tell = Callable[[str, float], None]
"""Called with the name of the step at hand and the share of it that is done, from 0 to 1."""


def _say_nothing(step: str, share: float) -> None:
    pass


@dataclass(frozen=True)
class Request:
    """How to try a model. `shape` is that of one example, without the batch; `size` only its spatial part.

    `batch`, `size` and `shape` None follow the model. `seconds` bounds the timing; `check_only` leaves time and memory
    out.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    layout: str = "channels_first"
    batch: int | None = None
    size: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    seconds: float = 10.0
    seed: int = 0
    check_only: bool = False


@dataclass(frozen=True)
class Check:
    """The errors of both models against float64 in one setting of PyTorch's float32 switches.

    Each error is the largest over all outputs. `problem` says why the errors cannot be judged, or is None.
    """

    setting: str
    dtype: torch.dtype
    original: Errors
    fused: Errors
    problem: str | None = None

    @property
    def allowed(self) -> Errors:
        """The budget: twice the original's error and two roundings of the dtype."""
        return budget(self.dtype, "ieee", self.original)

    @property
    def ok(self) -> bool:
        """Whether the fused model keeps the budget."""
        return self.problem is None and within(self.fused, self.allowed)


@dataclass(frozen=True)
class Timing:
    """Times of one forward pass of each model, which took turns for so many rounds.

    `other` is the original in the memory format that was not asked for; None where PyTorch has no other one (1-D).
    """

    original: Times
    fused: Times
    other: Times | None
    rounds: int

    @property
    def speedup(self) -> float:
        """How many times as fast the fused model is as the original in the faster of its memory formats, by medians."""
        return min(t.median for t in (self.original, self.other) if t is not None) / self.fused.median


@dataclass(frozen=True)
class Trial:
    """The outcome of one trial; `report` is what `sepconv.fuse` returned."""

    source: str
    request: Request
    shapes: tuple[tuple[int, ...], ...]
    report: Any
    checks: tuple[Check, ...]
    timing: Timing | None = None
    memory: tuple[Peak, Peak] | None = None

    @property
    def ok(self) -> bool:
        """Whether the fused model keeps the error budget in every setting."""
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """The outcome as plain data for JSON: times in ms, memory in bytes, errors as ratios (null: not finite)."""
        request = self.request
        return {
            "source": self.source,
            "inputs": [list(shape) for shape in self.shapes],
            "dtype": str(request.dtype).removeprefix("torch."),
            "layout": request.layout,
            "device": str(describe(request.device)),
            "seed": request.seed,
            "report": self.report.as_dict(),
            "checks": [_check_dict(check) for check in self.checks],
            "time_ms": None if self.timing is None else dataclasses.asdict(self.timing),
            "speedup": None if self.timing is None else self.timing.speedup,
            "memory": None if self.memory is None else _memory_dict(*self.memory),
            "ok": self.ok,
        }


def _check_dict(check: Check) -> dict[str, Any]:
    words = {name: getattr(check, name) for name in ("original", "fused", "allowed")}
    numbers = {name: {k: _finite(v) for k, v in value._asdict().items()} for name, value in words.items()}
    return {"setting": check.setting, **numbers, "problem": check.problem, "ok": check.ok}


def _memory_dict(original: Peak, fused: Peak) -> dict[str, Any]:
    return {"original_bytes": original.bytes, "fused_bytes": fused.bytes, "method": original.method}


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def run(loaded: Loaded, request: Request, tell: Tell = _say_nothing) -> Trial:
    """Try a model: fuse a copy of it, then compare both in error, time and peak memory.

    The statistics and the affine parameters of every BatchNorm are drawn at random first, for those of an untrained
    model would hide a wrong folding. `loaded.model` is changed. Raises ArgumentValueError or ArgumentTypeError where
    the model does not take the input or gives nothing to compare.
    """
    if request.device.type not in DEVICES:
        raise ArgumentValueError(
            f"`device` is {str(request.device)!r}; expected cpu, cuda or cuda:INDEX to try a model on."
        )
    tell("preparing the model", 0)
    randomize_batchnorm(loaded.model, request.seed)
    inputs = _inputs(loaded, request)
    original = _placed(loaded.model, request)
    tell("fusing", 0)
    fused = copy.deepcopy(original)
    report = fuse(fused)
    with torch.no_grad():
        checks = _check(loaded, request, original, fused, inputs, tell)
        outcome = Trial(loaded.source, request, tuple(tuple(t.shape) for t in inputs), report, checks)
        if request.check_only or any(check.problem for check in checks):
            return outcome
        calls = (lambda: original(*inputs), lambda: fused(*inputs))
        timing = _timed(*calls, _in_other_layout(original, inputs, request), request, tell)
        tell("measuring memory", 0)
        memory = (peak_growth(calls[0], request.device), peak_growth(calls[1], request.device))
    return Trial(outcome.source, request, outcome.shapes, report, checks, timing, memory)


# --- the model and its input


def _placed(model: nn.Module, request: Request) -> nn.Module:
    model = model.eval().to(request.device, request.dtype)
    for parameter in model.parameters():
        last = _MEMORY_FORMATS.get(parameter.dim() - 2)
        if last is not None:
            wanted = last if request.layout == CHANNELS_LAST else torch.contiguous_format
            parameter.data = parameter.data.contiguous(memory_format=wanted)
    return model


def _in_other_layout(original: nn.Module, inputs: tuple[Tensor, ...], request: Request) -> Callable[[], object] | None:
    """A call of a copy of the original in the memory format that was not asked for, or None where there is no other."""
    if not any(t.is_floating_point() and t.dim() - 2 in _MEMORY_FORMATS for t in inputs):
        return None
    asked = dataclasses.replace(request, layout=other_layout(request.layout))
    model, placed = _placed(copy.deepcopy(original), asked), tuple(_placed_input(t, asked) for t in inputs)
    return lambda: model(*placed)


def other_layout(layout: str) -> str:
    """channels_last for channels_first, and the other way round."""
    return CHANNELS_FIRST if layout == CHANNELS_LAST else CHANNELS_LAST


def _inputs(loaded: Loaded, request: Request) -> tuple[Tensor, ...]:
    """The input that came with the model, or a random one; floating-point tensors in the request's dtype and layout."""
    example = loaded.example
    if example is None:
        shape = (request.batch or DEFAULT_BATCH, *example_shape(loaded.model, request.size, request.shape))
        example = (torch.randn(shape, generator=torch.Generator().manual_seed(request.seed)),)
    else:
        for name in ("batch", "size", "shape"):
            if getattr(request, name) is not None:
                raise ArgumentValueError(
                    f"`--{name}` came, but `source` {loaded.source!r} brings its own input; expected one of the two. "
                    "Leave the option out, or return the module alone."
                )
    return tuple(_placed_input(t, request) for t in example)


def _placed_input(tensor: Tensor, request: Request) -> Tensor:
    tensor = tensor.to(request.device)
    if not tensor.is_floating_point():
        return tensor
    tensor = tensor.to(request.dtype)
    if tensor.dim() < 3:
        return tensor
    return in_layout(tensor, request.layout)


def example_shape(
    model: nn.Module, size: tuple[int, ...] | None = None, shape: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """The shape (C, *L) of one example for a model, from the most certain source there is.

    `shape` itself; otherwise the channels of `model.in_channels` or of its first convolution (3 without any), and
    `size` (one number stands for every axis), `model.in_size` (pytorchcv), `model.default_cfg` (timm) or a usual size.
    """
    if shape is not None:
        return shape
    first = next((m for m in model.modules() if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d))), None)
    rank = 2 if first is None else first.weight.dim() - 2
    channels = getattr(model, "in_channels", None)
    if not isinstance(channels, int):
        channels = 3 if first is None else first.in_channels
    if size is not None:
        return (channels, *(size * rank if len(size) == 1 else size))
    return (channels, *(_own_size(model) or _DEFAULT_SIZES[rank]))


def _own_size(model: nn.Module) -> tuple[int, ...] | None:
    """The spatial size that the model itself names, or None."""
    size = getattr(model, "in_size", None)
    if size is None:
        settings = getattr(model, "default_cfg", None)
        size = settings["input_size"][1:] if isinstance(settings, Mapping) and "input_size" in settings else None
    whole = isinstance(size, (tuple, list)) and all(isinstance(n, int) for n in size)
    return tuple(size) if whole and size else None


# --- errors


def _check(
    loaded: Loaded, request: Request, original: nn.Module, fused: nn.Module, inputs: tuple[Tensor, ...], tell: Tell
) -> tuple[Check, ...]:
    """The errors of both models against float64, once for each setting of the float32 switches that matters here."""
    tell("the original", 0)
    _try_original(loaded, original, inputs)
    tell("the right answer in float64", 0)
    right = _tensors(copy.deepcopy(original).double()(*[t.double() if t.is_floating_point() else t for t in inputs]))
    if not right:
        raise ArgumentTypeError(
            f"`source` {loaded.source!r} is a model without a floating-point output; expected tensors, in tuples, "
            "lists or dicts. Wrap the model, so that it returns them."
        )
    checks = []
    for setting, run_in in _precision_settings(request):
        tell(f"errors, {setting}", 0)
        checks.append(run_in(_compare, setting, request.dtype, original, fused, inputs, right))
    return tuple(checks)


def _try_original(loaded: Loaded, original: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    try:
        original(*inputs)
    except Exception as error:
        shapes = ", ".join("x".join(map(str, t.shape)) for t in inputs)
        first_line = next(iter(str(error).splitlines()), "").rstrip(".")
        own = _own_size(loaded.model)
        hint = f"The model names the size {'x'.join(map(str, own))}." if own else _SHAPE_HINT
        raise ArgumentValueError(
            f"`source` {loaded.source!r} does not take an input of {shapes} in {inputs[0].dtype}; it raised "
            f"{type(error).__name__}: {first_line}. {hint}"
        ) from error


def _precision_settings(request: Request) -> Iterator[tuple[str, Callable[..., Check]]]:
    """Full precision first, where the budget is tight; then, in float32 on CUDA, PyTorch's switches as they stand."""
    yield "full precision", partial(in_full_float32, request.device.type)
    if request.device.type == "cuda" and request.dtype is torch.float32:
        yield "PyTorch's switches", lambda compare, *args: compare(*args)


def _compare(
    setting: str,
    dtype: torch.dtype,
    original: nn.Module,
    fused: nn.Module,
    inputs: tuple[Tensor, ...],
    right: list[Tensor],
) -> Check:
    before, after, problem = _worst(_tensors(original(*inputs)), right), _UNKNOWN, None
    try:
        outputs = _tensors(fused(*inputs))
    except Exception as error:
        return Check(setting, dtype, before, after, f"the fused model raised {type(error).__name__}: {error}")
    shapes, expected = ([tuple(t.shape) for t in tensors] for tensors in (outputs, right))
    if shapes != expected:
        problem = f"the fused model gives outputs of shapes {shapes}, the original {expected}"
    elif not all(map(math.isfinite, before)):
        problem = "the original itself gives values that are not finite where float64 does; try a wider `--dtype`"
    else:
        after = _worst(outputs, right)
    return Check(setting, dtype, before, after, problem)


def _tensors(output: object) -> list[Tensor]:
    """Every floating-point tensor of a model's output, whatever tuples, lists and dicts hold it."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        output = list(output.values())
    return [t for part in output for t in _tensors(part)] if isinstance(output, (tuple, list)) else []


def _worst(outputs: list[Tensor], right: list[Tensor]) -> Errors:
    """The largest errors over all outputs; infinite where there is not one for each of the right ones."""
    if len(outputs) != len(right):
        return _UNKNOWN
    found = [errors(got, r) for got, r in zip(outputs, right, strict=True)]
    return Errors(*[max(values) for values in zip(*found, strict=True)])


# --- time


def _timed(
    original: Callable[[], object],
    fused: Callable[[], object],
    other: Callable[[], object] | None,
    request: Request,
    tell: Tell,
) -> Timing:
    """Times of calls that take turns, so that a drift of the machine meets all of them.

    At least 5 and at most 200 rounds, within `request.seconds` where that allows it, after a warm-up.
    """
    timer = Timer(request.device)
    calls = [call for call in (original, fused, other) if call is not None]
    for _ in range(WARM_UPS):
        for call in calls:
            call()
    rounds: list[list[float]] = []
    start = time.perf_counter()
    while len(rounds) < _MOST_ROUNDS:
        spent = time.perf_counter() - start
        if len(rounds) >= _LEAST_ROUNDS and spent > request.seconds:
            break
        tell("timing", min(1.0, max(spent / request.seconds, len(rounds) / _MOST_ROUNDS)))
        rounds.append([timer.once(call) for call in calls])
    times = [summary(list(of_one)) for of_one in zip(*rounds, strict=True)]
    return Timing(times[0], times[1], times[2] if other else None, len(rounds))
