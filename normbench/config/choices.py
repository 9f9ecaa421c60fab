"""Find the yaml files that Hydra chose, and which choices of a grid can be exchanged without it.

Hydra takes 0.1 s for a composition, and 30 normalizers on two data sets with and without
regularization would need 120 of them. A file of conf/ sets the options of its own group alone, so
it can take the place of another one.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from omegaconf import DictConfig, OmegaConf

from normbench.config.cells import GROUPS
from normbench.config.files import CONF, load, load_options, unverified

#: Interpolations that do not follow from options and choices: variables of the environment, and
#: what a launcher has by default.
_FIXED = r"oc\.env:|hydra\.(sweep\.dir|job\.name)\}"


def find_file(hydra: HydraConf, group: str, name: str) -> Path | None:
    """Return the yaml file that Hydra found for a choice; None if it comes with Hydra."""
    for source in hydra.runtime.config_sources:
        path = Path(source.path) / group / f"{name}.yaml"
        if source.schema == "file" and path.is_file():
            return path
    return None


def read_choice(path: Path) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the content of a choice's yaml, and its unverified options."""
    return _read(path, path.stat().st_mtime_ns)


@cache
def _read(path: Path, _time: int) -> tuple[dict[str, Any], frozenset[str]]:
    """Read a yaml that many compositions share; anew if its time of change has changed."""
    return load_options(path), unverified(path)


def exchangeable_groups(config: DictConfig) -> frozenset[str] | None:
    """Return the groups in which a file of conf/ can take the place of the chosen one.

    In all groups a typed value can take the place of another one. None: neither of them can.

    Args:
        config: as composed by Hydra, with its own part.
    """
    hydra = config.hydra
    options = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    texts = repr([OmegaConf.to_container(part) for part in (options, hydra.launcher)])
    # An option may follow from another one, and a run may begin with a similar one.
    if re.search(rf"\$\{{(?!{_FIXED})", texts) or options.get("init_from"):
        return None
    groups_of_sweep: set[str] = set()
    for group, name in hydra.runtime.choices.items():
        path = find_file(hydra, str(group).partition("@")[0], name) if name else None
        if path is None or path.is_relative_to(CONF):
            continue
        keys = _keys_of_sweep(hydra, name) if group == "sweeps" else None
        if keys is None:  # a file of the user's may set options of any group
            return None
        groups_of_sweep |= keys
    # A task sets the defaults of other groups.
    return frozenset(GROUPS) - groups_of_sweep - {"task"}


def _keys_of_sweep(hydra: HydraConf, name: str) -> set[str] | None:
    """Return the keys that a sweep and its bases set; None if they may set others, too."""
    path = find_file(hydra, "sweeps", name)
    if path is None or re.findall(r"@package\s+(\S+)", path.read_text()) != ["_global_"]:
        return None
    content = load(path)
    keys = set(content)
    # A choice of a group in `defaults` is among Hydra's choices; a base is not.
    bases = [each for each in content.get("defaults") or [] if isinstance(each, str)]
    for base in set(bases) - {"_self_"}:
        of_base = _keys_of_sweep(hydra, base)
        if of_base is None:
            return None
        keys |= of_base
    return keys
