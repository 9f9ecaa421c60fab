"""Corruptions of test images against their formulas."""

import pytest
import torch
from torch.nn import functional as F

from normbench.data.corruptions import CORRUPTIONS, STRENGTHS, corrupt
from normbench.data.counter_rng import Draws


def images(number: int = 6, side: int = 20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (number, 3, side, side), generator=generator, dtype=torch.uint8)


def draws(number: int = 6) -> Draws:
    return Draws(0, 0, torch.arange(number))


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_does_not_depend_on_the_others(name: str, strength: int) -> None:
    x = images()
    together = corrupt(x, name, strength, draws())
    assert together.dtype == torch.uint8
    assert together.shape == x.shape
    places = torch.tensor([4, 1])
    assert torch.equal(corrupt(x[places], name, strength, draws().of(places)), together[places])


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_larger_strength_changes_images_more(name: str) -> None:
    x = images()
    changes = [
        (corrupt(x, name, s, draws()).float() - x.float()).square().mean() for s in STRENGTHS
    ]
    assert changes == sorted(changes)
    assert changes[0] > 0


def test_noise_has_its_deviation() -> None:
    grey = torch.full((4, 3, 64, 64), 128, dtype=torch.uint8)
    noise = (corrupt(grey, "noise", 5, draws(4)).double() - 128) / 255
    assert noise.std().item() == pytest.approx(0.10, rel=0.01)
    assert abs(noise.mean().item()) < 0.002


def test_less_contrast_keeps_the_mean() -> None:
    x = images()
    mean = x.double().mean((2, 3), keepdim=True)
    expected = mean + 0.15 * (x.double() - mean)
    assert (corrupt(x, "contrast", 5, draws()).double() - expected).abs().max() < 0.51


def test_blur_is_a_gaussian() -> None:
    x = torch.zeros(1, 1, 21, 21, dtype=torch.uint8)
    x[0, 0, 10, 10] = 255
    at = torch.arange(-4, 5).double()
    kernel = torch.exp(-(at**2) / 2)
    kernel = (kernel / kernel.sum())[:, None] * (kernel / kernel.sum())[None]
    expected = F.pad(255 * kernel, (6, 6, 6, 6))
    assert (corrupt(x, "blur", 5, draws(1))[0, 0].double() - expected).abs().max() < 0.51


def test_small_images_are_blurred() -> None:
    assert corrupt(images(side=4), "blur", 5, draws()).shape == (6, 3, 4, 4)


def test_noise_is_a_share_of_white() -> None:
    """Of digits white is 16."""
    grey = torch.full((4, 1, 60, 60), 8, dtype=torch.uint8)
    noise = (corrupt(grey, "noise", 5, draws(4), white=16).double() - 8) / 16
    assert noise.std() == pytest.approx(0.10, rel=0.05)
