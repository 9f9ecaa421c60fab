"""Titles of tables: a paper's table, or its small twin, named after what its rows trained."""

import re
from collections.abc import Sequence
from functools import cache

from normbench.config.files import CONF, headline, load_options, names
from normbench.errors import join_words
from normbench.report.table import Table
from normbench.report.table_spec import FULL
from normbench.results import Row

_DEPTH = re.compile(r"(ResNe[Xx]t|ResNet)-?\d+")


def table_title(table: Table) -> str:
    """Return the title of a table, of a small twin as "Table 9 of EvoNorm in small: ResNet-8".

    A twin has other networks or other data than the paper.
    """
    if not is_twin(table):
        return table.spec.title
    paper = table.spec.paper.partition(" (")[0]
    return f"{_place(table)} of {paper} in small: {setting_title(table)}"


def is_twin(table: Table) -> bool:
    """Return True if the rows of a paper's table are of other networks or other data."""
    if not table.spec.paper or not table.runs:
        return False
    replaced = {text.partition("=")[0] for text in table.setting_differences}
    return table.scale != FULL or not replaced.isdisjoint(("model", "data", "data.fraction"))


def setting_title(table: Table) -> str:
    """Return networks and data of a table in words: "ResNet-8, 1,200 images of Fashion-MNIST"."""
    return f"{_networks(table.runs)}, {_data(table.runs)}"


def comparison_title(table: Table) -> str:
    """Return networks, data and training of a table of our own in words."""
    reg = table.setting.get("reg", "none")
    training = f"recipe {table.setting.get('recipe')}" + ("" if reg == "none" else f", reg {reg}")
    return f"{setting_title(table)}; {training}"


def short_source(table: Table) -> str:
    """Return the paper's name and the number of the table: "EvoNorm, table 9"."""
    spec = table.spec
    if not spec.paper:
        return spec.title
    return f"{spec.paper.partition(' (')[0]}, {spec.place.rpartition(', ')[2] or spec.name}"


def _place(table: Table) -> str:
    place = table.spec.place.rpartition(", ")[2] or table.spec.name
    return place[:1].upper() + place[1:]


def _networks(rows: Sequence[Row]) -> str:
    return join_words(sorted({_network(row) for row in rows}, key=_by_depth))


def _by_depth(network: str) -> tuple[str, int]:
    family, *depth = re.split(r"(\d+)", network, maxsplit=1)
    return family, int(depth[0]) if depth else 0


def _network(row: Row) -> str:
    """Return the name of a network, with the depth that the row says."""
    known = _DEPTH.search(_headline("model", row.model))
    options = row.config.get("model", {})
    depth, depths = options.get("depth"), options.get("depths")
    if known and isinstance(depth, int):
        return f"{known[1]}-{depth}"
    if known and depths and depths != _usual_depths(row.model):
        return f"{known[1]} with stages of {join_words(list(map(str, depths)))} blocks"
    return known[0] if known else row.model


def _data(rows: Sequence[Row]) -> str:
    return " and ".join(sorted({_images(row) for row in rows}))


def _images(row: Row) -> str:
    """Return the data set of a row, and how many of its images were used, if only some were."""
    line = _headline("data", row.data)
    name = re.split(r"[,:(.]", line)[0].strip() or row.data
    fraction = row.config.get("data", {}).get("fraction")
    if not isinstance(fraction, float):
        return name
    if counted := re.search(r"([\d,]+) (?:\w+ )?images", line):
        return f"{round(fraction * int(counted[1].replace(',', ''))):,} images of {name}"
    return f"{100 * fraction:g} % of {name}"


@cache
def _usual_depths(model: str) -> list[int] | None:
    depths: list[int] | None = load_options(CONF / "model" / f"{model}.yaml").get("depths")
    return depths


def _headline(group: str, name: str) -> str:
    """Return what a yaml of conf/ says it is, "" of a network or data set without one."""
    return headline(CONF / group / f"{name}.yaml") if name in names(CONF / group) else ""
