"""What each kind of probe does for the command line: numbers, a figure, and a few words."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

from normbench.cells import Cell
from normbench.errors import BadInput, Impossible, choose_from, counted
from normbench.kept import Kept
from normbench.models.random_net import RandomNet
from normbench.norms.activations import GAINS
from normbench.norms.group import GroupNormAct
from normbench.norms.recalibration import recalibrate
from normbench.norms.switchable import MEMBERS
from normbench.probed import FOLDER, Line, by, merge, read, write
from normbench.probes import example_weight, gains
from normbench.probes.power import set_eps
from normbench.probes.ratios import divergence
from normbench.probes.speed import Mode, Speed, speeds
from normbench.probes.watch import LINES, ratio_lines
from normbench.provenance import commit, now, versions
from normbench.report.inside import draw
from normbench.results import write_probe
from normbench.subjects import Asked, Subject, composed, fresh, images_of, runs_of, subjects
from normbench.training import dataset_of, loaders_of, on_gpu

STATISTICS = ("batch", "running")
OUT = "reports/probes"
STEPS = 50  # of images from which layers without running statistics get theirs


def signal(asked: Asked) -> None:
    """Signal propagation."""
    lines = _looked(asked)
    shown = []
    for key, blocks in by(lines, "network", "epoch").items():
        for stage, of_stage in by(blocks, "stage").items():
            ends = [of_stage[0], of_stage[-1]]
            variances = " to ".join(f"{b['variance']:.3g}" for b in ends)
            means = " to ".join(f"{b['squared_mean']:.3g}" for b in ends)
            branch = fmean(block["branch_variance"] for block in of_stage)
            shown.append([_named(key), stage, len(of_stage), means, variances, f"{branch:.3g}"])
    head = ["network", "stage", "blocks", "squared mean", "variance", "residual variance, mean"]
    _print(shown, head)
    _finish(asked, lines)


def powers(asked: Asked) -> None:
    """The power decomposition."""
    lines = _looked(asked)
    shown = []
    for key, layers in by(lines, "network", "epoch").items():
        for layer in (layers[0], layers[len(layers) // 2], layers[-1]):
            terms = [f"{float(layer[name]):.4f}" for name in ("p1", "p2", "p3", "p4", "total")]
            share = "" if layer["linearity"] is None else f"{layer['linearity']:.4f}"
            shown.append([_named(key), layer["depth"], *terms, share])
    _print(shown, ["network", "layer", "P1", "P2", "P3", "P4", "sum", "linearity"])
    _finish(asked, lines)


def switchables(asked: Asked) -> None:
    """Ratios of switchable normalization in runs, over the epochs that they kept or watched."""
    lines: list[Line] = []
    for label, runs in runs_of(asked).items():
        for run in runs:
            own = list(_ratios(run, label))
            lines += own
            _leave(asked, run, own)
    shown = []
    for (network, of), chosen in by(_last(lines), "network", "of").items():
        for group, layers in [*by(chosen, "group").items(), ("all", chosen)]:
            shares = [f"{fmean(x[m] for x in layers):.3f}" for m in MEMBERS]
            apart = f"{fmean(x['divergence'] for x in layers):.3f}"
            seeds = len({x["seed"] for x in layers})
            shown.append([network, of, group, len(layers) // seeds, *shares, apart, seeds])
    head = ["network", "of", "receptive field", "layers", *MEMBERS, "D(mean || var)", "seeds"]
    _print(shown, head)
    _finish(asked, lines)
    if apart_lines := list(_between(_last(lines))):
        between = replace(asked, stem=f"{asked.stem}_apart", kind="ratios_apart")
        head = ["networks", "of", "receptive field", "D(one || other)"]
        _print([list(line.values()) for line in apart_lines], head)
        _finish(between, apart_lines)


def _ratios(run: Kept, label: str) -> Iterator[Line]:
    """What its states say, and of a whole run what was seen while it was trained."""
    own: Line = {"network": label, "seed": run.cell.seed}
    seen = run.folder / FOLDER / "ratios.csv"
    watched = read(seen) if run.whole and seen.exists() else []
    for line in watched:
        yield {**line, **own}
    image = torch.empty(1, *dataset_of(run.cell).image)
    for epoch in run.states.keys() - {line["epoch"] for line in watched}:
        try:
            for line in ratio_lines(run.network(epoch), image):
                yield {**own, "epoch": epoch, **line}
        except ValueError as reason:
            raise BadInput(f"ckpt={run.row.id}: {reason}; norm=sn has") from None


def _last(lines: Sequence[Line]) -> list[Line]:
    found = []
    for of_run in by(lines, "network", "seed").values():
        last = max(float(line["epoch"]) for line in of_run)
        found += [line for line in of_run if line["epoch"] == last]
    return found


def _between(lines: Sequence[Line]) -> Iterator[Line]:
    """How far each network's ratios, means over seeds, are from those of the first."""
    first, *others = by(lines, "network").items()
    for name, other in others:
        found: list[Line] = []
        for (depth, of), layers in by(other, "depth", "of").items():
            mates = [x for x in first[1] if (x["depth"], x["of"]) == (depth, of)]
            p, q = ([fmean(x[m] for x in each) for m in MEMBERS] for each in (mates, layers))
            found.append({"group": layers[0]["group"], "of": of, "divergence": divergence(p, q)})
        for of, chosen in by(found, "of").items():
            for group, layers in [*by(chosen, "group").items(), ("all", chosen)]:
                apart = fmean(x["divergence"] for x in layers)
                network = f"{first[0]} || {name}"
                yield {"network": network, "of": of, "group": group, "divergence": apart}


