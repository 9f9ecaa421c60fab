"""Layers that save only their input for the backward pass, and run forward again in it.

A formula written in PyTorch saves a map for most of its operations: EvoNorm-B0 four, EvoNorm-S0 and
FRN three; batch normalization saves one. A recomputed layer saves its input alone and pays with a
second forward pass. Values, gradients and running statistics are the same, bit for bit. This is
activation checkpointing (Chen, Xu, Zhang and Guestrin 2016), one layer at a time.

Layers that save no more than their input are left alone. So is batch renormalization: its forward
pass reads running statistics that it also updates.
"""

from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recomputed(layer: Any, x: Tensor) -> Tensor:
    """Return `layer.compute(x)`, saving nothing but `x` for the backward pass.

    In the second forward pass `layer.recomputing` is True.
    """
    recomputing = iter((False,))

    def run(x: Tensor) -> Tensor:
        layer.recomputing = next(recomputing, True)
        try:
            return layer.compute(x)  # type: ignore[no-any-return]
        finally:
            layer.recomputing = False

    output: Tensor = checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)
    return output
