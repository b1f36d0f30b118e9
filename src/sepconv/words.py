"""The words of the command line: what the options mean that more than one command takes."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import torch
import typer

from sepconv.arguments import ActivationLike
from sepconv.device import Device, usable
from sepconv.errors import ArgumentValueError
from sepconv.functional import problem_and_device
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST, DTYPE_NAMES, Operands, Problem, dense_strides

P = ParamSpec("P")
T = TypeVar("T")
LAYOUTS = {name: name for name in (CHANNELS_FIRST, CHANNELS_LAST)}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One problem in the words of the command line; every field is an option."""

    in_channels: Annotated[int | None, typer.Option("--in", min=1, help="Input channels.")] = None
    out_channels: Annotated[int | None, typer.Option("--out", min=1, help="Output channels.")] = None
    size: Annotated[str | None, typer.Option(help="Input size, as 512x512; one number stands for every axis.")] = None
    rank: Annotated[int, typer.Option(min=1, max=3, help="Spatial axes.")] = 2
    kernel: Annotated[str, typer.Option(help="Kernel size, as 3 or 3x5.")] = "3"
    batch: Annotated[int, typer.Option(min=0, help="Batch size.")] = 1
    stride: Annotated[str, typer.Option(help="Stride, as 2 or 2x1.")] = "1"
    padding: Annotated[str, typer.Option(help="Padding, as 1 or 1x2, or same, or valid.")] = "0"
    dilation: Annotated[str, typer.Option(help="Dilation, as 2 or 2x1.")] = "1"
    depth_multiplier: Annotated[int, typer.Option(min=1, help="Depthwise outputs for each input channel.")] = 1
    dtype: Annotated[str, typer.Option(help="float64, float32, float16 or bfloat16.")] = "float32"
    layout: Annotated[str, typer.Option(help="channels_first or channels_last.")] = CHANNELS_FIRST
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; by default the fastest here.")] = None
    precision: Annotated[str | None, typer.Option(help="For float32 on CUDA: ieee, high or tf32.")] = None
    depthwise_activation: Annotated[str | None, typer.Option(help="A name, as relu or leaky_relu:0.1.")] = None
    pointwise_activation: Annotated[str | None, typer.Option(help="A name, as relu or gelu:tanh.")] = None
    bias: Annotated[bool, typer.Option("--bias", help="Give both steps a bias.")] = False
    residual: Annotated[bool, typer.Option("--residual", help="Add a residual last.")] = False

    @property
    def names_a_convolution(self) -> bool:
        """Whether any option was given but those that speak for a whole workload."""
        shared = {name: getattr(self, name) for name in ("dtype", "layout", "device", "precision")}
        return self != Asked(**shared)

    def problem_and_device(self) -> tuple[Problem, Device]:
        """What is asked, and where; nothing is allocated. Raises ArgumentValueError, and as the call itself would."""
        operands, words, where = self._operands(), self._words(), device_of(self.device)
        problem, device = problem_and_device(operands, words, where)
        if not self.residual:
            return problem, device
        residual = _meta(problem.output_shape, operands.x.dtype)
        return problem_and_device(operands._replace(residual=residual), words, where)

    def _operands(self) -> Operands:
        in_channels, out_channels = given("--in", self.in_channels), given("--out", self.out_channels)
        shape = (self.batch, in_channels, *_every_axis("--size", given("--size", self.size), self.rank))
        middle = in_channels * self.depth_multiplier
        strides = dense_strides(shape, one_of("--layout", self.layout, LAYOUTS))
        like = one_of("--dtype", self.dtype, DTYPE_NAMES)
        return Operands(
            _meta(shape, like, strides),
            _meta((middle, 1, *_every_axis("--kernel", self.kernel, self.rank)), like),
            _meta((out_channels, middle, *[1] * self.rank), like),
            _meta((middle,), like) if self.bias else None,
            _meta((out_channels,), like) if self.bias else None,
        )

    def _words(self) -> tuple[Any, ...]:
        return (
            _every_axis("--stride", self.stride, self.rank),
            self.padding if self.padding.isalpha() else _every_axis("--padding", self.padding, self.rank),
            _every_axis("--dilation", self.dilation, self.rank),
            _activation(self.depthwise_activation),
            _activation(self.pointwise_activation),
            self.precision,
        )


