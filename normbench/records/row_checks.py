"""Rows of older schemas, and rows that no run can have left. Standard library only."""

from typing import Any

from normbench.run_files import is_file_name

SCHEMA = 2

#: Fields renamed since schema 1, and their old names.
_RENAMED = {
    "stacked_seeds": "together",
    "cuda_graphs": "graphs",
    "device_memory": "memory",
    "data_limits": "limits",
    "sn_ratios": "ratios",
    "probed_run": "of",
}
HUGE = 1e150  # sums of squares of numbers up to it are finite
#: The least and the greatest number that a field can have.
_RANGES = {
    "seed": (-HUGE, HUGE),
    **dict.fromkeys(("train_top1", "val_top1", "test_top1", "test_top5"), (0, 100.001)),
    **dict.fromkeys(
        ("batch", "workers", "global_batch", "stacked_seeds", "test_images"), (1, HUGE)
    ),
    **dict.fromkeys(("params", "macs", "seconds", "images_per_second"), (0, HUGE)),
    **dict.fromkeys(("inference_params", "inference_operations"), (0, HUGE)),
    **dict.fromkeys(("peak_memory", "device_memory", "threads", "resumed"), (0, HUGE)),
}


def upgrade(raw: dict[str, Any]) -> None:
    """Rename the fields of a row of schema 1."""
    raw["schema"] = SCHEMA
    for new, old in _RENAMED.items():
        if old in raw:
            raw[new] = raw.pop(old)
    if "compiled" in raw:  # before there was `impl`
        raw["impl"] = "compile" if raw.pop("compiled") else "eager"


def find_contradiction(raw: dict[str, Any]) -> str:
    """Return why no run can have left a row, as the end of a sentence, or ""."""
    for name, (low, high) in _RANGES.items():
        value = raw.get(name)
        if value is not None and not low <= value <= high:
            return f"has {name}={str(value)[:20]}, which no run can have"
    if raw["status"] == "ok":  # the loss of a run that diverged may be anything
        metric = raw.get("metric", "test_top1")
        if raw.get(metric, raw.get("metrics", {}).get(metric)) is None:
            return f"has status=ok and no {metric[:50]}"
        for name in ("train_loss", "test_loss"):
            if not -HUGE <= (raw.get(name) or 0) <= HUGE:
                return f"has status=ok and {name}={str(raw[name])[:20]}"
    numbers = (("sn_ratios", "ratio"), ("example_weighing", "number"), ("metrics", "metric"))
    for column, word in numbers:
        for name, value in raw.get(column, {}).items():
            if not -HUGE <= value <= HUGE:
                return f"has the {word} {name}={str(value)[:20]}, which no run can have"
    shared = raw.get("shared_with")
    if shared is not None and not is_file_name(shared):
        return f"has shared_with={shared[:50]!r}, which is no id"
    return ""
