"""Calls as CUDA graphs: what the host does for a call is done once, and a replay costs what the GPU takes."""

import math

import torch

from sepconv.bench.baselines import Call
from sepconv.bench.timing import WARM_UPS


def captured(call: Call) -> Call:
    """A replay of this call, captured on a stream of its own after calls that warm it up there.

    Every replay writes the same tensors and gives them back. Until the first one the result is full of NaN: places that the
    graph does not write show. Raises what the call or the capture raises.
    """
    stream, usual = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(usual)
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            call()
    usual.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        # The outer one: a capture that fails would leave its own stream the current one (torch 2.13).
        with torch.cuda.stream(usual), torch.cuda.graph(graph, stream=stream):
            results = call()
    except Exception as error:
        raise error.__context__ or error from None  # the end of a capture that fails raises too, and hides why
    results[0].fill_(math.nan)

    def replay() -> tuple[torch.Tensor, ...]:
        graph.replay()
        return tuple(results)

    return replay
