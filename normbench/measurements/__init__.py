"""Measurements inside a network, by which the papers explain their results.

    signal_propagation  signal propagation plots, spp (Brock, De and Smith 2021, section 3)
    power               power decomposition and linearity (Labatie et al. 2021, eq. 5, 8 and 9)
    ratios              ratios of switchable normalization (Luo et al. 2019, section 4)
    gradient_noise      bias and variance of the gradient with statistics of fewer images

They know torch, normalizers and networks, no training; they do not change the network and draw no
random number. `training_probes` runs them during a training, `python -m normbench.probe` on
finished networks. To add one, write a module here with the functions of `Measurement`, a yaml in
conf/probe/, and its caption and drawing in `normbench.report.figure_kinds` and `probe_drawings`.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from torch import Tensor, nn


class Measurement(Protocol):
    """A module of this package that measures a network in one forward pass."""

    #: Names of the means in a training curve.
    CURVE: tuple[str, ...]
    #: Column titles of `table`.
    HEAD: tuple[str, ...]

    def measure(
        self, network: nn.Module, images: Tensor, statistics: Any = "batch", /
    ) -> list[dict[str, Any]]:
        """Return records, for example one per layer: values by column name."""

    def curve_means(self, records: Sequence[dict[str, Any]], /) -> dict[str, float]:
        """Return the means of the records of one measurement."""

    def table(self, records: Sequence[dict[str, Any]], /) -> list[list[object]]:
        """Return the rows of the printed summary of records of several networks and epochs."""


def measurement(kind: str) -> Measurement:
    """Return the module of a kind of probe."""
    module = "signal_propagation" if kind == "spp" else kind
    return cast(Measurement, import_module(f"{__name__}.{module}"))
