"""Check the options of Weights & Biases before anything is trained, and without importing it."""

import os
from collections.abc import Mapping
from math import inf
from typing import Any, Literal

from normbench.errors import BadInput, require_one_of

MODES = ("online", "offline", "disabled", "dryrun", "run", "shared")  # that wandb knows
_REFUSED = "/\\#?%:"  # by wandb, in the name of a project
_LONGEST = 128
#: Variable by which processes find the service that they share; wandb.env.SERVICE without wandb.
SERVICE = "WANDB_SERVICE"
#: End of the reason why a run is offline; its service is well.
OFFLINE = "so this run is offline"
_MOST_SECONDS = 10**6


def check_logger(options: Mapping[str, Any]) -> None:
    """Check the options of the group `logger`; {} is logger=none.

    Raises:
        BadInput: one of them cannot be used, or a variable of the environment.
    """
    mode = options.get("mode", "disabled")
    require_one_of("logger.mode", mode, ("auto", "online", "offline", "disabled"))
    if mode == "disabled":
        return
    require_one_of("WANDB_MODE", os.environ.get("WANDB_MODE") or "online", MODES)
    read_timeout("INIT")
    read_timeout("FINISH")
    for name in ("project", "entity"):
        value, variable = options[name], f"WANDB_{name.upper()}"  # conf/logger/ takes it from there
        if name == "project" or value is not None:
            require_name(variable if value == os.environ.get(variable) else f"logger.{name}", value)


def require_name(option: str, value: Any) -> str:
    """Return `value`, the name of a project, a user or a team.

    Raises:
        BadInput: W&B refuses such a name; the sentence begins with `option`.
    """
    usable = isinstance(value, str) and value.strip() and value.isprintable()
    if not usable or len(value) > _LONGEST or any(letter in value for letter in _REFUSED):
        raise BadInput(
            f"{option}={value}: such a name in W&B has 1 to {_LONGEST} letters and none of "
            f"{' '.join(_REFUSED)}, as in {option}=normbench"
        )
    return str(value)


def read_timeout(step: Literal["INIT", "FINISH"]) -> float:
    """Return the seconds that a server may take at the start or the end of a run.

    W&B's defaults, 90 s and no limit, are long for a run of 3 s whose server is gone.

    Raises:
        BadInput: the variable is no such number.
    """
    name = f"WANDB_{step}_TIMEOUT"
    text = os.environ.get(name) or "20"
    try:
        seconds = float(text)
    except ValueError:
        seconds = inf
    if not 0 <= seconds <= _MOST_SECONDS:
        raise BadInput(f"{name}={text}: this takes seconds from 0 to {_MOST_SECONDS:,}, as 20")
    return seconds
