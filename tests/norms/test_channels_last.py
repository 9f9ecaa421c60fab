"""Tokens and maps with channels last: the layers for maps, on other axes."""

import pytest
import torch
from torch import nn

from normbench.catalog import normalizer, normalizers
from normbench.norms.channels_last import ChannelsLast
from normbench.norms.workers import set_workers
from support.layers import perturbed_layer

CHANNELS = 6


@pytest.mark.parametrize("name", normalizers())
@pytest.mark.parametrize("shape", [(32, 5, 3), (32, 15)], ids=["maps", "tokens"])
def test_a_layer_computes_the_same_with_channels_last(name: str, shape: tuple[int, ...]) -> None:
    maps, layer = (
        perturbed_layer(normalizer(name), CHANNELS, "relu", torch.float64) for _ in range(2)
    )
    last = ChannelsLast(layer)
    set_workers(maps, 2)
    set_workers(last, 2)
    x = torch.randn(shape[0], CHANNELS, *shape[1:], dtype=torch.float64)
    left = x.clone().requires_grad_()
    right = x.movedim(1, -1).clone().requires_grad_()
    for training in (True, False):
        y = maps.train(training)(left.reshape(32, CHANNELS, 5, 3)).reshape(x.shape)
        z = last.train(training)(right)
        assert z.shape == right.shape
        torch.testing.assert_close(z, y.movedim(1, -1), rtol=1e-10, atol=1e-10)
        y.square().sum().backward()
        z.square().sum().backward()
    assert left.grad is not None and right.grad is not None
    torch.testing.assert_close(right.grad, left.grad.movedim(1, -1), rtol=1e-10, atol=1e-10)
    for (key, expected), (_, actual) in zip(
        maps.named_buffers(), last.named_buffers(), strict=True
    ):
        torch.testing.assert_close(actual, expected, msg=key)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("ln2d", nn.LayerNorm(CHANNELS, eps=1e-6)), ("rms", nn.RMSNorm(CHANNELS, eps=1e-6))],
)
@pytest.mark.parametrize("shape", [(3,), (3, 7), (3, 4, 5)], ids=str)
def test_normalization_of_tokens_is_that_of_torch(
    name: str, theirs: nn.Module, shape: tuple[int, ...]
) -> None:
    ours = ChannelsLast(normalizer(name).layer(CHANNELS, None))
    x = 1 + torch.randn(*shape, CHANNELS)
    torch.testing.assert_close(ours(x), theirs(x))


def test_other_axes_are_refused() -> None:
    layer = ChannelsLast(normalizer("ln2d").layer(CHANNELS))
    for shape in [(CHANNELS,), (2, 2, 2, 2, CHANNELS)]:
        with pytest.raises(ValueError, match=r"tokens \(N, T, C\)"):
            layer(torch.ones(shape))
    with pytest.raises(ValueError, match=r"expected maps \(N, 6, H, W\)"):
        layer(torch.ones(2, 3, 5))
