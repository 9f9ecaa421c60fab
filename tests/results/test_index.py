"""The index of many rows: what it gives is what the files say, whatever has become of either."""

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from normbench import index, results
from normbench.errors import BadInput
from normbench.results import INDEX, Row
from support.rows import write_row


@pytest.fixture(autouse=True)
def _of_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MANY", 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Twelve rows: three seeds of four cells, of all kinds of values."""
    for number in range(12):
        cell, seed = divmod(number, 3)
        name = ("bn", "gn", "sn", "ln")[cell]
        more: dict[str, Any] = {"ratios": {"mean bn": 0.1 * seed}} if name == "sn" else {}
        write_row(
            tmp_path, id=f"{number:012x}", norm=name, seed=seed, test_top1=80 + number,
            train_loss=None if seed else 0.25, groups=[2, 4], channels_last=name == "gn",
            versions={"torch": "2"}, finished=f"2026-01-{number + 1:02}", **more,
        )  # fmt: skip
    return tmp_path


def plainly(root: Path) -> list[Row]:
    """The rows as their files have them."""
    rows = [results.load(path) for path in root.glob("*/*/row.json")]
    return sorted(rows, key=results.order)


def types(row: Row) -> dict[str, type]:
    return {name: type(value) for name, value in vars(row).items()}


def test_rows_are_those_of_the_files(root: Path) -> None:
    for _ in range(2):  # read into the index, and out of it
        found = results.read(root)
        assert found == plainly(root)
        assert list(map(types, found)) == list(map(types, plainly(root)))
    assert (root / INDEX).exists()


def test_a_file_is_opened_again_only_when_it_has_changed(root: Path) -> None:
    before = results.read(root)
    path = root / "default" / before[0].id / "row.json"
    stat = path.stat()
    with path.open("r+") as file:  # behind its back: as long, and as old
        text = file.read()
        file.seek(0)
        file.write(text.replace('"test_top1": 80', '"test_top1": 99'))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert results.read(root) == before
    path.touch()
    assert results.read(root)[0].test_top1 == 99


def test_rows_that_come_and_go_come_and_go(root: Path) -> None:
    results.read(root)
    write_row(root, id="f" * 12, seed=7, test_top1=1.0)
    (root / "default" / f"{0:012x}" / "row.json").unlink()
    (root / "default").rename(root / "renamed")
    assert results.read(root) == plainly(root)
    assert len(results.read(root)) == 12


def test_a_seed_that_is_not_that_of_its_configuration_stays(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_row(
            tmp_path, id=f"{seed:012x}", seed=seed, config={"seed": 5, "norm": {"name": "bn"}}
        )
    write_row(tmp_path, id="2" * 12, seed=2, config={})
    assert results.read(tmp_path) == results.read(tmp_path) == plainly(tmp_path)


def _rubbish(path: Path) -> None:
    path.write_bytes(b"no database at all, but long enough to have a head" * 100)


def _folder(path: Path) -> None:
    path.mkdir()


def _of_another_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.executescript("create table files (path, what); pragma user_version = 1;")


def _of_lost_pages(path: Path) -> None:
    results.read(path.parent)
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"lost" * 1024 + content[8192:])


def _without_texts(path: Path) -> None:
    results.read(path.parent)
    with closing(sqlite3.connect(path)) as index_:
        index_.executescript("delete from texts where share = 1;")


@pytest.mark.parametrize(
    ("there", "mended"),
    [
        (_rubbish, True),
        (_of_another_version, True),
        (_of_lost_pages, True),
        (_without_texts, True),
        (_folder, False),
    ],
)
def test_an_index_that_is_none_is_made_again(root: Path, there: Any, mended: bool) -> None:
    there(root / INDEX)
    assert results.read(root) == plainly(root)
    if mended:
        with closing(sqlite3.connect(root / INDEX)) as asked:
            assert asked.execute("select count(*) from rows").fetchone() == (12,)
    assert results.read(root) == plainly(root)


def test_texts_that_no_row_has_any_more_go(root: Path) -> None:
    results.read(root)
    for seed in range(3):
        write_row(root, id=f"{seed:012x}", seed=seed, norm="bn", commit="another")
    results.read(root)
    with closing(sqlite3.connect(root / INDEX)) as asked:
        texts = [text for (text,) in asked.execute("select text from texts")]
    assert len(texts) == 4


def test_many_may_read_while_rows_come(root: Path) -> None:
    for number in range(20, 40):
        write_row(root, id=f"{number:012x}", seed=number)
    with ThreadPoolExecutor(4) as pool:
        reads = [pool.submit(results.read, root) for _ in range(12)]
        for number in range(40, 60):
            write_row(root, id=f"{number:012x}", seed=number)
        assert all(len(each.result()) >= 32 for each in reads)
    assert results.read(root) == plainly(root)


@pytest.fixture
def held(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same, its index in the hands of another process."""
    monkeypatch.setattr(index, "PATIENCE", 0.1)
    results.read(root)
    with closing(sqlite3.connect(root / INDEX)) as other:
        other.execute("begin exclusive")
        yield root


def test_an_index_that_is_held_is_not_waited_for(held: Path) -> None:
    write_row(held, id="f" * 12)
    assert results.read(held) == plainly(held)


def test_a_row_that_is_none_is_named_and_the_others_stay(root: Path) -> None:
    before = results.read(root)
    bad = root / "default" / "bad"
    bad.mkdir()
    (bad / "row.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(BadInput, match=r"bad/row\.json has no row of schema 1; move it away"):
            results.read(root)
    (bad / "row.json").unlink()
    assert results.read(root) == before


def test_questions_can_be_asked_in_sql(root: Path) -> None:
    results.read(root)
    with closing(sqlite3.connect(root / INDEX)) as asked:
        found = asked.execute(
            "select norm, batch, count(*), avg(test_top1) from rows group by norm, batch"
        ).fetchall()
        options = asked.execute("select distinct json_extract(config, '$.norm.name') from rows")
        names = {name for (name,) in options}
    assert found == [("bn", 4, 3, 81), ("gn", 4, 3, 84), ("ln", 4, 3, 90), ("sn", 4, 3, 87)]
    assert names == {"bn", "gn", "sn", "ln"}


def test_few_rows_need_no_index(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MANY", 13)
    assert results.read(root) == plainly(root)
    assert not (root / INDEX).exists()
