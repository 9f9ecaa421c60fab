"""How fast the images of a training pass, as far as it can be known before the training."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from normbench.config.cells import Cell
from normbench.results import Row

#: Training images a second of ResNet-50 with batch normalization at 224x224 pixels: 5.24 steps of
#: 64 images on one V100 of 16 GB (Brock et al. 2021, NF-ResNets, table 4; of 16 images 16.42).
V100 = 5.24 * 64
RESNET50 = 4.09e9  # multiply-adds of that network for an image, forward
#: Convolutions in groups of w channels take as long as WIDTH / w times their multiply-adds without
#: groups: each number that is read is multiplied so few times. With it EfficientNet-B0, of 0.35e9
#: multiply-adds and 0.0345e9 in groups of 1, takes its 2.61 steps of 64 images (ibid., table 5).
#: The other EfficientNets and the NF-RegNets, in groups of 8, come within a factor of 1.4 of that
#: table at the largest batch that it has of them. ResNeXts, in groups of 4 to 32, are not in it and
#: follow the same rule rather than multiply-adds alone: ResNeXt-50 is 2.4 times slower than
#: ResNet-50 by the one and as fast by the other; on another device it was 1.5 times slower
#: (github.com/knjcode/mxnet-finetuner, docs/benchmark.md), and too high a cost does less harm.
WIDTH = 228
SCALED = "scaled"  # a source of rates: nobody has measured them


@dataclass(frozen=True)
class Rate:
    """Training images a second.

    Args:
        images: so many.
        hours: on what, in the words of "3.5 hours of ...".
        source: how it is known.
    """

    images: float
    hours: str
    source: str


class Rates:
    """Rates as rows say, and else scaled by multiply-adds from that of ResNet-50.

    Args:
        rows: of finished runs.
        given: images a second of ResNet-50 on a device of the user's; None: those of a V100.
    """

    def __init__(self, rows: Iterable[Row], given: float | None = None) -> None:
        self.rows: dict[str, list[Row]] = defaultdict(list)
        self.resnet50, self.hours = V100, "GPU hours of one V100"
        if given is not None:
            self.resnet50, self.hours = given, f"hours of one device of rate={given:g}"
        for row in rows:
            if row.images_per_second and row.shared_with is None and row.stacked_seeds == 1:
                self.rows[_alike(row.config)].append(row)

    def of(self, cell: Cell, dense: float) -> Rate:
        """In the training of `cell`, whose network takes as long as `dense` says for an image."""
        alike = self.rows.get(_alike(cell.identity), [])
        own = [row for row in alike if row.norm == cell.norm.name]
        for rows, source in ((own, "measured"), (alike, "measured, other normalizers")):
            divided = (cell.batch, cell.workers)  # a network may take four times as long at batch=4
            if found := [row for row in rows if (row.batch, row.workers) == divided] or rows:
                return _median(found, source)
        return Rate(self.resnet50 * RESNET50 / dense, self.hours, SCALED)


def as_dense(macs: int, grouped: Mapping[int, int]) -> float:
    """Multiply-adds without groups that take as long.

    Args:
        macs: of a network.
        grouped: those of them in convolutions with groups, by the channels of a group.
    """
    return macs + sum(part * max(0.0, WIDTH / width - 1) for width, part in grouped.items())


def _median(rows: list[Row], source: str) -> Rate:
    """Of the device that most of them have."""
    ((device, _),) = Counter(row.devices for row in rows).most_common(1)
    speeds = [row.images_per_second or 0.0 for row in rows if row.devices == device]
    return Rate(median(speeds), f"hours of {device}, as measured", source)


def _alike(config: dict[str, Any]) -> str:
    """The same for runs that differ in speed by normalizer and batch alone, or nearly so."""
    data, recipe = config.get("data", {}), config.get("recipe", {})
    seen = [data.get("name"), data.get("size"), recipe.get("crop"), config.get("precision")]
    return json.dumps([config.get("model"), *seen], sort_keys=True)
