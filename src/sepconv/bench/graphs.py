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
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = call()
    results[0].fill_(math.nan)

    def replay() -> tuple[torch.Tensor, ...]:
        graph.replay()
        return tuple(results)

    return replay
