"""Progress of runs, as lines and as bars."""

import io

import pytest
from rich.console import Console

from normbench.config.compose import compose
from normbench.execution import progress
from normbench.execution.progress import Bars, Lines, TimeLeft, format_seconds, short_titles
from support.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(100.0)
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_lines_count_ended_runs_and_failures(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(5)
    for key in "ab":
        lines.add(key, f"run {key}")
    clock.now += 10
    lines.update("a", 5, 10, 1.0)
    clock.now += 9.9
    lines.end("a", "ok a", failed=False)
    lines.add("c", "run c")
    clock.now += 10
    lines.update("b", 5, 10, 0.12345)
    lines.end("b", "failed b", failed=True)
    lines.add("d", "run d")
    lines.note("shared    e: same computation as a")
    assert capsys.readouterr().out.splitlines() == [
        "1/5 ok a", "2/5 failed b", "shared    e: same computation as a",
    ]  # fmt: skip
    clock.now += 20
    lines.update("c", 3, 10, 1.25)
    # 30 s for 3 of the 10 steps of run c; run d, without a step, and the one that waits for it take
    # 25 s, the mean of the ended ones.
    assert capsys.readouterr().out == (
        "  running: run c: step 3/10, loss 1.250; 2/5 done, 1 failed, about 70 s left\n"
    )
    lines.update("c", 4, 10, 1.0)  # the interval begins anew with each line
    assert capsys.readouterr().out == ""


def test_lines_know_no_time_before_the_first_step(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(2)
    lines.add("a", "run a")
    lines.add("b", "run b")
    lines.update("a", 1, 4, 2.0)
    lines.remove("a")  # queued again
    clock.now += 20
    lines.update("b", 0, 4, 1.0)
    lines.note("a remark")
    lines.close()
    assert capsys.readouterr().out.splitlines() == [
        "  running: run b: step 0/4, loss 1.000; 0/2 done",
        "a remark",
    ]


def test_the_time_left_counts_computations_and_steps(clock: Clock) -> None:
    left = TimeLeft(4)
    assert left.of_all() is None
    left.start("a")
    left.start("b")
    clock.now += 10
    left.running["a"].update(25, 100)
    assert (left.of("a"), left.of("b"), left.of("c")) == (30.0, None, None)
    assert left.of_all() == 30 + 40  # two slots; each has another one of 40 s after its own
    clock.now += 10
    left.running["a"].update(75, 100)  # faster, as torch is imported by now
    left.running["b"].update(400, 500)  # from a checkpoint
    clock.now += 1
    left.running["b"].update(410, 500)
    assert (left.of("a"), left.of("b")) == (4.0, 9.0)
    clock.now += 4
    left.end("a")
    left.start("c")
    clock.now += 5
    left.end("b")
    assert left.of_all() == 27.5  # the mean of 25 and 30, of which 5 are over, then one more
    left.start("d")
    clock.now += 3
    left.put_back("d")
    assert left.waiting == 1


def test_a_run_that_failed_at_once_tells_no_speed(clock: Clock) -> None:
    left = TimeLeft(3)
    left.start("a")
    left.end("a")
    assert left.of_all() is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.6, "1 s"), (119, "119 s"), (120, "2 min"), (9000, "2.5 h")]
)
def test_a_time_is_said_in_its_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        (["norm=gn", "batch=4", "data=fashion_mnist"], ["gn batch=4 seed=0 data=fashion_mnist"]),
        (["norm=gn", "batch=4,8", "seed=3"], ["batch=4", "batch=8"]),
        (["norm=gn,bn", "data=fashion_mnist", "seed=0,1"],
         ["gn seed=0", "gn seed=1", "bn seed=0", "bn seed=1"]),
        (["reg=none,mixup", "recipe.lr=0.1,0.2"],
         ["reg=none", "reg=none recipe.lr=0.2", "reg=mixup", "reg=mixup recipe.lr=0.2"]),
        (["task=segment,depth", "model=resnet14,resnet14_v2"],
         ["task=segment model=resnet14", "task=segment model=resnet14_v2",
          "task=depth model=resnet14", "task=depth model=resnet14_v2"]),
        (["task=classify,segment"], ["task=classify", "task=segment"]),
        (["recipe.lr=0.1,0.2"], ["evonorm_s0 batch=8 seed=0", "recipe.lr=0.2"]),
    ],
    ids=str,
)  # fmt: skip
def test_titles_name_what_differs(words: list[str], titles: list[str]) -> None:
    cells, _ = compose(["-m", *words])
    assert short_titles(cells) == dict(zip((cell.id for cell in cells), titles, strict=True))


