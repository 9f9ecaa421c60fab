"""Tables of docs/reference/performance.md, from the CSV files of reports/bench/."""

import csv
from collections.abc import Sequence

from markdown_table import markdown_table

from normbench.bench.layers import IMPLS
from normbench.config.files import ROOT

FOLDER = ROOT / "reports/bench"
MACHINE = ("machine", "torch", "timm", "commit", "measured")
Line = dict[str, str]

_HEAD = """\
# Performance

Written by `python docs/build.py` from the files of [reports/bench](../../reports/bench), which
`python -m normbench.bench KIND out=FILE` writes. The lines of a table were measured in one run, in
turn. Ratios are medians, with quartiles in brackets.

What a reader may conclude:

- Each table holds for the machine and the versions named below it. On another processor or on a
  GPU the ratios are others, and even the order of two lines can be: measure there.
- Two lines of a table differ if their quartiles lie apart. The reference is measured like every
  other line, so the brackets behind its 1.00 are the noise of the run. Where the reference was
  measured twice (`bare again`), a difference below that between the two says nothing.
- Ratios of two tables cannot be compared, because their references differ. Seconds depend on what
  else the machine did.
"""
_LAYERS = """\
## Layers

`eager` and `compile`: processor time of a forward and a backward pass of a layer with its
activation, divided by that of torch's `F.batch_norm` and `relu`. The names are values of
`trainer.impl`; layers of torch and timm are eager.

`kept`: memory that the layer saves for its backward pass, divided by the size of its input. The
output does not count, because the next convolution saves it anyway. For compiled layers it is the
memory of the tensors that autograd saves.
"""
_STEP = """\
## Steps

Processor time of an optimizer step in normbench (with loader, records and progress), divided by
that of a bare PyTorch loop with the same loader. In the smallest network nearly all time is spent
outside the network; `as typed` is the network of the command line. The difference between
`bare loop` and `bare again`, which are the same loop, is noise.
"""
_SEEDS = """\
## Stacked seeds

Processor time of a training step of several seeds as one network (`stack_seeds=true`: `stacked`),
divided by that of the same seeds trained one after the other. With small networks and batches most
of a step is the overhead of calling operators, which stacked seeds share. Where arithmetic takes
most of the time, stacking gains nothing.
"""
_SWEEP = """\
## Sweeps

Wall time in seconds, divided by that of the sweep:

- `sweep`: the whole command;
- `a process each`: one `python -m normbench` for each cell, one after the other;
- `sweep at commit`: the same command at an older commit (after 4bee759, runs share imports and the
  service of W&B);
- `command to first step`: from the command to the end of the first optimizer step, which includes
  importing torch;
- `row to next first step`: from the row of a run to the end of the next run's first step.
"""
_LOADER = """\
## Loaders

Images per second that a loader delivers, without training, divided by those of a PyTorch DataLoader
with transforms of torchvision (`usual`), which loads `batch` images at a time in two processes.
"""
_WORKERS = """\
## Workers

Images per second of a training under several plans (`devices x per_forward x accumulation`),
divided by those of the first plan, on the same CPU cores. Several devices are as many processes,
which train by DDP.
"""
_REPORT = """\
## Reports

Wall time in seconds, divided by that of opening each row and parsing its JSON (`JSON alone`):

- `tables`: reading the rows and making all tables;
- `command, nothing new`: `python -m normbench.report` with no new row.
"""
_OTHERS = {
    "seeds": _SEEDS, "sweep": _SWEEP, "loader": _LOADER, "workers": _WORKERS, "report": _REPORT,
}  # fmt: skip


def performance() -> str:
    """Return docs/reference/performance.md."""
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
        entries = [cells.get(f"{name} {impl}", ("", "")) for impl in IMPLS]
        rows.append([name, *(ratio for ratio, _ in entries), *(kept for _, kept in entries)])
    ours = {f"{name} {impl}" for name in names for impl in IMPLS}
    others = ((name, *cell) for name, cell in cells.items() if name not in ours)
    unmeasured = [""] * (len(IMPLS) - 1)
    rows += [[name, ratio, *unmeasured, kept, *unmeasured] for name, ratio, kept in others]
    return markdown_table(head, rows, len(head) - 1) + "\n"


def _table_of_steps(lines: Sequence[Line]) -> str:
    rows = [
        [line["network"], line["loop"], _ratio(line), f"{float(line['microseconds']):.0f}",
         f"{float(line['more']):.0f}"]
        for line in lines
    ]  # fmt: skip
    head = ["network", "loop", "ratio", "microseconds a step", "more than the loop"]
    return markdown_table(head, rows, len(head) - 1) + "\n"


def _table(lines: Sequence[Line]) -> str:
    """Return a table: the columns that identify a line, the ratio, and the measured number."""
    *words, _, _, _, unit = [key for key in lines[0] if key not in MACHINE]
    rows = [[*(line[word] for word in words), _ratio(line), _number(line[unit])] for line in lines]
    head = [*words, "ratio", unit.replace("_", " ")]
    return markdown_table(head, rows, len(head) - 1) + "\n"


def _number(text: str) -> str:
    """Return four significant digits; from 1,000 on, a whole number."""
    value = float(text)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _ratio(line: Line) -> str:
    ratio, lower, upper = (f"{float(line[key]):.2f}" for key in ("ratio", "lower", "upper"))
    return f"{ratio} [{lower}, {upper}]"


def _where(lines: Sequence[Line]) -> str:
    first = lines[0]
    return f"{first['machine']}, torch {first['torch']}, {first['measured'][:10]}.\n"
