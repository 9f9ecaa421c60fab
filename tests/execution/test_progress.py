"""Progress of runs, as lines and as bars."""

import io

import pytest
from rich.console import Console

from normbench.execution import progress
from normbench.execution.progress import Bars, Lines
from support.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(100.0)
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_lines_count_ended_runs_and_failures(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(4)
    for key in "abcd":
        lines.add(key, f"run {key}")
    lines.end("a", "ok a", failed=False)
    lines.update("b", 5, 10, 0.12345)
    clock.now += 19.9
    lines.update("c", 1, 10, 2.0)
    lines.end("b", "failed b", failed=True)
    clock.now += 19.9
    lines.update("c", 2, 10, 1.5)
    assert capsys.readouterr().out.splitlines() == ["1/4 ok a", "2/4 failed b"]
    lines.update("d", 1, 10, 3.0)
    clock.now += 0.2
    lines.update("c", 3, 10, 1.25)
    # 40 s for two runs, and two are left.
    assert capsys.readouterr().out == (
        "  running: run c: step 3/10, loss 1.250; run d: step 1/10, loss 3.000; "
        "2/4 done, 1 failed, about 40 s left\n"
    )
    lines.update("c", 4, 10, 1.0)  # the interval begins anew with each line
    assert capsys.readouterr().out == ""


def test_lines_know_no_time_before_the_first_end(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(2)
    lines.add("a", "run a")
    lines.add("b", "run b")
    lines.update("a", 1, 4, 2.0)
    lines.remove("a")  # queued again
    clock.now += 20
    lines.update("b", 2, 4, 1.0)
    lines.note("a remark")
    lines.close()
    assert capsys.readouterr().out.splitlines() == [
        "  running: run b: step 2/4, loss 1.000; 0/2 done",
        "a remark",
    ]


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


def test_bars_cut_titles_rather_than_numbers() -> None:
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
        "  run b                    ━━━━━━━━━━━━━━━━ 0/?   starting   0:00:00",
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
    console = Console(file=io.StringIO(), force_terminal=terminal)
    monkeypatch.setattr(progress, "Console", lambda file: console)
    screen = progress.screen(3)
    screen.close()
    assert isinstance(screen, kind)
