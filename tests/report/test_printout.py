"""What a command prints: the recommendation, then the tables, on a terminal and piped."""

import io

import pytest
from rich.console import Console

from normbench.report import build
from normbench.report.pivot import tables
from normbench.report.printout import print_tables
from normbench.results import Row
from support.rows import RUNS, batch_size_tables, run, runs

#: Two normalizers at six batch sizes, of which none is clearly the better one.
WIDE = [
    row
    for norm, mean in (("bn", 80.0), ("evonorm_s0", 79.0))
    for batch in (4, 8, 16, 32, 64, 128)
    for row in runs(norm, batch, [mean - 0.7, mean + 0.7, mean])
]


def drawn(rows: list[Row], width: int = 80) -> str:
    out = io.StringIO()
    print_tables(batch_size_tables(rows), Console(file=out, force_terminal=False, width=width))
    return out.getvalue()


def piped(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> str:
    print_tables(batch_size_tables(rows), None)
    return capsys.readouterr().out


def test_piped_output_is_markdown_and_begins_with_the_recommendation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, table = piped(runs_of(3), capsys).split("**Test accuracy")
    assert first.startswith("\n**Which normalizer, by test top-1 accuracy (%): data=digits ")
    assert (
        "- batch=4: highest mean gn 89.0 ± 1.0 (3). "
        "Significantly worse: bn 82.0 ± 2.0 (3), 7.0 lower [2.8, 11.2].\n"
    ) in first
    assert (
        "- batch=128: highest mean bn 92.0 ± 2.0 (3). "
        "Not significantly worse: gn 89.0 ± 1.0 (3), 3.0 lower [−1.2, 7.2]"
    ) in first
    assert "| norm \\ batch" in table


def runs_of(seeds: int) -> list[Row]:
    """Return rows of bn and gn with the planned number of seeds, or fewer."""
    more = [run("gn", batch, 2, 90.0) for batch in (4, 128)]
    return [row for row in [*RUNS, *more] if row.seed < seeds]


def test_one_seed_is_no_ranking(capsys: pytest.CaptureFixture[str]) -> None:
    for text in (piped(runs_of(1), capsys), " ".join(drawn(runs_of(1)).split())):
        assert text.count("No ranking: with one seed") == 1
        assert "seed=0,1,2 trains three." in text
        assert "highest mean" not in text
        assert "probe speed" not in text


def test_a_batch_of_one_seed_is_left_out_of_the_ranking(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = piped([row for row in runs_of(3) if row.batch == 128 or row.seed == 0], capsys)
    assert "- batch=128: highest mean bn" in text
    assert "batch=4: highest mean" not in text
    assert "No ranking with 4 images per worker: with one seed" in text


def test_one_normalizer_is_compared_with_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Which normalizer" not in piped(runs("bn", 4, [80.0, 81.0, 82.0]), capsys)


def test_no_wall_time_is_compared_and_the_command_that_measures_is_named() -> None:
    """Runs that train beside others slow each other down, and rows do not tell which did."""
    rows = [
        row
        for norm, mean, speed in (("bn", 80.0, 100.0), ("gn", 85.0, 50.0))
        for row in runs(
            norm, 4, [mean, mean + 1, mean + 2], model="resnet8", images_per_second=speed
        )
    ]
    text = drawn(rows)
    assert "x time" not in text
    assert "`python -m normbench.probe speed norm=gn,bn batch=4 model=resnet8 data=digits`" in text


def test_other_numbers_of_seeds_and_failures_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        *runs("bn", 4, [80.0, 81.0, 82.0]), *runs("gn", 4, [70.0, 71.0]), *runs("nf", 4, [None]),
        *runs("frn", 4, [75.0]),
    ]  # fmt: skip
    text = piped(rows, capsys)
    assert "Without a result for every seed: nf (1 of 1 div.)" in text
    assert "Not testable with one seed or equal results: frn 75.0 (1)" in text
    assert "99.9 % intervals, because the number of seeds is not the planned one: gn" in text


@pytest.mark.parametrize("width", [80, 100])
def test_a_terminal_shows_no_broken_number(width: int) -> None:
    text = drawn(WIDE, width)
    # A command is never wrapped, so that it can be copied.
    assert max(len(line) for line in text.splitlines() if "`python -m" not in line) <= width
    assert text.count("79.0 ± 0.7 (3)") == 6  # in the table they are in two lines
    assert text.count("1.0 lower [") == 6
    assert text.count("evonorm_s0 4") == 0
    lines = text.splitlines()
    assert {line[:2] for line in lines if line.startswith(("-", "  "))} == {"- ", "  "}


def test_a_name_is_no_markup_and_controls_no_terminal() -> None:
    text = drawn(runs_of(3) + runs("gn", 4, [1.0, 2.0], options="norm.eps=[red]\x1b[2J"))
    assert "[red]\\x1b[2J" in text
    assert "\x1b" not in text


def test_the_papers_numbers_are_drawn_beside_ours() -> None:
    out = io.StringIO()
    printed = tables(build.specs(["evonorm_9"]), [], None, empty=True)
    print_tables(printed, Console(file=out, width=80))
    assert "[76.1]" in out.getvalue()
    assert "The paper's numbers: " in " ".join(out.getvalue().split())
