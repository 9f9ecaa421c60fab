"""Layers that keep their input alone for the backward pass, which computes them once more.

Formulas written in torch keep a map for most of their operations: EvoNorm-B0 four, EvoNorm-S0 and
FRN three, against one of batch normalization. Of a lean layer nothing is kept but its input, at the
price of a second forward pass; values, gradients and running statistics are the same bit for bit
(checkpointing, Chen, Xu, Zhang and Guestrin 2016, a layer at a time). Layers that keep no more than
that anyway are left as they are, and batch renormalization, which reads what it moves.
"""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Recomputable:
    """What a layer has of it."""

    recompute: bool = False
    #: It is computed for the second time: running statistics have moved already.
    recomputing: bool = False

    @property
    def worth_recomputing(self) -> bool:
        """Whether its formula keeps more than one map for the backward pass."""
        return True

    def compute(self, x: Tensor) -> Tensor:
        """The layer's map, in the dtype and the memory format of `x`."""
        raise NotImplementedError


def set_recompute(module: nn.Module, lean: bool = True) -> None:
    """Have the layers of `module` keep their inputs alone, those that would keep more."""
    for layer in module.modules():
        if isinstance(layer, Recomputable):
            layer.recompute = lean


def recomputed(layer: Recomputable, x: Tensor) -> Tensor:
    """The map of `layer`, of which the backward pass will find `x` alone."""
    turns = iter((False,))

    def run(x: Tensor) -> Tensor:
        layer.recomputing = next(turns, True)
        try:
            return layer.compute(x)
        finally:
            layer.recomputing = False

    found: Tensor = checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)
    return found
