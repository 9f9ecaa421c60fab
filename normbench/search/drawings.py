"""Figures of searches: progress, Pareto front, and formulas as pictures."""

import io
from collections.abc import Iterator, Sequence
from heapq import nlargest
from statistics import fmean, pstdev
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from normbench.norms import formulas
from normbench.report.figure_files import COLOURS, RC_PARAMS, Files, save_figure
from normbench.search.candidates import Candidate
from normbench.search.results import Search

BEST = 10  # layers whose mean is the progress, as many as in the paper's figure 7
_NAMED = 6  # layers of the front with their formulas
_LINES = ((0, (5, 2)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (5, 1, 1, 1, 1, 1)))


def save(figure: Figure) -> Files:
    """Return PNG and SVG of a figure."""
    with rc_context(RC_PARAMS):
        return save_figure(figure, ("png", "svg"))


def progress(searches: Sequence[Search]) -> Figure:
    """Draw mean and deviation of the ten best layers so far, much as the paper's figures 7 and 11.

    Theirs are the ten best of the population, over valid candidates; these are the ten best
    layers of all candidates until then, and rejected candidates count. Over candidates, and over
    the hours of one worker: a criterion that rejects early saves time.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    lowest = 100.0
    for place, search in enumerate(searches):
        numbers, hours, means, deviations = map(
            list, zip(*_progress(search.candidates), strict=True)
        )
        lowest = min(lowest, means[len(means) // 10])
        for axes, x in zip(panels, (numbers, hours), strict=True):
            low = [m - d for m, d in zip(means, deviations, strict=True)]
            high = [m + d for m, d in zip(means, deviations, strict=True)]
            axes.fill_between(
                x, low, high, color=COLOURS[place % len(COLOURS)], alpha=0.15, linewidth=0
            )
            axes.plot(x, means, color=COLOURS[place % len(COLOURS)], label=search.name)
    baselines = searches[0].baselines
    for line, (name, candidate) in zip(_LINES, baselines.items(), strict=False):
        if not candidate.scores:
            continue
        for axes in panels:
            axes.axhline(
                candidate.mean_score, color="#555555", linestyle=line, linewidth=1, label=name
            )
        lowest = min(lowest, candidate.mean_score)
    panels[0].set_ylim(bottom=lowest - 2)
    panels[0].set_ylabel(f"validation accuracy (%), mean of the best {BEST}")
    for axes, label in zip(panels, ("candidates", "hours of one worker"), strict=True):
        axes.set_xlabel(label)
    panels[1].legend(fontsize=8)
    return figure


def _progress(candidates: Sequence[Candidate]) -> Iterator[tuple[int, float, float, float]]:
    """Yield candidates, hours, and mean and deviation of the best layers until then."""
    seconds, layers = 0.0, dict[str, float]()  # scores by fingerprint
    for number, candidate in enumerate(candidates, 1):
        seconds += candidate.seconds
        if candidate.valid:
            layers.setdefault(candidate.fingerprint, candidate.mean_score)
        if layers:
            top = nlargest(BEST, layers.values())
            yield number, seconds / 3600, fmean(top), pstdev(top)


def pareto(search: Search, front: Sequence[Candidate]) -> Figure:
    """Draw the first two scores of all trained candidates, and the Pareto front with formulas."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    trained = [each for each in search.candidates if each.verdict == "trained"]
    axes.scatter(*_scores(trained), s=12, color="#999999", label="candidates")
    first: dict[str, Candidate] = {}
    for each in sorted(front, key=lambda each: -each.scores[0]):
        first.setdefault(each.fingerprint, each)
    front = list(first.values())
    axes.scatter(*_scores(front), s=36, color=COLOURS[1], label="Pareto front")
    for place, each in enumerate(front[:_NAMED]):
        axes.annotate(
            f"${formulas.latex(formulas.parse(each.formula))}$", (each.scores[0], each.scores[1]),
            xytext=(0.02, 0.95 - 0.12 * place), textcoords="axes fraction", fontsize=9,
            arrowprops={"arrowstyle": "-", "color": "#bbbbbb"}, va="center", parse_math=True,
        )  # fmt: skip
    for place, (name, each) in enumerate(search.baselines.items(), 2):
        if each.scores:
            axes.scatter(*_scores([each]), s=50, marker="D", color=COLOURS[place], label=name)
    # Most layers are near the best; the worst would hide the differences.
    shown = _scores([*front, *(each for each in search.baselines.values() if each.scores)])
    for limit, scores, needed in zip(
        (axes.set_xbound, axes.set_ybound), _scores(trained), shown, strict=True
    ):
        ordered = sorted(scores)
        limit(min(ordered[len(ordered) // 4], *needed) - 1, max(ordered[-1], *needed) + 1)
    axes.set_xlabel(f"validation accuracy (%), {search.titles[0]}", fontsize=8)
    axes.set_ylabel(f"validation accuracy (%), {search.titles[1]}", fontsize=8)
    axes.legend(fontsize=8, loc="lower right")
    return figure


def _scores(candidates: Sequence[Candidate]) -> tuple[list[float], list[float]]:
    return [each.scores[0] for each in candidates], [each.scores[1] for each in candidates]


def typeset(formula: str) -> str:
    """Return a formula as an SVG, in the notation of the paper's appendix D."""
    figure = Figure(figsize=(0.1, 0.1))
    figure.text(0, 0, f"${formulas.latex(formulas.parse(formula))}$", fontsize=14)
    out = io.BytesIO()
    settings: dict[Any, Any] = {"svg.hashsalt": "normbench", "svg.fonttype": "path"}
    with rc_context(settings):
        figure.savefig(
            out, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None}
        )
    svg = out.getvalue().decode()
    return svg[svg.index("<svg") :]
