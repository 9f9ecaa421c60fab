"""The recommendation in words, for the page, for recommendation.md and for the terminal."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from statistics import fmean
from typing import NamedTuple

from normbench.config.files import as_typed, default_choices
from normbench.errors import join_words
from normbench.report.image_intervals import OVER_IMAGES, OVER_SEEDS, explain_missing_hits
from normbench.report.markdown import escape_markdown
from normbench.report.planned_seeds import UNPLANNED
from normbench.report.recommendation import Candidate, Recommendation, recommendations
from normbench.report.statistics import MINUS, Effect
from normbench.report.table import MISSING, Table

METHOD = (
    "For each number of images per worker: the normalizer with the best mean, and how much worse "
    "the others are, with intervals of 95 % that hold for all pairs of normalizers at that number "
    "together (Games and Howell 1976; variances may differ, and the best may be chosen by the same "
    f'seeds). The interval is {OVER_SEEDS}. The one after the word "images" is {OVER_IMAGES}. '
    "They are of 99.9 % where the number of seeds is not that of the sweep's file or command. A "
    'normalizer is significantly worse if its whole interval lies above 0. "Not significantly '
    'worse" does not mean "as good": the upper end says how much worse it may be. A '
    "normalizer is unstable if its variance over seeds is significantly above that of the others "
    "(F test, 1 %, Bonferroni-corrected). Memory is the peak memory of the GPU, relative to the "
    "lowest of the compared normalizers. Time is that of a training step, measured by `python -m "
    "normbench.probe speed norm=bn,gn`. Without such a measurement it is not compared, because "
    "runs that train beside others slow each other down."
)
MOST_NORMS = 4  # in the command that measures time
#: Up to 8 significantly worse normalizers have all their numbers, of more only the nearest 3 and
#: those that everybody asks about.
MOST_DESCRIBED, NEAREST, ALWAYS = 8, 3, ("bn", "gn")


class Standing(NamedTuple):
    """Comparison of a normalizer with the best one of a column."""

    word: str  # best, good (not distinguishable from the best), worse, unsure, failed, missing
    number: str = MISSING
    distance: str = ""  # to the best, with its interval


def recommending(tables: Sequence[Table]) -> list[tuple[Table, list[Recommendation]]]:
    """Return the tables that recommend something, and what; the most batches first."""
    pairs = [(table, columns) for table in tables if (columns := recommendations(table))]
    return sorted(pairs, key=lambda pair: -len(pair[1]))


# For one number of images per worker


def describe(candidate: Candidate, decimals: int, space: str = " ") -> str:
    """Return a normalizer as "gn 82.0 ± 1.0 (3), 7.0 lower [2.8, 11.2], 1.02x memory".

    `space` is between its name and its mean.
    """
    memory = "" if candidate.memory is None else f"{candidate.memory:.2f}x memory"
    time = "" if candidate.time is None else f"{candidate.time.over_bn:.2f}x time of bn"
    distance = "" if candidate.distance is None else distance_text(candidate, decimals)
    number = f"{candidate.name}{space}{mean_text(candidate, decimals)}"
    return ", ".join(filter(None, (number, distance, memory, time)))


def mean_text(candidate: Candidate, decimals: int) -> str:
    """Return mean, standard deviation and number of seeds, as tables do: "89.2 ± 1.4 (3)"."""
    deviation = "" if candidate.std is None else f" ± {candidate.std:.{decimals}f}"
    return f"{candidate.mean:.{decimals}f}{deviation} ({candidate.seeds})"


def distance_text(candidate: Candidate, decimals: int) -> str:
    """Return how much worse than the best it is: "3.4 lower [1.1, 5.7], images [0.2, 6.6]"."""
    assert candidate.distance is not None
    text = f"{_number(candidate.distance.value, decimals)} {candidate.side}"
    text += f" {_interval(candidate.distance, decimals)}"
    if candidate.distance_images is not None:
        text += f", images {_interval(candidate.distance_images, decimals)}"
    return text


def verdict_texts(column: Recommendation, decimals: int) -> list[str]:
    """Return how the others compare with the best, as "Significantly worse: bn 82.0 ...; ..."."""
    compared = (*column.good, *column.worse)
    verdicts = {
        "Not significantly worse": [describe(each, decimals) for each in column.good[1:]],
        "Significantly worse": _describe_worse(column.worse, decimals),
        "Not testable with one seed or equal results": [
            describe(each, decimals) for each in column.unsure
        ],
        "99.9 % intervals, because the number of seeds is not the planned one": [
            each.name for each in compared if each.distance and not each.planned
        ],
        "Unstable over seeds": [each.name for each in compared if each.unstable],
        "Without a result for every seed": [
            f"{name} ({failure})" for name, failure in column.failed.items()
        ],
    }
    return [f"{verdict}: {'; '.join(each)}" for verdict, each in verdicts.items() if each]


def _describe_worse(worse: Sequence[Candidate], decimals: int) -> list[str]:
    """Return all with their numbers, of many only some; a table has the others' numbers."""
    if len(worse) <= MOST_DESCRIBED:
        return [describe(each, decimals) for each in worse]
    shown = [each for at, each in enumerate(worse) if at < NEAREST or each.name in ALWAYS]
    others = [each for each in worse if each not in shown]
    distances = [each.distance.value for each in others if each.distance]
    ends = f"{_number(min(distances), decimals)} to {_number(max(distances), decimals)}"
    names = ", ".join(each.name for each in others)
    described = [describe(each, decimals) for each in shown]
    return [*described, f"{len(others)} others, {ends} {worse[0].side}: {names}"]