def weighing(asked: Asked) -> None:
    """Inference example weighing of kept networks."""
    alphas = _alphas(asked.option("alphas", ""))
    lines: list[Line] = []
    shown = []
    for label, runs in runs_of(asked).items():
        for run in runs:
            found = _curve(run, alphas)
            own = list(_curve_lines(label, run, found))
            lines += own
            for measure, alpha in found.best.items():
                before, after = (getattr(found.at(a), measure) for a in (found.usual, alpha))
                shown.append(
                    [label, run.row.id, run.cell.seed, measure, f"{alpha:g}",
                     f"{before:.4g}", f"{after:.4g}", f"{after - before:+.4g}"]
                )  # fmt: skip
            best = {name: found.at(alpha) for name, alpha in found.best.items()}
            tested = {f"test_{name}": getattr(point, name) for name, point in best.items()}
            chosen = next(p for p in found.points if p.alpha == found.best["top1"])
            _leave(asked, run, own, weights=found.best, val_top1=chosen.top1, **tested)
    head = [
        "network",
        "run",
        "seed",
        "measure",
        "best alpha",
        "test, usual alpha",
        "test, best",
        "gain",
    ]
    _print(shown, head)
    _finish(asked, lines)


def _curve(run: Kept, alphas: Sequence[float]) -> example_weight.Curve:
    loaders = loaders_of(run.cell)
    if not len(loaders.splits.val.labels):
        raise BadInput(
            f"ckpt={run.row.id}: it held out no validation images (data.val=0), and alpha is not "
            "to be chosen on the test images"
        )
    network = run.network(run.last)
    device = torch.device("cuda" if on_gpu(run.cell) else "cpu")
    network = network.to(device)

    def images(part: str) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in getattr(loaders, f"{part}_dataloader")():
            shown = loaders.on_after_batch_transfer(batch, 0)
            yield shown.images.to(device), shown.labels.to(device)

    try:
        if _lacks_statistics(network):
            recalibrate(network, (x.to(device) for x in loaders.after_training(STEPS)))
        return example_weight.curve(
            network, loaders.data.classes, lambda: images("val"), lambda: images("test"), alphas
        )
    except ValueError as reason:
        raise BadInput(f"ckpt={run.row.id}: {reason}") from None


def _lacks_statistics(network: nn.Module) -> bool:
    """Whether its layers have statistics of groups of channels, and keep none."""
    return any(
        isinstance(layer, GroupNormAct | nn.GroupNorm) and not hasattr(layer, "running_mean")
        for layer in network.modules()
    )


def _curve_lines(label: str, run: Kept, found: example_weight.Curve) -> Iterator[Line]:
    own: Line = {"network": label, "run": run.row.id, "seed": run.cell.seed}
    for point in (*found.points, *found.tested):
        chosen = [name for name, alpha in found.best.items() if alpha == point.alpha]
        yield {**own, **vars(point), "best": " ".join(chosen)}


def _alphas(word: str) -> Sequence[float]:
    if not word:
        return example_weight.ALPHAS
    try:
        found = [float(each) for each in word.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= each <= 1 for each in found):
        raise BadInput(f"alphas={word}: weights from 0 to 1, as alphas=0,0.1,0.5,1")
    return found


