"""`normbench.studies`: rows added, merged, restored and verified."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from normbench import results
from normbench.execution.provenance import versions
from normbench.records.hits import TEST_HITS
from normbench.records.studies import STUDY, read_study_lines, write_study_lines
from normbench.run_files import open_locked
from normbench.studies import verify
from normbench.studies.__main__ import main
from normbench.studies.files import add
from normbench.studies.verify import choose
from support.commands import Command, Finished, in_process
from support.rows import RUNS, run, runs

Studies = Callable[..., Finished]

#: A training of 20 steps on the digits.
TINY = (
    "model=resnet8_cifar", "data=digits", "recipe.images=2560", "trainer=cpu", "logger=none",
)  # fmt: skip


@pytest.fixture
def studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Studies:
    """`python -m normbench.studies ARGUMENTS` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return in_process(main, capsys)


def write(root: Path, *rows: results.Row) -> None:
    for row in rows:
        results.write(root / row.sweep / row.id, row)


def test_rows_of_a_sweep_are_added_once(studies: Studies) -> None:
    write(Path("runs"), *RUNS[:3], *(replace(row, sweep="other") for row in RUNS[3:]))
    assert studies("add", "default", "study=mine").out.startswith(f"mine/{STUDY}: 3 runs, 3 new\n")
    assert studies("add", "default", "other", "study=mine").out.startswith(
        f"mine/{STUDY}: {len(RUNS)} runs, {len(RUNS) - 3} new\n"
    )
    assert results.read("mine") == results.read("runs")
    before = Path("mine", STUDY).read_bytes()
    assert studies("add", "default", "study=mine").code == 0
    assert Path("mine", STUDY).read_bytes() == before


def test_the_order_of_merging_changes_no_byte(studies: Studies) -> None:
    for name, rows in (("a", RUNS[:4]), ("b", RUNS[3:])):
        results.write_study(Path(name, STUDY), [(Path(), row) for row in rows])
    assert studies("merge", "a", f"b/{STUDY}", "study=ab").code == 0
    assert studies("merge", "b", "a", "study=ba").code == 0
    assert Path("ab", STUDY).read_bytes() == Path("ba", STUDY).read_bytes()
    assert len(results.read("ab")) == len(RUNS)


def test_two_results_of_one_run_are_shown_and_not_chosen(studies: Studies) -> None:
    other = replace(RUNS[0], test_top1=80.5, seconds=3.0)
    elsewhere = replace(RUNS[1], seconds=9.0, commit="abc", cpu="another")  # the same result
    results.write_study(Path("a", STUDY), [(Path(), row) for row in RUNS])
    results.write_study(Path("b", STUDY), [(Path(), other), (Path(), elsewhere)])
    before = Path("a", STUDY).read_bytes()
    refused = studies("merge", "b", "study=a")
    assert refused.code == 2
    assert f"({other.id}): test_top1 80 and 80.5 in a and b" in refused.out
    assert "1 run with two results, and nothing is written; prefer=first" in refused.err
    assert Path("a", STUDY).read_bytes() == before
    assert studies("merge", "b", "study=a", "prefer=first").code == 0
    assert Path("a", STUDY).read_bytes() == before
    assert "1 conflict (prefer=last)" in studies("merge", "b", "study=a", "prefer=last").out
    tops = {row.id: row.test_top1 for row in results.read("a")}
    assert (tops[other.id], len(tops)) == (80.5, len(RUNS))


def test_all_sweeps_are_added_as_if_each_was_named(studies: Studies) -> None:
    write(Path("runs"), RUNS[0], replace(RUNS[0], sweep="other", test_top1=80.5))
    for names in (["default", "other"], ["*"]):
        refused = studies("add", *names, "study=mine")
        assert refused.code == 2
        assert "1 run with two results, and nothing is written" in refused.err
    write(Path("runs"), replace(RUNS[0], sweep="other"))
    assert studies("add", "*", "study=mine").out.startswith(f"mine/{STUDY}: 1 run, 1 new\n")


@pytest.mark.usefixtures("studies")
def test_two_commands_at_once_lose_no_row() -> None:
    """While one holds the lock of a study, the other has not even read it."""
    write(Path("runs"), *RUNS[:3])
    other = Thread(target=add, args=(["default"], Path("runs"), Path("mine"), None))
    with open_locked(Path("mine/.lock")):
        other.start()
        other.join(0.5)  # it would take some milliseconds
        assert other.is_alive()
        results.write_study(Path("mine", STUDY), [(Path(), row) for row in RUNS[3:]])
    other.join()
    assert len(results.read("mine")) == len(RUNS)