def _interval(effect: Effect, decimals: int) -> str:
    assert effect.low is not None
    assert effect.high is not None
    return f"[{_number(effect.low, decimals)}, {_number(effect.high, decimals)}]"


def _number(value: float, decimals: int) -> str:
    """Return a number without a sign if it is positive."""
    return f"{value:.{decimals}f}".replace("-", MINUS)


# For a table


def markdown(tables: Sequence[Table]) -> str:
    """Return the recommendation for the setting of each of `tables`."""
    parts = ["# Which normalizer\n"]
    for table in tables:
        if columns := recommendations(table):
            parts.append(f"**{escape_markdown(table.setting_text)}**\n")
            parts += [f"- {escape_markdown(each)}" for each in sentences(table, columns)]
            parts.append("")
    return "\n".join([*parts, METHOD]) + "\n"


def sentences(table: Table, columns: Sequence[Recommendation]) -> list[str]:
    """Return all that is said for each number of images per worker, and what was not tested."""
    nowhere = [name for name in columns[0].untested if all(name in c.untested for c in columns)]
    lines = []
    for column in columns:
        verdicts = verdict_texts(column, table.spec.decimals)
        if missing := [name for name in column.untested if name not in nowhere]:
            verdicts.append(f"Not tested here: {'; '.join(missing)}")
        best = "no normalizer has a result for every seed"
        if len(column.tested) == 1:
            best = f"only {column.tested[0]} was trained"
        elif column.good:
            best = f"the {column.best_mean} has {describe(column.good[0], table.spec.decimals)}"
        first = f"With {column.batch} images per worker {best}"
        lines.append(f"{'. '.join([first, *verdicts])}.")
    lines.append(f"Not tested: {', '.join(nowhere) or 'none'}.")
    if table.spec.metric.by_image and (missing_hits := explain_missing_hits(table)):
        lines.append(missing_hits)
    return lines


def short_sentences(table: Table, columns: Sequence[Recommendation]) -> list[str]:
    """Return the recommendation in short, a sentence for all batches with the same best."""
    groups: dict[tuple[str, ...], list[Recommendation]] = defaultdict(list)
    for column in columns:
        best, *others = [each.name for each in column.good] or [""]
        unsure = sorted(each.name for each in column.unsure)
        lists = (sorted(others), unsure, sorted(column.failed))
        groups[
            best, str(column.ranked), *chain.from_iterable((*each, "") for each in lists)
        ].append(column)
    return [_short_sentence(each, table.spec.decimals) for each in groups.values()]


def speed_command(table: Table, columns: Sequence[Recommendation]) -> str:
    """Return the command that measures the time of the best normalizers in this network."""
    norms = {
        name: run.norm for (name,), line in table.lines.items() for e in line for run in e.runs
    }
    names = dict.fromkeys(norms[name] for column in columns for name in column.tested[:1])
    names |= dict.fromkeys(norms[name] for column in columns for name in column.tested)
    words = [f"norm={','.join([*names][:MOST_NORMS])}", f"batch={columns[0].batch}"]
    defaults = default_choices(table.setting.get("task"))
    words += [
        as_typed(key, value)
        for key in ("task", "model", "data")
        if (value := table.setting.get(key, defaults[key])) != defaults[key]
    ]
    options = str(table.setting.get("options", "")).split()
    words += [word for word in options if word.startswith("model.")]
    return " ".join(["python -m normbench.probe speed", *words])


