"""Records of probes: CSV files, one line for each block, layer, alpha ... of each epoch.

A probe during training writes probes/KIND.csv in the folder of the run. `python -m normbench.probe`
may use other images, so it writes probes/KIND.command.csv where training writes the same kind.
"""

import csv
import io
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from normbench.errors import DamagedFile, leave_out
from normbench.records.csv_table import read_csv
from normbench.run_files import write_file

PROBES = "probes"
#: Columns of probe files that are never numbers: the run id 1234567890e1 would parse as one.
TEXT_COLUMNS = frozenset(
    {"network", "run", "name", "layer", "group", "of", "split", "best", "mode", "status", "reason"}
    | {"act", "input", "statistics", "key", "device"}
)

Record = dict[str, Any]  # one line of a CSV file; values are str, int, float, bool or None

#: Texts that a spreadsheet would compute, or that have an apostrophe before one.
_FORMULA = re.compile(r"'*[=+@\t\r\n-]")


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Write `records` as CSV, atomically; columns in the order of their first appearance."""
    columns = list(dict.fromkeys(name for each in records for name in each))
    lines = [
        [f"{x:.9g}" if isinstance(x, float) else plain_cell(x) for x in map(each.get, columns)]
        for each in records
    ]
    write_file(path, csv_text([columns, *lines]).encode())


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """Return lines of values as the content of a CSV file."""
    # By \r\n, as otherwise a \r in a text is not quoted; git and diff show it at every line's end.
    out = io.StringIO(newline="")
    writer, ended = csv.writer(out, lineterminator="\r\n"), []
    for line in lines:
        out.seek(0)
        out.truncate()
        writer.writerow(line)
        ended.append(out.getvalue().removesuffix("\r\n") + "\n")
    return "".join(ended)


def read_records(path: Path) -> list[Record]:
    """Read a CSV file of `write_records`: numbers become numbers, empty fields None.

    Raises:
        FileNotFoundError: there is none.
        DamagedFile: the file is no such table; the message names the line.
    """
    columns, *lines = read_csv(path)
    return [
        {
            name: _restore_cell(text) if name in TEXT_COLUMNS else _parse_value(text)
            for name, text in zip(columns, line, strict=True)
        }
        for line in lines
    ]


def plain_cell(value: Any) -> Any:
    """Return a value for a CSV file; an apostrophe keeps a spreadsheet from computing a text."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _restore_cell(text: str) -> str:
    """Return the text that `plain_cell` has changed."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def append_epoch(folder: Path, kind: str, records: Sequence[Record], epoch: int) -> None:
    """Add the records of a probe after `epoch` to the file of the run.

    Records of this epoch and later ones are replaced: they come from a training that was resumed
    from an earlier checkpoint. A damaged file is left out.
    """
    path = folder / PROBES / f"{kind}.csv"
    earlier: list[Record] = []
    try:
        earlier = read_records(path)
        if not all(isinstance(record.get("epoch"), int) for record in earlier):
            raise DamagedFile(f"{path} has records without an epoch")
    except FileNotFoundError:
        pass
    except DamagedFile as damage:
        leave_out(damage)
        earlier = []
    write_records(path, [*(record for record in earlier if record["epoch"] < epoch), *records])


def group_by(records: Sequence[Record], *columns: str) -> dict[Any, list[Record]]:
    """Group `records` by one column (keys are values) or several (keys are tuples of values)."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        values = tuple(record.get(column) for column in columns)
        groups.setdefault(values if len(columns) > 1 else values[0], []).append(record)
    return groups


def last_epoch(records: Sequence[Record], *columns: str) -> list[Record]:
    """Return the records of the last epoch of each network; `columns` identify a network."""
    last: list[Record] = []
    for group in group_by(records, *columns).values():
        epoch = max(record["epoch"] for record in group)
        last += [record for record in group if record["epoch"] == epoch]
    return last


def network_label(key: tuple[str, int | None]) -> str:
    """Return the label of (network, epoch) in a figure or table."""
    network, epoch = key
    return network if epoch is None else f"{network}, epoch {epoch}"


def probe_file(folder: Path, kind: str) -> Path | None:
    """Return the probe file of a run: the one from training, or else from the probe command."""
    if not (folder / PROBES).is_dir():  # most runs have no probes
        return None
    paths = [folder / PROBES / f"{stem}.csv" for stem in (kind, f"{kind}.command")]
    return next((path for path in paths if os.path.lexists(path)), None)


def _parse_value(text: str) -> Any:
    constants = {"": None, "True": True, "False": False}
    if text in constants:
        return constants[text]
    with suppress(ValueError):
        if abs(whole := int(text)) < 2**63:  # figures cannot place longer ones
            return whole
    with suppress(ValueError):
        return float(text)
    return _restore_cell(text)