def compare_speed(asked: Asked) -> None:
    """Normalizers against bn in the same networks."""
    repeats = counted("repeats", asked.option("repeats", "7"), 7)
    modes = _modes(asked.option("mode", "training,inference"))
    cells = [cell for _, words in asked.networks for cell in _with_bn(words)]
    if len({repr(cell.data.identity) for cell in cells}) > 1:
        raise BadInput("data: speeds are compared on images of one size; give one data set")
    data = dataset_of(cells[0])
    torch.set_num_threads(cells[0].trainer.threads)
    lines: list[Line] = []
    for batch in sorted({cell.batch for cell in cells}):
        here = fresh([("", [cell for cell in cells if cell.batch == batch])])
        images = torch.randn(batch, *data.image, device=here[0].device)
        for mode in modes:
            print(f"batch {batch}, {mode}: {len(here)} networks", file=sys.stderr, flush=True)
            builds = {each.label: each.network for each in here}
            lines += _over_bn(here, speeds(builds, images, data.classes, mode, repeats))
    shown = [[x["network"], x["batch"], x["mode"], *_speed_cells(x)] for x in lines]
    head = ["network", "batch", "mode", "steps/s", "quartiles", "images/s", "over bn", "memory MB",
            "over bn"]  # fmt: skip
    _print(shown, head)
    refused = {str(x["network"]): str(x["reason"]) for x in lines if x["status"] == "n/a"}
    print("\n".join(f"{name}: {reason}" for name, reason in refused.items()))
    _finish(asked, lines)


def _with_bn(words: Sequence[str]) -> list[Cell]:
    """The cells of some words, and before them those of bn, against which they are held."""
    cells = composed(words)
    if any(_is_bn(cell) for cell in cells):
        return cells
    others = [word for word in words if not word.startswith(("norm=", "norm."))]
    return [*composed([*others, "norm=bn"]), *cells]


def _is_bn(cell: Cell) -> bool:
    return cell.norm.name == "bn" and not cell.norm.changed


def _over_bn(subjects: Sequence[Subject], found: Sequence[Speed]) -> Iterator[Line]:
    """Lines with what each network has over bn in the same architecture."""
    bases = {
        repr(subject.cell.model.identity): speed
        for subject, speed in zip(subjects, found, strict=True)
        if _is_bn(subject.cell) and speed.status == "ok"
    }
    for subject, speed in zip(subjects, found, strict=True):
        base = bases.get(repr(subject.cell.model.identity))
        rate, memory = speed.steps_per_second, speed.memory
        line: Line = {**vars(speed), "ratio": None, "memory_ratio": None}
        line["images_per_second"] = None if rate is None else rate * speed.batch
        if base is not None and rate and memory:
            assert base.steps_per_second
            assert base.memory
            line["ratio"] = rate / base.steps_per_second
            line["memory_ratio"] = memory / base.memory
        yield line


def _modes(word: str) -> list[Mode]:
    known: tuple[Mode, ...] = ("training", "inference")
    for each in word.split(","):
        if each not in known:
            raise BadInput(f"mode={word}: {choose_from(each, known)}")
    return [mode for mode in known if mode in word.split(",")]


def _speed_cells(line: Line) -> list[str]:
    if line["status"] != "ok":
        return [str(line["status"]), "", "", "", "", ""]
    quartiles = f"{line['lower']:.4g} to {line['upper']:.4g}"
    megabytes = float(line["memory"]) / 2**20
    return [
        f"{line['steps_per_second']:.4g}", quartiles, f"{line['images_per_second']:.4g}",
        _over(line["ratio"]), f"{megabytes:.1f}", _over(line["memory_ratio"]),
    ]  # fmt: skip


def _over(value: object) -> str:
    return "" if value is None else f"{value:.2f}"


def activations(asked: Asked) -> None:
    """Gains."""
    if any(words for _, words in asked.networks):
        raise BadInput("gains: it is of activations and no networks; act=NAME,... says of which")
    wanted = asked.option("act", ",".join(GAINS)).split(",")
    lines: list[Line] = []
    for name in wanted:
        function = gains.function_of(name)
        line: Line = {"act": name, "exact": None, "sampled": gains.by_sampling(function)}
        with suppress(ValueError, RuntimeError):  # a function of whole vectors has none
            line["exact"] = gains.by_quadrature(function)
        lines.append({**line, "normbench": GAINS.get(name)})
    table = [[_digits(value) for value in line.values()] for line in lines]
    _print(table, ["activation", "by quadrature", "by sampling", "in nf"])
    _finish(asked, lines)