def costs_note(table: Table, columns: Sequence[Recommendation]) -> str:
    """Return how to get the costs that no run or measurement has told, or ""."""
    candidates = [each for column in columns for each in column.candidates]
    notes = []
    if all(each.time is None for each in candidates):
        notes.append(f"Time is not measured; `{speed_command(table, columns)}` does it")
    if all(each.memory is None for each in candidates):
        notes.append("memory is that of runs on a GPU, of which there are none")
    text = "; ".join(notes)
    return f"{text[:1].upper()}{text[1:]}." if notes else ""


def _short_sentence(columns: Sequence[Recommendation], decimals: int) -> str:
    place = f"With {join_words([str(column.batch) for column in columns])} images per worker"
    good = columns[0].good
    if not good:
        return f"{place} no normalizer has a result for every seed."
    if not columns[0].ranked:
        return f"{place} nothing is ranked: with one seed, differences may be due to chance."
    best, *others = (each.name for each in good)
    if len(columns[0].tested) == 1:
        return f"{place} only {best} was trained."
    unsure = [each.name for each in columns[0].unsure]
    worse = [{each.name for each in column.worse} for column in columns]
    always = [each.name for each in columns[0].worse if all(each.name in names for names in worse)]
    first = f"has the {columns[0].best_mean}"
    parts = [f"{place} {best} {first if others or unsure else 'is the best'}"]
    if others:
        # The nearest other one tells by how much, and how sure that is.
        if len(columns) == 1:
            others[0] += f" ({distance_text(good[1], decimals)})"
        if any(worse) or unsure:
            parts.append(f"not significantly worse: {join_words(others)}")
        else:
            parts = [
                f"{place} no difference is significant",
                f"{best} {first}, followed by {join_words(others)}",
            ]
    elif len(columns) == 1 and columns[0].worse:
        nearest = columns[0].worse[0]
        parts[0] += f": {nearest.name} is {distance_text(nearest, decimals)}"
    if len(always) == 1 and len(columns) > 1:
        distances = [
            each.distance for column in columns for each in column.worse if each.name in always
        ]
        numbers = [
            f"{_number(effect.value, decimals)} {_interval(effect, decimals)}"
            for effect in distances
            if effect
        ]
        parts.append(f"significantly worse: {always[0]}, by {join_words(numbers)}")
    elif always and (others or len(columns) > 1):
        parts.append(f"significantly worse: {join_words(always)}")
    if unsure:
        parts.append(f"not testable with one seed or equal results: {join_words(unsure)}")
    if columns[0].failed:
        parts.append(f"without a result for every seed: {join_words([*columns[0].failed])}")
    return f"{'; '.join(parts)}."


def standings(columns: Sequence[Recommendation], decimals: int) -> dict[str, list[Standing]]:
    """Return the standings of each normalizer over batches, the most often good ones first."""
    by_column = [_standings(column, decimals) for column in columns]
    means: dict[str, list[float]] = defaultdict(list)
    for each in (each for column in columns for each in column.candidates):
        means[each.name].append(each.mean)

    sign = 1 if columns[0].lower_is_better else -1

    def rank(name: str) -> tuple[int, float, str]:
        good = sum(of[name].word in ("best", "good") for of in by_column if name in of)
        return -good, sign * fmean(means[name] or [0.0]), name

    names = sorted({name for of in by_column for name in of}, key=rank)
    return {name: [of.get(name, Standing("missing")) for of in by_column] for name in names}


def _standings(column: Recommendation, decimals: int) -> dict[str, Standing]:
    found = {}
    for each in column.candidates:
        number = f"{mean_text(each, decimals)}{', unstable' if each.unstable else ''}"
        if len(column.tested) == 1:
            found[each.name] = Standing("unsure", number, "alone")
        elif each in column.good[:1] and column.ranked:
            found[each.name] = Standing("best", number, column.best_mean)
        elif each.distance is None:
            found[each.name] = Standing("unsure", number, "no interval")
        else:
            word = "worse" if each.worse else "good"
            level = "" if each.planned else f" ({100 * UNPLANNED:g} %)"
            found[each.name] = Standing(word, number, distance_text(each, decimals) + level)
    failed = {name: Standing("failed", failure) for name, failure in column.failed.items()}
    return found | failed


def costs_text(columns: Sequence[Recommendation], name: str) -> str:
    """Return relative memory and time of a normalizer as ranges over batches, or ""."""
    candidates = [each for column in columns for each in column.candidates if each.name == name]
    memories = [each.memory for each in candidates if each.memory is not None]
    times = [each.time.over_bn for each in candidates if each.time is not None]
    texts = []
    for known, unit in ((memories, "memory"), (times, "time of bn")):
        if known:
            ends = dict.fromkeys(f"{factor:.1f}" for factor in (min(known), max(known)))
            texts.append(f"{' to '.join(ends)}x {unit}")
    return ", ".join(texts)
