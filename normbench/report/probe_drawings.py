"""Drawings of the records of probes, a function a kind, in the style of the papers."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from normbench.records.probes import Record, group_by, last_epoch, network_label
from normbench.report.evaluation_drawings import (
    draw_conversion,
    draw_corruptions,
    draw_example_weights,
    draw_noise,
)
from normbench.report.figure_files import COLOURS, use_log_scale
from normbench.report.probe_axes import (
    PANEL_WIDTH,
    add_legend,
    line_style,
    make_panels,
    numbers_of,
    start_at_zero,
)

_ACROSS = 4  # panels in a row at most
_POWER = {"p1": "P₁ constant", "p2": "P₂ means of images", "p3": "P₃ positions",
          "p4": "P₄ deviations of images"}  # fmt: skip
_POWER_COLOURS = ("#882255", "#CC79A7", "#009E73", "#0072B2")
_MEMBERS = {"in": "#009E73", "ln": "#0072B2", "bn": "#D55E00"}
_SPP = {"squared_mean": "average channel squared mean", "variance": "average channel variance",
        "branch_variance": "residual average channel variance"}  # fmt: skip


def _some_epochs(records: Sequence[Record]) -> list[Record]:
    """Return the records of at most the first, middle and last epoch of each network."""
    chosen: list[Record] = []
    for of_network in group_by(records, "network").values():
        epochs = list(group_by(of_network, "epoch"))
        if len(epochs) > 3:
            epochs = [epochs[0], epochs[len(epochs) // 2], epochs[-1]]
        chosen += [record for record in of_network if record.get("epoch") in epochs]
    return chosen


def _spp(records: Sequence[Record]) -> Figure:
    """Draw signal propagation as in figure 1 of Brock et al. 2021, over the residual blocks.

    A panel for each measure, with dots at the ends of stages.
    """
    figure, ((*panels,),) = make_panels(1, 3)
    networks = group_by(_some_epochs(records), "network", "epoch")
    for axes, (measure, label) in zip(panels, _SPP.items(), strict=True):
        for place, (key, blocks) in enumerate(networks.items()):
            x, y = numbers_of(blocks, "block"), numbers_of(blocks, measure)
            axes.plot(x, y, label=network_label(key), linewidth=1, **line_style(place))
            ends = [n for n, block in enumerate(blocks) if block["ends_stage"]]
            axes.plot([x[n] for n in ends], [y[n] for n in ends], "k.", markersize=5)
        _scale(axes, numbers_of(records, measure))
        axes.set(xlabel="residual block", title=label)
        axes.grid(alpha=0.3)
    add_legend(figure, panels[0])
    return figure


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Start the y-axis at 0, or make it logarithmic where values explode."""
    positive = sorted(value for value in values if value > 0)
    # On a linear axis everything but the explosion would lie at 0.
    if positive and positive[-1] > 1e3 and positive[-1] > 1e2 * positive[len(positive) // 2]:
        use_log_scale(axes)
    else:
        start_at_zero(axes, axes.get_ylim()[1] if positive else 1.0)


def _power(records: Sequence[Record]) -> Figure:
    """Draw the power terms of each network over depth, the power left of all, and linearity."""
    networks = group_by(_some_epochs(records), "network", "epoch")
    across = min(_ACROSS, len(networks) + 2)
    figure, panels = make_panels(-(-(len(networks) + 2) // across), across)
    *stacks, left, linear = panels.flat[: len(networks) + 2]
    for axes in panels.flat[len(networks) + 2 :]:
        axes.set_visible(False)
    for place, (axes, (key, layers)) in enumerate(zip(stacks, networks.items(), strict=True)):
        depth = numbers_of(layers, "depth")
        axes.stackplot(
            depth, *(numbers_of(layers, term) for term in _POWER), labels=_POWER.values(),
            colors=_POWER_COLOURS, linewidth=0,
        )  # fmt: skip
        # A network of a single layer has a depth of no extent.
        axes.set(xlim=(min(depth), max(max(depth), min(depth) + 1)), ylim=(0, 1.02))
        axes.set(title=network_label(key), xlabel="layer")
        varies = [layer["p2"] + layer["p3"] + layer["p4"] for layer in layers]
        left.plot(depth, varies, label=network_label(key), linewidth=1, **line_style(place))
        active = [layer for layer in layers if layer["linearity"] is not None]
        places, shares = numbers_of(active, "depth"), numbers_of(active, "linearity")
        linear.plot(places, shares, linewidth=1, marker=".", markersize=3, **line_style(place))
    add_legend(figure, stacks[0])
    if bounded := [layer for layer in records if layer.get("bound") is not None]:
        layers = next(iter(group_by(bounded, "network", "epoch").values()))
        bound = numbers_of(layers, "bound")
        left.plot(numbers_of(layers, "depth"), bound, "k:", label="bound of theorem 1 (LN)")
    use_log_scale(left)
    left.set_ylim(min(0.5, left.get_ylim()[0]), 1.3)  # so that a constant 1 looks constant
    start_at_zero(linear, 1.04)
    for axes, label in ((left, "P₂ + P₃ + P₄"), (linear, "channel-wise linearity")):
        axes.set(title=label, xlabel="layer")
        axes.grid(alpha=0.3)
    left.legend(fontsize=6)
    return figure


def _ratios(records: Sequence[Record]) -> Figure:
    """Draw ratios over epochs by group of layers, divergences, and each layer's largest ratio."""
    networks = group_by(records, "network")
    across = 1 + max(len(group_by(of_network, "group")) for of_network in networks.values())
    # Networks differ in their number of groups: what is not drawn on stays invisible.
    figure, panels = make_panels(4 * len(networks), across)
    for axes in panels.flat:
        axes.set_visible(False)
    shares: list[Axes] = []
    divergences: list[Axes] = []
    for number, (network, of_network) in enumerate(networks.items()):
        rows = panels[4 * number : 4 * number + 4]
        for place, group in enumerate([*group_by(of_network, "group"), "all layers"]):
            chosen = [each for each in of_network if group in ("all layers", each["group"])]
            for row, of in zip(rows, ("mean", "var"), strict=False):
                for member, colour in _MEMBERS.items():
                    ratios = [each for each in chosen if each["of"] == of]
                    _over_epochs(row[place], ratios, member, color=colour, label=member)
                row[place].set_title(f"{network}: {of}, {group}")
                shares.append(row[place])
            of_means = [each for each in chosen if each["of"] == "mean"]
            _over_epochs(rows[2][place], of_means, "divergence", color="black")
            rows[2][place].set(title=f"{network}:\nD(λ mean ‖ λ var), {group}")
            divergences.append(rows[2][place])
            for row, label in zip(rows, ("ratio", "ratio", "divergence"), strict=False):
                row[place].set(xlabel="epoch", ylabel=label)
        grid = rows[3][0].get_gridspec()
        _largest(figure.add_subplot(grid[4 * number + 3, :]), last_epoch(of_network, "seed"))
    for panels_of_one_scale in (shares, divergences):
        top = max(axes.get_ylim()[1] for axes in panels_of_one_scale)
        for axes in panels_of_one_scale:
            axes.set_visible(True)
            start_at_zero(axes, top)
            axes.grid(alpha=0.3)
    _member_legend(figure)
    return figure


def _hard_ratios(records: Sequence[Record]) -> Figure:
    """Draw the member with the largest ratio in every layer, a panel for each snapshot."""
    networks = group_by(records, "network", "epoch")
    figure, panels = make_panels(len(networks), 1)
    figure.set_figwidth(2.5 * PANEL_WIDTH)
    for axes, ((network, _), snapshot) in zip(panels.flat, networks.items(), strict=True):
        _largest(axes, snapshot)
        axes.set_title(f"{network}: {axes.get_title()}")
    _member_legend(figure)
    return figure


def _member_legend(figure: Figure) -> None:
    """Put a legend of the members of switchable normalization below the panels."""
    handles = [Patch(color=colour, label=member) for member, colour in _MEMBERS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _over_epochs(axes: Axes, records: Sequence[Record], key: str, **line_style: Any) -> None:
    """Draw the mean of a column over layers and seeds."""
    means = {epoch: fmean(numbers_of(of, key)) for epoch, of in group_by(records, "epoch").items()}
    marker = "o" if len(means) == 1 else None
    axes.plot([*means], [*means.values()], marker=marker, **line_style)


def _largest(axes: Axes, records: Sequence[Record]) -> None:
    """Draw the member with the largest ratio in every layer, as shares of the seeds."""
    for height, of in enumerate(("var", "mean")):
        layers = group_by([record for record in records if record["of"] == of], "depth")
        for place, seeds in layers.items():
            below = float(height)
            largest = [max(_MEMBERS, key=lambda m: float(record[m])) for record in seeds]
            for member, colour in _MEMBERS.items():
                share = 0.9 * largest.count(member) / len(largest)
                axes.bar(float(place), share, 0.9, below, color=colour)
                below += share
    places = {record["depth"]: record["field"] or record["group"] for record in records}
    axes.set_xticks([*places], [str(place) for place in places.values()], rotation=90, fontsize=6)
    axes.set_yticks([0.45, 1.45], ["var", "mean"])
    others = "" if all(record["field"] for record in records) else ", or its part of the network"
    axes.set(xlabel=f"receptive field of the layer{others}", ylabel="share of the seeds")
    axes.set_title(f"member with the largest ratio at epoch {records[0]['epoch']}")


def _speed(records: Sequence[Record]) -> Figure:
    """Draw steps per second and memory relative to bn: rows are networks, markers batches.

    The fastest network is at the top; bars are the intervals of its own steps per second.
    """
    modes = [*group_by(records, "mode")]
    columns = [(mode, "ratio", "steps a second") for mode in map(str, modes)]
    columns += [("training", "memory_ratio", "memory")] if "training" in modes else []
    names = _fastest_first(records)
    figure = Figure(
        figsize=(len(columns) * PANEL_WIDTH, 1 + 0.22 * len(names)), layout="constrained"
    )
    panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    batches = [*group_by(records, "batch")]
    for axes, (mode, key, label) in zip(panels, columns, strict=True):
        for place, batch in enumerate(batches):
            shown = [
                each for each in records
                if each["batch"] == batch and each["mode"] == mode and each[key] is not None
            ]  # fmt: skip
            # The first network is at the top.
            # Batches below each other, so that markers do not hide each other.
            shift = 0.5 * (place - (len(batches) - 1) / 2) / len(batches)
            at = [len(names) - names.index(each["network"]) - shift for each in shown]
            marker = {"marker": "osD^vP"[place % 6], "color": COLOURS[place % len(COLOURS)]}
            bars = [_ratio_bar(each) if key == "ratio" else (0.0, 0.0) for each in shown]
            axes.errorbar(
                numbers_of(shown, key), at, xerr=[*zip(*bars, strict=True)] or None, linestyle="",
                label=f"batch {batch}", markersize=4, elinewidth=0.8, **marker,
            )  # fmt: skip
        axes.axvline(1.0, color="black", linewidth=0.6)
        axes.set_title(f"{label} of {mode} over bn's")
        axes.set_yticks([len(names) - n for n in range(len(names))], [str(name) for name in names])
        axes.set(xlim=(0, None), ylim=(0.3, len(names) + 0.7))  # no marker on the frame
        axes.grid(alpha=0.3)
    add_legend(figure, panels[0])
    return figure


def _fastest_first(records: Sequence[Record]) -> list[Any]:
    """Return the networks by their mean ratio to bn in the first mode, unmeasured ones last."""
    mode = records[0]["mode"]
    ratios = {
        network: [float(each["ratio"]) for each in of if each["mode"] == mode and each["ratio"]]
        for network, of in group_by(records, "network").items()
    }
    return sorted(ratios, key=lambda network: -fmean(ratios[network] or [0.0]))


def _ratio_bar(record: Record) -> tuple[float, float]:
    """Return how far the interval of a speed reaches below and above its ratio to bn's."""
    steps, low, high = (record.get(key) for key in ("steps_per_second", "lower", "upper"))
    if not steps or low is None or high is None:
        return 0.0, 0.0
    scale = float(record["ratio"]) / float(steps)
    return scale * max(0.0, float(steps) - float(low)), scale * max(0.0, float(high) - float(steps))


def _gains(records: Sequence[Record]) -> Figure:
    """Draw the gain of every activation, by sampling where there is none by quadrature."""
    figure, ((axes,),) = make_panels(1, 1)
    # Bars are counted from the bottom, and the first record is to be at the top.
    for place, record in enumerate(reversed(records)):
        exact, sampled = record["exact"], record["sampled"]
        axes.barh(place, float(exact or sampled or 0), color=COLOURS[0] if exact else COLOURS[1])
        axes.plot(float(sampled or 0), place, "k|")
    names = [str(record["act"]) for record in reversed(records)]
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.set_xlabel("gain 1/√(Var g(u)); | by sampling")
    return figure


def _ratios_apart(records: Sequence[Record]) -> Figure:
    """Draw the divergence of the ratios of two networks (Luo et al. 2019, figure 5)."""
    networks = group_by(records, "network")
    figure, ((*panels,),) = make_panels(1, len(networks), sharey=True)
    for axes, (network, of_network) in zip(panels, networks.items(), strict=True):
        groups = list(group_by(of_network, "group"))
        for place, (of, bars) in enumerate(group_by(of_network, "of").items()):
            at = [groups.index(bar["group"]) + 0.4 * place - 0.2 for bar in bars]
            axes.bar(at, numbers_of(bars, "divergence"), 0.4, label=of, color=COLOURS[place])
        axes.set_xticks(range(len(groups)), groups, rotation=20, fontsize=6)
        axes.set_title(f"D({network})")
        axes.legend()
    return figure


DRAW: Mapping[str, Callable[[Sequence[Record]], Figure]] = {
    "spp": _spp,
    "power": _power,
    "ratios": _ratios,
    "ratios_apart": _ratios_apart,
    "hard_ratios": _hard_ratios,
    "example_weight": draw_example_weights,
    "noise": draw_noise,
    "corruptions": draw_corruptions,
    "conversion": draw_conversion,
    "speed": _speed,
    "gains": _gains,
}
