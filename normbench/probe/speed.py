"""Steps a second and memory, normalizers in turn."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from normbench.config.cells import Cell
from normbench.errors import BadInput, choose_from, counted
from normbench.execution.preflight import require_compiler
from normbench.measurements.speed import Entry, Mode, Speed, speeds
from normbench.norms.impl import set_impl
from normbench.probe.networks import Subject, composed, fresh
from normbench.probe.output import finish, show
from normbench.probe.request import Asked
from normbench.run_files import Record
from normbench.training.trainer import dataset_of, dtype_of, exact, forward_context


def look(asked: Asked) -> None:
    """Normalizers against bn in the same networks."""
    repeats = counted("repeats", asked.option("repeats", "7"), 7)
    modes = _modes(asked.option("mode", "training,inference"))
    cells = [cell for _, words in asked.networks for cell in _with_bn(words)]
    if len({repr(cell.data.identity) for cell in cells}) > 1:
        raise BadInput("data: speeds are compared on images of one size; give one data set")
    data = dataset_of(cells[0])
    torch.set_num_threads(cells[0].trainer.threads)  # as a run has, and no more
    exact()
    lines: list[Record] = []
    for batch in sorted({cell.batch for cell in cells}):
        here = fresh([("", [cell for cell in cells if cell.batch == batch])])
        images = torch.randn(batch, *data.image)
        entries = {each.label: _entry(each, images) for each in here}
        for mode in modes:
            print(f"batch {batch}, {mode}: {len(here)} networks", file=sys.stderr, flush=True)
            lines += _over_bn(here, speeds(entries, data.classes, mode, repeats))
    shown = [[x["network"], x["batch"], x["mode"], *_speed_cells(x)] for x in lines]
    head = ["network", "batch", "mode", "steps/s", "quartiles", "images/s", "over bn", "memory MB",
            "over bn"]  # fmt: skip
    show(shown, head)
    refused = {str(x["network"]): str(x["reason"]) for x in lines if x["status"] == "n/a"}
    print("\n".join(f"{name}: {reason}" for name, reason in refused.items()))
    finish(asked, lines)


def _entry(subject: Subject, images: Tensor) -> Entry:
    """A network as its cell asks for it: precision and memory format."""
    cell, device = subject.cell, subject.device
    impl, graphs = cell.trainer.impl, str(cell.trainer.graphs).lower()
    if impl == "compile" or cell.precision == "16-mixed" or cell.trainer.graphs:
        raise BadInput(
            f"trainer.impl={impl} precision={cell.precision} trainer.graphs={graphs}: speeds "
            "are of eager, lean or triton networks, in 32-true, 64-true or bf16-mixed"
        )
    require_compiler(cell)
    last = cell.trainer.channels_last
    layout = torch.channels_last if last else torch.contiguous_format
    given = images.to(device, dtype_of(cell)).to(memory_format=layout)

    def build() -> nn.Module:
        network = subject.network().to(memory_format=layout)
        set_impl(network, "eager" if cell.trainer.impl == "auto" else cell.trainer.impl)
        return network

    return Entry(build, given, partial(forward_context, cell, device))


def _with_bn(words: Sequence[str]) -> list[Cell]:
    """The cells of some words, and before them those of bn, against which they are held."""
    cells = composed(words)
    if any(_is_bn(cell) for cell in cells):
        return cells
    others = [word for word in words if not word.startswith(("norm=", "norm."))]
    return [*composed([*others, "norm=bn"]), *cells]


def _is_bn(cell: Cell) -> bool:
    return cell.norm.name == "bn" and not cell.norm.changed


def _over_bn(subjects: Sequence[Subject], found: Sequence[Speed]) -> Iterator[Record]:
    """Lines with what each network has over bn in the same architecture."""
    bases = {
        _place(subject.cell): speed
        for subject, speed in zip(subjects, found, strict=True)
        if _is_bn(subject.cell) and speed.status == "ok"
    }
    for subject, speed in zip(subjects, found, strict=True):
        base = bases.get(_place(subject.cell))
        rate, memory = speed.steps_per_second, speed.memory
        line: Record = {**vars(speed), "ratio": None, "memory_ratio": None}
        line["images_per_second"] = None if rate is None else rate * speed.batch
        if base is not None and rate and memory:
            assert base.steps_per_second
            assert base.memory
            line["ratio"] = rate / base.steps_per_second
            line["memory_ratio"] = memory / base.memory
        yield line


def _place(cell: Cell) -> str:
    """All that a network and its bn have in common."""
    return repr((cell.model.identity, cell.precision, cell.trainer, cell.seed))


def _modes(word: str) -> list[Mode]:
    known: tuple[Mode, ...] = ("training", "inference")
    for each in word.split(","):
        if each not in known:
            raise BadInput(f"mode={word}: {choose_from(each, known)}")
    return [mode for mode in known if mode in word.split(",")]


def _speed_cells(line: Record) -> list[str]:
    if line["status"] != "ok":
        return [str(line["status"]), "", "", "", "", ""]
    quartiles = f"{line['lower']:.4g} to {line['upper']:.4g}"
    megabytes = float(line["memory"]) / 2**20
    return [
        f"{line['steps_per_second']:.4g}", quartiles, f"{line['images_per_second']:.4g}",
        _over(line["ratio"]), f"{megabytes:.3g}", _over(line["memory_ratio"]),
    ]  # fmt: skip


def _over(value: object) -> str:
    return "" if value is None else f"{value:.2f}"
