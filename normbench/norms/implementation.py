"""Implementations of a network's layers: `trainer.impl`."""

from typing import Literal

from torch import nn

from normbench.norms.base.layer import NormAct

Implementation = Literal["eager", "lean", "compile", "triton"]


def set_implementation(network: nn.Module, impl: Implementation) -> None:
    """Choose how the layers of `network` are computed.

    Args:
        network: a network or a single layer in its initial state, which is eager.
        impl: eager computes formulas operation by operation. lean saves only the layers' inputs for
            the backward pass (`normbench.norms.base.recompute`). compile uses torch.compile. triton
            uses the kernels of layers that have one (`normbench.norms.kernels.dispatch`).
    """
    if impl == "lean":
        for layer in network.modules():
            if isinstance(layer, NormAct):
                layer.recompute = True
    elif impl == "compile":
        network.compile()
    elif impl == "triton":
        from normbench.norms.kernels.dispatch import set_triton  # Triton may not be installed

        set_triton(network)
