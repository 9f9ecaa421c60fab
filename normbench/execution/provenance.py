"""The origin of a result: commit of the source tree, versions of packages, CPU, and time."""

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from normbench.config.files import ROOT

#: Files that decide numbers; others may differ from the commit.
_PATHS = ("normbench", "conf", "sweeps", "pyproject.toml")


PACKAGES = (
    "normbench",
    "torch",
    "pytorch-lightning",
    "torchmetrics",
    "hydra-core",
    "wandb",
    "timm",
    "numpy",
)


def versions() -> dict[str, str]:
    """Return the version of every package that affects numbers; "" if it is not installed."""
    return {name: _version(name) for name in PACKAGES}


def commit(root: Path = ROOT) -> str:
    """Return the commit of a source tree, with "+" if files differ; "" outside of a checkout."""
    # An installed package may lie inside the repository of another project.
    if _git(root, "rev-parse", "--show-toplevel") != str(root.resolve()):
        return ""
    changes = _git(root, "status", "--porcelain", "--", *_PATHS)
    return _git(root, "rev-parse", "HEAD") + ("+" if changes else "")


def processor() -> str:
    """Return the CPU, as "AMD EPYC (family 25, model 17)"; if it is unknown, the architecture.

    Virtual machines often give one name to several generations of a processor, whose results
    differ; family and model usually tell them apart.
    """
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    return _processor_of(text) or platform.processor() or platform.machine()


def _processor_of(text: str) -> str:
    """Return name and numbers of the first processor of /proc/cpuinfo; "" without any."""
    pairs = [line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line]
    fields = {key.strip(): value.strip() for key, value in pairs}
    numbers = {
        "family": "cpu family", "model": "model",  # of x86
        "implementer": "CPU implementer", "part": "CPU part",  # of ARM, which has no name
    }  # fmt: skip
    known = [f"{name} {fields[key]}" for name, key in numbers.items() if key in fields]
    name = fields.get("model name", platform.machine() if known else "")
    return f"{name} ({', '.join(known)})" if known else name


def now() -> str:
    """Return the time in UTC as ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout that is not installed
        return ""


def _git(root: Path, *arguments: str) -> str:
    """Return the output of git; "" if it fails."""
    try:
        git = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    except OSError:
        return ""
    return git.stdout.strip() if git.returncode == 0 else ""
