"""Where a result comes from: the commit of this source tree, the packages, and the moment."""

import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from normbench.config.files import ROOT

#: What of the tree decides numbers; other files may differ from the commit.
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
    """The version of every package that has a part in numbers; empty of what is not installed."""
    return {name: _version(name) for name in PACKAGES}


def commit(root: Path = ROOT) -> str:
    """The commit of a source tree, "+" behind it if files differ; empty outside a checkout."""
    # An installed package may lie in somebody else's repository, whose commit says nothing of us.
    if _git(root, "rev-parse", "--show-toplevel") != str(root.resolve()):
        return ""
    changes = _git(root, "status", "--porcelain", "--", *_PATHS)
    return _git(root, "rev-parse", "HEAD") + ("+" if changes else "")


def now() -> str:
    """UTC in ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout that is not installed
        return ""


def _git(root: Path, *words: str) -> str:
    """What git answers; nothing if it cannot."""
    try:
        found = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
