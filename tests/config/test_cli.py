"""Options of the commands: values by type, refusals, and lines of --help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from normbench.config import cli
from normbench.errors import BadInput


def parse_share(text: str) -> float:
    if not 0 <= float(text) <= 1:
        raise ValueError("a share from 0 to 1, as share=0.5")
    return float(text)


@dataclass(frozen=True)
class Base:
    """Options that several kinds have."""

    out: Path | None = cli.option(None, "where to write (reports)")


@dataclass(frozen=True)
class Options(Base):
    """Time layers."""

    rounds: int = cli.option(7, "measurements of each")
    device: Literal["cpu", "cuda"] = cli.option("cpu", "device of the layers")
    norm: tuple[str, ...] = cli.option((), "normalizers (all)")
    sizes: tuple[int, ...] = cli.option((3, 8), "seeds of a stack")
    peers: bool = cli.option(True, "layers of torch, too")
    share: float = cli.option(0.5, "share of the images", "X", parse_share)
    dry_run: bool = cli.option(False, "write nothing")


def parse(*words: str, **how: Any) -> tuple[Options, list[str]]:
    return cli.parse_options(words, Options, **how)


def test_values_have_the_types_of_their_fields() -> None:
    words = ["rounds=3", "device=cuda", "norm=bn,gn", "sizes=2", "peers=false", "share=0.25"]
    assert parse(*words, "--dry-run", "out=~/x", "table") == (
        Options(Path("~/x").expanduser(), 3, "cuda", ("bn", "gn"), (2,), False, 0.25, True),
        ["table"],
    )


def test_what_is_not_typed_is_the_default_and_the_last_word_counts() -> None:
    assert parse() == (Options(), [])
    assert parse("rounds=3", "rounds=4")[0].rounds == 4


def test_other_options_are_passed_on_where_another_reader_has_them() -> None:
    words = ["-m", "rounds=1", "batch=4", "round=2"]
    assert parse(*words, pass_on=True) == (Options(rounds=1), ["-m", "batch=4", "round=2"])


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("round=3", "round=3 is unknown; did you mean rounds? (known: --dry-run, device, norm, "),
        ("--dry", "--dry is unknown; did you mean --dry-run?"),
        ("--dry-run=1", "--dry-run=1 is unknown; did you mean --dry-run?"),
        ("dry_run=true", "dry_run=true is unknown; did you mean --dry-run?"),
        ("rounds=0", "rounds=0: it is a whole number above 0, as rounds=7"),
        ("rounds=many", "rounds=many: it is a whole number above 0, as rounds=7"),
        ("sizes=3,x", "sizes=x: it is a whole number above 0, as sizes=3,8"),
        ("out=", "out= has no value; write out=DIR"),
        ("norm=bn,", "norm= has no value; write norm=NAME"),
        ("device=rocm", "device=rocm is unknown; known: cpu, cuda"),
        ("peers=no", "peers=no is unknown; known: false, true"),
        ("share=2", "share=2: a share from 0 to 1, as share=0.5"),
    ],
)
def test_a_word_that_cannot_be_used_is_refused(word: str, says: str) -> None:
    with pytest.raises(BadInput) as error:
        parse(word)
    assert str(error.value).startswith(says)


def test_a_refusal_names_the_kind_of_a_command_with_several() -> None:
    with pytest.raises(BadInput, match="batch=4 is unknown to layers; known: --dry-run, device"):
        parse("batch=4", owner="layers")


def test_help_has_a_line_for_each_option_with_its_default() -> None:
    assert cli.describe(Options, Base).splitlines() == [
        "    rounds=N            measurements of each (7)",
        "    device=cpu|cuda     device of the layers (cpu)",
        "    norm=NAME,...       normalizers (all)",
        "    sizes=N,...         seeds of a stack (3,8)",
        "    peers=true|false    layers of torch, too (true)",
        "    share=X             share of the images (0.5)",
        "    --dry-run           write nothing",
    ]
    assert cli.describe(Base) == "    out=DIR             where to write (reports)"


@pytest.mark.parametrize("words", [["--help"], ["a", "-h"], []])
def test_a_command_answers_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    @cli.command("normbench.x", lambda: "Help.", needs_words=True)
    def main(arguments: Any) -> int:
        raise AssertionError

    assert main(words) == 0
    assert capsys.readouterr().out == "Help.\n"


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [(BadInput("x=1"), 2, "normbench.x: x=1\n"), (KeyboardInterrupt(), 130, "")],
)
def test_a_command_ends_with_one_sentence(
    error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @cli.command("normbench.x", lambda: "Help.")
    def main(arguments: Any) -> int:
        raise error

    assert main([]) == code
    assert capsys.readouterr().err == says
