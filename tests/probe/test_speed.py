"""Speeds and memory of networks that take turns."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from normbench.catalog import model, normalizer
from normbench.probe.speed import StepMode, TimedNetwork, measure_speeds, without_exponent
from support.networks import noise

MODES: tuple[StepMode, ...] = ("training", "inference")


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normbench.probe.speed.SECONDS", 0.01)


def entry(build: Callable[[], nn.Module], x: Tensor) -> TimedNetwork:
    return TimedNetwork(build, x)


def test_every_network_has_its_speed_and_memory() -> None:
    x = noise(4, 1, 8, 8)
    entries = {
        norm: entry(partial(model, "resnet8", norm=normalizer(norm), num_classes=10, in_chans=1), x)
        for norm in ("bn", "in", "gn")
    }
    training, inference = (
        {each.network: each for each in measure_speeds(entries, 10, mode, repeats=2)}
        for mode in MODES
    )
    assert list(training) == ["bn", "in", "gn"]
    assert training["in"].status == "n/a"
    assert "1x1 map" in training["in"].reason
    for found in (training, inference):
        for each in (found["bn"], found["gn"]):
            assert (each.status, each.batch) == ("ok", 4)
            assert each.lower <= each.steps_per_second <= each.upper  # type: ignore[operator]
    assert inference["bn"].memory < training["bn"].memory  # type: ignore[operator]


def test_the_memory_of_training_is_weights_gradients_momentum_and_maps() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(1000, 1000, bias=False))

    x, weights = noise(1, 1, 1, 1000), 4_000_000
    (training,) = measure_speeds({"it": entry(build, x)}, 1000, "training", repeats=1)
    (inference,) = measure_speeds({"it": entry(build, x)}, 1000, "inference", repeats=1)
    assert training.memory == pytest.approx(3 * weights, rel=0.02)
    assert inference.memory == pytest.approx(weights, rel=0.02)


def test_a_network_that_does_not_fit_is_oom() -> None:
    class Full(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("something else")

    x = noise(2, 1, 2, 2)
    entries = {
        "full": entry(lambda: Full(4, 10), x),
        "fits": entry(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 10)), x),
    }
    full, fits = measure_speeds(entries, 10, "inference", repeats=1)
    assert (full.status, full.steps_per_second, full.memory) == ("OOM", None, None)
    assert (fits.status, fits.reason) == ("ok", "")
    with pytest.raises(RuntimeError, match="something else"):
        measure_speeds({"broken": entry(lambda: Broken(4, 10), x)}, 10, "inference", repeats=1)


def test_a_fast_speed_is_printed_without_an_exponent() -> None:
    assert [without_exponent(x) for x in (0.5, 12.3456, 9999.4, 10_610.2)] == [
        "0.5",
        "12.35",
        "9999",
        "10610",
    ]
    assert without_exponent(999.9, 3) == "1000"