def test_a_row_that_says_more_takes_the_place_of_another(studies: Studies) -> None:
    complete, memory = RUNS[0], replace(RUNS[1], status="oom", test_top1=None, reason="no memory")
    old = replace(complete, test_top5=None)
    results.write_study(Path("a", STUDY), [(Path(), old), (Path(), memory)])
    results.write_study(Path("b", STUDY), [(Path(), replace(complete, test_top5=99.0)),
                                           (Path(), RUNS[1])])  # fmt: skip
    for first, second in (("a", "b"), ("b", "a")):
        assert studies("merge", first, second, f"study={first}{second}").code == 0
        assert {row.status for row in results.read(f"{first}{second}")} == {"ok"}


def test_a_damaged_study_is_not_written_again(studies: Studies) -> None:
    write(Path("runs"), *RUNS)
    results.write_study(Path("mine", STUDY), [(Path(), row) for row in RUNS[:3]])
    lines = read_study_lines(Path("mine", STUDY))
    write_study_lines(Path("mine", STUDY), [lines[0].decode(), lines[1].decode()[:-9]])
    before = Path("mine", STUDY).read_bytes()
    refused = studies("add", "default", "study=mine")
    assert refused.code == 2
    assert "line 2 is damaged" in refused.err
    assert "nothing is written, because it would lose that line" in refused.err
    assert Path("mine", STUDY).read_bytes() == before


def test_a_study_that_cannot_be_written_is_one_sentence(studies: Studies) -> None:
    write(Path("runs"), *RUNS)
    Path("mine", STUDY, "x").mkdir(parents=True)
    refused = studies("add", "default", "study=mine")
    assert refused.code == 2
    assert refused.err.startswith(f"normbench.studies: mine/{STUDY} cannot be written (")
    results.write_study(Path("other", STUDY), [(Path("runs"), row) for row in RUNS])
    Path("again").mkdir()
    Path("again", "default").write_text("a file where the folder of a sweep should be")
    refused = studies("restore", "other", "runs=again")
    assert refused.code == 2
    assert refused.err.startswith("normbench.studies: runs=again cannot be written (")


def test_a_copy_without_its_run_keeps_its_own_curve(command: Command, studies: Studies) -> None:
    assert command("-m", "norm=gn", "batch=4,8", *TINY).code == 0
    rows = results.read("runs")
    (copy,) = (row for row in rows if row.shared_with)
    (computed,) = (row for row in rows if not row.shared_with)
    other = replace(computed, cpu="another", test_images=None)  # a run without hits, elsewhere
    for name, source in (("copy", (Path("runs"), copy)), ("other", (Path(), other))):
        results.write_study(Path(name, STUDY), [source])
    assert studies("merge", "copy", "other", "study=both").code == 0
    for read in (results.read_run_history, results.find_test_hits):
        assert read(Path("both"), copy) == read(Path("runs"), copy)


@pytest.mark.slow
def test_a_copy_shares_curve_and_hits_with_its_run(command: Command, studies: Studies) -> None:
    assert command("-m", "norm=gn", "batch=4,8", *TINY).code == 0
    assert studies("add", "default", "study=mine").code == 0
    lines = [json.loads(line) for line in read_study_lines(Path("mine", STUDY))]
    assert sorted(len(line) for line in lines) == [1, 3]
    one, other = results.read("mine")
    for read in (results.read_run_history, results.find_test_hits):
        assert read(Path("mine"), one) == read(Path("mine"), other) == read(Path("runs"), one)


def test_restored_runs_are_not_trained_again(command: Command, studies: Studies) -> None:
    words = ("-m", "norm=bn", "batch=4,8", *TINY)
    assert command(*words).code == 0
    assert studies("add", "default", "study=mine").code == 0
    assert (
        studies("restore", "mine", "runs=again").out == "again: 2 runs written, 0 there already\n"
    )
    assert (
        studies("restore", "mine", "runs=again").out == "again: 0 runs written, 2 there already\n"
    )
    for row in results.read("runs"):
        for name in ("row.json", TEST_HITS):
            one, other = (Path(root, "default", row.id, name) for root in ("runs", "again"))
            assert one.read_bytes() == other.read_bytes()
        histories = [results.read_run_history(Path(root), row) for root in ("runs", "again")]
        assert histories[0] == histories[1] != []
    assert "2 finished before, 0 to do" in command(*words, "runs=again").out
    Path("again/default", results.read("runs")[0].id, "row.json").unlink()  # killed before the row
    assert studies("restore", "mine", "runs=again").out == "again: 1 run written, 1 there already\n"


@pytest.mark.slow
def test_a_run_that_is_verified_gives_the_same_bits(command: Command, studies: Studies) -> None:
    assert command("-m", "norm=bn", "batch=4,8", *TINY).code == 0
    assert studies("add", "default", "study=mine").code == 0
    verified = studies("verify", "mine", "share=1", "logger=none", "trainer=cpu")
    assert verified.code == 0
    assert verified.out.count("same bits") == 3
    assert "2 of 2 runs compared: 2 same bits" in verified.out
    itself = studies("verify", "mine", "runs=runs", "logger=none", "trainer=cpu")
    assert itself.code == 2
    assert "runs=runs has the runs of the study themselves" in itself.err
    # A result that was changed by hand is found, and on another kind of machine predicted.
    rows = results.read("mine")
    changed = replace(rows[0], train_loss=9.0)
    results.write_study(Path("changed", STUDY), [(Path("mine"), changed), (Path("mine"), rows[1])])
    different = studies("verify", "changed", "share=1", "logger=none", "trainer=cpu")
    assert different.code == 1
    assert "DIFFERENT bn batch=4 seed=0" in different.out
    assert "train_loss 9 and" in different.out


