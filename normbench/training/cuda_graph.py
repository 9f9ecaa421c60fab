"""Forward and backward passes of a step as one CUDA graph: `trainer.cuda_graph=true`.

At a few images a step a GPU waits for the launches of hundreds of kernels. Shapes are the same in
every step, so the kernels are captured in the first step and replayed as a whole from then on, with
the images of each step copied to the memory of the captured ones. The optimizer's few kernels are
launched as usual, since its learning rate changes.
"""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from normbench.training.batches import StepBatch
from normbench.training.metrics import PassOutput

ComputeGradients = Callable[[StepBatch], list[PassOutput]]
Replay = Callable[[], Any]
WARM_UPS = 3  # libraries choose their kernels and allocate memory before the capture


class GraphedStep:
    """Gradients of a step, captured in the first step and replayed in the others.

    `compute_gradients` leaves the gradients of a step and returns the outputs of its passes. The
    capture does not change the buffers of `network`. Its gradients are always those that the graph
    writes, also after somebody has released them, as Lightning does before a validation.
    """

    def __init__(self, compute_gradients: ComputeGradients, network: nn.Module) -> None:
        self.compute_gradients, self.network = compute_gradients, network
        self.static_batch: StepBatch | None = None
        self.replay: Replay | None = None
        self.gradients: list[torch.Tensor | None] = []  # of the parameters
        self.outputs: list[PassOutput] = []

    def __call__(self, batch: StepBatch) -> list[PassOutput]:
        """Compute the gradients of `batch`, and return the outputs of its passes."""
        if self.static_batch is None or self.replay is None:
            self.static_batch = batch.clone()
            self.replay = self._capture(self.static_batch)
        for static, tensor in zip(self.static_batch.tensors, batch.tensors, strict=True):
            static.copy_(tensor)
        self.replay()
        for parameter, gradient in zip(self.network.parameters(), self.gradients, strict=True):
            parameter.grad = gradient
        return [PassOutput(*(tensor.clone() for tensor in output)) for output in self.outputs]

    def _capture(self, batch: StepBatch) -> Replay:
        """Capture the passes of `batch`.

        Raises:
            RuntimeError: they contain what cannot be captured.
        """
        buffers = [buffer.clone() for buffer in self.network.buffers()]
        try:
            replay, self.outputs = capture(partial(self.compute_gradients, batch))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if isinstance(error.__context__, torch.OutOfMemoryError):
                raise error.__context__ from None  # a plan of more passes needs less memory
            # Fatal for the run: a failed capture leaves random numbers and memory undefined.
            reason = str(error).partition("\n")[0]
            raise RuntimeError(
                f"trainer.cuda_graph=true: the passes of a step cannot be captured: {reason}; "
                "trainer.cuda_graph=false works"
            ) from error
        for buffer, value in zip(self.network.buffers(), buffers, strict=True):
            buffer.copy_(value)
        self.gradients = [parameter.grad for parameter in self.network.parameters()]
        return replay


def capture(run: Callable[[], list[PassOutput]]) -> tuple[Replay, list[PassOutput]]:
    """Capture the kernels of `run` on a CUDA device.

    Returns:
        The replay, and the outputs into which it writes.
    """
    dtype, enabled = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
    random_state = torch.cuda.get_rng_state()
    # Autocast's cache would hold the half-precision weights of the first step for ever.
    with torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=False):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Garbage is collected before: freeing an older graph would invalidate the capture.
        gc.collect()
        gc.disable()
        try:
            with torch.cuda.graph(graph):
                outputs = run()
        finally:
            gc.enable()
    torch.cuda.set_rng_state(random_state)
    return graph.replay, outputs
