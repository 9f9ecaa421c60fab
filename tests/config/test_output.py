"""What a command prints where it cannot be printed: a full disk, no terminal, another encoding."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normbench import run_files
from support.rows import write_row

STATUS = f"{sys.executable} -m normbench.status"


def shell(command: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**os.environ, **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_full_disk_of_the_output_is_one_sentence(tmp_path: Path) -> None:
    write_row(tmp_path / "runs")
    end = shell(f"{STATUS} > /dev/full", tmp_path)
    assert end.returncode == 1
    assert end.stderr == ("normbench: the output cannot be written (No space left on device)\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_change_no_exit_code(closed: str, tmp_path: Path) -> None:
    write_row(tmp_path / "runs")
    end = shell(f"{STATUS} {closed}", tmp_path)
    assert (end.returncode, end.stderr) == (0, "")


def test_child_processes_get_the_descriptors_that_were_closed(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; from normbench.config.output import protect_output;"
        "protect_output();"
        "sys.exit(subprocess.call([sys.executable, '-c', 'import sys; sys.stdout.flush()']))"
    )
    end = shell(f'{sys.executable} -c "{program}" >&- <&-', tmp_path)
    assert (end.returncode, end.stderr) == (0, "")


def test_letters_that_the_encoding_lacks_are_escaped(tmp_path: Path) -> None:
    write_row(tmp_path / "rüns")
    end = shell(f"{STATUS} runs=rüns", tmp_path, PYTHONIOENCODING="ascii")
    assert end.returncode == 0, end.stderr
    assert "1 run in r\\xfcns: 1 ok" in end.stdout


def test_a_working_directory_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    end = shell(f"mkdir gone; cd gone; rmdir ../gone; {STATUS}", tmp_path)
    assert end.returncode == 2
    assert end.stderr == ("normbench: the working directory is gone; call it from another folder\n")


#: Clears the screen and colors it, in both forms of such sequences; rings; moves the cursor back.
NAME = "x\x1b[2J\x9b31m\x07\x08\ry"


@pytest.mark.parametrize("command", ["normbench.status", "normbench.report", "normbench.dashboard"])
def test_no_escape_sequence_of_a_name_reaches_the_terminal(tmp_path: Path, command: str) -> None:
    row = {"data": NAME, "norm": NAME, "options": NAME, "commit": NAME, "reason": NAME}
    write_row(tmp_path / "runs", **row)
    folder = tmp_path / "runs/default" / f"unfinished{NAME}"
    run_files.write_state(folder, "failed", NAME, title=NAME)
    (folder.with_name(f"damaged{NAME}")).mkdir()
    (folder.with_name(f"damaged{NAME}") / "row.json").write_text("{")
    end = subprocess.run(
        [sys.executable, "-m", command, *(["--dry-run"] if "dashboard" in command else [])],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    text = (end.stdout + end.stderr).decode()
    assert "Traceback" not in text
    assert "\\x1b" in text
    assert not {letter for letter in text if not letter.isprintable()} - {"\n"}


def test_bars_print_names_without_their_escape_sequences(tmp_path: Path) -> None:
    program = f"""
from normbench.config.output import protect_output
from normbench.execution.progress import Bars, print_line, screen
protect_output()
bars = screen(2)
assert isinstance(bars, Bars)
bars.add("key", "title" + {NAME!r})
bars.note("note" + {NAME!r})
print_line("line" + {NAME!r})
bars.end("key", "end" + {NAME!r}, failed=False)
bars.close()
print("after" + {NAME!r})
"""
    reader, writer = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", program], stdout=writer, stderr=writer) as process:
        os.close(writer)
        shown = b""
        try:
            while chunk := os.read(reader, 4096):
                shown += chunk
        except OSError:  # the end of a terminal
            pass
        os.close(reader)
    text = shown.decode()
    assert process.returncode == 0, text
    for word in ("note", "line", "end", "after"):
        assert f"{word}x\\x1b[2J\\x9b31m\\x07\\x08" in text, text
    assert "\x1b[2J" not in text
    assert "\x9b" not in text
    assert "\x1b[?25l" in text  # the bars themselves hide the cursor


def test_ctrl_c_ends_the_imports_of_a_command_without_a_traceback(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "normbench.cost", "norm=gn"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():  # for a second more
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (-signal.SIGINT, "")
