"""The judge of all attacks notices what it is for: planted faults, one of each kind."""

from pathlib import Path

import pytest

from faults.command_lines import CommandLine
from faults.judge import LINES, SECONDS, Outcome, faults
from faults.sandbox import Sandbox

REFUSAL = b"normbench: batch=x: it is a whole number above 0\n"


@pytest.mark.parametrize(
    ("outcome", "culprits"),
    [
        (Outcome(0, b"a\ttable\n" * 50, b""), ["batch"]),
        (Outcome(2, b"", REFUSAL), ["norm", "batch"]),
        (Outcome(2, b"", REFUSAL), []),
        (Outcome(1, b"failed: bn batch=4\n", b""), ["batch"]),
        (Outcome(2, b"", "caf\u00e9=1 is unknown\n".encode() * LINES), ["=1"]),
        (Outcome(130, b"", b""), ["batch"]),
        (Outcome(143, b"", b"", SECONDS - 1), ["batch"]),
    ],
)  # fmt: skip
def test_allowed(outcome: Outcome, culprits: list[str]) -> None:
    assert faults(outcome, culprits) == []


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (Outcome(-9, b"", b"", SECONDS, where="in open"), "no end after 30 s: in open"),
        (Outcome(-9, b"", b""), "exit code -9"),
        (Outcome(120, b"", b""), "exit code 120"),
        (Outcome(3, b"", REFUSAL), "exit code 3"),
        (Outcome(2, b"", b""), "exit code 2 without a word"),
        (Outcome(1, b" \n", b"\n"), "exit code 1 without a word"),
        (Outcome(2, b"", b"seed=x\n"), "neither key nor file is named: seed=x"),
        (Outcome(2, b"", REFUSAL * (LINES + 1)), "13 lines on stderr"),
        (Outcome(2, b"", REFUSAL + b"\x1b[31m"), "the control character '\\x1b' on stderr"),
        (Outcome(0, b"a\rb", b""), "the control character '\\r' on stdout"),
        (Outcome(0, "\x9b".encode(), b""), "the control character '\\x9b' on stdout"),
        (Outcome(0, b"\xed\xb2\x80", b""), "stdout is not UTF-8"),  # a lone surrogate
        (Outcome(2, b"", REFUSAL, written=("/etc/x",)), "writes /etc/x"),
        (
            Outcome(0, b"", b"a/b.py:7: UserWarning: beware\n  warn()\n"),
            "a warning of Python: UserWarning: beware",
        ),
        (
            Outcome(2, b"", b"normbench: batch: the check of all cells failed: KeyError: 'x'\n"),
            "a failure of the check in place of a refusal: "
            "normbench: batch: the check of all cells failed: KeyError: 'x'",
        ),
        (
            Outcome(1, b"", (
                b"Traceback (most recent call last):\n"
                b'  File "/x/normbench/status.py", line 7, in main\n    f()\n'
                b'  File "/usr/json.py", line 1, in load\nValueError: batch\n'
            )),
            "a traceback of normbench/status.py:7 main: ValueError: batch",
        ),
        (
            Outcome(0, b"Traceback (most recent call last):\nKeyError\n", b""),
            "a traceback of ?:? ?: KeyError",
        ),
    ],
)  # fmt: skip
def test_faults(outcome: Outcome, fault: str) -> None:
    assert faults(outcome, ["batch"]) == [fault]


@pytest.mark.parametrize(
    ("outcome", "named"),
    [
        (Outcome(0, b"", b""), False),
        (Outcome(0, b"| gn | 84.0 |\n", b"normbench: 7 rows\n"), False),
        (Outcome(0, b"", b"warning: other/row.json is no JSON\n"), False),
        (Outcome(0, b"", b"warning: 0123/row.json is no JSON\n"), True),
        (Outcome(1, b"", b"0123/row.json is left out\n"), True),
    ],
)
def test_a_damaged_row_is_named(outcome: Outcome, named: bool) -> None:
    assert (faults(outcome, ["0123/row.json"], damaged=True) == []) is named


@pytest.mark.parametrize(
    ("says", "named"),
    [
        (b"normbench: seed=x: no number\n", False),  # the name of the program is no culprit
        (b"python -m normbench.report: block and borrow\n", False),
        (b"renorm=1 is unknown\n", False),
        (b"norm=1 is unknown\n", True),
        (b"normbench: lock: of another user\n", True),
    ],
)
def test_a_culprit_is_a_word(says: bytes, named: bool) -> None:
    assert (faults(Outcome(2, b"", says), ["norm", "lock", "row"]) == []) is named


def test_a_right_word_is_named_by_its_key() -> None:
    line = CommandLine("normbench.report", ("norm=gn", "batch=x"))
    assert faults(Outcome(2, b"", b"batch=x is no number\n"), line.culprits) == []
    assert faults(Outcome(2, b"", b"norm=gn is no table\n"), line.culprits) == []
    assert faults(Outcome(2, b"", b"seed=0 is no number\n"), line.culprits)
    assert faults(Outcome(2, b"", b"gn and a norm\n"), line.culprits)


PLANTED = """
import os, sys, time
from pathlib import Path

def main(words):
    if words == ["raise"]:
        raise KeyError("planted")
    if words == ["read"]:
        try:
            Path("unreadable").read_text()
        except PermissionError:
            return 2
    if words == ["sleep"]:
        time.sleep(60)
    if words == ["write"]:
        try:
            Path("/etc/planted").write_text("x")
        except OSError as error:
            print(error, file=sys.stderr)
            return 2
    if words == ["temporary"]:
        Path(os.environ["TMPDIR"], "planted").touch()
    if words == ["signal"]:
        os.kill(os.getpid(), 11)
    if words == ["letter"]:
        print("\\u2013")
    if words == ["bytes"]:
        sys.stdout.buffer.write(b"\\xed\\xb2\\x80")
    return {"code": 7}.get(words[0], 0)
"""


def test_planted_commands(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    with Sandbox(tmp_path, modules=["planted"], seconds=1) as sandbox:

        def run(word: str, encoding: str = "utf-8") -> Outcome:
            return sandbox.run(sandbox.new_folder(), "planted", [word], encoding=encoding)

        def read_unreadable() -> Outcome:
            folder = sandbox.new_folder()
            (folder / "unreadable").touch(mode=0)
            return sandbox.run(folder, "planted", ["read"])

        assert faults(run("nothing")) == []
        assert read_unreadable().code == 2  # also for root
        assert "KeyError: 'planted'" in faults(run("raise"))[0]
        assert faults(run("code")) == ["exit code 7"]
        assert faults(run("signal")) == ["exit code -11"]
        assert faults(run("write"), ["planted"]) == ["writes /etc/planted"]
        assert "planted and leaves it" in faults(run("temporary"))[0]
        assert faults(run("letter", "ascii")) == faults(run("letter")) == []
        assert faults(run("bytes")) == ["stdout is not UTF-8"]
        (late,) = faults(run("sleep"))
        assert late.startswith("no end after")
        assert "planted.py" in late
    assert not Path("/etc/planted").exists()