@pytest.mark.parametrize("terminal", [True, False])
def test_waiting_shows_a_spinner_or_a_line(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=60) if terminal else None
    monkeypatch.setattr(progress, "terminal", lambda: console)
    with progress.waiting("checking ..."):
        pass
    assert all((text in output.getvalue()) is terminal for text in ("checking ...", "0:00:00"))
    assert capsys.readouterr().out == ("" if terminal else "checking ...\n")


def test_bars_show_runs_in_progress_and_counts() -> None:
    output = io.StringIO()
    bars = Bars(Console(file=output, force_terminal=True, width=120), 3)
    sweep = bars.progress.tasks[0]
    assert (sweep.description, sweep.total, sweep.fields["more"]) == ("runs", 3, "")
    bars.add("a", "[run] a")
    bars.add("b", "run b")
    bars.add("c", "run c")
    assert bars.progress.tasks[1].description == "  [run] a"
    assert [task.fields["more"] for task in bars.progress.tasks] == [
        "3 running", "starting", "starting", "starting",
    ]  # fmt: skip
    bars.update("a", 5, 10, 0.12345)
    task = bars.progress.tasks[1]
    assert (task.completed, task.total, task.fields["more"]) == (5, 10, "loss 0.123")
    bars.end("a", "ok a", failed=False)
    assert (sweep.completed, sweep.fields["more"]) == (1, "2 running")
    bars.end("b", "failed [b]", failed=True)
    assert (sweep.completed, sweep.fields["more"]) == (2, "1 running, 1 failed")
    bars.remove("c")
    assert (sweep.completed, sweep.fields["more"]) == (2, "0 running, 1 failed")
    assert [task.description for task in bars.progress.tasks] == ["runs"]
    bars.add("c", "run c")
    bars.close()
    assert [task.description for task in bars.progress.tasks] == ["runs"]
    assert bars.progress.finished is False
    assert "ok a" in output.getvalue()
    assert "failed [b]" in output.getvalue()


def test_bars_cut_titles_rather_than_numbers(clock: Clock) -> None:
    bars = Bars(Console(file=io.StringIO(), force_terminal=True), 3)
    bars.add("a", "[run] a whose title is too long")
    bars.add("b", "run b")
    bars.update("a", 5, 10, 0.12345)
    output = io.StringIO()
    Console(file=output, width=76).print(bars.progress.get_renderable())
    bars.close()
    assert [line.rstrip() for line in output.getvalue().splitlines()] == [
        "runs                                        0/3   2 running  0:00:00 -:--:--",
        "  [run] a whose title is … ━━━━━━━━          5/10 loss 0.123 0:00:00 -:--:--",
        "  run b                    ━━━━━━━━━━━━━━━━ 0/?   starting   0:00:00 -:--:--",
    ]


def test_a_line_above_the_bars_is_not_broken() -> None:
    output = io.StringIO()
    bars = Bars(Console(file=output, force_terminal=True, width=40), 1)
    line = "a path [bold] as long as two lines " * 3
    bars.note(line)
    bars.close()
    assert line in output.getvalue()


@pytest.mark.parametrize(("terminal", "kind"), [(True, Bars), (False, Lines)])
def test_bars_need_a_terminal(terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True) if terminal else None
    monkeypatch.setattr(progress, "terminal", lambda: console)
    screen = progress.screen(3)
    screen.close()
    assert isinstance(screen, kind)
