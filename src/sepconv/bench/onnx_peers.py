"""ONNX Runtime and OpenVINO as peers: one ONNX model of the pair, on PyTorch's number of threads."""

import importlib.metadata
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sepconv.bench.data import Case
from sepconv.problem import CHANNELS_FIRST, Activation, Problem

_OPSET, _IR = 20, 9  # the first opset with Gelu, and its IR version
_SIMPLE = {"relu": "Relu", "hardswish": "HardSwish", "sigmoid": "Sigmoid", "tanh": "Tanh"}


class _OnnxPeer:
    """What both have in common: float32 on the CPU, forward, channels first."""

    name: str
    package: str

    @property
    def version(self) -> str:
        """Name and version of the installed package."""
        return f"{self.package} {_version(self.package)}"

    def reasons(self, problem: Problem, device: torch.device, *, training: bool) -> list[str]:
        """Why this peer takes no part in this problem; empty where it does."""
        checks = (
            (bool(_version(self.package)), f"{self.package} is not installed"),
            (bool(_version("onnx")), "onnx, which builds its model, is not installed"),
            (device.type == "cpu", f"it is measured on the CPU only, the device is {device.type}"),
            (problem.dtype is torch.float32, "it is measured in float32 only"),
            (not training, "it has no training"),
            (problem.layout == CHANNELS_FIRST, "it takes channels_first only"),
        )
        return [reason for holds, reason in checks if not holds]


class OnnxRuntime(_OnnxPeer):
    """ONNX Runtime on the CPU; it returns a fresh array at each call."""

    name = package = "onnxruntime"

    def prepare(self, case: Case) -> Callable[[], Sequence[Tensor]]:
        """A call of a session that holds the weights as constants."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.force_spinning_stop", "1")  # not into the next provider's time
        session = onnxruntime.InferenceSession(model(case), options, providers=["CPUExecutionProvider"])
        feeds = _feeds(case)
        return lambda: (torch.from_numpy(session.run(None, feeds)[0]),)


class OpenVino(_OnnxPeer):
    """OpenVINO on the CPU in float32; its result lies in memory that it uses again at the next call."""

    name = package = "openvino"

    def prepare(self, case: Case) -> Callable[[], Sequence[Tensor]]:
        """A call of a compiled model that holds the weights as constants."""
        import openvino

        core = openvino.Core()
        config = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
        }
        request = core.compile_model(core.read_model(model(case)), "CPU", config).create_infer_request()
        feeds = _feeds(case)
        return lambda: (torch.from_numpy(request.infer(feeds, share_inputs=True, share_outputs=True)[0]),)


def model(case: Case) -> bytes:
    """The pair as a serialised ONNX model: x and the residual, if any, are inputs, y the output, weights constants."""
    from onnx import TensorProto, helper, numpy_helper

    problem, operands = case.problem, case.operands
    constants = [
        numpy_helper.from_array(t.detach().numpy(), name)
        for name, t in zip(operands._fields[1:5], operands[1:5], strict=True)
        if t is not None
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(operands.x.shape))]
    if operands.residual is not None:
        inputs.append(helper.make_tensor_value_info("residual", TensorProto.FLOAT, list(problem.output_shape)))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(problem.output_shape))
    graph = helper.make_graph(_nodes(problem), "pair", inputs, [output], constants)
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    return bytes(found.SerializeToString())


def _nodes(problem: Problem) -> list[Any]:
    from onnx import helper

    epilogue = problem.epilogue
    last = "sum" if epilogue.residual else "y"
    pads = [before for before, _ in problem.padding] + [after for _, after in problem.padding]
    depthwise = ["x", "depthwise_weight"] + ["depthwise_bias"] * epilogue.depthwise_bias
    pointwise = ["middle", "pointwise_weight"] + ["pointwise_bias"] * epilogue.pointwise_bias
    nodes = [
        helper.make_node(
            "Conv", depthwise, ["before"], group=problem.in_channels, kernel_shape=problem.kernel_size,
            strides=problem.stride, dilations=problem.dilation, pads=pads,
        ),
        *_activation(epilogue.depthwise_activation, "before", "middle"),
        helper.make_node("Conv", pointwise, ["after"], kernel_shape=[1] * problem.rank),
        *_activation(epilogue.pointwise_activation, "after", last),
    ]  # fmt: skip
    if epilogue.residual:
        nodes.append(helper.make_node("Add", [last, "residual"], ["y"]))
    return nodes


def _activation(activation: Activation, source: str, target: str) -> list[Any]:
    """The nodes of an activation from one name to another."""
    from onnx import helper

    name, value = activation
    if name == "silu":
        sigmoid = helper.make_node("Sigmoid", [source], [f"{source}_sigmoid"])
        return [sigmoid, helper.make_node("Mul", [source, f"{source}_sigmoid"], [target])]
    if name == "relu6":
        bounds = [
            helper.make_node("Constant", [], [f"{source}_{which}"], value_float=bound)
            for which, bound in (("least", 0.0), ("most", 6.0))
        ]
        return [*bounds, helper.make_node("Clip", [source, f"{source}_least", f"{source}_most"], [target])]
    attributes: dict[str, dict[str, Any]] = {
        "leaky_relu": {"op_type": "LeakyRelu", "alpha": value},
        "hardsigmoid": {"op_type": "HardSigmoid", "alpha": 1 / 6, "beta": 0.5},
        "gelu": {"op_type": "Gelu"},
        "gelu_tanh": {"op_type": "Gelu", "approximate": "tanh"},
        "identity": {"op_type": "Identity"},
    }
    found = dict(attributes.get(name) or {"op_type": _SIMPLE[name]})
    return [helper.make_node(found.pop("op_type"), [source], [target], **found)]


def _feeds(case: Case) -> dict[str, Any]:
    feeds = {"x": case.operands.x.numpy()}
    if case.operands.residual is not None:
        feeds["residual"] = case.operands.residual.numpy()
    return feeds


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
