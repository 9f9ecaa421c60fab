"""`normbench.data.random_crop.crop_and_resize` for FFCV's threads: the same bytes, by numba.

Pillow's bilinear resize weighs the pixels of a window by integers with 22 fractional bits, the rows
first, and rounds to bytes after each direction (its Resample.c). This does the same.
Shape letters: H W positions of an image, S side of the result.
"""

import numpy as np
from numpy.typing import NDArray

from normbench.data.ffcv_patches import numba

Bytes = NDArray[np.uint8]
Weights = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]

FRACTION_BITS = 22  # of a weight


@numba.njit(cache=True, nogil=True)
def weights(length: int, side: int) -> Weights:
    """Return for each of `side` results: the first of `length` values, their number and weights."""
    scale = length / side
    reach = max(scale, 1.0)  # of the triangle filter; enlarging, it does not shrink
    first, count = np.zeros(side, np.int64), np.zeros(side, np.int64)
    fixed = np.zeros((side, 2 * int(np.ceil(reach)) + 1), np.int32)
    real = np.zeros(fixed.shape[1])
    for place in range(side):
        center = (place + 0.5) * scale
        low = max(int(center - reach + 0.5), 0)
        high = min(int(center + reach + 0.5), length)
        total = 0.0
        for at in range(low, high):
            real[at - low] = max(0.0, 1.0 - abs((at - center + 0.5) * (1.0 / reach)))
            total += real[at - low]
        for at in range(high - low):
            fixed[place, at] = int(0.5 + real[at] * (1.0 / total) * (1 << FRACTION_BITS))
        first[place], count[place] = low, high - low
    return first, count, fixed


@numba.njit(cache=True, nogil=True)
def crop_and_resize_into(
    image: Bytes, top: int, left: int, height: int, width: int, out: Bytes
) -> None:
    """Resize the box of `image` (H, W, 3) into `out` (3, S, S), all of them bytes."""
    side = out.shape[2]
    rows = np.empty((height, side * 3), np.uint8)
    first, count, fixed = weights(width, side)
    for y in range(height):
        for x in range(side):
            red = green = blue = 1 << (FRACTION_BITS - 1)  # one half, so that the shift rounds
            for i in range(count[x]):
                weight, at = fixed[x, i], left + first[x] + i
                red += image[top + y, at, 0] * weight
                green += image[top + y, at, 1] * weight
                blue += image[top + y, at, 2] * weight
            rows[y, 3 * x] = min(red >> FRACTION_BITS, 255)
            rows[y, 3 * x + 1] = min(green >> FRACTION_BITS, 255)
            rows[y, 3 * x + 2] = min(blue >> FRACTION_BITS, 255)
    first, count, fixed = weights(height, side)
    sums = np.empty(side * 3, np.int32)
    for y in range(side):
        sums[:] = 1 << (FRACTION_BITS - 1)  # one half, as above
        for i in range(count[y]):
            weight, row = fixed[y, i], rows[first[y] + i]
            for x in range(side * 3):
                sums[x] += row[x] * weight
        for x in range(side):
            for channel in range(3):
                out[channel, y, x] = min(sums[3 * x + channel] >> FRACTION_BITS, 255)
