"""Error rates and power of the report's verdicts, simulated where the truth is known.

    PYTHONPATH=tests python -m support.verdict_rates         # all rates, into docs/statistics.md
    PYTHONPATH=THIS/tests python -m support.verdict_rates FILE.csv   # in another version's checkout

Every rate has a seed of its own, which is the same for every version of the report.
"""

import csv
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from normbench.config.files import ROOT
from normbench.report import statistics as report_statistics
from support.verdict_scenarios import (
    EFFECTS,
    FALSE,
    WRONG,
    Scenario,
    Values,
    claim_scenarios,
    paper_scenarios,
    recommendation_scenarios,
)  # fmt: skip

PAGE = ROOT / "docs" / "statistics.md"
BEFORE = ROOT / "docs" / "verdict_rates_before.csv"  # of commit 5b16bd2
AFTER = ROOT / "docs" / "verdict_rates.csv"
#: A sweep whose file names so many seeds.
SWEEPS = {3: "default", 5: "nf_1", 10: "proxy_norm_15"}
LAST = 10  # seeds, until which they are added one by one


def measure(scenario: Scenario, seeds: int, repetitions: int) -> float:
    """Return how often the counted outcome is reached with the planned number of seeds, in %."""
    outcomes = [
        scenario.decide(values, SWEEPS[seeds])
        for values in _draws(scenario, seeds, seeds, repetitions)
    ]
    return 100 * outcomes.count(scenario.counted) / repetitions


def measure_sequential(scenario: Scenario, planned: int, repetitions: int) -> float:
    """Return how often it is reached if seeds are added from 2 to `LAST` until it is decided."""
    outcomes = []
    for values in _draws(scenario, LAST, planned, repetitions):
        looks = (
            scenario.decide(values[:, :seeds], SWEEPS[planned]) for seeds in range(2, LAST + 1)
        )
        outcomes.append(next((each for each in looks if each != "undecided"), "undecided"))
    return 100 * outcomes.count(scenario.counted) / repetitions


def _draws(scenario: Scenario, seeds: int, planned: int, repetitions: int) -> Iterator[Values]:
    """Yield values of all entries (entry, seed), the same for every version of the report."""
    name = f"{scenario.subject} {scenario.rate} {scenario.deviations} {seeds} {planned}"
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    means, deviations = np.array(scenario.means), np.array(scenario.deviations)
    for _ in range(repetitions):
        yield means[:, None] + deviations[:, None] * rng.normal(size=(len(means), seeds))


# All rates

Key = tuple[str, str, str, int, str]  # subject, rate, looks, seeds, spreads
SEQUENTIAL = ("higher", "higher in every of 6", "spread of 6", "recommendation of 5")


def rates(repetitions: int = 2000) -> Iterator[tuple[Key, float]]:
    """Yield every rate, in %."""
    for each in paper_scenarios():
        yield (each.subject, each.rate, "once", 3, "equal"), measure(each, 3, repetitions)
    for noisy in (False, True):
        spreads = "one 20 times" if noisy else "equal"
        for seeds, effect in EFFECTS.items():
            for each in (*claim_scenarios(effect, noisy), *recommendation_scenarios(effect, noisy)):
                percent = measure(each, seeds, repetitions)
                yield (each.subject, each.rate, "once", seeds, spreads), percent
                if each.subject in SEQUENTIAL and each.rate in (FALSE, WRONG):
                    percent = measure_sequential(each, seeds, repetitions // 2)
                    yield (each.subject, each.rate, "after every seed", seeds, spreads), percent


def sample_variance(values: Sequence[float]) -> float:
    """Return the sample variance in floats, 30 times as fast as the exact one of statistics."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def write(path: Path, repetitions: int = 2000) -> None:
    """Write all rates as CSV."""
    vars(report_statistics)["variance"] = sample_variance
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["subject", "rate", "looks", "seeds", "spreads", "percent"])
        for key, percent in rates(repetitions):
            lines.writerow([*key, f"{percent:.1f}"])
            print(*key, f"{percent:.1f}", flush=True)


def read(path: Path) -> dict[Key, str]:
    """Read what `write` wrote."""
    with path.open(newline="") as file:
        return {
            (each["subject"], each["rate"], each["looks"], int(each["seeds"]), each["spreads"]):
                each["percent"]
            for each in csv.DictReader(file)
        }  # fmt: skip


def table(before: Mapping[Key, str], after: Mapping[Key, str]) -> str:
    """Return the rates before and after as a table in Markdown."""
    columns = [(seeds, spreads) for spreads in ("equal", "one 20 times") for seeds in EFFECTS]
    names = [f"n = {seeds}, {spreads}" for seeds, spreads in columns]
    lines = [["verdict", "rate", "looks", *names], [":--"] * (3 + len(columns))]
    for subject, rate, looks in dict.fromkeys(key[:3] for key in after):
        cells = []
        for seeds, spreads in columns:
            key = (subject, rate, looks, seeds, spreads)
            cells.append(f"{before[key]} → {after[key]}" if key in after else "–")
        lines.append([subject, rate, looks, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str]) -> None:
    """Write the rates of this version, and the page's table of both versions."""
    if arguments:
        write(Path(arguments[0]))
        return
    write(AFTER)
    page = PAGE.read_text()
    text = table(read(BEFORE), read(AFTER))
    page = re.sub(r"(?s)(<!-- rates -->\n).*?(<!-- end -->)", rf"\g<1>{text}\n\g<2>", page)
    PAGE.write_text(page)


if __name__ == "__main__":
    main(sys.argv[1:])
