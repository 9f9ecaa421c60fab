"""Files of tables and claims in, rows in; a report out. What did not change is not made again."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from normbench import results
from normbench.errors import BadInput, choose_from
from normbench.home import CLAIMS, TABLES, load, names
from normbench.place import own_cores
from normbench.report import latex, recommendation, render, trial
from normbench.report.claims import Claim, claims
from normbench.report.drawable import FORMS, Form, kinds
from normbench.report.spec import Spec, spec
from normbench.report.table import Table
from normbench.report.trial import Trial

PAGE = "index.html"
_MADE = ".made.json"  # of what the files in a folder were made
_TEXTS: Mapping[str, Callable[[Table], str]] = {
    ".md": render.markdown,
    ".csv": render.numbers,
    ".tex": latex.latex,
}


def specs(wanted: Sequence[str] = ()) -> list[Spec]:
    """The tables of reports/tables/, all or those that are `wanted`.

    Raises:
        BadInput: one of them does not exist, or its file is none.
    """
    known = names(TABLES)
    for name in wanted:
        if name not in known:
            raise BadInput(f"table {name} is unknown; {choose_from(name, known)}")
    return [spec(name, load(TABLES / f"{name}.yaml")) for name in wanted or known]


def all_claims(known: Sequence[Spec]) -> list[Claim]:
    """The claims of reports/claims/."""
    by_name = {each.name: each for each in known}
    files = names(CLAIMS)
    return [each for file in files for each in claims(file, load(CLAIMS / f"{file}.yaml"), by_name)]


def forms(table: Table, runs: Path) -> list[str]:
    """The endings of the files that a table by itself is written to."""
    drawn = [f"{kind}.{form}" for kind in kinds(table, runs) for form in FORMS]
    return [*_TEXTS, *drawn]


def write(
    tables: Sequence[Table], root: Path, runs: Path, drawn: Sequence[Form] = FORMS
) -> list[Path]:
    """Write each table below `root` in all forms, with its figures; what is new or changed.

    Args:
        tables: to write.
        root: where to.
        runs: root of the runs, for their curves.
        drawn: forms of the figures.
    """
    made = Made(root)
    changed: list[Path] = []
    figures: list[_Figure] = []
    for table in tables:
        stem = root / table.spec.name / table.slug
        texts = {end: text(table) for end, text in _TEXTS.items()}
        changed += (
            path for end, text in texts.items() if (path := _put(_beside(stem, end), text.encode()))
        )
        own = _digest("".join([*texts.values(), *(row.finished for row in table.runs)]))
        for kind in kinds(table, runs):
            paths = {form: _beside(stem, f"{kind}.{form}") for form in drawn}
            # The page's are svg alone: a png beside it may show older runs.
            if stale := {form: path for form, path in paths.items() if made.stale(path, own)}:
                figures.append(_Figure(table, kind, stale, runs))
    changed += _draw(figures)
    made.keep()
    return changed


@dataclass(frozen=True)
class _Figure:
    """A figure to be drawn, its files by their forms."""

    table: Table
    kind: str
    paths: Mapping[Form, Path]
    runs: Path

    def draw(self) -> list[Path]:
        # matplotlib takes half a second to import, which a report without news should not pay.
        from normbench.report.figure import DRAW

        drawn = DRAW[self.kind](self.table, list(self.paths), self.runs)
        written = [_put(self.paths[form], content) for form, content in drawn.items()]
        return [path for path in written if path]


def _draw(figures: Sequence[_Figure]) -> Iterator[Path]:
    workers = min(own_cores(), len(figures) // 4)  # a process starts in the time of two figures
    if workers < 2:
        found = [figure.draw() for figure in figures]
    else:
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            found = list(pool.map(_Figure.draw, figures, chunksize=4))
    return (path for paths in found for path in paths)


@dataclass(frozen=True)
class Report:
    """All that a report is about."""

    tables: Sequence[Table]
    trials: Sequence[Trial]
    runs: Path

    @property
    def with_runs(self) -> list[Table]:
        return [table for table in self.tables if table.runs]


def write_all(report: Report, root: Path) -> list[Path]:
    """The whole report: tables, claims, recommendation, LaTeX, and the page that has them all."""
    # Jinja takes a tenth of a second that a sweep's own tables need not pay.
    from normbench.report.page import page

    changed = write(report.with_runs, root, report.runs, ("svg",))  # the page has these inside
    texts: dict[str, Callable[[], str]] = {
        "claims.md": lambda: trial.markdown(report.trials),
        "claims.csv": lambda: trial.numbers(report.trials),
        "recommendation.md": lambda: advice(report.with_runs),
        "report.tex": lambda: latex.document([latex.latex(table) for table in report.with_runs]),
        PAGE: lambda: page(report.tables, report.trials, root, report.runs),
    }
    found = [_put(root / name, text().encode()) for name, text in texts.items()]
    return changed + [path for path in found if path]


def advice(tables: Sequence[Table]) -> str:
    """The recommendation for every setting, in Markdown."""
    parts = ["# Which normalizer\n", f"{recommendation.RULES}\n"]
    for table in tables:
        if found := recommendation.sentences(table):
            parts.append(f"**{table.described}**\n")
            parts += [f"- {sentence}" for sentence in found]
            parts.append("")
    return "\n".join(parts) + "\n"


class Made:
    """What the files below a folder were made of, so that nothing is drawn twice."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / _MADE
        try:
            self.known: dict[str, str] = json.loads(self.path.read_text())
        except (OSError, ValueError):
            self.known = {}

    def same(self, name: str, digest: str) -> bool:
        """Whether `name` was made of the same; from now on it is."""
        before = self.known.get(name)
        self.known[name] = digest
        return before == digest

    def stale(self, path: Path, digest: str) -> bool:
        """Whether the file is missing or was made of something else; from now on it is not."""
        return not self.same(str(path.relative_to(self.root)), digest) or not path.exists()

    def keep(self) -> None:
        _put(self.path, json.dumps(self.known, indent=0, sort_keys=True).encode())


