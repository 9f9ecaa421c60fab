"""Layers that save only their input for the backward pass, and run forward again in it.

A formula written in PyTorch saves a map for most of its operations: EvoNorm-B0 four, EvoNorm-S0 and
FRN three; batch normalization saves one. A recomputed layer saves its input alone and pays with a
second forward pass. Values, gradients and running statistics are the same, bit for bit. This is
activation checkpointing (Chen, Xu, Zhang and Guestrin 2016), one layer at a time.

Layers that save no more than their input are left alone. So is batch renormalization: its forward
pass reads running statistics that it also updates.
"""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Recomputable:
    """The interface of a layer that may be recomputed."""

    #: Save the input alone and recompute the rest, where that saves memory.
    recompute: bool = False
    #: True during the second forward pass, when running statistics have moved already.
    recomputing: bool = False

    @property
    def worth_recomputing(self) -> bool:
        """Whether the formula saves more than one map for the backward pass."""
        return True

    def compute(self, x: Tensor) -> Tensor:
        """Return the layer's output, in the dtype and memory format of `x`."""
        raise NotImplementedError


def set_recompute(module: nn.Module, recompute: bool = True) -> None:
    """Switch recomputation on or off in the layers of `module`."""
    for layer in module.modules():
        if isinstance(layer, Recomputable):
            layer.recompute = recompute


def recomputed(layer: Recomputable, x: Tensor) -> Tensor:
    """Return the output of `layer`, saving nothing but `x` for the backward pass."""
    turns = iter((False,))

    def run(x: Tensor) -> Tensor:
        layer.recomputing = next(turns, True)
        try:
            return layer.compute(x)
        finally:
            layer.recomputing = False

    output: Tensor = checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)
    return output
