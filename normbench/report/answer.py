"""The answer of a table of normalizers over images per worker: in words, and batch x normalizer."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from normbench.report.planned_seeds import UNPLANNED
from normbench.report.recommendation import Advice, comparisons, lower_text
from normbench.report.table import MISSING, Table


class Standing(NamedTuple):
    """An entry of the answer: how a normalizer compares with the best of its column."""

    word: str  # best, good (not distinguishable from the best), worse, unsure, failed, missing
    number: str = MISSING
    distance: str = ""  # to the best, with its interval


def answers(tables: Sequence[Table]) -> list[tuple[Table, list[Advice]]]:
    """Return the tables that compare normalizers with their advice, the most batches first."""
    answered = [(table, advised) for table in tables if (advised := comparisons(table))]
    return sorted(answered, key=lambda answer: -len(answer[1]))


def answer_lines(advised: Sequence[Advice], decimals: int) -> dict[str, list[Standing]]:
    """Return the standings of each normalizer over batches, the most often good ones first."""
    columns = [_standings(column, decimals) for column in advised]
    means: dict[str, list[float]] = defaultdict(list)
    for each in (each for column in advised for each in column.candidates):
        means[each.name].append(each.mean)

    def rank(name: str) -> tuple[int, float, str]:
        good = sum(column[name].word in ("best", "good") for column in columns if name in column)
        return -good, -fmean(means[name] or [0.0]), name

    names = sorted({name for column in columns for name in column}, key=rank)
    return {name: [column.get(name, Standing("missing")) for column in columns] for name in names}


def _standings(column: Advice, decimals: int) -> dict[str, Standing]:
    standings = {}
    for each in column.candidates:
        unstable = ", unstable" if each.unstable else ""
        number = f"{each.mean_text(decimals)} ({each.seeds}){unstable}"
        if each in column.good[:1] and column.ranked:
            standings[each.name] = Standing("best", number, "best")
        elif each.lower is None:
            standings[each.name] = Standing("unsure", number, "no interval")
        else:
            word = "worse" if each.worse else "good"
            level = "" if each.planned else f" ({100 * UNPLANNED:g} %)"
            standings[each.name] = Standing(word, number, lower_text(each, decimals) + level)
    for text in column.failed:  # "nf (1 of 3 div.)"
        name, _, failure = text.removesuffix(")").rpartition(" (")
        standings[name] = Standing("failed", failure)
    return standings


def memory_text(advised: Sequence[Advice], name: str) -> str:
    """Return the relative memory of a normalizer as its range over batches, or ""."""
    candidates = [each for column in advised for each in column.candidates if each.name == name]
    known = [each.memory for each in candidates if each.memory is not None]
    if not known:
        return ""
    ends = dict.fromkeys(f"{factor:.1f}" for factor in (min(known), max(known)))
    return f"{' to '.join(ends)}x memory"


def answer_sentences(table: Table, advised: Sequence[Advice]) -> list[str]:
    """Return the answer in words, one sentence for all batches with the same best normalizers."""
    groups: dict[tuple[str, ...], list[Advice]] = defaultdict(list)
    for column in advised:
        best, *others = [each.name for each in column.good] or [""]
        unsure = sorted(each.name for each in column.unsure)
        groups[best, str(column.ranked), *sorted(others), "", *unsure].append(column)
    return [_sentence(columns, table.spec.decimals) for columns in groups.values()]


def _sentence(columns: Sequence[Advice], decimals: int) -> str:
    place = f"With {join_words([str(column.batch) for column in columns])} images per worker"
    good = columns[0].good
    if not good:
        return f"{place} no normalizer has a result for every seed."
    if not columns[0].ranked:
        return f"{place} nothing is ranked: with one seed, differences may be due to chance."
    best, *others = (each.name for each in good)
    unsure = [each.name for each in columns[0].unsure]
    if unsure and not others:
        text = f"{place} {best} has the best mean"
    elif others:
        text = f"{place} {best} has the best mean; not significantly worse: {join_words(others)}"
    else:
        text = f"{place} {best} is the best"
    # The nearest other one tells by how much, and how sure that is.
    if len(columns) == 1 and (nearest := [*good[1:], *columns[0].worse][:1]):
        text += f": {nearest[0].name} is {lower_text(nearest[0], decimals)}"
    worse = [{each.name for each in column.worse} for column in columns]
    always = [each.name for each in columns[0].worse if all(each.name in names for names in worse)]
    if always and (others or len(columns) > 1):
        text += f"; significantly worse: {join_words(always)}"
    if unsure:
        text += f"; not testable with one seed or equal results: {join_words(unsure)}"
    return f"{text}."


def join_words(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: "4, 8 and 128"."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
