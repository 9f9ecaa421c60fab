"""Shell commands in the environment of somebody who has just installed normbench."""

import subprocess
import sys
from pathlib import Path


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell command in `folder` with this Python, and W&B offline."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "WANDB_MODE": "offline", "HOME": str(folder)}
    return subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
