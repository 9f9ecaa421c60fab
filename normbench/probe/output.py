"""Numbers, figures and rows of what was seen, as files, and tables on the screen."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from normbench.execution.provenance import commit, now, versions
from normbench.probe.request import OUT, Asked
from normbench.probe.trained_network import Kept
from normbench.report.probe_figures import draw
from normbench.results import write_probe_row
from normbench.run_files import PROBES, Record, command_stem, read_records, write_records


def finish(asked: Asked, lines: Sequence[Record]) -> None:
    """Write numbers and figure where all networks of the command line have theirs."""
    folder, name = Path(asked.option("out", OUT)), asked.option("name", asked.stem)
    replaced = " (in the place of what was there; name=STEM keeps both)"
    note = replaced if (folder / f"{name}.csv").exists() else ""
    paths = _written(folder, name, asked, lines)
    about = {
        "kind": asked.kind, "networks": [words for _, words in asked.networks],
        "options": dict(asked.options), "finished": now(), "versions": versions(),
        "commit": commit(),
    }  # fmt: skip
    paths.append(folder / f"{name}.json")
    paths[-1].write_text(json.dumps(about, indent=1) + "\n")
    print(f"\n{', '.join(map(str, paths))}{note}")


def _written(folder: Path, name: str, asked: Asked, lines: Sequence[Record]) -> list[Path]:
    numbers = folder / f"{name}.csv"
    write_records(numbers, lines)
    paths = [numbers]
    for form, content in draw(asked.kind, read_records(numbers), asked.title).items():
        paths.append(folder / f"{name}.{form}")
        paths[-1].write_bytes(content)
    return paths


def leave(asked: Asked, run: Kept, lines: Sequence[Record], **found: Any) -> None:
    """What was seen of a run, in its folder, with a row that says where it comes from."""
    folder = run.folder / PROBES
    name = command_stem(asked.kind)
    _written(folder, name, replace(asked, title=run.cell.title), lines)
    options = {k: v for k, v in asked.options.items() if k not in ("ckpt", "out", "name")}
    options |= {f"{asked.kind}.{k}": f"{v:g}" for k, v in found.pop("weights", {}).items()}
    key = f"{run.row.id} {asked.kind} {sorted(options.items())}"
    row = replace(
        run.row, kind="probe", probe=asked.kind, probed_run=run.row.id,
        finished=now(), commit=commit(),
        id=hashlib.sha256(key.encode()).hexdigest()[:12], versions=versions(),
        options=" ".join([run.row.options, *(f"{k}={v}" for k, v in options.items())]).strip(),
        wandb="", shared_with=None, **found,
    )  # fmt: skip
    write_probe_row(folder / f"{name}.json", row)


def show(rows: Sequence[Sequence[object]], head: Sequence[str]) -> None:
    print(tabulate(rows, head, disable_numparse=True))
