"""Drawings of the records of probes that evaluate trained networks, a function a kind."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normbench.records.probes import Record, group_by, last_epoch
from normbench.report.figure_files import use_log_scale
from normbench.report.probe_axes import (
    add_legend,
    line_style,
    make_panels,
    numbers_of,
    start_at_zero,
)

_MEASURES = {"top1": "top-1 (%)", "top5": "top-5 (%)", "loss": "loss"}


def draw_example_weights(records: Sequence[Record]) -> Figure:
    """Draw accuracies and loss on the validation images over alpha, with the best marked.

    Networks of one data set, if the rows of a table name it, have a row of panels.
    """
    # The test split has the chosen alphas alone, which are no curve.
    rows = group_by([record for record in records if record["split"] == "val"], "panel")
    figure, panels = make_panels(len(rows), len(_MEASURES))
    for line, of_row in zip(panels, rows.values(), strict=True):
        _weight_curves(line, group_by(of_row, "network"))
        if len(rows) > 1:
            line[-1].legend(fontsize=6)
    if len(rows) == 1:
        add_legend(figure, panels[0][0])
    return figure


def _weight_curves(panels: Sequence[Axes], curves: Mapping[str, Sequence[Record]]) -> None:
    """Draw accuracies and loss over alpha, means over seeds, a curve for each network."""
    for axes, (measure, label) in zip(panels, _MEASURES.items(), strict=True):
        for place, (network, points) in enumerate(curves.items()):
            by_alpha = {
                a: numbers_of(of, measure) for a, of in sorted(group_by(points, "alpha").items())
            }
            x, y = [*by_alpha], [fmean(values) for values in by_alpha.values()]
            spread = [stdev(v) if len(v) > 1 else 0.0 for v in by_alpha.values()]
            style = line_style(place)
            axes.plot(x, y, label=str(network), **style)
            low, high = ([m + s * sign for m, s in zip(y, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
            best = y.index((min if measure == "loss" else max)(y))
            axes.plot(x[best], y[best], "o", color=style["color"])
        axes.set(xlabel="α", title=f"{label} on the validation images")
        axes.grid(alpha=0.3)


def draw_noise(records: Sequence[Record]) -> Figure:
    """Draw loss, bias and variance of the gradient over the images per worker, by network.

    Of the last epoch, means over seeds; dots in the last panel are finished runs.
    """
    figure, ((*panels,),) = make_panels(1, 4)
    titles = ("loss of the network as trained", "bias of the gradient", "variance of the gradient",
              "test loss: predicted, dots measured")  # fmt: skip
    networks = [each for each in records if each["layer"] == "all"]
    has_bias = False
    for place, (network, of_network) in enumerate(group_by(networks, "network").items()):
        sizes = group_by(last_epoch(of_network, "seed"), "per_worker")
        x = [*sizes]
        for axes, key in zip(panels, ("loss", "bias", "variance", "predicted"), strict=True):
            y = [fmean(numbers_of(of, key)) for of in sizes.values()]
            if key == "bias":  # none with the most images, and by chance below 0
                y = [value if value > 0 else float("nan") for value in y]
                has_bias = has_bias or any(value > 0 for value in y)
            axes.plot(x, y, label=str(network), linewidth=1, **line_style(place))
        measured = [numbers_of(of, "measured")[0] for of in sizes.values()]
        panels[-1].plot(x, measured, ".", color=line_style(place)["color"])
    for axes, title in zip(panels, titles, strict=True):
        axes.set_xscale("log", base=2)
        axes.set(title=title, xlabel="images that share statistics")
        axes.set_xticks(
            [*group_by(networks, "per_worker")], map(str, group_by(networks, "per_worker"))
        )
        axes.grid(alpha=0.3)
    if has_bias:
        use_log_scale(panels[1])
    start_at_zero(panels[2], panels[2].get_ylim()[1])
    add_legend(figure, panels[0])
    return figure


def draw_corruptions(records: Sequence[Record]) -> Figure:
    """Draw the accuracy over the strength of each corruption, means over seeds."""
    clean = [each for each in records if each["strength"] == 0]
    corruptions = group_by([each for each in records if each["strength"] != 0], "corruption")
    figure, ((*panels,),) = make_panels(1, max(1, len(corruptions)), sharey=True)
    for axes, (corruption, of_corruption) in zip(panels, corruptions.items(), strict=False):
        curves = group_by([*clean, *of_corruption], "network", "statistics")
        for place, ((network, statistics), points) in enumerate(curves.items()):
            by_strength = dict(sorted(group_by(points, "strength").items()))
            y = [fmean(numbers_of(each, "top1")) for each in by_strength.values()]
            name = f"{network}, {statistics}" + ("" if statistics == "running" else " images")
            axes.plot([*by_strength], y, label=name, linewidth=1, **line_style(place))
        axes.set(xlabel="strength", title=str(corruption))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test top-1 accuracy (%)")
    add_legend(figure, panels[0])
    return figure


def draw_conversion(records: Sequence[Record]) -> Figure:
    """Draw the accuracy over the steps of distillation, after copying and after fitting."""
    starts = group_by(records, "start")
    places = {curve: place for place, curve in enumerate(group_by(records, "network", "norm"))}
    figure, ((*panels,),) = make_panels(1, len(starts), sharey=True)
    for axes, (start, of_start) in zip(panels, starts.items(), strict=True):
        curves = group_by(of_start, "network", "norm")
        for (network, norm), points in curves.items():
            by_step = dict(sorted(group_by(points, "step").items()))
            y = [fmean(numbers_of(each, "top1")) for each in by_step.values()]
            style = line_style(places[network, norm])
            axes.plot([*by_step], y, marker=".", label=f"{network} to {norm}", **style)
        axes.set_xscale("symlog", linthresh=10)
        axes.set(xlabel="steps of distillation", title=f"gains and shifts {start}")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test top-1 accuracy (%)")
    add_legend(figure, panels[0])
    return figure
