"""The end of `python -m normbench --help`: sweeps, clusters and the other commands."""

from collections.abc import Sequence
from pathlib import Path

from normbench.config.files import LAUNCHERS, SWEEPS, headline, names

COMMANDS = """\
Other commands (each has --help):
  python -m normbench.catalog    norms, models, data, recipes, regs and sweeps by name;
                                 models NAME norm=N: size, and the layers that N replaces;
                                 recipes NAME images=N: learning rate over the training
  python -m normbench.cost       GPU hours of a command line before it is started
  python -m normbench.status     runs by state: finished, running, failed ...
  python -m normbench.report     tables, figures and claims from finished runs, without torch
  python -m normbench.dashboard  W&B workspaces and report pages from finished runs
  python -m normbench.probe      measurements inside networks, and the papers' figures of them
  python -m normbench.bench      time and memory of layers, steps, plans and data loaders
  python -m normbench.prepare    FFCV files of a data set, for loader=ffcv"""


def epilog(config_dirs: Sequence[Path]) -> str:
    """List sweeps, launchers and commands; Hydra lists the groups in conf/ by itself.

    Args:
        config_dirs: folders of --config-dir, which may have sweeps, too.
    """
    folders = [SWEEPS, *(folder / "sweeps" for folder in config_dirs)]
    sweeps = [folder / f"{name}.yaml" for folder in folders for name in names(folder)]
    launchers = [LAUNCHERS / f"{name}.yaml" for name in names(LAUNCHERS)]
    return "\n".join(
        [
            "Sweeps (choose by sweeps=NAME; keys on the command line override the file's):",
            *(f"    {path.stem:<20} {headline(path)}" for path in sweeps),
            "",
            "On a cluster (choose by hydra/launcher=NAME hydra.launcher.partition=...):",
            *(f"    {path.stem:<20} {headline(path)}" for path in launchers),
            f"    {'submitit_local':<20} Jobs as processes of this machine, to try a sweep out.",
            "",
            COMMANDS,
        ]
    )
