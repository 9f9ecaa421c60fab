"""Private parts of other packages that execution uses; each test fails when one of them changes."""

import os
import subprocess
import sys
from pathlib import Path

import wandb.env

from normbench.config import wandb_options


def test_wandb_starts_a_service_without_a_run_and_names_its_variable(tmp_path: Path) -> None:
    program = (
        "import os, wandb\n"
        "wandb.setup(wandb.Settings(silent=True)).ensure_service()\n"
        "print(os.environ.get('WANDB_SERVICE', ''))\n"
        "wandb.teardown()\n"
    )
    environment = {name: text for name, text in os.environ.items() if name != "WANDB_SERVICE"}
    end = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert end.returncode == 0, end.stderr
    assert end.stdout.strip()
    assert wandb.env.SERVICE == wandb_options.SERVICE


def test_the_late_imports_of_wandb_that_the_fork_server_does_early_exist() -> None:
    import wandb.sdk.launch  # noqa: F401