def _digits(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value or "")


LOOKS: Mapping[str, Callable[[Asked], None]] = {
    "spp": signal,
    "power": powers,
    "ratios": switchables,
    "example_weight": weighing,
    "speed": compare_speed,
    "gains": activations,
}


# Networks in, files out


def _looked(asked: Asked) -> list[Line]:
    """The lines of every network that the probe can look at.

    Raises:
        BadInput: it can look at none.
    """
    lines: list[Line] = []
    reasons = []
    every = subjects(asked)
    for number, subject in enumerate(every, 1):
        at = "" if subject.epoch is None else f" after epoch {subject.epoch}"
        print(f"{number} of {len(every)}: {subject.label}{at}", file=sys.stderr, flush=True)
        try:
            lines += _lines_of(asked, subject)
        except Impossible as reason:
            reasons.append(f"{subject.label} is n/a: {reason}")
    if not lines:
        raise BadInput("; ".join(dict.fromkeys(reasons)))
    print("\n".join(dict.fromkeys(reasons)))
    for run in {each.run.row.id: each.run for each in every if each.run is not None}.values():
        if own := [line for line in lines if line.get("run") == run.row.id]:
            _leave(asked, run, own)
    return lines


def _lines_of(asked: Asked, subject: Subject) -> list[Line]:
    statistics: Any = asked.option("statistics", "batch")
    if statistics not in STATISTICS:
        raise BadInput(f"statistics={statistics}: {choose_from(statistics, STATISTICS)}")
    network = subject.network()
    if eps := asked.option("eps"):
        set_eps(network, _number("eps", eps))
    found = LINES[asked.kind](network, images_of(asked, subject), statistics)
    if asked.kind == "power" and isinstance(network, RandomNet):
        for line in found:
            line["bound"] = network.rho ** (int(line["depth"] or 1) - 1)
    return [{**subject.own, **line} for line in found]


def _number(name: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise BadInput(f"{name}={word}: a number from 0 to below 1, as {name}=1e-5")
    return value


def _finish(asked: Asked, lines: Sequence[Line]) -> None:
    """Write numbers and figure where all networks of the command line have theirs."""
    stem = asked.option("name", asked.stem)
    paths = _written(Path(asked.option("out", OUT)), stem, asked, lines)
    print("\n" + ", ".join(map(str, paths)))


def _written(folder: Path, stem: str, asked: Asked, lines: Sequence[Line]) -> list[Path]:
    numbers = folder / f"{stem}.csv"
    write(numbers, lines)
    return [numbers, *_drawn(numbers, asked.kind, asked.title)]


def _drawn(numbers: Path, kind: str, title: str) -> list[Path]:
    """The figure of a file of numbers, beside it."""
    paths = []
    for form, content in draw(kind, read(numbers), title).items():
        paths.append(numbers.with_suffix(f".{form}"))
        paths[-1].write_bytes(content)
    return paths


def _leave(asked: Asked, run: Kept, lines: Sequence[Line], **found: Any) -> None:
    """What was seen of a run, in its folder, with a row that says where it comes from."""
    folder = run.folder / FOLDER
    numbers = folder / f"{asked.kind}.csv"
    merge(numbers, lines)
    _drawn(numbers, asked.kind, run.cell.title)
    options = {k: v for k, v in asked.options.items() if k not in ("ckpt", "out", "name")}
    options |= {f"{asked.kind}.{k}": f"{v:g}" for k, v in found.pop("weights", {}).items()}
    key = f"{run.row.id} {asked.kind} {sorted(options.items())}"
    row = replace(
        run.row, kind="probe", probe=asked.kind, of=run.row.id, finished=now(), commit=commit(),
        id=hashlib.sha256(key.encode()).hexdigest()[:12], versions=versions(),
        options=" ".join([run.row.options, *(f"{k}={v}" for k, v in options.items())]).strip(),
        wandb="", shared_with=None, **found,
    )  # fmt: skip
    write_probe(folder / f"{asked.kind}.json", row)


def _print(rows: Sequence[Sequence[object]], head: Sequence[str]) -> None:
    print(tabulate(rows, head, disable_numparse=True))


def _named(key: tuple[Any, ...]) -> str:
    """A network, and the epoch of a run's."""
    network, epoch = key
    return network if epoch is None else f"{network}, epoch {epoch}"
