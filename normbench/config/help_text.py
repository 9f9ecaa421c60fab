"""The lists in `python -m normbench --help`: groups, sweeps, clusters and the other commands."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill, wrap

from normbench.config.files import CONF, LAUNCHERS, SWEEPS, groups, headline, listing, names

WIDTH, INDENT = 100, 14  # of lines, and of the names of a group
LINES = 4  # that the names of a group may take; of a longer group the first ones are printed

COMMANDS = """\
Other commands (each has --help):
  python -m normbench.catalog    norms, models, data, recipes, regs and sweeps by name;
                                 models NAME norm=N: size, and the layers that N replaces;
                                 recipes NAME: learning rate over the training
  python -m normbench.cost       hours of a command line before it is started
  python -m normbench.decide     seeds that decide most undecided claims in some hours
  python -m normbench.status     runs by state: finished, running, failed ...
  python -m normbench.report     tables, figures and claims from finished runs, without torch
  python -m normbench.studies    keep rows as a study that others can join and check
  python -m normbench.dashboard  W&B workspaces and report pages from finished runs
  python -m normbench.probe      measurements inside networks, and the papers' figures of them
  python -m normbench.bench      time and memory of layers, steps, plans and data loaders
  python -m normbench.prepare    FFCV files of a data set, for loader=ffcv
  python -m normbench.search     new layers by evolution, as EvoNorm was found

`python -m normbench --cfg job` prints every key with its value, for the words beside it."""


def describe_groups(config_dirs: Sequence[Path]) -> str:
    """List the names in each group of conf/.

    Args:
        config_dirs: folders of --config-dir, whose names come first.
    """
    return "\n".join(line for group in groups() for line in _describe_group(group, config_dirs))


def _describe_group(group: str, config_dirs: Sequence[Path]) -> Iterator[str]:
    known = [name for folder in config_dirs for name in names(folder / group)]
    known += names(CONF / group)
    lines = wrap(", ".join(known), WIDTH - INDENT)
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"... {len(known)} in all: `{listing(CONF / group)}`"]
    for head, line in zip([f"  {group}", *[""] * LINES], lines, strict=False):
        yield f"{head:<{INDENT}}{line}"


def epilog(config_dirs: Sequence[Path]) -> str:
    """Describe sweeps, launchers and commands.

    Args:
        config_dirs: folders of --config-dir, whose sweeps are listed.
    """
    folders = (folder / "sweeps" for folder in config_dirs)
    sweeps = [folder / f"{name}.yaml" for folder in folders for name in names(folder)]
    launchers = [LAUNCHERS / f"{name}.yaml" for name in names(LAUNCHERS)]
    return "\n".join(
        [
            "Sweeps (choose by sweeps=NAME; keys on the command line override the file's):",
            *map(_describe_yaml, (SWEEPS / "demo.yaml", *sweeps)),
            f"    ... {len(names(SWEEPS))} of normbench: `{listing(SWEEPS)}`",
            "",
            "On a cluster (choose by hydra/launcher=NAME hydra.launcher.partition=...):",
            *map(_describe_yaml, launchers),
            f"    {'submitit_local':<20} Jobs as processes of this machine, to try a sweep out.",
            "",
            COMMANDS,
        ]
    )


def _describe_yaml(path: Path) -> str:
    return fill(f"    {path.stem:<20} {headline(path)}", WIDTH, subsequent_indent=" " * 25)
