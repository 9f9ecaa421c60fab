"""Random numbers by counter: the same for an image in an epoch, on any device and in any order.

A run may use one GPU or eight; an image must get the same noise, crop or mask in either case. So
there is no state: a number is a hash of (seed, epoch, stream, image, position). The hash is the
finalizer of SplitMix64 (Steele, Lea, Flood 2014), chained once per word.
"""

import math
import zlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class Draws:
    """Random numbers of the images `images` (int64, shape (N,)) in one epoch of one seed."""

    seed: int
    epoch: int
    images: Tensor

    def of(self, places: Tensor) -> "Draws":
        """Return the random numbers of the images at `places` of `images`."""
        return replace(self, images=self.images[places])

    def uniform(self, stream: str, *shape: int) -> Tensor:
        """Return (N, *shape) numbers in [0, 1), fp32; streams are independent of each other."""
        return uniform(self.keys(stream), *shape)

    def integers(self, stream: str, high: int) -> Tensor:
        """Return (N,) integers in [0, high), int64."""
        return (self.uniform(stream) * high).long()

    def normal(self, stream: str, *shape: int) -> Tensor:
        """Return (N, *shape) standard normal numbers, fp32, by Box and Muller."""
        radius = torch.sqrt(-2 * torch.log1p(-self.uniform(f"{stream} radius", *shape)))
        return radius * torch.cos(2 * math.pi * self.uniform(f"{stream} angle", *shape))

    def keys(self, stream: str) -> Tensor:
        """Return (N,) 64-bit words, from which all numbers of `stream` are computed."""
        # Hashed before anything is added: seed 1 of epoch 0 must not be seed 0 of epoch 1.
        start = _mix(self.images.new_tensor(self.seed))
        for word in (self.epoch, zlib.crc32(stream.encode())):
            start = _mix(start + word)
        return _mix(start + self.images)


def uniform(keys: Tensor, *shape: int) -> Tensor:
    """Return (N, *shape) numbers in [0, 1), fp32, from the `keys` (N,) of N images."""
    # fp32 resolves 24 bits below 1.
    bits = (_bits(keys, math.prod(shape)) >> 40) & 0xFFFFFF
    return bits.float().div_(2.0**24).view(-1, *shape)


def _bits(keys: Tensor, numbers: int) -> Tensor:
    """Return (N, numbers) hashed 64-bit words."""
    # (N, 1) + (numbers,): every image has its own sequence of positions.
    positions = torch.arange(1, numbers + 1, device=keys.device)
    return _mix(keys[:, None] + positions * _GOLDEN)


def permutation(seed: int, epoch: int, count: int, stream: str = "permutation") -> Tensor:
    """Return the order of `count` images in an epoch: int64 (count,) on the CPU."""
    # Sorting by random keys, as the order of randperm may change with torch's version.
    key = _bits(Draws(seed, epoch, torch.arange(count)).keys(stream), 1)[:, 0]
    return torch.argsort(key, stable=True)


def of_step(seed: int, step: int, stream: str, count: int) -> list[float]:
    """Return `count` numbers in [0, 1) for an optimizer step, independent of its images."""
    draws = Draws(seed, step, torch.zeros(1, dtype=torch.int64))
    numbers: list[float] = draws.uniform(f"step {stream}", count)[0].tolist()
    return numbers


def _mix(word: Tensor) -> Tensor:
    word = word + _GOLDEN
    word = (word ^ _shift(word, 30)) * _FIRST
    word = (word ^ _shift(word, 27)) * _SECOND
    return word ^ _shift(word, 31)


def _shift(word: Tensor, bits: int) -> Tensor:
    # torch has no unsigned 64-bit arithmetic: products wrap as they should, but
    # it shifts int64 arithmetically; the mask makes it the logical shift that the hash needs.
    return (word >> bits) & ((1 << (64 - bits)) - 1)
