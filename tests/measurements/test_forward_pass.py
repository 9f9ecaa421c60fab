"""Measurements leave a network as it was, and draw no random number."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from normbench.catalog import normalizers
from normbench.errors import Impossible
from normbench.measurements.power import power
from normbench.measurements.ratios import ratios
from normbench.measurements.receptive_field import receptive_fields
from normbench.measurements.signal_propagation import propagation
from normbench.norms.workers import set_workers
from support.networks import network_of, noise, unchanged
from support.slow import EVERYDAY_NORMS, slow_except

MEASUREMENTS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "spp": propagation,
    "power": power,
    "ratios": lambda network, x: ratios(network, (1, 8, 8)),
    "receptive fields": lambda network, x: receptive_fields(network, (1, 8, 8)),
}


@pytest.mark.parametrize("norm", slow_except(normalizers(), EVERYDAY_NORMS))
def test_no_measurement_changes_a_network(norm: str) -> None:
    network = network_of(norm, dropout=0.1, stochastic_depth=0.2).train()
    set_workers(network, 2)
    network(noise(32, 1, 8, 8))  # moves the running statistics
    for name, measure in MEASUREMENTS.items():
        with unchanged(network):
            try:
                measure(network, noise(16, 1, 8, 8))
            except (Impossible, ValueError):
                assert name in ("power", "ratios")  # not every normalizer has a y, or ratios


def test_modes_of_single_modules_are_restored() -> None:
    network = network_of("bn").eval()
    network.get_submodule("blocks.0").train()
    with unchanged(network):
        propagation(network, noise(8, 1, 8, 8))
