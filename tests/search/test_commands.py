"""The commands of the search: run, show, rerank and evaluate, killed and continued."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from normbench.search import __main__ as search
from normbench.search.candidates import Records, candidate_file, read_baselines
from normbench.search.space import BASELINES
from support.commands import Command, in_process

#: Trainings of 4 steps that reject nothing, so that evolution has parents at once.
TRAININGS = (
    "min_accuracy=0", "max_gradient=0", "model=resnet8_cifar", "model.width=4", "recipe.images=512",
    "logger=none",
)  # fmt: skip
TINY = (*TRAININGS, "random_probability=0.3", "tournament_share=0.5", "in_flight=3")
NUMBER = 8
pytestmark = pytest.mark.slow  # each command trains a dozen networks


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    _fork_server: None,
) -> Command:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    return in_process(search.main, capsys)


def contents(folder: Path) -> list[dict[str, Any]]:
    """Return the candidates of a search, without times."""
    times = ("seconds", "train_seconds")
    return [
        {key: value for key, value in vars(each).items() if key not in times}
        for each in Records(folder).all()
    ]


def run(command: Command, name: str, *words: str) -> None:
    end = command("run", name, f"candidates={NUMBER}", *TINY, *words)
    assert end.code == 0, end.out + end.err


def test_any_number_of_workers_finds_the_same_candidates(command: Command) -> None:
    for jobs in (1, 2, 3):
        run(command, f"jobs{jobs}", f"jobs={jobs}")
    expected = contents(Path("runs/jobs1"))
    assert len(expected) == NUMBER
    assert {each["parent"] is None for each in expected} == {True, False}
    assert contents(Path("runs/jobs2")) == contents(Path("runs/jobs3")) == expected
    known = read_baselines(Path("runs/jobs2"))
    assert list(known) == sorted(BASELINES)
    assert all(each.valid for each in known.values())


def start(*words: str) -> subprocess.Popen[str]:
    """Start a search as a terminal does."""
    line = [sys.executable, "-m", "normbench.search", "run", *words]
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_search_that_was_stopped_continues_to_the_same_end(
    command: Command, number: signal.Signals
) -> None:
    run(command, "undisturbed", "jobs=2")
    words = ("stopped", f"candidates={NUMBER}", *TINY, "jobs=2")
    for stop_at in (1, 4):
        process = start(*words)
        path = candidate_file(Path("runs/stopped"), stop_at)
        wait_for(path.exists, process)
        os.killpg(process.pid, number)
        out, _ = process.communicate(timeout=60)
        if number == signal.SIGINT:
            assert process.returncode == 130, out
            assert "the same command continues the search" in out
    before = {path: path.stat().st_mtime_ns for path in Path("runs/stopped").glob("*/*.json")}
    assert len(Records(Path("runs/stopped")).all()) < NUMBER
    run(command, "stopped", "jobs=2")
    assert contents(Path("runs/stopped")) == contents(Path("runs/undisturbed"))
    # Nothing was trained twice.
    assert all(path.stat().st_mtime_ns == changed for path, changed in before.items())


def test_more_candidates_continue_a_search_and_other_options_do_not(command: Command) -> None:
    run(command, "one", "jobs=2")
    first = contents(Path("runs/one"))
    end = command("run", "one", f"candidates={NUMBER + 2}", *TINY, "jobs=2")
    assert end.code == 0
    assert contents(Path("runs/one"))[:NUMBER] == first
    assert len(contents(Path("runs/one"))) == NUMBER + 2
    for words, message in [
        (("search_seed=1",), "search_seed=1: the search one began with search_seed=0"),
        (("batch=8",), "the search one began with other trainings (graph batch=4"),
    ]:
        end = command("run", "one", f"candidates={NUMBER}", *TINY, *words)
        assert end.code == 2
        assert message in end.err


@pytest.mark.slurm
@pytest.mark.usefixtures("slurm")
def test_jobs_of_a_cluster_find_the_same_candidates(command: Command) -> None:
    run(command, "here", "jobs=2")
    launcher = ("hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1")
    end = command("run", "there", f"candidates={NUMBER}", *TINY, "jobs=2", *launcher)
    assert end.code == 0, end.out + end.err
    assert "2 jobs submitted" in end.out
    assert contents(Path("runs/there")) == contents(Path("runs/here"))
    again = command("run", "there", f"candidates={NUMBER}", *TINY, "jobs=2", *launcher)
    assert again.code == 0
    assert "submitted" not in again.out


def test_what_a_search_has_found_is_printed_drawn_and_trained_again(command: Command) -> None:
    run(command, "one", "jobs=2")
    run(command, "two", "jobs=2", "strategy=random", "cost=reads")
    end = command("show", "one", "two", "top=2")
    assert end.code == 0, end.err
    assert f"one: {NUMBER} candidates (" in end.out
    for name in ("index.html", "progress.png", "progress.svg", "pareto_one.png", "top_two.csv"):
        assert Path("runs/one/report", name).stat().st_size > 100
    page = Path("runs/one/report/index.html").read_text()
    assert page.count("<svg") >= 7  # three figures, and two formulas of each search
    end = command(
        "rerank", "one", "top=1", "baselines=gn", "seed=100,101", "batch=4", "recipe.images=5120",
        "norm.groups=1,2",
    )  # fmt: skip
    assert end.code == 0, end.err
    training = end.out.partition("\nbatch=4 data=digits")[2]
    # Layers with other options are rows of their own, each of two seeds.
    assert {"norm.groups=1", "norm.groups=2"} <= set(training.split())
    assert training.count("(2)") == 3
    assert training.count("to gn") == 2
    assert len(list(Path("runs/one_rerank").glob("*/row.json"))) == 6


@pytest.mark.parametrize("as_file", [False, True])
def test_one_layer_is_scored_as_json(command: Command, tmp_path: Path, as_file: bool) -> None:
    target = formula = "x*sigmoid(x)/rms_g(x)"
    if as_file:
        target = str(tmp_path / "layer.json")
        Path(target).write_text(json.dumps({"formula": formula}))
    end = command("evaluate", target, *TRAININGS, "batch=8,64")
    assert end.code == 0, end.err
    result = json.loads(end.out.splitlines()[-1])
    assert result["formula"] == formula
    assert result["verdict"] == "trained"
    assert len(result["scores"]) == len(result["train_seconds"]) == 2
    assert result["reads"] == 4
    assert result["relative_time"] > 0


def test_each_training_keeps_its_options_of_the_formula(command: Command) -> None:
    words = ("x/std_g(x)", *TRAININGS, "batch=8", "norm.groups=1,4")
    (both,) = command("evaluate", *words).out.splitlines()[-1:]
    alone = [
        json.loads(command("evaluate", *words[:-1], f"norm.groups={g}").out.splitlines()[-1])
        for g in (1, 4)
    ]
    assert json.loads(both)["scores"] == [*alone[0]["scores"], *alone[1]["scores"]]


def test_another_normalizer_is_scored_as_json(command: Command) -> None:
    end = command("evaluate", "norm=gn", *TRAININGS)
    assert end.code == 0, end.err
    result = json.loads(end.out.splitlines()[-1])
    assert (result["norm"], len(result["scores"])) == ("gn", 2)
    rejected = command("evaluate", "exp(square(x))", *TRAININGS)
    assert json.loads(rejected.out.splitlines()[-1])["verdict"] == "diverged"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run",), "run needs the name of a search first"),
        (("run", "candidates=3"), "run needs the name of a search first"),
        (("go", "x"), "go is no command of the search"),
        (("run", "a/b"), "NAME=a/b: it becomes part of file names"),
        (("run", "new", "norm=bn"), "norm=bn: the search chooses the normalizer; leave"),
        (("run", "new", "sweeps=demo"), "a search needs trainings with norm=graph"),
        (("evaluate", "x", "data.val=0"), "no images are held out"),
        (("evaluate", "norm=bn,gn"), "norm=bn,gn: evaluate scores one layer at a time"),
        (("run", "new", "init_from=0123456789ab@3"), "candidates are trained from scratch"),
        (("run", "new", "recipe.example_weight=top1"), "candidates are trained from scratch"),
        (("run", "new", "data.val=0"), "no images are held out"),
        (("run", "new", "population=0"), "population=0: it is a whole number above 0"),
        (("run", "new", "tournament_share=2"), "tournament_share=2: use a number from 0 to 1"),
        (("run", "new", "min_accuracy=120"), "min_accuracy=120: use a number from 0 to 100"),
        (("run", "new", "search_seed=1,2"), "use one whole number, 0 or larger"),
        (("run", "new", "max_gradient=nan"), "max_gradient=nan: use 0 or more"),
        (("run", "new", "jobs=64"), "jobs=64 exceeds in_flight=8; use jobs=8, or begin a new"),
        (("run", "new", "--cfg", "job"), "the file sweeps/search.yaml has its trainings"),
        (("run", "new", "populaton=3"), "populaton=3 is unknown; did you mean population?"),
        (("show",), "show needs the name of a search"),
        (("show", "none"), "runs/none has no search"),
        (("rerank", "none"), "runs/none has no search"),
        (
            ("evaluate", "nothing"),
            "nothing: neither norm=NAME nor a file, and no formula: unknown name nothing",
        ),
        (("evaluate", "x" + "+y" * 200), "and no formula: unknown name y"),
        (("evaluate", "x*sigmoid"), "sigmoid is a function; it needs arguments, as sigmoid(x)"),
        (("evaluate", "relu(x)"), "unknown function relu; functions: "),
    ],
)
def test_what_cannot_be_used_is_refused_before_any_training(
    command: Command, words: tuple[str, ...], message: str
) -> None:
    end = command(*words)
    assert end.code == 2, end.out
    assert message in end.err
    assert len(end.err.splitlines()) == 1
    assert not list(Path().glob("runs/*/search.json"))


def test_a_damaged_record_names_its_file(command: Command) -> None:
    run(command, "one", "jobs=2")
    path = candidate_file(Path("runs/one"), 2)
    path.write_text("{}")
    end = command("show", "one")
    assert end.code == 2
    assert f"{path} lacks" in end.err
