"""Memory of tensors, counted on the CPU."""

import torch
from torch import nn

from normbench.measurements.memory import peak_memory
from support.networks import noise

CPU = torch.device("cpu")


def test_peak_memory_is_that_of_the_largest_moment() -> None:
    def run() -> None:
        a = torch.empty(1000, 1000)
        b = a + 1
        del a
        c = b.view(-1) * 2  # a view takes none
        del b
        c.add_(1)

    assert peak_memory(run, CPU) == 8_000_000


def test_peak_memory_of_training_includes_saved_maps() -> None:
    layer = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
    x = noise(8, 3, 32, 32)
    one = 4 * 8 * 16 * 32 * 32

    def train() -> None:
        layer(x).square().sum().backward()

    def infer() -> None:
        with torch.no_grad():
            layer(x).square().sum()

    assert 3 * one <= peak_memory(train, CPU) < 6 * one
    assert 2 * one <= peak_memory(infer, CPU) < 2.5 * one
