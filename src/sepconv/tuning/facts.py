"""Problems and devices as plain data for JSON, and back."""

import dataclasses
from typing import Any

from sepconv.device import Device
from sepconv.problem import DTYPE_NAMES, Activation, Epilogue, Problem

Facts = dict[str, Any]


def problem_facts(problem: Problem) -> Facts:
    """Every field of a problem, in the types of JSON; an activation is a pair of name and value."""
    return {**dataclasses.asdict(problem), "dtype": str(problem.dtype).removeprefix("torch.")}


def problem_from(facts: Facts) -> Problem:
    """The problem of such facts, as JSON gives them back. Raises KeyError, TypeError or ValueError where they are of none."""
    epilogue = dict(facts["epilogue"])
    for step in ("depthwise_activation", "pointwise_activation"):
        epilogue[step] = Activation(*epilogue[step])
    sizes = {name: tuple(facts[name]) for name in ("in_size", "kernel_size", "stride", "dilation")}
    padding = tuple((before, after) for before, after in facts["padding"])
    words = {
        **facts,
        **sizes,
        "padding": padding,
        "dtype": DTYPE_NAMES[facts["dtype"]],
        "epilogue": Epilogue(**epilogue),
    }
    return Problem(**words)


def device_facts(device: Device) -> Facts:
    """Every field of a device, in the types of JSON."""
    return dataclasses.asdict(device)


def device_from(facts: Facts) -> Device:
    """The device of such facts, as JSON gives them back."""
    capability = facts["capability"]
    return Device(**{**facts, "capability": None if capability is None else tuple(capability)})