def asking(command: Callable[Concatenate[Asked, P], None]) -> Callable[..., None]:
    """The command with every field of `Asked` as an option of its own, before its other options."""

    @wraps(command)
    def with_options(**words: Any) -> None:
        asked = Asked(**{field.name: words.pop(field.name) for field in fields(Asked)})
        command(asked, **words)  # type: ignore[call-arg]

    options = list(inspect.signature(Asked).parameters.values())
    others = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(command).parameters.values()][1:]
    vars(with_options)["__signature__"] = inspect.Signature([*options, *others])
    with_options.__annotations__ = {p.name: p.annotation for p in (*options, *others)}
    return with_options


def numbers(option: str, text: str) -> tuple[int, ...]:
    """The whole numbers of a text such as 512x512. Raises ArgumentValueError where it holds anything else."""
    parts = text.lower().split("x")
    if all(part.isdecimal() for part in parts):
        return tuple(int(part) for part in parts)
    raise ArgumentValueError(f"`{option}` is {text!r}; expected whole numbers with x between, as 3 or 3x5.")


def _every_axis(option: str, text: str, rank: int) -> tuple[int, ...]:
    """One number for each spatial axis; a single one stands for all."""
    found = numbers(option, text)
    if len(found) == 1:
        return found * rank
    if len(found) != rank:
        raise ArgumentValueError(
            f"`{option}` is {text!r}, with {len(found)} numbers; expected 1 or {rank}, as `--rank` is {rank}."
        )
    return found


def given(option: str, value: T | None) -> T:
    """The value of an option that has to be given. Raises ArgumentValueError where it is not."""
    if value is None:
        raise ArgumentValueError(
            f"`{option}` is missing; expected `--in`, `--out` and `--size`, the sizes of a convolution."
        )
    return value


def one_of(option: str, text: str, known: dict[str, Any]) -> Any:
    """What a word stands for. Raises ArgumentValueError, with all that is known, where it stands for nothing."""
    if text in known:
        return known[text]
    raise ArgumentValueError(f"`{option}` is {text!r}; expected one of {', '.join(known)}.")


def some_of(option: str, text: str, known: Sequence[str], groups: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The names that a text asks for, each once: some of the known ones with commas between, or a group by its word.

    Raises ArgumentValueError, with all that is known, where a name is not.
    """
    if text in groups:
        return tuple(groups[text])
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            expected = f"{', '.join(groups)}, or some of {', '.join(known)}, with commas between them"
            raise ArgumentValueError(f"`{option}` has {name!r}; expected {expected}.")
    return tuple(dict.fromkeys(names))


def _activation(text: str | None) -> ActivationLike:
    """A name, or a pair of name and value out of name:value."""
    if text is None or ":" not in text:
        return text
    name, value = text.split(":", 1)
    try:
        return name, float(value)
    except ValueError:
        return name, value


def device_of(text: str | None) -> torch.device:
    """The device of this name, by default the fastest one here. Raises ArgumentValueError where it cannot be used."""
    if text is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return usable(text)


def _meta(shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None) -> torch.Tensor:
    """A tensor without memory."""
    if math.prod(shape) * dtype.itemsize >= 2**63:
        raise ArgumentValueError(
            f"`--size`, `--batch` and the channels ask for a tensor of shape {shape}; expected one whose bytes PyTorch "
            "can count, fewer than 2**63."
        )
    return torch.empty_strided(shape, strides or dense_strides(shape, CHANNELS_FIRST), dtype=dtype, device="meta")
