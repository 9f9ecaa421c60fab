"""Command lines and damaged files: the few of every day, and real trainings; see `make faults`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.campaign import attack, attack_file, examples, train
from faults.command_lines import STRANGE_WORDS, CommandLine, command_lines
from faults.damage import KINDS, SPECIAL, Damage, damages, make_reports
from faults.judge import faults
from faults.sandbox import REACHED, WITH_TORCH, WITHOUT_TORCH, Sandbox
from faults.trainings import Trainings, training_lines
from support.slow import slow_after


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("sandbox")) as process:
        yield process


@pytest.fixture(scope="module")
def reports(sandbox: Sandbox) -> Path:
    """A folder with runs, their report and a study."""
    return make_reports(sandbox)


def test_a_good_command_line_comes_to_its_training(sandbox: Sandbox) -> None:
    outcome = sandbox.run(sandbox.new_folder(), "normbench", ["-m", "norm=bn,gn", "batch=4"])
    assert outcome.code == 0
    assert REACHED in outcome.out.decode()
    assert faults(outcome) == []


@pytest.mark.parametrize("word", slow_after(6, STRANGE_WORDS[::6]))
def test_strange_words(sandbox: Sandbox, word: str) -> None:
    assert attack(sandbox, CommandLine("normbench", ("-m", "norm=gn", word))) == []


@pytest.mark.parametrize("command", WITHOUT_TORCH)
def test_command_lines(sandbox: Sandbox, command: str) -> None:
    for line in examples(command_lines(command), 20, 0):
        assert attack(sandbox, line) == []


@pytest.mark.parametrize("kind", slow_after(2, [*KINDS]))
def test_files_that_are_no_files(sandbox: Sandbox, reports: Path, kind: str) -> None:
    number = list(KINDS).index(kind)
    damage = Damage(kind, "special", 7 * number, SPECIAL[number % len(SPECIAL)])
    assert attack_file(sandbox, reports, damage) == []


def test_damaged_files(sandbox: Sandbox, reports: Path) -> None:
    for damage in examples(damages(KINDS), 15, 0):
        assert attack_file(sandbox, reports, damage) == []


@pytest.mark.slow
def test_command_lines_with_torch(tmp_path: Path) -> None:
    with Sandbox(tmp_path, torch=True) as sandbox:
        for command in WITH_TORCH:
            for line in examples(command_lines(command), 15, 0):
                assert attack(sandbox, line) == []


@pytest.mark.slow
def test_trainings(tmp_path: Path) -> None:
    with Trainings(tmp_path) as trainings:
        for words in examples(training_lines, 15, 0):
            assert train(trainings, words) == []
