"""A table of entries, all obtained in one setting; `normbench.report.pivot` makes it from rows.

The setting is every option that is not on an axis of the table: data set, model, recipe, protocol
... Results of different settings are never in one table.
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

LONGEST = 150  # characters of the setting in a file name; file systems allow 255 in all
MISSING = "–"
MINUS = "−"
WORDS = {"diverged": "div.", "oom": "OOM", "impossible": "n/a"}


@dataclass(frozen=True)
class Entry:
    """An entry of a table: runs of one configuration, one for each seed, and the paper's number.

    Args:
        runs: of one configuration.
        metric: of the numbers.
        statistic: mean or median.
        published: the paper's number.
        given: of a difference, its values by seed.
        older: number of runs left out because a default has changed since.
        sources: of a difference, the two entries.
        among: of a difference, how many entries the first was chosen from as the best.
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
        """Return the runs, or of a difference the runs of both entries."""
        return self.runs + tuple(run for entry in self.sources for run in entry.runs)

    @cached_property
    def values(self) -> Mapping[int, float]:
        """Return the metric by seed, without runs that have no number."""
        if self.given is not None:
            return self.given
        good = [row for row in self.runs if row.status == "ok" or not self.metric.learned]
        return {row.seed: value for row in good if (value := self.metric.of(row)) is not None}

    @cached_property
    def center(self) -> float | None:
        """Return mean or median of the values."""
        return summary(list(self.values.values()), self.statistic)[0] if self.values else None

    @property
    def shared(self) -> bool:
        """Return whether some runs reuse the result of the same computation elsewhere."""
        return any(row.shared_with is not None for row in self.source_runs)

    @property
    def failed(self) -> int:
        """Return the number of runs without a result."""
        return sum(self.failures.values())

    @property
    def failures(self) -> Mapping[str, int]:
        """Return how many runs diverged, ran out of memory or were impossible."""
        counts = {
            word: sum(row.status == status for row in self.source_runs)
            for status, word in WORDS.items()
        }
        if not self.metric.learned and self.values:
            counts[WORDS["diverged"]] = 0
        return {word: count for word, count in counts.items() if count}

    def text(self, decimals: int) -> str:
        """Return mean ± standard deviation (n), and how many runs failed."""
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
    """Head of a column, with its images per worker if it has any."""

    label: Label
    batch: int | None = None

    def __str__(self) -> str:
        return " ".join(self.label)


@dataclass(frozen=True)
class Table:
    """One table in one setting.

    Args:
        spec: its rows, columns and metric.
        setting: scientific options that are not on an axis.
        differs: options to show because only they distinguish this setting from another.
        columns: heads of the columns.
        lines: entries of each row, by the label of the row.
        scale: FULL, or SMALL if small networks replace the paper's.
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
        """Return the title and the setting."""
        return f"{self.spec.title}: {self.setting_text}"

    @property
    def setting_text(self) -> str:
        """Return the setting as typed on the command line."""
        said = " ".join(words(self.setting, self.differs)) or "no runs"
        return said if self.scale == FULL else f"small networks: {said}"

    @property
    def corner(self) -> str:
        """Return the text of the top left corner."""
        return " \\ ".join(word for word in self.axes if word)

    @property
    def slug(self) -> str:
        """Return the setting as a file name."""
        scale = ["small"] if self.scale != FULL else []
        said = "-".join([*scale, *words(self.setting, self.differs, short=True)])
        slug = re.sub(r"[^\w.=-]+", "_", said) or "published"
        if len(slug) <= LONGEST:
            return slug
        return f"{slug[:LONGEST]}-{hashlib.sha256(slug.encode()).hexdigest()[:8]}"

    @property
    def drawable(self) -> bool:
        """Return whether there are numbers over images per worker."""
        over_batch = len({column.batch for column in self.columns} - {None}) > 1
        return over_batch and any(entry.values for entry in self.entries)

    @property
    def sparse(self) -> bool:
        """Return whether few entries of a paper's table have runs, or all have the same run."""
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
        """Return the rows of all entries, each once."""
        return list({row.id: row for entry in self.entries for row in entry.runs}.values())

    @cached_property
    def deviations(self) -> list[str]:
        """Return how the setting differs from the paper's; if it does, numbers are not compared."""
        wanted = self.spec.setting or {}
        found = [] if self.scale == FULL else ["small networks"]
        for key, value in wanted.items():
            have, group = self.setting.get(key), key.partition(".")[0]
            another = group != key and group in wanted and self.setting.get(group) != wanted[group]
            # Options of another data set are not listed, only the data set.
            if not another and not fits({key: value}, {key: have}):
                found.append(f"{key}={have} ({value})")
        typed = self.setting.get("options", "").split()
        return found + [word for word in typed if option_key(word) not in wanted]

    def difference(self, entry: Entry) -> float | None:
        """Return our number minus the paper's, if the settings agree."""
        if self.deviations or entry.center is None or entry.published is None:
            return None
        theirs = entry.published.value
        return None if theirs is None else entry.center - theirs

    def text(self, entry: Entry) -> str:
        """Return an entry as text: our number, in brackets the paper's and the difference."""
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
        """Return (row, column) of the best entries of each column, to the printed digits."""
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
        """Return header and body as text."""
        header = [self.corner, *map(str, self.columns)]
        body = [
            [" ".join(label), *(self.text(entry) for entry in entries)]
            for label, entries in self.lines.items()
        ]
        return header, body


_SIGN = {"higher": 1, "lower": -1, "": 0}


def format_difference(number: float, decimals: int) -> str:
    """Return a number with its sign, and the minus character of typography."""
    return f"{number:+.{decimals}f}".replace("-", MINUS)


def words(
    setting: Mapping[str, Any], differs: Sequence[str] = (), *, short: bool = False
) -> list[str]:
    """Return a setting as words key=value; with `short`, values alone for the usual keys."""
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
