"""Every claim on trial: before the rows of each setting of its tables, and as published."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from normbench.report.claims import Claim
from normbench.report.metrics import Metric
from normbench.report.table import Table, signed
from normbench.report.table_spec import Spec
from normbench.report.verdict import Published, Verdict, as_published, judge


@dataclass(frozen=True)
class Trial:
    """A claim before one table: the verdict of the rows of one setting, and the paper's numbers.

    Args:
        claim: that is judged.
        spec: of the table.
        table: with the rows; None where there are none.
        verdict: of the rows.
        published: whether the paper's own numbers say so, and their effect; None without numbers.
    """

    claim: Claim
    spec: Spec
    table: Table | None
    verdict: Verdict
    published: Published | None

    @property
    def metric(self) -> Metric:
        return self.claim.metric or self.spec.metric

    @property
    def decimals(self) -> int:
        own = self.spec.decimals if self.claim.metric is None else self.metric.decimals
        return own + (self.claim.kind in ("rises", "falls"))

    @property
    def setting(self) -> str:
        """Of the rows, as one would type it; and whether it is the paper's."""
        if self.table is None:
            return "no runs"
        setting = self.table.described
        return setting if self.table.deviations else f"the paper's: {setting}"

    @property
    def effect(self) -> str:
        """What was compared with the bound: estimate and interval."""
        found = self.verdict.effect
        if found is None:
            return ""
        text = signed(found.value, self.decimals)
        if found.low is None or found.high is None:
            return text
        return f"{text} [{signed(found.low, self.decimals)}, {signed(found.high, self.decimals)}]"

    @property
    def seeds(self) -> str:
        return "" if self.verdict.effect is None else str(self.verdict.effect.seeds)

    @property
    def evidence(self) -> str:
        """What the paper's numbers say."""
        if self.published is None:
            return "no number"
        word = "holds" if self.published.holds else "does not hold"
        mark = " ?" if self.published.unverified else ""
        return f"{word} ({signed(self.published.effect, self.decimals)}{mark})"


def trials(
    claims: Sequence[Claim], specs: Mapping[str, Spec], tables: Sequence[Table]
) -> list[Trial]:
    """All claims before all tables that they are about."""
    found = []
    for claim in claims:
        for name in claim.tables:
            spec = specs[name]
            published = as_published(claim, spec)
            with_runs = [table for table in tables if table.spec.name == name and table.runs]
            for table in with_runs:
                found.append(Trial(claim, spec, table, judge(claim, table), published))
            if not with_runs:
                nothing = Verdict("untested", reason="no runs of this table")
                found.append(Trial(claim, spec, None, nothing, published))
    return found


def shown(claims: Sequence[Claim], tables: Sequence[Table]) -> list[Table]:
    """Tables of which enough was trained or by which a claim can be judged; those without runs."""
    return [
        table
        for table in tables
        if not table.runs or not table.sparse or any(_decides(table, claim) for claim in claims)
    ]


def _decides(table: Table, claim: Claim) -> bool:
    return table.spec.name in claim.tables and judge(claim, table).word != "untested"


def counted(found: Sequence[Trial]) -> str:
    """How many verdicts of each kind."""
    words = [trial.verdict.word for trial in found]
    counts = {word: words.count(word) for word in ("confirmed", "refuted", "undecided", "untested")}
    return ", ".join(f"{count} {word}" for word, count in counts.items())


_HEADER = ("claim", "place", "as published", "setting", "verdict", "effect [95 %]", "n")
_UNTRIED = ("claim", "place", "as published")


def markdown(found: Sequence[Trial]) -> str:
    """The claims of each paper as a table."""
    parts = ["# The papers' claims on trial\n", f"{counted(found)}.\n", f"{RULES}\n"]
    for paper in dict.fromkeys(trial.claim.paper for trial in found):
        own = [trial for trial in found if trial.claim.paper == paper]
        parts.append(f"\n## {paper}\n")
        if body := [_line(trial) for trial in own if trial.table]:
            parts.append(tabulate(body, _HEADER, tablefmt="pipe", disable_numparse=True))
        untried = [trial for trial in own if not trial.table]
        if body := [_untried(claim, each) for claim, each in by_claim(untried)]:
            parts.append("\nUntested, as these tables have no runs:\n")
            parts.append(tabulate(body, _UNTRIED, tablefmt="pipe", disable_numparse=True))
    return "\n".join(parts) + "\n"


def _untried(claim: Claim, found: Sequence[Trial]) -> list[str]:
    evidence = "; ".join(f"{trial.spec.name} {trial.evidence}" for trial in found)
    return [_said(claim), claim.place, evidence]


def numbers(found: Sequence[Trial]) -> str:
    """The same as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["claim", "paper", "place", "says", "table", "published", "published_effect",
         "published_unverified", "setting", "verdict", "effect", "low", "high", "n", "reason"]
    )  # fmt: skip
    for trial in found:
        effect = trial.verdict.effect
        theirs = trial.published
        published = (theirs.holds, theirs.effect, theirs.unverified) if theirs else ("",) * 3
        numbers = (effect.value, effect.low, effect.high, effect.seeds) if effect else ("",) * 4
        claim = trial.claim
        writer.writerow(
            [claim.name, claim.paper, claim.place, claim.says, trial.spec.name, *published,
             trial.setting, trial.verdict.word, *numbers, trial.verdict.reason]
        )  # fmt: skip
    return out.getvalue()


RULES = (
    "A claim is a comparison of cells of a table. The effect is what it compares with its bound: "
    "a difference, a difference of differences, a slope per doubling of the images per worker, or "
    "the spread of a row, a standard deviation. Its interval is Welch's of means over the seeds, "
    "of tables of medians too (of a spread Tukey's, of a deviation by chi-square; of a claim about "
    "several cells, or about the best of several, at a level that makes 95 % of all, and the "
    "weakest is shown). Seeds are not paired: networks of different normalizers that have a seed "
    "in common have little else (the notes below a table compare one normalizer with itself, by "
    "pairs). confirmed and refuted: the whole interval is on one side of the bound. undecided: it "
    "is not, or it has none, with one seed or with seeds that all have the same number. untested: "
    "no runs of a cell, or runs that share a computation and are alike by construction. As "
    "published: the sign of the paper's own numbers, without an interval; ? where one of them is "
    "not in the text of the paper that we have."
)


def _line(trial: Trial) -> list[str]:
    verdict: str = trial.verdict.word
    if trial.verdict.reason:
        verdict += f" ({trial.verdict.reason})"
    says, place = _said(trial.claim), f"{trial.claim.place} ({trial.spec.name})"
    return [says, place, trial.evidence, trial.setting, verdict, trial.effect, trial.seeds]


def _said(claim: Claim) -> str:
    return claim.says + (f" (bound {claim.bound:g})" if claim.bound else "")


def by_claim(found: Sequence[Trial]) -> Iterator[tuple[Claim, list[Trial]]]:
    """The trials of each claim together."""
    for claim in dict.fromkeys(trial.claim for trial in found):
        yield claim, [trial for trial in found if trial.claim is claim]
