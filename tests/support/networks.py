"""Small networks of every normalizer, and a check that nothing changes them."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from normbench.catalog import model, normalizer
from normbench.norms.workers import PerWorker
from support.cells import network_for


def network_of(norm: str, **more: Any) -> nn.Module:
    """Return a small network with `norm`, drawn with seed 0."""
    torch.manual_seed(0)
    options = {**network_for(norm), **more}
    return model(norm=normalizer(norm), num_classes=10, in_chans=1, **options)


def noise(*shape: int, seed: int = 1) -> Tensor:
    """Return standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@contextmanager
def unchanged(network: nn.Module) -> Iterator[None]:
    """Check that the body changes no parameter, statistic, mode, worker or random state."""

    def everything() -> list[Any]:
        workers = [m.workers for m in network.modules() if isinstance(m, PerWorker)]
        modes = [m.training for m in network.modules()]
        return [workers, modes, torch.get_rng_state().tolist()]

    state, rest = copy.deepcopy(network.state_dict()), everything()
    yield
    assert everything() == rest
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert all(parameter.grad is None for parameter in network.parameters())
