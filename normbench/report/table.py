"""A table: rows and columns of cells, obtained in one setting (`normbench.report.pivot` makes it).

A setting is all that is neither a row nor a column of the table: data set, model, recipe, protocol,
every option that differs from its yaml. Rows of different settings never share a cell.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from normbench.report.metrics import Metric
from normbench.report.statistics import summary
from normbench.report.table_spec import FULL, Label, PublishedNumber, TableSpec, fits
from normbench.results import Row

LONGEST = 150  # characters of a file's name that say the setting; file systems take 255 in all
MISSING = "–"
MINUS = "−"
WORDS = {"diverged": "div.", "oom": "OOM", "impossible": "n/a"}


@dataclass(frozen=True)
class Entry:
    """The runs of one cell, a seed each, and what the paper has there.

    Args:
        runs: of one configuration.
        metric: what their numbers are.
        statistic: mean or median.
        published: the paper's number.
        given: numbers by seed that are not of single runs: differences of other cells.
        older: runs that stood here before an option's usual value was changed; not counted.
        sources: the cells of a difference.
        among: of how many cells the best was taken for it.
    """

    runs: tuple[Row, ...]
    metric: Metric
    statistic: str = "mean"
    published: PublishedNumber | None = None
    given: Mapping[int, float] | None = None
    older: int = 0
    sources: tuple["Entry", ...] = ()
    among: int = 1

    @cached_property
    def source_runs(self) -> tuple[Row, ...]:
        """Its runs; of a difference those of the cells that it is of."""
        return self.runs + tuple(run for entry in self.sources for run in entry.runs)

    @cached_property
    def values(self) -> Mapping[int, float]:
        """The metric of the runs that have it, by seed."""
        if self.given is not None:
            return self.given
        good = [row for row in self.runs if row.status == "ok" or not self.metric.learned]
        return {row.seed: value for row in good if (value := self.metric.of(row)) is not None}

    @cached_property
    def center(self) -> float | None:
        """Mean or median of the values."""
        return summary(list(self.values.values()), self.statistic)[0] if self.values else None

    @property
    def shared(self) -> bool:
        """Not all of its runs were trained: some have the row of the same computation elsewhere."""
        return any(row.shared_with is not None for row in self.source_runs)

    @property
    def failed(self) -> int:
        """Runs that ended without a number."""
        return sum(self.failures.values())

    @property
    def failures(self) -> Mapping[str, int]:
        """What became of runs without a number, and of how many."""
        counts = {
            word: sum(row.status == status for row in self.source_runs)
            for status, word in WORDS.items()
        }
        if not self.metric.learned and self.values:
            counts[WORDS["diverged"]] = 0
        return {word: count for word, count in counts.items() if count}

    def text(self, decimals: int) -> str:
        """Mean ± deviation (n), and what became of the other runs."""
        parts = []
        if self.values:
            center, std = summary(list(self.values.values()), self.statistic)
            deviation = "" if std is None else f" ± {std:.{decimals}f}"
            sign = "+" if self.given is not None else ""
            parts.append(f"{center:{sign}.{decimals}f}{deviation} ({len(self.values)})")
        parts += [
            f"{count} {word}" if self.values else word for word, count in self.failures.items()
        ]
        return ", ".join(parts) or MISSING


@dataclass(frozen=True)
class Column:
    """The head of a column; images per worker, if it is about them."""

    label: Label
    batch: int | None = None

    def __str__(self) -> str:
        return " ".join(self.label)


@dataclass(frozen=True)
class Table:
    """One table: lines of cells, all obtained in one setting.

    Args:
        spec: what stands where.
        setting: every scientific option that is on no axis, and its value.
        differs: options to name beside the usual ones, because another table differs in them alone.
        columns: heads of the columns.
        lines: cells of each row, by its label.
        scale: whether the networks are the paper's or small ones in their place.
    """

    spec: TableSpec
    setting: Mapping[str, Any]
    differs: Sequence[str]
    columns: Sequence[Column]
    lines: Mapping[Label, Sequence[Entry]]
    scale: int = FULL
    axes: Label = field(default=("", ""))

    @property
    def heading(self) -> str:
        """The title, and the setting as one would type it."""
        return f"{self.spec.title}: {self.setting_text}"

    @property
    def setting_text(self) -> str:
        """The setting as one would type it, and whether other networks are in the paper's place."""
        said = " ".join(words(self.setting, self.differs)) or "no runs"
        return said if self.scale == FULL else f"small networks: {said}"

    @property
    def corner(self) -> str:
        """What stands above the rows and before the columns."""
        return " \\ ".join(word for word in self.axes if word)

    @property
    def slug(self) -> str:
        """The setting as the name of a file."""
        scale = ["small"] if self.scale != FULL else []
        said = "-".join([*scale, *words(self.setting, self.differs, short=True)])
        slug = re.sub(r"[^\w.=-]+", "_", said) or "published"
        if len(slug) <= LONGEST:
            return slug
        return f"{slug[:LONGEST]}-{hashlib.sha256(slug.encode()).hexdigest()[:8]}"

    @property
    def drawable(self) -> bool:
        """There is a number over images per worker."""
        over_batch = len({column.batch for column in self.columns} - {None}) > 1
        return over_batch and any(entry.values for entry in self.entries)

    @property
    def sparse(self) -> bool:
        """Of a paper's table hardly anything was trained: few of its cells, or all the same run."""
        if self.spec.fixed is None:
            return False
        rows, columns = ([p for p in axis if p.ours and not p.minus] for axis in self.spec.fixed)
        filled = [{run.id for run in entry.runs} for entry in self.entries if entry.runs]
        compared = any(each != filled[0] for each in filled)
        return not compared or 4 * len(filled) < len(rows) * len(columns)

    @property
    def entries(self) -> Iterable[Entry]:
        return (entry for entries in self.lines.values() for entry in entries)

    @cached_property
    def runs(self) -> list[Row]:
        """Of all cells, each once."""
        return list({row.id: row for entry in self.entries for row in entry.runs}.values())

    @cached_property
    def deviations(self) -> list[str]:
        """In what the setting is not the paper's; only without any are numbers to be compared."""
        wanted = self.spec.setting or {}
        found = [] if self.scale == FULL else ["small networks"]
        for key, value in wanted.items():
            have, group = self.setting.get(key), key.partition(".")[0]
            another = group != key and group in wanted and self.setting.get(group) != wanted[group]
            # Another data set has other options, which need not be said.
            if not another and not fits({key: value}, {key: have}):
                found.append(f"{key}={have} ({value})")
        typed = self.setting.get("options", "").split()
        return found + [word for word in typed if option_key(word) not in wanted]

    def difference(self, entry: Entry) -> float | None:
        """Ours minus the paper's, if the two are of one setting."""
        if self.deviations or entry.center is None or entry.published is None:
            return None
        theirs = entry.published.value
        return None if theirs is None else entry.center - theirs

    def text(self, entry: Entry) -> str:
        """A cell as it is printed: ours, and in brackets the paper's and the difference."""
        decimals = self.decimals(entry)
        if entry.published is None:
            return entry.text(decimals)
        theirs = str(entry.published)
        if (difference := self.difference(entry)) is not None:
            theirs += f", {format_difference(difference, decimals)}"
        return f"{entry.text(decimals)} [{theirs}]"

    def decimals(self, entry: Entry) -> int:
        own = entry.metric is not self.spec.metric
        return entry.metric.decimals if own else self.spec.decimals

    def best(self) -> set[tuple[Label, int]]:
        """The cells with the best number of their column, to the digits that are printed."""
        found = set()
        for index, _ in enumerate(self.columns):
            column = {label: entries[index] for label, entries in self.lines.items()}
            numbers = {
                label: round(entry.center, self.decimals(entry)) * _SIGN[entry.metric.better]
                for label, entry in column.items()
                if entry.center is not None and entry.given is None and entry.metric.better
            }
            if len(numbers) > 1:
                top = max(numbers.values())
                found |= {(label, index) for label, value in numbers.items() if value == top}
        return found

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Header and body as text."""
        header = [self.corner, *map(str, self.columns)]
        body = [
            [" ".join(label), *(self.text(entry) for entry in entries)]
            for label, entries in self.lines.items()
        ]
        return header, body


_SIGN = {"higher": 1, "lower": -1, "": 0}


def format_difference(number: float, decimals: int) -> str:
    """A difference, with its sign and a minus that is one."""
    return f"{number:+.{decimals}f}".replace("-", MINUS)


def words(
    setting: Mapping[str, Any], differs: Sequence[str] = (), *, short: bool = False
) -> list[str]:
    """A setting in words: "key=value", or for the usual keys the value alone where `short`."""
    if not setting:
        return []
    held = "workers" if setting.get("protocol") == "fixed_workers" else "global_batch"
    usual = {"reg": "none", "precision": "32-true"}
    keys = ["data", "model", "recipe", "reg", "precision", "protocol", held, "devices"]
    said = [key for key in keys if key in setting and setting[key] != usual.get(key)]
    words = [f"{setting[key]}" if short else f"{key}={setting[key]}" for key in said]
    return [*words, *setting["options"].split(), *(f"{k}={setting.get(k)}" for k in differs)]


def option_key(word: str) -> str:
    return word.partition("=")[0].lstrip("+")
