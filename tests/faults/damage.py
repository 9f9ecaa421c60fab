"""A folder with every kind of file that normbench reads, and ways to damage one of them."""

import json
import os
import shutil
import socket
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from faults.sandbox import Sandbox
from normbench import results, run_files
from normbench.config.compose import compose
from normbench.records import probes
from normbench.records.history import History
from normbench.records.hits import write_hits
from normbench.results import Row

#: The grid whose rows are there, so that it ends without a training.
GRID = (
    "-m", "norm=bn,gn", "batch=4,8", "seed=0,1", "logger=none", "trainer=cpu", "model=resnet8",
)  # fmt: skip
UNFINISHED = ("norm=ln", "batch=4", "logger=none", "trainer=cpu", "model=resnet8")
MINE = {
    "norm/mine.yaml": "# Group normalization.\ndefaults: [gn]\ngroups: 2\n",
    "recipe/mine.yaml": "# A short recipe.\ndefaults: [demo]\nimages: 2560\n",
    "sweeps/mine.yaml": (
        "# @package _global_\n# Mine.\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n"
        "      norm: bn,gn\n      seed: range(0,2)\ngrids:\n- {norm: ln, batch: 8}\n"
    ),
}  # fmt: skip
OF_MINE = ("--config-dir", "mine", "norm=mine", "recipe=mine", "sweeps=mine", *GRID[-3:])


def make_folder(folder: Path) -> None:
    """Fill `folder` with runs, and with files of a user's own; nothing is trained."""
    cells, _ = compose([*GRID])
    for cell in cells:
        accuracy = 80.0 + len(cell.norm.name) * cell.batch / 3 + cell.seed
        row = Row(
            **cell.description("default"), status="ok", test_top1=accuracy, val_top1=accuracy,
            test_loss=0.5, train_loss=0.4, params=1234, macs=5678, seconds=2.5, groups=[4],
            images_per_second=1000.5, peak_memory=10**8, devices="cpu", plan="1x1x32",
            finished=f"2026-01-0{cell.seed + 1}T00:00:00+00:00", computation=f"c{cell.id}",
            batch_independent=cell.norm.name == "gn", versions={"torch": "2.6"}, commit="abc",
            test_images=1000,
        )  # fmt: skip
        run = folder / "runs/default" / cell.id
        results.write(run, row)
        write_hits(run, [image < round(10 * accuracy) for image in range(1000)])
        _add_curves(run)
    (foreign,), _ = compose(["norm=sn", *UNFINISHED[1:]])
    values = {**vars(row), **foreign.description("other"), "status": "oom", "reason": "no memory"}
    results.write(folder / "runs/other" / foreign.id, Row(**values))
    (cell,), _ = compose([*UNFINISHED])
    unfinished = folder / "runs/default" / cell.id
    _add_curves(unfinished)
    run_files.write_state(
        unfinished, "running", title=cell.title, pid=1, host=os.uname().nodename, steps=200
    )  # fmt: skip
    run_files.write_failure(unfinished, 0, "killed", "log.txt", 1.0)
    (unfinished / "checkpoint.pt").write_bytes(b"PK\x03\x04 of no network" * 20)
    (folder / "runs/check.log").write_text("")
    for name, text in MINE.items():
        path = folder / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def make_reports(sandbox: Sandbox) -> Path:
    """Return a folder as `make_folder` fills it, with the report of the runs and a study."""
    folder = sandbox.new_folder()
    make_folder(folder)
    study = ("normbench.studies", ("add", "default", "other", "study=study"))
    for command, words in (("normbench.report", ()), study, ("normbench.report", ("study=study",))):
        outcome = sandbox.run(folder, command, words)
        assert outcome.code == 0, outcome
    return folder


def _add_curves(run: Path) -> None:
    history = History(run)
    for step in (100, 200):
        history.add({
            "step": step, "epoch": step / 14, "lr": 0.1, "train_loss": 1 / step, "train_top1": 50.0,
            "val_loss": 0.5, "val_top1": 60.0,
        })  # fmt: skip
    (run / "log.txt").write_text("a log\n")
    (run / "lock").touch()
    blocks = {
        "block": 1, "name": "blocks.0", "stage": 1, "squared_mean": 0.6, "variance": 1.5,
        "branch_variance": 0.7, "ends_stage": False,
    }  # fmt: skip
    powers = {
        "name": "norm", "depth": 1, "p1": 0.1, "p2": 0.2, "p3": 0.3, "p4": 0.4, "linearity": 0.9,
        "total": 1.0, "bound": 1.0,
    }  # fmt: skip
    for kind, record in (("spp", blocks), ("power", powers)):
        probes.append_epoch(run, kind, [{"epoch": 1, **record}], 1)


