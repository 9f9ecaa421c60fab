"""Results of judging claims: verdicts with their settings, how they are counted and explained."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from normbench.report.claims import Claim
from normbench.report.image_intervals import OVER_IMAGES, OVER_SEEDS
from normbench.report.statistics import CONFIDENCE, Effect, signed
from normbench.report.table import Table
from normbench.report.table_spec import TableSpec

Outcome = Literal["confirmed", "refuted", "undecided", "untested"]

METHOD = (
    "A claim compares entries of a table: the confidence interval of its effect is compared with a "
    f'bound. The interval is {OVER_SEEDS}. A second one, after the word "images", is '
    f"{OVER_IMAGES}; differences of test accuracies have it if all runs have kept which test "
    "images they classified correctly. Intervals are of 95 % with the number of seeds that the "
    "file of the sweep or else the command names (3 if neither does), and of 99.9 % with others, "
    "so that adding seeds until a claim is decided makes hardly more errors than one look. "
    "Variances may differ, and seeds of two entries are not paired."
)
#: Head and lines of the table that says how each kind of claim is judged.
METHOD_TABLE: Sequence[tuple[str, str, str, str]] = (
    ("kind of claim", "effect", "interval", "correction"),
    ("A is above B, not below B, or as good as B", "difference of the means", "Welch's", "none"),
    ("A gains more than B", "difference of two differences", "Welch's", "none"),
    (
        "one of these in every column, or a trend over images per worker",
        "of the comparison that supports the claim least by its interval; of a trend, between "
        "neighbours",
        "Welch's",
        "confirmed: none, because each must hold alone (intersection-union test, Berger 1982); "
        "refuted: Bonferroni's for the number of comparisons, because noise may move any",
    ),
    (
        "a row is flat",
        "spread: largest minus smallest mean",
        "upper end: the largest of all pairs' Welch intervals; "
        "lower end: Games and Howell's for all pairs",
        "in the intervals",
    ),
    ("results vary little", "standard deviation over seeds", "chi-square", "none"),
    (
        "about the best of several entries",
        "difference of the best mean",
        "the end at which the best is less good is its own; the other end is the farthest of all "
        "entries, because the best is not better than a bound only if none is",
        "less good: Bonferroni's for the number of entries; better: none (intersection-union test)",
    ),
    (
        "about a row or column that is itself a difference",
        "mean of the differences by seed",
        "Student's, paired by seed",
        "none",
    ),
)
#: Meaning of each word of the matrix of claims.
MEANINGS: Sequence[tuple[str, str]] = (
    ("confirmed, refuted", "the whole interval lies on one side of the bound"),
    (
        "undecided",
        "the interval contains the bound, or there is none: one seed, or equal numbers for all; "
        "the effect that is said beside it is the smallest that so many seeds with the same "
        "standard deviations show",
    ),
    (
        "untested",
        "an entry has no runs, or the entries share a computation and are equal in any case",
    ),
    (
        "as published",
        "sign of the paper's own numbers, without an interval; "
        "? marks numbers that we could not verify in the text of the paper",
    ),
)


@dataclass(frozen=True)
class Verdict:
    """Verdict of rows on a claim, with the estimate that was compared with the bound.

    `reason` tells why the claim is untested or undecided, where the interval does not show it.
    `over_images` is the effect with its interval over seeds and images, where runs have kept hits.
    """

    outcome: Outcome
    effect: Effect | None = None
    reason: str = ""
    over_images: Effect | None = None


@dataclass(frozen=True)
class PublishedEffect:
    """Effect of a claim in the paper's own numbers; the weakest, if it is about several.

    `unverified`: one of the numbers could not be verified in the text of the paper.
    """

    holds: bool
    effect: float
    unverified: bool


@dataclass(frozen=True)
class ClaimResult:
    """A claim judged in one setting of one of its tables, by our rows and the paper's numbers."""

    claim: Claim
    spec: TableSpec
    table: Table | None  # None without rows
    verdict: Verdict
    published: PublishedEffect | None  # None if the paper prints no number
    #: Of an undecided claim: the smallest distance of an effect from the bound that as many seeds
    #: with these standard deviations show in 80 % of cases; None: unknown.
    smallest_shown: float | None = None

    @property
    def decimals(self) -> int:
        return (self.claim.metric or self.spec).decimals

    @property
    def setting(self) -> str:
        """The setting of the rows as typed, and whether it is the paper's."""
        if self.table is None:
            return "no runs"
        setting = self.table.setting_text
        return setting if self.table.setting_differences else f"the paper's: {setting}"

    @property
    def effect(self) -> str:
        """The effect and its intervals as text: "+1.2 [+0.8, +1.6], images [+0.3, +2.1]"."""
        return " ".join(filter(None, (self.value, self.intervals)))

    @property
    def value(self) -> str:
        """The effect as text, "" without one."""
        effect = self.verdict.effect
        return "" if effect is None else signed(effect.value, self.decimals)

    @property
    def intervals(self) -> str:
        """The intervals of the effect as text, "" without one."""
        effect, over_images = self.verdict.effect, self.verdict.over_images
        if effect is None:
            return ""
        wider = f", images {over_images.interval(self.decimals)}" if over_images else ""
        return effect.interval(self.decimals) + wider

    @property
    def sensitivity(self) -> str:
        """The effect that an undecided claim's seeds would show, as text; "" if it is unknown."""
        if self.smallest_shown is None:
            return ""
        smallest = f"{self.smallest_shown:.{self.decimals}f}"
        beyond = " beyond the bound" if self.claim.bound else ""
        return f"{self.seeds} seeds would show an effect of {smallest}{beyond} in 80 % of cases"

    @property
    def reason(self) -> str:
        """The reason of an untested or undecided verdict, with its sensitivity, as text."""
        return "; ".join(filter(None, (self.verdict.reason, self.sensitivity)))

    @property
    def seeds(self) -> str:
        return "" if self.verdict.effect is None else str(self.verdict.effect.seeds)

    @property
    def evidence(self) -> str:
        """Support of the claim by the paper's own numbers, as text."""
        if self.published is None:
            return "no number"
        word = "holds" if self.published.holds else "does not hold"
        mark = " ?" if self.published.unverified else ""
        return f"{word} ({signed(self.published.effect, self.decimals)}{mark})"


def count_verdicts(results: Sequence[ClaimResult]) -> str:
    """Return the number of verdicts of each outcome as text."""
    outcomes = [result.verdict.outcome for result in results]
    return ", ".join(f"{outcomes.count(word)} {word}" for word in get_args(Outcome))


def expect_by_chance(results: Sequence[ClaimResult]) -> str:
    """Return the number of trials and of the errors to expect among them, as a sentence."""
    effects = [result.verdict.effect for result in results if result.verdict.effect]
    trials = sum(effect.low != effect.high for effect in effects)
    if not trials:
        return "No verdict is a trial: no runs give an interval."
    expected = f"{trials * (1 - CONFIDENCE) / 2:.1f}"
    return (
        f"{trials} of {len(results)} verdicts are trials: their runs give an interval. Chance "
        "confirms a false claim in about 2.5 % of trials and refutes a true one as rarely (that a "
        f"row is flat, in up to 6 %), so expect up to {expected} false confirmations and "
        f"{expected} false refutations."
    )


def group_claims(
    results: Sequence[ClaimResult],
) -> dict[str, dict[Claim, list[ClaimResult]]]:
    """Group results by paper and claim."""
    papers: dict[str, dict[Claim, list[ClaimResult]]] = {}
    for result in results:
        papers.setdefault(result.claim.paper, {}).setdefault(result.claim, []).append(result)
    return papers
