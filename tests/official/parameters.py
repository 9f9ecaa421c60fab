"""Inputs, weights and gradients that the official code and ours must agree on. NumPy alone.

Every number is a function of its array's name and its place in the array, in the layout of torch:
(out, in / groups, height, width) for convolutions, (out, in) for linear layers, (N, C, H, W) for
images.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FOLDER = Path(__file__).parent
CLASSES = 10
#: Weights of an image in its own statistics in evaluation.
EXAMPLE_WEIGHTS = (0.0, 0.1, 0.5, 1.0)


def uniform(name: str, shape: Sequence[int]) -> Array:
    """Return numbers between -1 and 1: two steps of a linear congruential generator per place."""
    places = np.arange(np.prod(shape, dtype=int), dtype=np.uint64)
    state = places + np.uint64(crc32(name.encode()) << 32)
    for _ in range(2):  # modulo 2^64; the upper half of the bits is the better one
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        state ^= state >> np.uint64(32)
    numbers: Array = (state >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
    return numbers.reshape(shape)


def images() -> Array:
    """Return images (2, 3, 64, 64), whose maps are even until they have one position."""
    return 2 * uniform("images", (2, 3, 64, 64)) + 0.3


def layer_images() -> Array:
    """Return maps (4, 6, 3, 5) for a single layer."""
    return 2 * uniform("maps", (4, 6, 3, 5)) + 0.3


def parameter(name: str, shape: Sequence[int]) -> Array:
    """Return a parameter or running statistic of our network by its name.

    Weights have variance 2 / fan-in, gains lie around 1, running variances around 4 (smaller ones
    saturate EvoNorm-B0 in evaluation, where rounding errors then grow), all else around 0.
    """
    kind = name.rpartition(".")[2]
    if len(shape) > 1:
        return uniform(name, shape) * (6 / np.prod(shape[1:])) ** 0.5
    if kind == "running_var":
        return 4 + uniform(name, shape)
    return np.asarray(0.3 * uniform(name, shape) + (kind in ("weight", "gain", "v")))


def summarize(gradients: Mapping[str, Array]) -> dict[str, Any]:
    """Return of each gradient its norm and its product with fixed numbers, as columns.

    The product changes with every entry, so two gradients with equal products are equal.
    """
    names = sorted(gradients)
    products = [np.vdot(uniform(f"{n} gradient", gradients[n].shape), gradients[n]) for n in names]
    norms = [np.linalg.norm(gradients[name]) for name in names]
    return {"names": np.array(names), "products": np.array(products), "norms": np.array(norms)}


def write(case: str, source: str, **arrays: Any) -> None:
    """Write arrays of a case, with the repository, commit and versions that made them."""
    np.savez_compressed(FOLDER / f"{case}.npz", source=np.array(source), **arrays)
    size = (FOLDER / f"{case}.npz").stat().st_size
    print(f"{case}.npz: {size:,} bytes, {source}")