#: Files by what they are, and the commands that read them.
Commands = tuple[tuple[str, tuple[str, ...]], ...]
_READERS: Commands = (
    ("normbench.status", ()), ("normbench.report", ("batch_size",)), ("normbench", GRID),
)  # fmt: skip
_ADD = ("normbench.studies", ("add", "default", "other", "study=other"))
_ALL: Commands = (*_READERS, ("normbench.report", ()), _ADD)
_STATUS: Commands = (("normbench.status", ()), ("normbench", UNFINISHED))
_REPORT: Commands = (("normbench.report", ()), ("normbench.report", ("batch_size",)))
_STUDY: Commands = (
    ("normbench.report", ("runs=study", "reports=other", "batch_size")),
    ("normbench.report", ("study=study",)),
    ("normbench.studies", ("merge", "study", "study=other")),
)
KINDS: Mapping[str, tuple[str, Commands]] = {
    "row": ("runs/default/*/row.json", _ALL),
    "a row of another sweep": ("runs/other/*/row.json", _ALL),
    "curve": ("runs/default/*/history.csv", _ALL),
    "test hits": ("runs/default/*/test_hits.bin", _REPORT),
    "probes": ("runs/default/*/probes/*.csv", _REPORT),
    "state": ("runs/default/*/state.json", _STATUS),
    "failure": ("runs/default/*/failed.0.json", _STATUS),
    "checkpoint": ("runs/default/*/checkpoint.pt", _STATUS),
    "lock": ("runs/default/*/lock", _STATUS),
    "log of the check": ("runs/check.log", (("normbench", GRID),)),
    "cache of a report": ("runs/reports/.report.json", _REPORT),
    "file of a report": ("runs/reports/*.*", _REPORT),
    "table of a report": ("runs/reports/batch_size/*", _REPORT),
    "study": ("study/rows.jsonl.gz", _STUDY),
    "page of a study": ("study/index.html", _STUDY),
    "yaml": ("mine/*/*.yaml", (("normbench", OF_MINE),)),
}
#: The same with torch.
KINDS_WITH_TORCH: Mapping[str, tuple[str, Commands]] = {
    "row": (
        "runs/default/*/row.json",
        (
            ("normbench.cost", GRID),
            ("normbench.decide", ("hours=1",)),
            ("normbench.dashboard", ("--dry-run",)),
        ),
    ),
}

#: JSON of other types than a file has.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, 10**30, -(10**400), float("nan"), float("inf"), "", "x", "$",
    "../../x", "\x1b[31mred", "\ud800", "日本", "=1+1", "<script>", "\n", "a" * 10_000, [], {}, [1],
    [[]], {"a": 1}, {"": None}, {"a": {"b": [1, {"c": None}]}}, ["x", None], [float("nan")],
)  # fmt: skip
TEXTS = (
    b"", b"\n", b"null", b"[]", b"{}", b"1", b'"x"', b"NaN", b"[" * 100_000, b'{"a":' * 100_000,
    b"\xff\xfe\x00", b"\xc3\x28", b"\0" * 100, b"{", b"x", b"a,b\n1\n", b'"', b"\xef\xbb\xbf{}",
    b"9" * 5000, b"- " * 10_000, b"a: &a [*a]", b"!!python/object/apply:os.getpid []", b"\t- a",
    b"&a [x,x,x,x]\n" * 5, b"? : :", b"\x1f\x8b\x08\x00", b"%YAML 9", b"<html>", b"\r\n,\r\n",
)  # fmt: skip
SPECIAL = (
    "missing", "folder", "full folder", "fifo", "socket", "loop", "dangling", "/dev/zero",
    "/dev/full", "/dev/null", "/dev/tty", "unreadable", "long link",
)  # fmt: skip


