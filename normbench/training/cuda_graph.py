"""A step's forward and backward passes as one CUDA graph: `trainer.graphs=true`.

At a few images a step a GPU waits for the hundreds of kernels that are launched one by one. Shapes
are the same in every step, so they are recorded in the first one and replayed as a whole from then
on, with the images of the step copied to where the recorded ones lay. The optimizer's few kernels
are launched as ever: its rate is another number in each step.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbench.training.datamodule import Step

Told = list[tuple[Tensor, Tensor]]  # of each pass the loss, (), and logits (N, classes)
Replay = Callable[[], Any]
WARM_UPS = 3  # libraries choose their kernels and take their memory before anything is recorded


class Graph:
    """What a step computes up to its gradients, recorded in the first one.

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
        """What the passes of `step` tell.

        Raises:
            RuntimeError: in the first step, if it does what cannot be recorded.
        """
        if self.own is None or self.replay is None:
            self.own = step.copied()
            self.replay = self._record(self.own)
        for own, new in zip(self.own.tensors, step.tensors, strict=True):
            own.copy_(new)
        self.replay()
        return [(loss.clone(), logits.clone()) for loss, logits in self.told]

    def _record(self, step: Step) -> Replay:
        before = [buffer.clone() for buffer in self.network.buffers()]
        try:
            replay, self.told = recorded(partial(self.gradients, step))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if isinstance(error.__context__, torch.OutOfMemoryError):
                raise error.__context__ from None  # fewer workers in a pass may do
            # After that neither random numbers nor memory of the device are what they were.
            reason = str(error).partition("\n")[0]
            raise RuntimeError(
                f"trainer.graphs=true: the passes of a step cannot be recorded: {reason}; "
                "trainer.graphs=false works"
            ) from error
        for buffer, value in zip(self.network.buffers(), before, strict=True):
            buffer.copy_(value)
        return replay


def recorded(run: Callable[[], Told]) -> tuple[Replay, Told]:
    """The replay of what `run` does on a CUDA device, and where its results will lie."""
    dtype, half = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
    drawn = torch.cuda.get_rng_state()
    # Weights in half precision that autocast has kept would be those of the first step for ever.
    with torch.autocast("cuda", dtype=dtype, enabled=half, cache_enabled=False):
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(graph):
            told = run()
    torch.cuda.set_rng_state(drawn)
    return graph.replay, told


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python frees nothing meanwhile: not an older graph, which must not go as one is recorded."""
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
