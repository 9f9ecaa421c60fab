"""Commands that really train, tiny networks of a few steps, by one fork server for all of them.

    python -m faults.trainings

reads requests from stdin and answers them as `faults.sandbox` does, but runs the commands itself,
as a fork server belongs to the process that has started it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from hypothesis import strategies as st

from faults.command_lines import CHOICES, GOOD, OPTIONS, STRANGE, STRANGE_WORDS
from faults.judge import SECONDS, Outcome
from faults.sandbox import TESTS, Driver

#: A training of a few steps.
TINY = (
    "trainer=cpu", "logger=none", "model=resnet8", "recipe.images=64", "global_batch=16", "batch=4",
    "data.fraction=0.1", "data.val=0",
)  # fmt: skip
#: Seconds after which a training is stopped by Ctrl-C: some words ask for millions of steps.
PATIENCE = 12.0

#: Options whose values only the check with torch, or the training, can refuse.
_HEADS = sorted(
    {word.partition("=")[0] for word in OPTIONS if not word.startswith(("data.root", "logger."))}
)
_PLAIN = [value for value in STRANGE if len(value) < 100 and not set(value) & set("${}()")]
training_lines = st.tuples(
    st.sampled_from([word for word in GOOD if word.startswith("norm=")]),
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(_HEADS), st.sampled_from(_PLAIN)).map("=".join),
            st.sampled_from([*CHOICES, *OPTIONS]), st.sampled_from(STRANGE_WORDS),
        ),
        min_size=1, max_size=2,
    ),
).map(lambda drawn: (drawn[0], *TINY, *drawn[1]))  # fmt: skip


class Trainings(Driver):
    """A process that runs `python -m normbench` again and again, with one fork server.

    Args:
        folder: for the folders of the commands.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "faults.trainings"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, cwd=self.folder, process_group=0,
            env={
                **os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1",
                "TMPDIR": str(self.folder), "WANDB_MODE": "offline",
            },
        )  # fmt: skip

    def __enter__(self) -> Self:
        self.run(self.new_folder(), ["norm=bn", *TINY], patience=120, seconds=180)  # imports torch
        return self

    def run(
        self, folder: Path, words: Sequence[str], patience: float = PATIENCE,
        seconds: float = SECONDS,
    ) -> Outcome:  # fmt: skip
        """Run `python -m normbench` with `words` in `folder`; interrupt it after `patience`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(
            json.dumps({"folder": str(folder), "words": words}).encode() + b"\n"
        )
        self.process.stdin.flush()
        started = time.monotonic()
        answer = folder.parent / "answer"
        interrupted = False
        while not answer.exists() and self.process.poll() is None:
            time.sleep(0.01)
            if not interrupted and time.monotonic() - started > patience:
                interrupted = True
                self.process.send_signal(signal.SIGINT)
            if time.monotonic() - started > seconds:
                break
        late = not answer.exists()
        if late:
            self._kill()
            self.process = self._start()
        out, err = ((folder.parent / name).read_bytes() for name in ("out", "err"))
        code = -signal.SIGKILL if late else int(answer.read_text())
        where = "a training" if late else ""
        return Outcome(code, out, err, time.monotonic() - started, where=where)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def serve() -> None:
    """Answer requests until stdin ends."""
    from normbench.__main__ import main

    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        folder = Path(request["folder"])
        os.chdir(folder)
        for name, number in (("out", 1), ("err", 2)):
            file = os.open(folder.parent / name, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, number)
            os.close(file)
        code: Any = 1
        try:
            code = main(request["words"])
        except SystemExit as end:
            code = end.code or 0
        except KeyboardInterrupt:
            code = 130  # it came when the command had just ended
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        answer = folder.parent / "answer"
        answer.with_suffix(".new").write_text(str(code))
        answer.with_suffix(".new").replace(answer)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    serve()