def unchanged(root: Path, runs: Path) -> bool:
    """Whether the whole report was made of the same files before, told without reading them."""
    same = Made(root).known.get(PAGE) == fingerprint(runs)
    return same and all((root / name).exists() for name in (PAGE, "claims.md", "report.tex"))


def remember(root: Path, stamp: str) -> None:
    """The report in `root` is of the files that had this fingerprint."""
    made = Made(root)
    made.same(PAGE, stamp)
    made.keep()


def fingerprint(runs: Path) -> str:
    """Of everything that a report is made of: rows, tables, claims, and the code that makes it."""
    digest = hashlib.sha256(str(runs.resolve()).encode())
    for path, time, size in _stamps(runs):
        digest.update(f"{path} {time} {size}\n".encode())
    return digest.hexdigest()


def _stamps(runs: Path) -> Iterator[tuple[str, int, int]]:
    code = Path(__file__).parent
    folders: Mapping[Path, str] = {code: "*", TABLES: "*.yaml", CLAIMS: "*.yaml"}
    paths = [path for folder, pattern in folders.items() for path in folder.glob(pattern)]
    for path in sorted(path for path in paths if path.is_file()):
        found = path.stat()
        yield str(path), found.st_mtime_ns, found.st_size
    yield from results.stamps(runs)


def _digest(text: str) -> str:
    """Of what a figure shows, and of the code that draws it."""
    code = (Path(__file__).parent / "figure.py").read_bytes()
    return hashlib.sha256(text.encode() + code).hexdigest()


def _put(path: Path, content: bytes) -> Path | None:
    if path.exists() and path.read_bytes() == content:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    # In one piece: two sweeps may end at the same moment.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
    return path


def _beside(stem: Path, end: str) -> Path:
    return stem.with_name(stem.name + end)  # with_suffix would take "seed=0.1" apart
