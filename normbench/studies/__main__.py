"""Keep rows as a study: one file that can be published, joined with others', and checked.

    python -m normbench.studies add SWEEP ... study=DIR [runs=DIR]
    python -m normbench.studies merge FILE ... study=DIR
    python -m normbench.studies restore STUDY runs=DIR
    python -m normbench.studies verify STUDY [share=0.02] [sample=N] [runs=DIR] [KEY=VALUE ...]

    add       copies the rows of sweeps, with their curves and test hits, into DIR/rows.jsonl.gz
    merge     joins files of several people; FILE is a rows.jsonl.gz or its folder
    restore   writes the runs of a study as folders, so that a command trains only what it lacks
    verify    trains a random sample of its runs again with the present code and compares

`add` and `merge` keep what the study has. Two different results of one run are printed, and nothing
is written unless prefer=first (what the study has, then files in their order) or prefer=last says
which one counts. `python -m normbench.report study=DIR` makes the page of a study.

`verify` expects the same bits from the same kind of machine: CPU, devices, threads, version of
torch. On another kind, test accuracy and training loss must lie where the other runs of the study
with that configuration predict a further one (prediction intervals of Student's t that hold for all
runs of the sample together with 95 %). The exit code is 1 if a run fails either. The trained runs
are kept in runs=DIR, so that a verification that was stopped goes on. Other words are those of
`python -m normbench`, as jobs=2 or data.root=FOLDER.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from normbench.config import cli
from normbench.errors import BadInput, choose_from
from normbench.studies.files import add, merge, restore


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError("it is a part of the runs above 0 and at most 1, as share=0.02")
    return share


@dataclass(frozen=True)
class StudyOptions:
    """Options of the command line."""

    study: Path | None = cli.option(None, "folder of the study that add and merge write")
    runs: Path | None = cli.option(
        None, "root folder of runs: those to add (runs), restored ones, or where verify trains "
        "(runs/verification)",
    )  # fmt: skip
    prefer: Literal["first", "last"] | None = cli.option(
        None, "which of two results of one run counts"
    )
    share: float = cli.option(
        0.02, "part of the computed runs to verify, at least one", "S", _share
    )
    sample: int = cli.option(1, "number of the random sample to verify")


_ACTIONS = ("add", "merge", "restore", "verify")


@cli.command(
    "normbench.studies",
    lambda: f"{__doc__}\n{cli.describe(StudyOptions)}",
    needs_words=True,
    needs_all_files=True,
)
def main(arguments: Sequence[str]) -> int:
    """Add to a study, merge, restore or verify it."""
    action, *words = arguments
    if action not in _ACTIONS:
        raise BadInput(f"{action} is unknown; {choose_from(action, _ACTIONS)}")
    options, named = cli.parse_options(words, StudyOptions, pass_on=action == "verify")
    if action == "verify":
        from normbench.studies.verify import verify

        names = [word for word in named if "=" not in word]
        training_words = [word for word in named if "=" in word]
        root = options.runs or Path("runs/verification")
        return verify(_one(action, names), options.share, options.sample, root, training_words)
    if action == "restore":
        if options.runs is None:
            raise BadInput("runs=DIR is missing: the root folder to which the runs are written")
        print(restore(_one(action, named), options.runs))
        return 0
    if options.study is None:
        raise BadInput(f"study=DIR is missing: the folder of the study that {action} writes")
    if not named:
        what = "SWEEP is missing: a folder of runs/" if action == "add" else "FILE is missing"
        raise BadInput(f"{what}, as in `python -m normbench.studies {action} ... study=DIR`")
    if action == "add":
        print(add(named, options.runs or Path("runs"), options.study, options.prefer))
    else:
        print(merge([Path(name) for name in named], options.study, options.prefer))
    print(f"page: python -m normbench.report study={options.study}")
    return 0


def _one(action: str, names: Sequence[str]) -> Path:
    """Return the one study that is named."""
    if len(names) != 1:
        raise BadInput(
            f"{action} takes one STUDY, a folder or its rows.jsonl.gz; {len(names)} given"
        )
    return Path(names[0])


if __name__ == "__main__":
    cli.run(main)