@dataclass(frozen=True)
class Damage:
    """Damage to one of the files of a kind.

    Args:
        kind: of `KINDS`.
        form: of the damage.
        number: which of the files, and which byte, line or key of it.
        content: that replaces it.
    """

    kind: str
    form: str
    number: int
    content: Any

    def __str__(self) -> str:
        return f"{self.kind}: {self.form} {self.number} {self.content!r:.80}"

    def apply(self, folder: Path, pattern: str) -> Path:
        """Damage a file below `folder`; return it."""
        paths = sorted(folder.glob(pattern))
        path = paths[self.number % len(paths)]
        if self.form == "special":
            _replace(path, self.content)
        else:
            path.write_bytes(_FORMS[self.form](path.read_bytes(), self.number, self.content))
        return path


def is_unusable(path: Path) -> bool:
    """Return whether there is something at `path` that can be no row, whoever reads it."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) or not mode & stat.S_IRUSR:
            return True
        return not isinstance(json.loads(path.read_bytes()), dict)
    except FileNotFoundError:
        return path.is_symlink()
    except (OSError, ValueError, RecursionError):
        return True


def _flip(old: bytes, number: int, content: Any) -> bytes:
    place = number % max(1, len(old))
    return old[:place] + bytes([old[place] ^ (1 << number % 8)]) + old[place + 1 :] if old else b"x"


def _cut(old: bytes, number: int, content: Any) -> bytes:
    return old[: number % max(1, len(old))]


def _replace_all(old: bytes, number: int, content: Any) -> bytes:
    return TEXTS[content % len(TEXTS)]


def _insert(old: bytes, number: int, content: Any) -> bytes:
    place = number % (len(old) + 1)
    return old[:place] + TEXTS[content % len(TEXTS)] + old[place:]


def _replace_value(old: bytes, number: int, content: Any) -> bytes:
    """Replace one value of JSON, or a field of another text, by another one."""
    value = VALUES[content % len(VALUES)]
    try:
        parsed = json.loads(old)
    except ValueError:
        parts = old.split(b",")
        parts[number % len(parts)] = str(value).encode(errors="replace")
        return b",".join(parts)
    places = list(_places(parsed))
    if not places:
        return json.dumps(value).encode()
    container, key = places[number % len(places)]
    if content % 7 == 0 and isinstance(container, dict):
        del container[key]
    elif content % 7 == 1 and isinstance(container, dict):
        container[str(value)] = container.pop(key)
    else:
        container[key] = value
    try:
        return json.dumps(parsed, default=str).encode()
    except (ValueError, UnicodeEncodeError):
        return b"{}"


def _places(value: Any) -> Any:
    """Yield each container in a JSON value with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    if isinstance(value, dict | list):
        for key, inner in items:
            yield value, key
            if isinstance(inner, dict | list):
                yield from _places(inner)


_FORMS: Mapping[str, Callable[[bytes, int, Any], bytes]] = {
    "a flipped bit": _flip, "cut": _cut, "replaced": _replace_all, "inserted": _insert,
    "another value": _replace_value, "another value, again": _replace_value,
}  # fmt: skip


def _replace(path: Path, what: str) -> None:
    """Put something that is no plain file in the place of `path`."""
    if path.is_dir():
        shutil.rmtree(path)
    if what != "unreadable":
        path.unlink(missing_ok=True)
    if what == "folder":
        path.mkdir()
    elif what == "full folder":
        (path / "x").mkdir(parents=True)
        (path / "x/row.json").write_text("{}")
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            folder = os.open(path.parent, os.O_RDONLY)
            end.bind(f"/proc/self/fd/{folder}/{path.name}")  # the path of a socket is short
            os.close(folder)
    elif what == "loop":
        path.symlink_to(path.name)
    elif what == "dangling":
        path.symlink_to("nothing")
    elif what == "long link":
        path.symlink_to("x" * 300)
    elif what == "unreadable":
        path.chmod(0)
    elif what != "missing":
        path.symlink_to(what)


def damages(kinds: Mapping[str, tuple[str, Commands]]) -> st.SearchStrategy[Damage]:
    """Return damages of files of `kinds`."""
    content = st.integers(0, 10_000)
    forms = st.one_of(
        st.tuples(st.sampled_from(sorted(_FORMS)), content),
        st.tuples(st.sampled_from(sorted(_FORMS)), content),
        st.tuples(st.just("special"), st.sampled_from(SPECIAL)),
    )
    return st.tuples(st.sampled_from(sorted(kinds)), forms, st.integers(0, 100_000)).map(
        lambda drawn: Damage(drawn[0], drawn[1][0], drawn[2], drawn[1][1])
    )
