"""A step's forward and backward passes as one CUDA graph: `trainer.graphs=true`.

At a few images a step a GPU waits for the hundreds of kernels that are launched one by one. Shapes
are the same in every step, so they are recorded in the first one and replayed as a whole from then
on, with the images of the step copied to where the recorded ones lay. The optimizer's few kernels
are launched as ever: its rate is another number in each step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbench.loaders import Step

Told = list[tuple[Tensor, Tensor]]  # of each pass the loss, (), and logits (N, classes)
Replay = Callable[[], Any]
WARM_UPS = 3  # libraries choose their kernels and take their memory before anything is recorded


class Graph:
    """What a step computes up to its gradients; where it cannot be recorded it is computed anew.

    Args:
        gradients: leaves the gradients of a step; what its passes tell.
        network: whose buffers are as they were when all has been recorded.
    """

    def __init__(self, gradients: Callable[[Step], Told], network: nn.Module) -> None:
        self.gradients, self.network = gradients, network
        self.own: Step | None = None
        self.replay: Replay | None = None
        self.told: Told = []

    def __call__(self, step: Step) -> Told:
        if self.own is None:
            self.own = step.copied()
            self._record(self.own)
        if self.replay is None:
            return self.gradients(step)
        for own, new in zip(self.own.tensors, step.tensors, strict=True):
            own.copy_(new)
        self.replay()
        return [(loss.clone(), logits.clone()) for loss, logits in self.told]

    def _record(self, step: Step) -> None:
        before = [buffer.clone() for buffer in self.network.buffers()]
        try:
            self.replay, self.told = recorded(partial(self.gradients, step))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            print(f"trainer.graphs=true: no step can be recorded: {reason}", flush=True)
        for buffer, value in zip(self.network.buffers(), before, strict=True):
            buffer.copy_(value)


def recorded(run: Callable[[], Told]) -> tuple[Replay, Told]:
    """The replay of what `run` does on a CUDA device, and where its results will lie."""
    dtype, half = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
    # Weights in half precision that autocast has kept would be those of the first step for ever.
    with torch.autocast("cuda", dtype=dtype, enabled=half, cache_enabled=False):
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            told = run()
    return graph.replay, told
