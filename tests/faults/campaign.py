"""Thousands of attacks, and what was wrong with them, by cause.

python -m faults.campaign [SEED] [lines=N] [files=N] [trainings=N] [only=COMMAND,...]
"""

import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from faults.command_lines import WORDS, CommandLine, command_lines
from faults.damage import KINDS, KINDS_WITH_TORCH, Damage, damages, is_unusable, make_reports
from faults.judge import faults
from faults.sandbox import WITHOUT_TORCH, Sandbox, clear
from faults.trainings import Trainings, training_lines

Example = TypeVar("Example")
#: Attacks to draw, of which about a tenth are drawn twice and count once.
DEFAULTS = {"lines": 2500, "files": 1150, "trainings": 65}


def examples(strategy: st.SearchStrategy[Example], number: int, start: int) -> list[Example]:
    """Return at most `number` examples of a strategy, the same for the same `start`."""
    if not number:
        return []
    found: list[Example] = []

    @seed(start)
    @settings(
        max_examples=number, database=None, phases=[Phase.generate], deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def collect(example: Example) -> None:
        found.append(example)

    collect()
    return [*dict.fromkeys(found)]


Failure = tuple[str, str]  # the fault, and how to see it


def attack(sandbox: Sandbox, line: CommandLine) -> list[Failure]:
    """Run a command line in an empty folder; return what is wrong."""
    folder = sandbox.new_folder()
    outcome = sandbox.run(folder, line.command, line.words, line.environment, line.encoding)
    found = [(fault, str(line)) for fault in faults(outcome, line.culprits)]
    clear(folder)
    return found


def attack_file(sandbox: Sandbox, template: Path, damage: Damage) -> list[Failure]:
    """Damage a file in a copy of `template`; return what is wrong with commands that read it."""
    pattern, commands = {**KINDS_WITH_TORCH, **KINDS}[damage.kind]
    folder = sandbox.new_folder()
    shutil.copytree(template, folder, dirs_exist_ok=True)
    path = damage.apply(folder, pattern)
    # Before a command mends it:
    unusable, culprits = is_unusable(path), names_of(folder, path)
    command, words = commands[damage.number % len(commands)]
    outcome = sandbox.run(folder, command, words, draws=damage.number % 16 == 0)
    clear(folder)
    place = f"{damage} {' '.join([command, *words])}"
    damaged = "row" in damage.kind and unusable
    found = faults(outcome, culprits, damaged=damaged)
    return [(fault, place) for fault in found]


def names_of(folder: Path, path: Path) -> list[str]:
    """Return the names by which a sentence may name a damaged file below `folder`."""
    group = path.parent.name
    culprits = [str(path.relative_to(folder)), str(path)]
    if path.is_relative_to(folder / "mine"):  # its keys do as well
        culprits += [f"{group}=", f"{group}."]
        if group == "sweeps" and path.is_file():
            words = re.findall(r"[^\s:,{}\[\]]+", path.read_bytes().decode(errors="replace"))
            culprits += [f"{word}=" for word in words]
    elif path.name != "row.json" and path.is_relative_to(folder / "runs/default"):
        culprits.append(str(path.parent.relative_to(folder)))  # the run
    elif group == "study":
        culprits += ["runs=study", "study=study"]
    return culprits


def train(trainings: Trainings, words: Sequence[str]) -> list[Failure]:
    """Run a command line that may train; return what is wrong."""
    line = CommandLine("normbench", tuple(words))
    folder = trainings.new_folder()
    found = [(fault, str(line)) for fault in faults(trainings.run(folder, words), line.culprits)]
    clear(folder)
    return found


def by_cause(failures: Sequence[Failure]) -> dict[str, list[str]]:
    """Return failures by their faults without numbers and quoted words, the most common first."""
    causes: dict[str, list[str]] = {}
    for fault, place in failures:
        cause = (
            fault.partition(": Stack")[0]
            if "a traceback" not in fault
            else fault.partition(": ")[0]
        )
        cause = re.sub(r"'[^']*'|\"[^\"]*\"|(?<=writes )\S+|\b\d+\b", "_", cause)[:110]
        causes.setdefault(cause, []).append(f"{place}\n        {fault[:400]}")
    return {
        cause: sorted(places, key=len)
        for cause, places in sorted(causes.items(), key=lambda item: -len(item[1]))
    }


def in_parallel(
    cases: Sequence[Example], attack_one: Callable[[Any, Example], list[Failure]],
    start: Callable[[Path], AbstractContextManager[Any]], folder: Path,
) -> list[Failure]:  # fmt: skip
    """Attack with `cases` in two processes at once, each started by `start` in a folder."""

    def part(number: int) -> list[Failure]:
        with start(Path(tempfile.mkdtemp(dir=folder))) as process:
            return [each for case in cases[number::2] for each in attack_one(process, case)]

    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        failures = [each for found in pool.map(part, range(2)) for each in found]
    print(f"{time.monotonic() - began:.0f} s", flush=True)
    return failures


def campaign(
    start: int, commands: Sequence[str], lines: int, files: int, trainings: int
) -> list[Failure]:
    """Attack with examples of seed `start`; return all that is wrong."""
    failures: list[Failure] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for torch in (False, True):
            cases = [
                line
                for name in commands
                if (name not in WITHOUT_TORCH) is torch
                for line in examples(command_lines(name), lines // len(commands), start)
            ]
            if lines and cases:
                print(f"{len(cases)} command lines{' with torch' * torch}: ", end="", flush=True)
                failures += in_parallel(cases, attack, partial(Sandbox, torch=torch), folder)
        if files:
            with Sandbox(folder) as sandbox:
                attack_one = partial(_attack_file, make_reports(sandbox))
            for torch, kinds, number in (
                (False, KINDS, files - files // 10), (True, KINDS_WITH_TORCH, files // 10),
            ):  # fmt: skip
                damaged = examples(damages(kinds), number, start)
                print(f"{len(damaged)} damaged files{' with torch' * torch}: ", end="", flush=True)
                failures += in_parallel(damaged, attack_one, partial(Sandbox, torch=torch), folder)
        if trainings:
            trained = examples(training_lines, trainings, start)
            print(f"{len(trained)} trainings: ", end="", flush=True)
            failures += in_parallel(trained, train, Trainings, folder)
    return failures


def _attack_file(template: Path, sandbox: Sandbox, damage: Damage) -> list[Failure]:
    return attack_file(sandbox, template, damage)


def main(words: Sequence[str]) -> int:
    """Attack, print the faults by their cause, and return 1 if there are any."""
    options = dict(word.split("=") for word in words if "=" in word)
    start = int(next((word for word in words if "=" not in word), random.randrange(10**6)))
    print(f"seed {start}; the same attacks again: make faults SEED={start}", flush=True)
    commands = options["only"].split(",") if "only" in options else [*WORDS]
    numbers = (int(options.get(name, default)) for name, default in DEFAULTS.items())
    failures = campaign(start, commands, *numbers)
    causes = by_cause(failures)
    for cause, places in causes.items():
        print("\n      ".join([f"{len(places):5} {cause}", *places[:3]]))
    print(f"{len(failures)} faults of {len(causes)} causes; seed {start}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
