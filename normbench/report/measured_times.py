"""Times of training steps that `python -m normbench.probe speed` has measured for runs.

Only such measurements are compared: the wall time of runs that trained beside others says nothing.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench.errors import DamagedFile, leave_out
from normbench.records.probes import PROBES, Record, read_records
from normbench.records.studies import study_file
from normbench.results import REPORTS, Row

TOLERANCE = 0.05  # by which bn may differ from bn in a measurement that counts
SPEED = "speed.csv"  # beside the rows of a study


@dataclass(frozen=True)
class MeasuredTime:
    """Time of a training step relative to that of the same network with bn."""

    over_bn: float
    device: str


def network_key(config: Mapping[str, Any]) -> str:
    """Return a digest of what makes the time of a step: normalizer, network, images, precision.

    `config` is that of a row.
    """
    data = {key: config.get("data", {}).get(key) for key in ("name", "size")}
    parts = [config.get("norm"), config.get("model"), data, config.get("precision")]
    if "task" in config:  # of another task than classification
        parts.append(config["task"])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def speed_files(root: Path) -> list[Path]:
    """Return the files below the root of runs, or beside a study, that may have times of steps."""
    if study := study_file(root):
        return [path] if (path := study.with_name(SPEED)).exists() else []
    return sorted((root / REPORTS / PROBES).glob("*.csv"))


def read_times(root: Path | None) -> dict[tuple[str, int], MeasuredTime]:
    """Return the times of training steps by `network_key` and images per worker.

    Left out are measurements in which bn, timed twice, differs from itself by more than 5 %.
    """
    times: dict[tuple[str, int], MeasuredTime] = {}
    for path in speed_files(root) if root else []:
        try:
            records = read_records(path)
        except FileNotFoundError:
            continue
        except DamagedFile as damage:
            leave_out(damage)
            continue
        for each in records:
            batch: Any = each.get("batch")
            if (time := _time(each)) is not None:
                times[str(each.get("key")), batch] = time
    return times


def _time(record: Record) -> MeasuredTime | None:
    """Return the time of a training step; None of other steps, and if it is not known well."""
    if record.get("mode") != "training":
        return None
    ratio, again = record.get("ratio"), record.get("bn_again")
    if not isinstance(ratio, int | float) or not isinstance(again, int | float) or ratio <= 0:
        return None
    if abs(again - 1) > TOLERANCE:
        return None
    return MeasuredTime(1 / ratio, str(record.get("device")))


def time_of(
    runs: Sequence[Row], batch: int, times: Mapping[tuple[str, int], MeasuredTime]
) -> MeasuredTime | None:
    """Return the measured time of the network of some runs, which are of one configuration."""
    return times.get((network_key(runs[0].config), batch)) if runs and times else None
