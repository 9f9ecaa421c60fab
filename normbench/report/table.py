"""A table of entries, all obtained in one setting; `normbench.report.pivot` makes it from rows.

The setting is every option that is not on an axis of the table: data set, model, recipe, protocol
... Results of different settings are never in one table.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from normbench.report.metrics import Metric
from normbench.report.statistics import signed, summary
from normbench.report.table_spec import FULL, Header, Label, PublishedNumber, TableSpec, fits
from normbench.results import Row

LONGEST = 150  # bytes of the setting in a file name; file systems allow 255 in all
MISSING = "–"
DAGGER = "†"  # marks a row whose columns are one computation
DOUBLE_DAGGER = "‡"  # marks an entry with reused runs
WORDS = {"diverged": "div.", "oom": "OOM", "impossible": "n/a"}


@dataclass(frozen=True)
class Entry:
    """An entry of a table: runs of one configuration, one for each seed, and the paper's number.

    An entry may instead be the difference of two others, its `sources`. It has no runs of its own,
    but `differences` by seed. If the first is the best of several entries, `rivals` are the
    differences of the others.
    """

    runs: tuple[Row, ...]
    metric: Metric
    statistic: str = "mean"
    published: PublishedNumber | None = None
    older: int = 0  # runs left out because a default has changed since
    tried: tuple[Row, ...] = ()  # of all values of a tuned option, `runs` among them
    differences: Mapping[int, float] | None = None
    sources: tuple["Entry", ...] = ()
    rivals: tuple["Entry", ...] = ()

    @property
    def known_rivals(self) -> Sequence["Entry"]:
        """The rivals that have values."""
        return [rival for rival in self.rivals if rival.values]

    @cached_property
    def source_runs(self) -> tuple[Row, ...]:
        """The runs, or of a difference the runs of both entries."""
        return self.runs + tuple(run for entry in self.sources for run in entry.runs)

    @cached_property
    def values(self) -> Mapping[int, float]:
        """The metric by seed, without runs that have no number."""
        if self.differences is not None:
            return self.differences
        values = {seed: self.metric.of(row) for seed, row in self.runs_with_number.items()}
        return {seed: value for seed, value in values.items() if value is not None}

    @cached_property
    def runs_with_number(self) -> Mapping[int, Row]:
        """The runs that have a number, by seed."""
        rows = [row for row in self.runs if row.status == "ok" or not self.metric.learned]
        return {row.seed: row for row in rows if self.metric.of(row) is not None}

    @cached_property
    def summary(self) -> tuple[float, float | None]:
        """Mean or median of the values, and their sample standard deviation."""
        return summary([*self.values.values()], self.statistic)

    @property
    def center(self) -> float | None:
        return self.summary[0] if self.values else None

    @property
    def shared(self) -> bool:
        """True if some runs reuse the result of the same computation elsewhere."""
        return any(row.shared_with is not None for row in self.source_runs)

    @property
    def failed(self) -> int:
        """Number of runs without a result."""
        return sum(self.failures.values())

    @property
    def failures(self) -> Mapping[str, int]:
        """Number of runs that diverged, ran out of memory or were impossible, by the word."""
        statuses = [row.status for row in self.source_runs]
        if not self.metric.learned and self.values:
            # A run that diverged still has a size and a speed.
            statuses = [status for status in statuses if status != "diverged"]
        return {word: statuses.count(key) for key, word in WORDS.items() if key in statuses}

    def text(self, decimals: int) -> str:
        """Return mean ± standard deviation (n), and how many runs failed."""
        if not self.values:
            return ", ".join(self.failures) or MISSING
        center, std = self.summary
        deviation = "" if std is None else f" ± {std:.{decimals}f}"
        sign = "" if self.differences is None else "+"
        number = f"{center:{sign}.{decimals}f}{deviation} ({len(self.values)})"
        return ", ".join([number, *(f"{count} {word}" for word, count in self.failures.items())])


@dataclass(frozen=True)
class Table:
    """One table in one setting."""

    spec: TableSpec
    setting: Mapping[str, Any]  # scientific options that are not on an axis
    differs: Sequence[str]  # options to show: only they distinguish this setting from another
    lines: Mapping[Label, Sequence[Entry]]  # entries by the label of their row
    scale: int = FULL  # or SMALL, if small networks replace the paper's
    root: Path | None = None  # of the runs, or a study, with their test hits; None: not known

    @property
    def columns(self) -> Sequence[Header]:
        return self.spec.columns

    @property
    def heading(self) -> str:
        """Title and setting."""
        return f"{self.spec.title}: {self.setting_text}"

    @property
    def setting_text(self) -> str:
        """The setting as typed on the command line."""
        text = " ".join(words(self.setting, self.differs)) or "no runs"
        return text if self.scale == FULL else f"small networks: {text}"

    @property
    def corner(self) -> str:
        """Text of the top left corner."""
        return " \\ ".join(self.spec.axes or ())

    @property
    def slug(self) -> str:
        """The setting as a file name."""
        scale = ["small"] if self.scale != FULL else []
        text = "-".join([*scale, *words(self.setting, self.differs, short=True)])
        slug = re.sub(r"^\.|[^\w.=-]+", "_", text) or "published"
        # Long settings that begin alike get files of their own by the digest.
        if len(encoded := slug.encode()) <= LONGEST:
            return slug
        beginning = encoded[:LONGEST].decode(errors="ignore")
        return f"{beginning}-{hashlib.sha256(encoded).hexdigest()[:8]}"

    @property
    def over_batch(self) -> bool:
        """True if columns differ in the images per worker, and not besides."""
        batches = [column.batch for column in self.columns if column.batch is not None]
        return len(set(batches)) > 1 and len(set(batches)) == len(batches)

    @property
    def over(self) -> str:
        """The number in which the columns differ, as text for the x-axis; "": none is known."""
        return "images per worker" if self.over_batch else self.spec.over

    @property
    def plain_lines(self) -> Mapping[Label, Sequence[Entry]]:
        """The rows that are no differences of others, which the figure of effects draws."""
        differences = {row.label for row in self.spec.rows if row.minus}
        return {label: line for label, line in self.lines.items() if label not in differences}

    def position(self, column: Header) -> float | None:
        """Return the number of a column on the x-axis, None if it has none."""
        return column.batch if self.over_batch else column.number

    @property
    def drawable(self) -> bool:
        """True if columns differ in a number, and some entry of theirs has runs."""
        return bool(self.over) and any(
            entry.values and self.position(column) is not None
            for entries in self.lines.values()
            for column, entry in zip(self.columns, entries, strict=True)
        )

    @property
    def sparse(self) -> bool:
        """True if few entries of a paper's table have runs, or all have the same run."""
        if self.spec.axes:
            return False
        rows, columns = (
            sum(header.ours for header in axis) for axis in (self.spec.rows, self.spec.columns)
        )
        filled = [{run.id for run in entry.runs} for entry in self.entries if entry.runs]
        # The same run in every entry compares nothing.
        same = all(ids == filled[0] for ids in filled)
        return same or 4 * len(filled) < rows * columns

    @property
    def entries(self) -> Iterable[Entry]:
        return (entry for entries in self.lines.values() for entry in entries)

    @cached_property
    def runs(self) -> list[Row]:
        """The rows of all entries, each once."""
        return list({row.id: row for entry in self.entries for row in entry.runs}.values())

    @cached_property
    def setting_differences(self) -> list[str]:
        """Differences of the setting from the paper's; with any, numbers are not compared."""
        wanted = self.spec.setting
        texts = [] if self.scale == FULL else ["small networks"]
        for key, value in wanted.items():
            group, ours = key.partition(".")[0], self.setting.get(key)
            # Options of another data set are not listed, only the data set.
            another = group != key and group in wanted and self.setting.get(group) != wanted[group]
            if not another and not fits({key: value}, {key: ours}):
                texts.append(f"{key}={ours} ({value})")
        typed = self.setting.get("options", "").split()
        return texts + [word for word in typed if option_key(word) not in wanted]

    @cached_property
    def single_computations(self) -> list[Label]:
        """The rows whose columns are one computation by construction."""
        if self.setting.get("protocol") != "fixed_global_batch" or not self.over_batch:
            return []
        return [
            label
            for label, entries in self.lines.items()
            if sum(bool(entry.values) for entry in entries) > 1
            and (
                all(row.batch_independent for entry in entries for row in entry.source_runs)
                or _identical(entries)
            )
        ]

    def row_mark(self, label: Label) -> str:
        """Return the mark behind the label of a row of one computation."""
        return f" {DAGGER}" if label in self.single_computations else ""

    def mark(self, label: Label, entry: Entry) -> str:
        """Return the mark behind an entry of this row with reused runs."""
        return f" {DOUBLE_DAGGER}" if entry.shared and not self.row_mark(label) else ""

    def difference(self, entry: Entry) -> float | None:
        """Return our number minus the paper's, if the settings agree."""
        theirs = entry.published.value if entry.published else None
        if self.setting_differences or entry.center is None or theirs is None:
            return None
        return entry.center - theirs

    def text(self, entry: Entry) -> str:
        """Return an entry as text: our number, in brackets the paper's and the difference."""
        ours = entry.text(self.decimals(entry))
        if entry.published is None:
            return ours
        return f"{ours} [{', '.join(filter(None, (str(entry.published), self.delta(entry))))}]"

    def delta(self, entry: Entry) -> str:
        """Return the difference to the paper's number as text, "" if there is none."""
        difference = self.difference(entry)
        return "" if difference is None else signed(difference, self.decimals(entry))

    def decimals(self, entry: Entry) -> int:
        """Return the decimals that are printed of an entry."""
        # `decimals` in the file of a table are of its own metric.
        return (self.spec if entry.metric is self.spec.metric else entry.metric).decimals

    def is_difference(self, label: Label, index: int) -> bool:
        """Return True if an entry is the difference of two others."""
        (row,) = (header for header in self.spec.rows if header.label == label)
        return bool(row.minus or self.columns[index].minus)

    def header_levels(self) -> list[list[tuple[str, int]]]:
        """Return for each level of the column labels its words and how many columns each spans.

        Equal neighbours become one if all words above them are equal too, except in the last level.
        """
        labels = [column.label for column in self.columns]
        levels = []
        for end in range(1, len(labels[0])):
            groups = groupby(label[:end] for label in labels)
            levels.append([(words[-1], len(list(group))) for words, group in groups])
        return [*levels, [(label[-1], 1) for label in labels]]

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Return header and body as text."""
        header = [self.corner, *map(str, self.columns)]
        body = [
            [
                " ".join(label) + self.row_mark(label),
                *(self.text(entry) + self.mark(label, entry) for entry in entries),
            ]
            for label, entries in self.lines.items()
        ]
        return header, body


def _identical(entries: Sequence[Entry]) -> bool:
    """Return True if each seed has the same numbers in all columns, as synchronized BN has."""
    numbers: dict[int, list[tuple[float | None, ...]]] = {}
    for row in (row for entry in entries for row in entry.runs):
        numbers.setdefault(row.seed, []).append((row.train_loss, row.test_loss, row.result))
    repeated = [of_seed for of_seed in numbers.values() if len(of_seed) > 1]
    return bool(repeated) and all(len(set(of_seed)) == 1 for of_seed in repeated)


def words(
    setting: Mapping[str, Any], differs: Sequence[str] = (), *, short: bool = False
) -> list[str]:
    """Return a setting as words key=value; with `short`, values alone for the usual keys."""
    if not setting:
        return []
    held = "workers" if setting.get("protocol") == "fixed_workers" else "global_batch"
    usual = {"reg": "none", "precision": "32-true"}
    keys = ["task", "data", "model", "recipe", "reg", "precision", "protocol", held, "devices"]
    shown = {key: setting[key] for key in keys if key in setting}
    return [
        *(
            str(value) if short else f"{key}={value}"
            for key, value in shown.items()
            if value != usual.get(key)
        ),
        *setting["options"].split(),
        *(f"{key}={setting.get(key)}" for key in differs),
    ]


def option_key(word: str) -> str:
    """Return the key of a word as typed: `+norm.eps=1` has norm.eps."""
    return word.partition("=")[0].lstrip("+")
