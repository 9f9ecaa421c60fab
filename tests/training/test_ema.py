"""Exponential moving averages of networks against their closed form."""

import pytest
import torch
from torch import nn

from normbench.training.ema import MovingAverage


def test_the_decay_rises_to_its_limit() -> None:
    """d = min(decay, (1 + i) / (10 + i)): 0.1, 2/11, 0.2 ..., from the initialized network on."""
    network = nn.Linear(1, 1, bias=False)
    nn.init.constant_(network.weight, 5.0)
    average = MovingAverage(network, 0.2)
    expected = 5.0
    for number, (value, decay) in enumerate([(3.0, 0.1), (1.0, 2 / 11), (-2.0, 0.2), (4.0, 0.2)]):
        nn.init.constant_(network.weight, value)
        average.update(network, number)
        expected = decay * expected + (1 - decay) * value
        assert float(average.network.weight) == pytest.approx(expected)  # type: ignore[arg-type]


def test_running_statistics_are_averaged_and_counters_are_copied() -> None:
    network = nn.BatchNorm2d(2)
    average = MovingAverage(network, 0.9)
    network(torch.ones(4, 2, 3, 3))  # the running mean moves from 0 to 0.1
    average.update(network, 0)
    assert average.network.running_mean.tolist() == pytest.approx([0.09, 0.09])  # type: ignore[operator]
    assert average.network.num_batches_tracked == 1
    assert not any(parameter.requires_grad for parameter in average.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())
