"""Keep rows as a study: one file that can be published, joined with others', and checked.

    python -m normbench.studies add SWEEP ... study=DIR [runs=DIR] [prefer=first|last]
    python -m normbench.studies merge FILE ... study=DIR [prefer=first|last]
    python -m normbench.studies restore STUDY runs=DIR
    python -m normbench.studies verify STUDY [share=0.02] [draw=N] [runs=DIR] [KEY=VALUE ...]

    add       copies the rows of sweeps, with their curves and test hits, into DIR/rows.jsonl.gz
    merge     joins files of several people; FILE is a rows.jsonl.gz or its folder
    restore   writes the runs of a study as folders, so that a command trains only what it lacks
    verify    trains a random sample of its runs again with the present code, and compares

`add` and `merge` extend an existing study. If a run has two different results, both are printed and
nothing is written, unless prefer=first (what the study has, then the files in their order) or
prefer=last says which one counts. `python -m normbench.report study=DIR` makes the page of a study.

`verify` expects the same bits from the same kind of machine: processor, devices, threads,
implementation, versions of packages. On another kind, the two test accuracies of a run must not lie
further apart than two seeds of its configuration do (Student's t from the other seeds of the study,
joint confidence 95 %). The exit code is 1 if a comparison or a training fails. Repetitions by the
present code (the same commit without changed files, the same versions of packages) are kept in
runs=DIR, so a verification that was stopped continues with its next run. All other words go to
`python -m normbench`, as jobs=2 or trainer=cpu; they must not change numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normbench.config import cli
from normbench.errors import BadInput, choose_from
from normbench.studies.files import Prefer, add, merge, restore


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError("use a fraction above 0 and at most 1, as share=0.02")
    return share


@dataclass(frozen=True)
class MergeOptions:
    """Options of merge."""

    study: Path | None = cli.option(None, "folder of the study to write; needed")
    prefer: Prefer = cli.option(None, "which result of a run counts if there are two")


@dataclass(frozen=True)
class AddOptions(MergeOptions):
    """Options of add."""

    runs: Path = cli.option(Path("runs"), "folder of all sweeps")


@dataclass(frozen=True)
class RestoreOptions:
    """Options of restore."""

    runs: Path | None = cli.option(None, "folder of all sweeps, where to write; needed")


@dataclass(frozen=True)
class VerifyOptions:
    """Options of verify."""

    share: float = cli.option(0.02, "fraction of its runs, at least one run", "S", _share)
    draw: int = cli.option(1, "seed of the random choice of runs")
    runs: Path = cli.option(Path("runs/verification"), "where to train")


_KINDS = {
    "add": AddOptions, "merge": MergeOptions, "restore": RestoreOptions, "verify": VerifyOptions
}  # fmt: skip


def _help() -> str:
    options = (f"{kind}:\n{cli.describe(each)}" for kind, each in _KINDS.items())
    return "\n".join([__doc__, *options])


@cli.command("normbench.studies", _help, needs_words=True, needs_all_files=True)
def main(arguments: Sequence[str]) -> int:
    """Add to a study, merge, restore or verify it."""
    action, *words = arguments
    if action == "verify":
        return _verify(words)
    if action == "restore":
        where, names = cli.parse_options(words, RestoreOptions, owner=action)
        study = _one(action, names)
        if where.runs is None:
            raise BadInput("runs=DIR is missing: the folder to which the runs are written")
        print(restore(study, where.runs))
        return 0
    if action == "add":
        of_add, sweeps = cli.parse_options(words, AddOptions, owner=action)
        study = _to_write(action, sweeps, of_add)
        print(add(sweeps, of_add.runs, study, of_add.prefer))
    elif action == "merge":
        of_merge, files = cli.parse_options(words, MergeOptions, owner=action)
        study = _to_write(action, files, of_merge)
        print(merge([Path(file) for file in files], study, of_merge.prefer))
    else:
        raise BadInput(f"{action} is unknown; {choose_from(action, _KINDS)}")
    print(f"page: python -m normbench.report study={study}")
    return 0


def _verify(words: Sequence[str]) -> int:
    from normbench.studies.verify import verify

    options, others = cli.parse_options(words, VerifyOptions, pass_on=True)
    for_training = [word for word in others if "=" in word or word.startswith("-")]
    study = _one("verify", [word for word in others if word not in for_training])
    return verify(study, options.share, options.draw, options.runs, for_training)


def _one(action: str, names: Sequence[str]) -> Path:
    """Return the one study that is named."""
    if len(names) != 1:
        raise BadInput(f"{action} needs one STUDY, a folder or its rows.jsonl.gz, not {len(names)}")
    return Path(names[0])


def _to_write(action: str, names: Sequence[str], options: MergeOptions) -> Path:
    """Return the folder of the study that add or merge writes."""
    if not names:
        what = "SWEEP is missing: a folder of runs=DIR" if action == "add" else "FILE is missing"
        raise BadInput(f"{what}, as in `python -m normbench.studies {action} NAME study=DIR`")
    if options.study is None:
        raise BadInput(f"study=DIR is missing: the folder of the study that {action} writes")
    if options.study.suffix == ".gz":
        raise BadInput(f"study={options.study}: name the folder, as study={options.study.parent}")
    return options.study


if __name__ == "__main__":
    cli.run(main)
