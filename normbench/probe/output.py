"""Results of probes: records, figures and rows as files, and tables on the screen."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tabulate import tabulate

from normbench.config.files import training_probes
from normbench.errors import BadInput
from normbench.execution.provenance import commit, now, versions
from normbench.probe.claims import describe_verdicts, judge_claims
from normbench.probe.options import TrainedNetworkOptions
from normbench.probe.request import ProbeRequest
from normbench.probe.trained_network import TrainedRun
from normbench.records.probes import PROBES, Record, read_records, write_records
from normbench.report.probe_figures import draw
from normbench.run_files import describe_write_error, write_file, write_json


def write_results(request: ProbeRequest, records: Sequence[Record]) -> None:
    """Write records, figure and provenance of a command to its folder; print the paths."""
    folder, name = request.options.folder, request.stem
    exists = (folder / f"{name}.csv").exists()
    note = " (older files were replaced; name=STEM keeps both)" if exists else ""
    paths = _write_records_and_figure(folder, name, request, records)
    verdicts = judge_claims(request.claims, records)
    provenance = {
        "kind": request.kind, "networks": [words for _, words in request.networks],
        "options": dict(request.typed), "finished": now(), "versions": versions(),
        "commit": commit(), "claims": verdicts,
    }  # fmt: skip
    paths.append(folder / f"{name}.json")
    with named_if_unwritten(paths[-1]):
        write_file(paths[-1], (json.dumps(provenance, indent=1) + "\n").encode())
    if verdicts:
        print(f"\n{describe_verdicts(verdicts)}")
    print(f"\n{', '.join(map(str, paths))}{note}")


def _write_records_and_figure(
    folder: Path, name: str, request: ProbeRequest, records: Sequence[Record]
) -> list[Path]:
    numbers = folder / f"{name}.csv"
    with named_if_unwritten(numbers):
        write_records(numbers, records)
    paths = [numbers]
    # From the file, so that the file alone gives the same figure.
    for form, content in draw(request.kind, read_records(numbers), request.title).items():
        paths.append(folder / f"{name}.{form}")
        with named_if_unwritten(paths[-1]):
            write_file(paths[-1], content)
    return paths


@contextmanager
def named_if_unwritten(path: Path) -> Iterator[None]:
    """Raise `BadInput` if a file cannot be written in this block."""
    try:
        yield
    except OSError as error:
        raise BadInput(describe_write_error(path, path, error)) from None


def write_run_results(
    request: ProbeRequest,
    run: TrainedRun,
    records: Sequence[Record],
    options: Mapping[str, str] | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> None:
    """Write what was measured in a run to the run's folder, with a row of kind probe.

    `options` are results of the probe that the row names among its options, `metrics` fields of the
    row that differ from the run's.
    """
    folder = run.folder / PROBES
    # KIND.csv is of the run's training, where the kind can measure one.
    name = f"{request.kind}.command" if request.kind in training_probes() else request.kind
    _write_records_and_figure(folder, name, replace(request, title=run.cell.title), records)
    # Where the files of runs lie changes no number.
    typed = {
        k: v
        for k, v in request.typed.items()
        if k not in TrainedNetworkOptions.__dataclass_fields__
    }
    typed |= options or {}
    # The same measurement has the same id again.
    key = f"{run.row.id} {request.kind} {sorted(typed.items())}"
    row = replace(
        run.row, kind="probe", probe=request.kind, probed_run=run.row.id,
        finished=now(), commit=commit(),
        id=hashlib.sha256(key.encode()).hexdigest()[:12], versions=versions(),
        options=" ".join([run.row.options, *(f"{k}={v}" for k, v in typed.items())]).strip(),
        wandb="", shared_with=None, **(metrics or {}),
    )  # fmt: skip
    with named_if_unwritten(folder / f"{name}.json"):
        write_json(folder / f"{name}.json", asdict(row))


def describe_accuracies(accuracies: Sequence[float]) -> str:
    """Return mean and standard deviation over runs as text."""
    if not accuracies:
        return "n/a"
    spread = f" ± {stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{fmean(accuracies):.1f}{spread}"


def print_table(rows: Sequence[Sequence[object]], head: Sequence[str]) -> None:
    print(tabulate(rows, head, disable_numparse=True))
