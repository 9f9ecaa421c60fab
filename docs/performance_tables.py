"""Tables of docs/reference/performance.md, from the CSV files of reports/bench/."""

import csv
from collections.abc import Sequence

from normbench.bench.layers import IMPLS
from normbench.config.files import ROOT

FOLDER = ROOT / "reports/bench"
MACHINE = ("machine", "torch", "timm", "commit", "measured")
Line = dict[str, str]

_HEAD = """\
# Performance

Written by `python -m normbench.pages` from the files of [reports/bench](../../reports/bench), which
`python -m normbench.bench KIND out=FILE` writes. All that stands in one table was measured in one
run, in turn; shown are medians, and quartiles in brackets. Other machines have other ratios.
"""
_LAYERS = """\
## Layers

Processor time of a forward and a backward pass of a layer and its activation, over that of torch's
`F.batch_norm` and `relu`; and maps that lie there for the backward pass, over the input's size, the
output not counted, which the next convolution keeps anyway (of compiled layers what autograd keeps
of them). `eager`, `lean` and `compile` are those of `trainer.impl`. Layers of torch and timm are
eager.
"""
_STEP = """\
## Steps

Processor time of an optimizer step of a training (loader, records, progress and all) over a loop of
PyTorch by hand with the same loader: the smallest network that there is, where the harness is all
that there is to see, and another one. The loop measured twice says how much is noise.
"""
_SEEDS = """\
## Seeds together

Processor time of a training step of several seeds as one network (`stack_seeds=true`) over one
training after the other, one worker each. On small networks at small batches most of a step is the
calling of operators, which is done once for all; where arithmetic is most of it nothing is gained.
"""
_SWEEP = """\
## Sweeps

Seconds of a whole command line: a sweep, and a process of normbench for each of its cells, one
after the other; from the command to the end of the first optimizer step, in which torch and the
libraries are imported, and from the row of a run to the first step of the next one. A sweep at an
older commit is the same sweep by that one: since 4bee759 runs share imports and a service of W&B.
"""
_LOADER = """\
## Loaders

Images a second that a loader makes ready for a network, nothing trained, over those of a DataLoader
of torch with transforms of torchvision (`usual`), `batch` images at a time by two processes.
"""
_WORKERS = """\
## Workers

Images a second of a training under each of the plans that lay its workers, devices x per_forward x
accumulation, over the first: all in one process, or a process each by DDP, on the same cores.
"""
_REPORT = """\
## Reports

All tables from so many rows, and `python -m normbench.report` with nothing new, over opening each
row and reading its JSON.
"""
_OTHERS = {
    "seeds": _SEEDS, "sweep": _SWEEP, "loader": _LOADER, "workers": _WORKERS, "report": _REPORT,
}  # fmt: skip


def performance() -> str:
    """The whole of docs/performance.md."""
    parts = [_HEAD, _LAYERS]
    layers = _read("layers")
    for shape in dict.fromkeys(line["shape"] for line in layers):
        chosen = [line for line in layers if line["shape"] == shape]
        parts += [f"{shape.replace('x', ' x ')}:\n", _table_of_layers(chosen)]
    parts += [_where(layers), _STEP, _table_of_steps(_read("step")), _where(_read("step"))]
    for kind, head in _OTHERS.items():
        lines = _read(kind)
        parts += [head, _table(lines), _where(lines)]
    return "\n".join(parts)


def _read(kind: str) -> list[Line]:
    with (FOLDER / f"{kind}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _table_of_layers(lines: Sequence[Line]) -> str:
    cells = {line["layer"]: (_ratio(line), f"{float(line['kept']):.2f}") for line in lines}
    by_impl = [name.rpartition(" ") for name in cells]
    names = dict.fromkeys(name for name, _, impl in by_impl if impl in IMPLS)
    head = ["layer", *IMPLS, *(f"kept, {impl}" for impl in IMPLS)]
    rows = []
    for name in names:
        own = [cells.get(f"{name} {impl}", ("", "")) for impl in IMPLS]
        rows.append([name, *(ratio for ratio, _ in own), *(kept for _, kept in own)])
    ours = {f"{name} {impl}" for name in names for impl in IMPLS}
    others = ((name, *cell) for name, cell in cells.items() if name not in ours)
    rows += [[name, ratio, "", "", kept, "", ""] for name, ratio, kept in others]
    return _markdown(head, rows)


def _table_of_steps(lines: Sequence[Line]) -> str:
    rows = [
        [line["network"], line["loop"], _ratio(line), f"{float(line['microseconds']):.0f}",
         f"{float(line['more']):.0f}"]
        for line in lines
    ]  # fmt: skip
    head = ["network", "loop", "ratio", "microseconds a step", "more than the loop"]
    return _markdown(head, rows)


def _table(lines: Sequence[Line]) -> str:
    """A column for what tells lines apart, the ratio with its quartiles, and the last number."""
    *words, _, _, _, unit = [key for key in lines[0] if key not in MACHINE]
    rows = [[*(line[word] for word in words), _ratio(line), _number(line[unit])] for line in lines]
    return _markdown([*words, "ratio", unit.replace("_", " ")], rows)


def _number(text: str) -> str:
    """Four digits, and none of them after a thousand."""
    value = float(text)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _ratio(line: Line) -> str:
    ratio, lower, upper = (f"{float(line[key]):.2f}" for key in ("ratio", "lower", "upper"))
    return f"{ratio} [{lower}, {upper}]"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, [":--", *("--:" for _ in head[1:])], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _where(lines: Sequence[Line]) -> str:
    first = lines[0]
    return f"{first['machine']}, torch {first['torch']}, {first['measured'][:10]}.\n"
