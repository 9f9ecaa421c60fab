"""Draw searches as a page: the best layers, progress, Pareto front and genealogy."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from normbench.config import cli
from normbench.errors import BadInput
from normbench.execution.progress import print_line
from normbench.records.probes import write_records
from normbench.run_files import require_writable, write_file
from normbench.search import drawings
from normbench.search.candidates import best
from normbench.search.evolution import pareto_front
from normbench.search.results import TOP, Search, print_search, read_search, summarize


@dataclass(frozen=True)
class ShowOptions:
    """Draw one search, or compare several, and print the best layers of each."""

    runs: Path = cli.option(Path("runs"), "folder of the searches")
    out: Path | None = cli.option(
        None, "folder for page and figures (report/ in that of the first search)"
    )
    top: int = cli.option(TOP, "layers in the tables")


def show(name: str, words: Sequence[str]) -> int:
    """Print and draw a search, and others that `words` name; return the exit code.

    Raises:
        BadInput: there is no such search, or the words cannot be used.
    """
    options, others = cli.parse_options(words, ShowOptions)
    names = [name, *others]
    searches = [read_search(options.runs / each) for each in names]
    out = options.out or options.runs / names[0] / "report"
    require_writable(out, str(out), "use a writable folder, as out=report")
    for search in searches[1:]:
        if search.titles != searches[0].titles:
            raise BadInput(
                f"{search.name} has other trainings than {searches[0].name}, so their scores "
                "cannot be compared; show it alone"
            )
    for search in searches:
        print_search(search, options.top)
    write_report(searches, out, options.top)
    print_line(f"{out / 'index.html'}")
    return 0


def write_report(searches: Sequence[Search], out: Path, top: int) -> None:
    """Write page, figures and the table of the best layers of each search into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    figures = {"progress": drawings.progress(searches)}
    for search in searches:
        if len(search.titles) > 1:
            figures[f"pareto_{search.name}"] = drawings.pareto(
                search, pareto_front(search.candidates)
            )
    files = {name: drawings.save(figure) for name, figure in figures.items()}
    for name, forms in files.items():
        for form, content in forms.items():
            write_file(out / f"{name}.{form}", content)
    for search in searches:
        records = [
            {
                "place": place, "number": each.number, "mean": each.mean_score,
                **dict(zip(search.titles, each.scores, strict=True)),
                "cost": each.cost, "formula": each.formula,
            }
            for place, each in enumerate(best(search.candidates, top), 1)
        ]  # fmt: skip
        write_records(out / f"top_{search.name}.csv", records)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    page = environment.get_template("page.html").render(
        searches=searches,
        summarize=summarize,
        best=lambda search: best(search.candidates, top),
        has_cost=lambda search: search.began.options["cost"] != "none",
        figure=lambda name: Markup(files[name]["svg"].decode()) if name in files else "",
        typeset=lambda candidate: Markup(drawings.typeset(candidate.formula)),
    )
    write_file(out / "index.html", page.encode())
