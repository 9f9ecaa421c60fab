"""Speeds and memory of networks that take turns."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.catalog import model, normalizer
from normbench.probe.speed import StepMode, TimedNetwork, measure_speeds, without_exponent
from support.networks import noise

MODES: tuple[StepMode, ...] = ("training", "inference", "folded")


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normbench.probe.speed.SECONDS", 0.01)


def entry(build: Callable[[], nn.Module], x: Tensor) -> TimedNetwork:
    def train_loss(network: nn.Module) -> Tensor:
        return F.cross_entropy(network(x), torch.arange(len(x)))

    return TimedNetwork(build, x, train_loss)


def test_every_network_has_its_speed_and_memory() -> None:
    x = noise(4, 1, 8, 8)
    entries = {
        norm: entry(partial(model, "resnet8", norm=normalizer(norm), num_classes=10, in_chans=1), x)
        for norm in ("bn", "in", "gn")
    }
    training, inference, folded = (
        {each.network: each for each in measure_speeds(entries, mode, repeats=2)} for mode in MODES
    )
    assert list(training) == ["bn", "in", "gn"]
    assert training["in"].status == "n/a"
    assert "1x1 map" in training["in"].reason
    for found in (training, inference, folded):
        for each in (found["bn"], found["gn"]):
            assert (each.status, each.batch) == ("ok", 4)
            assert each.lower <= each.steps_per_second <= each.upper  # type: ignore[operator]
    assert inference["bn"].memory < training["bn"].memory  # type: ignore[operator]
    assert folded["bn"].memory < inference["bn"].memory  # type: ignore[operator]
    assert folded["bn"].params < inference["bn"].params == training["bn"].params  # type: ignore[operator]
    assert folded["bn"].operations < inference["bn"].operations  # type: ignore[operator]
    assert folded["gn"].operations == inference["gn"].operations == training["gn"].operations


def test_a_reference_begins_and_ends_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def build(name: str) -> nn.Module:
        built.append(name)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 10))

    entries = {name: entry(partial(build, name), noise(2, 1, 2, 2)) for name in ("gn", "bn", "ln")}
    rates = iter([10.0, 1.0, 2.0, 12.0, 20.0, 3.0, 4.0, 26.0, 10.0, 5.0, 6.0, 10.0])
    monkeypatch.setattr("normbench.probe.speed._steps_per_second", lambda _: next(rates))
    speeds = measure_speeds(entries, "folded", repeats=3, references=["bn"])
    assert built == ["gn", "bn", "ln", *["bn", "gn", "ln", "bn"] * 3]
    gn, bn, ln = speeds
    assert (gn.steps_per_second, ln.steps_per_second) == (3.0, 4.0)
    assert bn.steps_per_second == 11.0  # the median of all six
    assert bn.again == pytest.approx(1.2)  # of 1.2, 1.3 and 1.0
    assert gn.again is ln.again is None


def test_the_memory_of_training_is_weights_gradients_momentum_and_maps() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(1000, 1000, bias=False))

    x, weights = noise(1, 1, 1, 1000), 4_000_000
    (training,) = measure_speeds({"it": entry(build, x)}, "training", repeats=1)
    (inference,) = measure_speeds({"it": entry(build, x)}, "inference", repeats=1)
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
    full, fits = measure_speeds(entries, "inference", repeats=1)
    assert (full.status, full.steps_per_second, full.memory) == ("OOM", None, None)
    assert (fits.status, fits.reason) == ("ok", "")
    with pytest.raises(RuntimeError, match="something else"):
        measure_speeds({"broken": entry(lambda: Broken(4, 10), x)}, "inference", repeats=1)


def test_a_fast_speed_is_printed_without_an_exponent() -> None:
    assert [without_exponent(x) for x in (0.5, 12.3456, 9999.4, 10_610.2)] == [
        "0.5",
        "12.35",
        "9999",
        "10610",
    ]
    assert without_exponent(999.9, 3) == "1000"
