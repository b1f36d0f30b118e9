"""Export to ONNX: two Conv nodes and no operator of ours, with the right values in ONNX Runtime."""

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from budget import check
from calls import MODULES
from cases import BY_ID, Case, double, pair, tensors_of
from torch import Tensor

import sepconv

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

# What PyTorch's two exporters warn of themselves, wherever they are used.
_WARNED = (
    "You are using the legacy TorchScript-based ONNX export:DeprecationWarning",
    r"`torch.jit.\w+` is deprecated:DeprecationWarning",
    "The feature will be removed. Please remove usage of this function:DeprecationWarning",
    "Constant folding - Only steps=1 can be constant folded:UserWarning",  # of F.pad
    "`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
)
pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in _WARNED]
CASES = [
    Case("1d", 2, 4, 6, (20,), (5,), padding=2, bias="dp"),
    Case("1d-same", 2, 4, 6, (20,), (4,), padding="same", dilation=3, activations=("relu", None)),
    Case("2d", 2, 4, 6, (9, 8), (3, 3), stride=2, padding=1, bias="dp", activations=("relu6", "silu")),
    Case(
        "2d-multiplier",
        2,
        4,
        6,
        (9, 8),
        (3, 2),
        m=3,
        padding=(1, 0),
        dilation=(1, 2),
        activations=(("leaky_relu", 0.1), "hardswish"),
    ),
    Case("3d", 1, 3, 4, (5, 6, 7), (3, 3, 3), padding=1, bias="p", activations=("gelu", "sigmoid")),
]


def _module(case: Case, tensors: list[Tensor | None]) -> Any:
    _, wd, wp, bd, bp, _ = tensors
    module = MODULES[case.rank](
        case.C,
        case.O,
        case.K,
        case.stride,
        case.padding,
        case.dilation,
        bias=True,
        depth_multiplier=case.m,
        depthwise_activation=case.activations[0],
        pointwise_activation=case.activations[1],
    )
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), (wd, bd, wp, bp), strict=True):
            parameter.zero_() if value is None else parameter.copy_(value)
    return module.eval()


def _by_dynamo(module: torch.nn.Module, x: Tensor, **options: Any) -> bytes:
    program = torch.onnx.export(module, (x,), dynamo=True, verbose=False, **options)
    return program.model_proto.SerializeToString()


def _by_tracing(module: torch.nn.Module, x: Tensor) -> bytes:
    file = io.BytesIO()
    torch.onnx.export(module, (x,), file, dynamo=False, opset_version=17)
    return file.getvalue()


def _run(model: bytes, x: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return torch.from_numpy(y)


def _operators(model: bytes) -> list[tuple[str, str]]:
    proto = onnx.load_from_string(model)
    onnx.checker.check_model(proto)
    assert not proto.functions
    return [(node.domain, node.op_type) for node in proto.graph.node]


@pytest.mark.parametrize("export", [_by_dynamo, _by_tracing], ids=["dynamo", "tracing"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_convolutions_with_the_right_values(case: Case, export: Callable[..., bytes]) -> None:
    tensors = tensors_of(case)
    model = export(_module(case, tensors), tensors[0])
    operators = _operators(model)
    assert [op for _, op in operators].count("Conv") == 2
    assert {domain for domain, _ in operators} <= {"", "ai.onnx"}
    check(_run(model, tensors[0]), pair(double(tensors), case), pair(tensors, case), torch.float32)


def test_changing_sizes() -> None:
    case = CASES[2]
    tensors = tensors_of(case)
    axes = ({0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC},)
    model = _by_dynamo(_module(case, tensors), tensors[0], dynamic_shapes=axes)
    for N, S in ((1, 12), (5, 7)):
        other = [torch.randn(N, case.C, S, S + 1), *tensors[1:]]
        check(_run(model, other[0]), pair(double(other), case), pair(other, case), torch.float32)


@pytest.mark.parametrize("export", [_by_dynamo, _by_tracing], ids=["dynamo", "tracing"])
def test_the_function_in_a_model_of_ones_own(export: Callable[..., bytes]) -> None:
    case = BY_ID["2d-multiplier-3"]
    tensors = tensors_of(case)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(tensors[1:3])

        def forward(self, x: Tensor) -> Tensor:
            return sepconv.separable_conv2d(x, *self.weights, stride=2, padding=1)

    model = export(Model().eval(), tensors[0])
    assert [op for _, op in _operators(model)].count("Conv") == 2
    check(_run(model, tensors[0]), pair(double(tensors), case), pair(tensors, case), torch.float32)


def test_a_program_decomposed_first() -> None:
    case = CASES[2]
    tensors = tensors_of(case)
    program = torch.export.export(_module(case, tensors), (tensors[0],))
    decomposed = program.run_decompositions(sepconv.decomposition_table())
    model = torch.onnx.export(decomposed, dynamo=True, verbose=False).model_proto.SerializeToString()
    assert [op for _, op in _operators(model)].count("Conv") == 2
    check(_run(model, tensors[0]), pair(double(tensors), case), pair(tensors, case), torch.float32)