@pytest.mark.slow
@pytest.mark.parametrize(("part", "outcome", "code"), [(0.99, "inside", 0), (0.01, "OUTSIDE", 1)])
def test_on_another_machine_the_other_seeds_tell_a_margin(
    command: Command, studies: Studies, part: float, outcome: str, code: int
) -> None:
    assert command("-m", "norm=bn", "batch=8", "seed=0,1,2,3", *TINY).code == 0
    moved = [
        replace(row, cpu="another", test_top1=part * (row.test_top1 or 0), test_images=None)
        for row in results.read("runs")
    ]
    results.write_study(Path("mine", STUDY), [(Path("runs"), row) for row in moved])
    verified = studies("verify", "mine", "logger=none", "trainer=cpu")
    assert verified.code == code
    assert f"1 of 1 run compared: 1 {outcome}" in verified.out
    assert "apart by the other seeds; cpu differs" in verified.out


@pytest.mark.slow
def test_repetitions_of_an_older_commit_are_trained_again(
    command: Command, studies: Studies
) -> None:
    assert command("norm=bn", *TINY).code == 0
    assert studies("add", "default", "study=mine").code == 0
    words = ("verify", "mine", "logger=none", "trainer=cpu")
    assert studies(*words).code == 0
    (row,) = results.read("runs/verification")
    write(Path("runs/verification"), replace(row, commit="older", train_loss=9.0))
    again = studies(*words)
    assert (again.code, again.out.count("same bits")) == (0, 2)


@pytest.mark.parametrize(
    ("present", "of_row", "kept"),
    [
        ("abc", "abc", True),
        ("abc", "older", False),
        ("abc+", "abc+", False),
        ("", "", True),
        ("", "upgraded", False),
    ],
)
def test_only_repetitions_by_the_present_code_are_kept(
    studies: Studies, monkeypatch: pytest.MonkeyPatch, present: str, of_row: str, kept: bool
) -> None:
    """A changed checkout has no commit; an installed package has its version alone."""
    monkeypatch.setattr(verify, "commit", lambda: present)
    packages = versions() | ({"normbench": "0.0"} if of_row == "upgraded" else {})
    commit = "" if of_row == "upgraded" else of_row
    row = replace(RUNS[0], finished="then", commit=commit, versions=packages)
    write(Path("again"), row)
    verify.set_older_aside([RUNS[0]], Path("again"))
    assert (len(results.read("again")) == 1) == kept


def test_a_sample_is_drawn_from_runs_that_were_trained() -> None:
    rows = [
        *runs("bn", 4, [80.0] * 50),
        *runs("bn", 8, [None] * 10),
        *runs("bn", 2, [None] * 10, status="impossible"),
        *(run("gn", 4, seed, 88.0, shared_with="f" * 12) for seed in range(40)),
    ]
    drawn = choose(rows, 0.1, 1)
    assert len(drawn) == 6
    assert {row.status for row in drawn} <= {"ok", "diverged"}
    assert {row.norm for row in drawn} == {"bn"}
    assert drawn == choose(rows, 0.1, 1) != choose(rows, 0.1, 2)
    assert len(choose(rows, 0.001, 1)) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ad"], "ad is unknown; did you mean add?"),
        (["add", "default"], "study=DIR is missing"),
        (["add", "study=mine"], "SWEEP is missing"),
        (["add", "defalt", "study=mine"], "defalt has no rows below runs; did you mean default?"),
        (["merge", "nothing", "study=mine"], "nothing is not a study"),
        (["restore", "mine"], "runs=DIR is missing"),
        (["add", "default", "study=mine/rows.jsonl.gz"], "name the folder, as study=mine"),
        (["restore", "s", "share=1"], "share=1 is unknown to restore"),
        (["verify"], "verify needs one STUDY"),
        (["verify", "nothing"], "nothing is not a study"),
        (["verify", "s", "share=2"], "share=2: use a fraction above 0 and at most 1"),
        (["verify", "s", "recipe.lr=0.2"], "cannot be composed again"),
    ],
)
def test_bad_input_is_one_sentence(studies: Studies, words: list[str], says: str) -> None:
    write(Path("runs"), *RUNS)
    real = RUNS[0]
    results.write_study(Path("s", STUDY), [(Path(), real)])
    refused = studies(*words)
    assert refused.code == 2
    assert says in refused.err
    assert refused.err.count("\n") == 1
    assert not Path("mine").exists()
