"""What benchmarks have in common: own words, turns, medians, and the file of the numbers."""

import csv
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from tabulate import tabulate

from normbench.execution.provenance import commit, now, versions

Once = Callable[[], float]  # seconds, or images per second


@dataclass(frozen=True)
class Measured:
    """Median and quartiles of what was measured."""

    lower: float
    median: float
    upper: float

    def over(self, base: float) -> dict[str, float]:
        """The same as ratios to the median of something else."""
        return {
            "ratio": self.median / base, "lower": self.lower / base, "upper": self.upper / base,
        }  # fmt: skip


def taken(arguments: Sequence[str], usual: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Words of a benchmark's own with what they say, and all others."""
    own = [word for word in arguments if "=" in word and word.partition("=")[0] in usual]
    given = dict(word.split("=", 1) for word in own)
    return {**usual, **given}, [word for word in arguments if word not in own]


def in_turn(
    entries: Mapping[str, Once], rounds: int, *, warm_up: bool = True
) -> dict[str, Measured]:
    """What each measures, round by round, so that a noisy moment meets all of them.

    A first round counts for nothing, if they `warm_up`: code is compiled in it, memory taken.
    """
    if warm_up:
        for once in entries.values():
            once()
    values: dict[str, list[float]] = {name: [] for name in entries}
    for _ in range(rounds):
        for name, once in entries.items():
            values[name].append(once())
    return {name: quartiles(own) for name, own in values.items()}


def quartiles(values: Sequence[float]) -> Measured:
    """Of numbers, at least one."""
    if len(values) == 1:
        return Measured(*values, *values, *values)
    return Measured(*quantiles(values, n=4, method="inclusive"))


def leave(out: str, lines: Sequence[Mapping[str, object]]) -> None:
    """Print the lines, and write them to the file `out`, if any, with machine and versions."""
    print(tabulate([[_shown(v) for v in line.values()] for line in lines], [*lines[0]]))
    if not out:
        return
    path = Path(out)
    found = versions()
    where = {
        "machine": _machine(), "torch": found["torch"], "timm": found["timm"],
        "commit": commit(), "measured": now(),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*lines[0], *where], lineterminator="\n")
        writer.writeheader()
        for line in lines:
            writer.writerow({key: _shown(value) for key, value in {**line, **where}.items()})
    print(path)


def _shown(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def _machine() -> str:
    """The processor, as Linux calls it, or else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()
