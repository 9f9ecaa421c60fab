"""Figures of what probes have measured, from their numbers alone, in the papers' manner."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normbench.report.figure import COLOURS, STABLE, Drawn, saved
from normbench.report.plot_kinds import Form
from normbench.report.table import Table
from normbench.run_files import (
    Record,
    group_by,
    last_epoch,
    network_label,
    probe_file,
    read_records,
)

#: Over blocks and layers there is no mean over seeds.
ONE_SEED = ("spp", "power")
#: A wide line chart, and how many panels stand beside each other.
_WIDTH, _HEIGHT, _ACROSS = 3.4, 2.8, 4
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":")
_POWER = {"p1": "$P_1$ constant", "p2": "$P_2$ means of images", "p3": "$P_3$ positions",
          "p4": "$P_4$ deviations of images"}  # fmt: skip
_POWER_COLOURS = ("#882255", "#CC79A7", "#009E73", "#0072B2")
_MEMBERS = {"in": "#009E73", "ln": "#0072B2", "bn": "#D55E00"}
_MEASURES = {"top1": "top-1 (%)", "top5": "top-5 (%)", "loss": "loss"}


def draw(
    kind: str, lines: Sequence[Record], title: str = "", forms: Sequence[Form] = ("png", "pdf")
) -> Drawn:
    """The figure of a probe; the same numbers give the same bytes.

    Args:
        kind: of the probe.
        lines: its numbers, as `normbench.run_files.read_records` gives them.
        title: above the figure.
        forms: of the files.
    """
    look: dict[Any, Any] = {"font.size": 8, "axes.titlesize": 8, "legend.frameon": False}
    with mpl.rc_context({**STABLE, **look}):
        figure = DRAW[kind](lines)
        if title:
            figure.suptitle(title, fontsize=9)
        return saved(figure, forms)


def draw_seen(table: Table, kind: str, forms: Sequence[Form], runs: Path) -> Drawn:
    """What probes have seen in the runs of `table`, each network one cell of it.

    Over blocks and layers it is the first seed after the last epoch, else all seeds.
    """
    lines: list[Record] = []
    for label, cells in table.lines.items():
        for column, cell in zip(table.columns, cells, strict=True):
            for row in sorted(cell.runs, key=lambda row: row.seed):
                place = f"batch {column}" if str(column).isdigit() else column
                own = {"network": f"{' '.join(label)}, {place}", "seed": row.seed}
                if path := probe_file(runs / row.sweep / row.id, kind):
                    lines += [{**line, **own} for line in read_records(path)]
                    if kind in ONE_SEED:
                        break
    return draw(kind, last_epoch(lines, "network") if kind in ONE_SEED else lines, forms=forms)


def _panels(rows: int, columns: int, **options: Any) -> tuple[Figure, Any]:
    figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows + 0.4), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def _numbers(lines: Sequence[Record], key: str) -> list[float]:
    """Where there is none, a gap."""
    return [float("nan") if (v := line.get(key)) is None else float(v) for line in lines]


def _look(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": _DASHES[place % len(_DASHES)]}


def _some_epochs(lines: Sequence[Record], most: int = 3) -> list[Record]:
    """Of each network the first, middle and last epoch, if there are more."""
    chosen: list[Record] = []
    for of_network in group_by(lines, "network").values():
        epochs = list(group_by(of_network, "epoch"))
        if len(epochs) > most:
            epochs = [epochs[0], epochs[len(epochs) // 2], epochs[-1]]
        chosen += [line for line in of_network if line.get("epoch") in epochs]
    return chosen


def _spp(lines: Sequence[Record]) -> Figure:
    """As in figure 1 of the NF paper: three panels over the blocks, dots at the ends of stages."""
    figure, ((*panels,),) = _panels(1, 3)
    measures = {
        "squared_mean": "average channel squared mean",
        "variance": "average channel variance",
        "branch_variance": "residual average channel variance",
    }
    for axes, (measure, label) in zip(panels, measures.items(), strict=True):
        for place, (key, blocks) in enumerate(
            group_by(_some_epochs(lines), "network", "epoch").items()
        ):
            x, y = _numbers(blocks, "block"), _numbers(blocks, measure)
            axes.plot(x, y, label=network_label(key), linewidth=1, **_look(place))
            ends = [n for n, block in enumerate(blocks) if block["ends_stage"]]
            axes.plot([x[n] for n in ends], [y[n] for n in ends], "k.", markersize=5)
        _scale(axes, _numbers(lines, measure))
        axes.set_xlabel("residual block")
        axes.set_title(label)
        axes.grid(alpha=0.3)
    _legend(figure, panels[0])
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    """Below all panels, where it hides nothing."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4)


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """From 0 on, or a logarithmic scale where the largest value is that of an explosion."""
    above = sorted(value for value in values if value > 0)
    if above and above[-1] > 1e3 and above[-1] > 1e2 * above[len(above) // 2]:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, None if above else 1)


def _power(lines: Sequence[Record]) -> Figure:
    """Power over depth, stacked, a panel a network; then what has not collapsed, and linearity."""
    networks = group_by(_some_epochs(lines), "network", "epoch")
    across = min(_ACROSS, len(networks) + 2)
    figure, panels = _panels(-(-(len(networks) + 2) // across), across)
    for axes in panels.flat:
        axes.set_visible(False)
    for axes, (key, layers) in zip(panels.flat, networks.items(), strict=False):
        axes.set_visible(True)
        depth = _numbers(layers, "depth")
        axes.stackplot(
            depth, *(_numbers(layers, term) for term in _POWER), labels=_POWER.values(),
            colors=_POWER_COLOURS, linewidth=0,
        )  # fmt: skip
        axes.set(xlim=(min(depth), max(max(depth), min(depth) + 1)), ylim=(0, 1.02))
        axes.set_title(network_label(key))
        axes.set_xlabel("layer")
    _legend(figure, panels.flat[0])
    left, linear = panels.flat[len(networks) : len(networks) + 2]
    for place, (key, layers) in enumerate(networks.items()):
        depth = _numbers(layers, "depth")
        varies = [layer["p2"] + layer["p3"] + layer["p4"] for layer in layers]
        left.plot(depth, varies, label=network_label(key), linewidth=1, **_look(place))
        bent = [layer for layer in layers if layer["linearity"] is not None]  # activated ones
        places, shares = _numbers(bent, "depth"), _numbers(bent, "linearity")
        linear.plot(places, shares, linewidth=1, marker=".", markersize=3, **_look(place))
    bounded = [layer for layer in lines if layer.get("bound") is not None]
    if bounded:
        layers = next(iter(group_by(bounded, "network", "epoch").values()))
        bound = _numbers(layers, "bound")
        left.plot(_numbers(layers, "depth"), bound, "k:", label="bound of theorem 1 (LN)")
    left.set_yscale("log")
    left.set_ylim(min(0.5, left.get_ylim()[0]), 1.3)  # that a constant 1 shows no noise
    for axes, label in ((left, "$P_2+P_3+P_4$"), (linear, "channel-wise linearity")):
        axes.set_visible(True)
        axes.set_title(label)
        axes.set_xlabel("layer")
        axes.grid(alpha=0.3)
    linear.set_ylim(0, 1.02)
    left.legend(fontsize=6)
    return figure


def _ratios(lines: Sequence[Record]) -> Figure:
    """Ratios over epochs by receptive field, their divergence, and each layer's largest one."""
    networks = group_by(lines, "network")
    across = 1 + max(len(group_by(of_network, "group")) for of_network in networks.values())
    figure, panels = _panels(4 * len(networks), across)
    shares: list[Axes] = []
    divergences: list[Axes] = []
    for number, (network, of_network) in enumerate(networks.items()):
        rows = panels[4 * number : 4 * number + 4]
        for axes in rows.flat:
            axes.set_visible(False)
        for place, group in enumerate([*group_by(of_network, "group"), "all layers"]):
            chosen = [line for line in of_network if group in ("all layers", line["group"])]
            for row, of in zip(rows, ("mean", "var"), strict=False):
                _shares(row[place], [line for line in chosen if line["of"] == of])
                row[place].set_title(f"{network}: {of}, {group}")
                shares.append(row[place])
            _apart(rows[2][place], chosen)
            divergences.append(rows[2][place])
            for height, row in enumerate(rows[:3]):  # three rows of one scale each
                row[place].tick_params(labelleft=place == 0, labelbottom=height == 2)
        rows[0][0].legend()
        grid = rows[3][0].get_gridspec()
        _hard(figure.add_subplot(grid[4 * number + 3, :]), last_epoch(of_network, "seed"))
    for together in (shares, divergences):  # all to one scale
        top = max(axes.get_ylim()[1] for axes in together)
        for axes in together:
            axes.set(visible=True, ylim=(0, top))
            axes.grid(alpha=0.3)
    for axes in divergences:
        axes.set_xlabel("epoch")
    return figure


def _shares(axes: Axes, lines: Sequence[Record]) -> None:
    """Means over layers and seeds."""
    for member, colour in _MEMBERS.items():
        means = {
            epoch: fmean(_numbers(of, member)) for epoch, of in group_by(lines, "epoch").items()
        }
        marker = "o" if len(means) == 1 else None
        axes.plot([*means], [*means.values()], color=colour, label=member, marker=marker)


def _apart(axes: Axes, lines: Sequence[Record]) -> None:
    of_mean = [line for line in lines if line["of"] == "mean"]
    means = {e: fmean(_numbers(of, "divergence")) for e, of in group_by(of_mean, "epoch").items()}
    marker = "o" if len(means) == 1 else None
    axes.plot([*means], [*means.values()], color="black", marker=marker)
    axes.set_title(r"$D(\lambda^\mu \| \lambda^\sigma)$")


def _hard(axes: Axes, lines: Sequence[Record]) -> None:
    """The largest ratio of every layer; of several seeds the share of each that has it."""
    for height, of in enumerate(("var", "mean")):
        layers = group_by([line for line in lines if line["of"] == of], "depth")
        for place, seeds in layers.items():
            below = float(height)
            largest = [max(_MEMBERS, key=lambda m: float(line[m])) for line in seeds]
            for member, colour in _MEMBERS.items():
                share = 0.9 * largest.count(member) / len(largest)
                axes.bar(float(place), share, 0.9, below, color=colour)
                below += share
    fields = {line["depth"]: line["field"] for line in lines}
    axes.set_xticks([*fields], [str(field) for field in fields.values()], rotation=90, fontsize=6)
    axes.set_yticks([0.45, 1.45], ["var", "mean"])
    axes.set_xlabel("receptive field of the layer")
    axes.set_title(f"largest ratio at epoch {lines[0]['epoch']}: in green, ln blue, bn orange")


def _example_weight(lines: Sequence[Record]) -> Figure:
    """Accuracies and loss on the validation images over alpha, the best marked."""
    figure, ((*panels,),) = _panels(1, 3)
    curves = group_by([line for line in lines if line["split"] == "val"], "network")
    for axes, (measure, label) in zip(panels, _MEASURES.items(), strict=True):
        for place, (network, points) in enumerate(curves.items()):
            by_alpha = {
                a: _numbers(of, measure) for a, of in sorted(group_by(points, "alpha").items())
            }
            x, y = [*by_alpha], [fmean(values) for values in by_alpha.values()]
            spread = [stdev(v) if len(v) > 1 else 0.0 for v in by_alpha.values()]
            look = _look(place)
            axes.plot(x, y, label=str(network), **look)
            low, high = ([m + s * sign for m, s in zip(y, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
            best = (min if measure == "loss" else max)(range(len(y)), key=y.__getitem__)
            axes.plot(x[best], y[best], "o", color=look["color"])
        axes.set_xlabel(r"$\alpha$")
        axes.set_title(f"{label} on the validation images")
        axes.grid(alpha=0.3)
    _legend(figure, panels[0])
    return figure


def _speed(lines: Sequence[Record]) -> Figure:
    """Steps a second and memory over those of bn, a line a normalizer, a marker a batch."""
    columns = [("training", "ratio", "steps a second"), ("inference", "ratio", "steps a second"),
               ("training", "memory_ratio", "memory")]  # fmt: skip
    names = [*group_by(lines, "network")]
    figure = Figure(figsize=(3 * _WIDTH, 1 + 0.22 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(columns), sharey=True)
    batches = [*group_by(lines, "batch")]
    for axes, (mode, key, label) in zip(panels, columns, strict=True):
        for place, batch in enumerate(batches):
            shown = [
                line for line in lines
                if line["batch"] == batch and line["mode"] == mode and line[key] is not None
            ]  # fmt: skip
            at = [len(names) - names.index(line["network"]) for line in shown]
            marker = {"marker": "osD^vP"[place % 6], "color": COLOURS[place % len(COLOURS)]}
            axes.plot(_numbers(shown, key), at, linestyle="", label=f"batch {batch}", **marker)
        axes.axvline(1.0, color="black", linewidth=0.6)
        axes.set_title(f"{label} of {mode} over bn's")
        axes.set_yticks([len(names) - n for n in range(len(names))], [str(name) for name in names])
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    _legend(figure, panels[0])
    return figure


def _gains(lines: Sequence[Record]) -> Figure:
    """The gain of every activation; where quadrature does not do, sampled."""
    figure, ((axes,),) = _panels(1, 1)
    for place, line in enumerate(reversed(lines)):
        exact, sampled = line["exact"], line["sampled"]
        axes.barh(place, float(exact or sampled or 0), color=COLOURS[0] if exact else COLOURS[1])
        axes.plot(float(sampled or 0), place, "k|")
    axes.set_yticks(range(len(lines)), [str(line["act"]) for line in reversed(lines)], fontsize=6)
    axes.set_xlabel(r"gain $1/\sqrt{\mathrm{Var}\,g(u)}$; | by sampling")
    return figure


def _apart_bars(lines: Sequence[Record]) -> Figure:
    """How far the ratios of two networks are apart, as in figure 5 of the study."""
    figure, ((*panels,),) = _panels(1, len(group_by(lines, "network")), sharey=True)
    for axes, (network, own) in zip(panels, group_by(lines, "network").items(), strict=True):
        groups = list(group_by(own, "group"))
        for place, (of, bars) in enumerate(group_by(own, "of").items()):
            at = [groups.index(line["group"]) + 0.4 * place - 0.2 for line in bars]
            axes.bar(at, _numbers(bars, "divergence"), 0.4, label=of, color=COLOURS[place])
        axes.set_xticks(range(len(groups)), groups, rotation=20, fontsize=6)
        axes.set_title(f"D({network})")
        axes.legend()
    return figure


DRAW: Mapping[str, Callable[[Sequence[Record]], Figure]] = {
    "spp": _spp,
    "power": _power,
    "ratios": _ratios,
    "ratios_apart": _apart_bars,
    "example_weight": _example_weight,
    "speed": _speed,
    "gains": _gains,
}
