"""How the layers of a network are computed; what `trainer.impl` says is carried out here alone."""

from typing import Literal

from torch import nn

from normbench.norms.base.recompute import set_recompute

Impl = Literal["eager", "lean", "compile", "triton"]


def set_impl(network: nn.Module, impl: Impl) -> None:
    """Have `network` computed as `impl` says.

    Args:
        network: whose layers are computed as their formulas stand.
        impl: eager, so; lean, so, but keeping nothing but inputs
        (`normbench.norms.base.recompute`); compile,
            by torch.compile, of a layer or of a whole network; triton, by kernels of our own where
            there are any (`normbench.norms.kernels.dispatch`).
    """
    if impl == "lean":
        set_recompute(network)
    elif impl == "compile":
        network.compile()
    elif impl == "triton":
        from normbench.norms.kernels.dispatch import (
            set_triton,  # there is no Triton for some machines
        )

        set_triton(network)
