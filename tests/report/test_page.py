"""The page of a report: its content and order; it needs no other file and is accessible."""

import re
import shutil
import subprocess
from collections import Counter
from contextlib import redirect_stdout
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from normbench import results
from normbench.config.files import CONF, ROOT, names
from normbench.records.history import History
from normbench.report import build
from normbench.report.__main__ import main
from normbench.report.figure import style
from normbench.report.page import inline_svg
from normbench.report.pivot import tables
from normbench.report.recommendation import recommendations
from normbench.report.recommendation_text import sentences
from normbench.results import Row
from support.rows import FAR, batch_size_tables, runs

DARK = "prefers-color-scheme: dark"


class Page(HTMLParser):
    """Tags with their attributes, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def as_in_evonorms_code(rows: list[Row]) -> list[Row]:
    """With the crops, the start of the weights and the padding of EvoNorm's code."""
    for row in rows:
        row.config["data"]["area"] = 0.05
        row.config["model"] |= {
            "init": "truncated_fan_in",
            "head_std": 0.01,
            "padding": "same_pool",
        }
    return rows


def paper_runs() -> list[Row]:
    """Of EvoNorm's table 9 in its own setting, and of batch_size elsewhere."""
    known: dict[str, Any] = {
        "recipe": "evonorm_resnet_90", "data": "imagenet", "model": "resnet50_v2",
        "sweep": "evonorm_9",
        "commit": "0123456789abcdef0123456789abcdef01234567", "params": 25_000_000,
        "images_per_second": 300.0, "peak_memory": 10**9, "devices": "1 x GPU",
    }  # fmt: skip
    bn = [
        run
        for b, low in ((4, 70.0), (128, 76.0))
        for run in runs("bn", b, [low, low + 0.2], **known)
    ]
    large = known | {"peak_memory": 2 * 10**9}
    s0 = [run for b in (4, 128) for run in runs("evonorm_s0", b, [76.3, 76.5], **large)]
    return as_in_evonorms_code([*bn, *s0])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole report, and beside it the runs."""
    folder = tmp_path_factory.mktemp("report")
    for row in [*paper_runs(), *FAR]:
        path = folder / "runs" / row.sweep / row.id
        results.write(path, row)
        curve = History(path)
        for epoch in (1, 2):
            curve.add({"step": epoch, "epoch": epoch, "train_top1": 50.0, "val_top1": 40.0 + epoch})
    with (folder / "printed.txt").open("w") as printed, redirect_stdout(printed):
        assert main([f"runs={folder / 'runs'}", f"reports={folder / 'reports'}"]) == 0
    return folder


@pytest.fixture(scope="module")
def page(made: Path) -> Page:
    return Page((made / "reports" / "index.html").read_text())


def test_the_page_needs_no_other_file(page: Page) -> None:
    assert not page.all("link")
    assert not page.all("img")
    assert all("src" not in attributes for _, attributes in page.tags)
    style = "".join(page.words)
    assert "url(" not in style.replace("url(#", "")  # of an SVG's own clip paths
    assert "@import" not in style


def test_the_recommendation_stands_first(made: Path, page: Page) -> None:
    sections = [str(each["id"]) for each in page.all("h2")]
    assert sections == ["recommendation", "curves", "claims", "tables"]
    links = [str(each["href"]) for each in page.all("a")]
    assert links[:5] == ["#main", *(f"#{section}" for section in sections)]
    text = (made / "reports" / "recommendation.md").read_text()
    assert text.startswith("# Which normalizer\n\n**data=")
    assert "\n- With 4 images per worker the highest mean has evonorm_s0 76.4 ± 0.1 (2)" in text


def test_the_command_prints_the_recommendation_first(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = "\n**Which normalizer, by test top-1 accuracy (%): data="
    assert (made / "printed.txt").read_text().startswith(first)
    monkeypatch.setattr(build, "write", lambda *_: [])
    assert main(["batch_size", f"runs={made / 'runs'}", f"reports={made / 'reports'}"]) == 0
    assert capsys.readouterr().out.startswith(first)


def test_no_id_is_there_twice_and_every_link_on_the_page_leads_to_one(page: Page) -> None:
    ids = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert len(page.all("svg")) > 2
    assert not [name for name, count in ids.items() if count > 1]
    links = [str(each["href"]) for each in page.all("a") if str(each.get("href")).startswith("#")]
    assert len(links) > 50
    assert all(link[1:] in ids for link in links)


def test_a_figure_takes_its_markers_and_clip_paths_from_itself(made: Path) -> None:
    """A figure that a filter hides takes what is inside it away."""
    text = (made / "reports" / "index.html").read_text()
    figures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    for figure in figures:
        used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', figure))
        assert used
        assert used == set(re.findall(r' id="([^"]+)"', figure))


def test_a_number_leads_to_its_runs_and_these_to_sweep_and_commit(made: Path, page: Page) -> None:
    files = [str(each["href"]) for each in page.all("a") if not str(each["href"]).startswith("#")]
    folders = {row.id for row in paper_runs()}
    assert folders  # each made anew, so other ids than those on the page
    assert any(link.endswith("sweeps/evonorm_9.yaml") for link in files)
    for link in files:
        assert (made / "reports" / link).exists(), link
    assert "0123456789ab" in "".join(page.words)


def test_whoever_cannot_see_it_can_read_it(page: Page) -> None:
    (html,) = page.all("html")
    assert html["lang"] == "en"
    for wide in [each for each in page.all("div") if each.get("class") == "wide"]:
        assert wide["tabindex"] == "0"  # it scrolls by keyboard
        assert wide["aria-label"]
    drawings = [each for each in page.all("div") if each.get("role") == "img"]
    assert len(drawings) == len(page.all("svg"))
    assert all(each["aria-label"] for each in drawings)
    assert all(each.get("scope") for each in page.all("th"))
    assert page.all("main")
    assert any(each.get("class") == "skip" for each in page.all("a"))
    assert len(page.all("select")) == 3
    levels = [int(name[1]) for name, _ in page.tags if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))


def test_it_has_a_dark_side_and_fits_a_phone(page: Page) -> None:
    style = "".join(page.words)
    assert DARK in style
    assert any(each.get("name") == "viewport" for each in page.all("meta"))
    assert "currentColor" in str(page.tags)


def luminance(colour: str) -> float:
    """Relative, as WCAG 2 defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_every_line_of_a_figure_can_be_seen_by_day_and_by_night(page: Page) -> None:
    """WCAG 2.2, 1.4.11: a contrast of 3 for what is drawn; 1.4.3: of 4.5 for text."""
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    rules = re.findall(r"\.drawing \{ background: (#\w+); color: (#\w+);", "".join(page.words))
    ((back, text),) = rules  # one for both: figures have no dark side
    assert all(each["class"] == "drawing" for each in page.all("div") if each.get("role") == "img")
    assert contrast(text, back) >= 4.5
    for norm in [*names(CONF / "norm"), "somebodys_own"]:
        assert contrast(style(norm)["color"], back) >= 3, norm


def test_the_filters_know_every_table(page: Page) -> None:
    parts = [each for each in page.all("section") if "data-data" in each]
    assert {str(each["data-data"]) for each in parts} == {"imagenet", "digits"}
    options = "".join(page.words)
    for value in ("imagenet", "digits", "resnet50_v2", "resnet14"):
        assert value in options


def test_what_has_no_runs_is_filtered_by_what_its_paper_says(page: Page) -> None:
    published = [each for each in page.all("details") if each.get("data-part") == "published"]
    assert len(published) > 10
    details = {str(each["id"]).removesuffix("-published"): each for each in published}
    assert details["evonorm_10"]["data-data"] == "imagenet"
    assert details["evonorm_10"]["data-model"] == "resnet50_v2"
    assert details["evonorm_10"]["data-reg"] == "randaug"
    assert "data-data" not in details["sn_choices"]  # the file has the numbers alone
    assert "resnet288_v2" in str(details["nf_1"]["data-model"]).split()
    untried = [each for each in page.all("li") if each.get("data-part") == "verdict"]
    assert untried
    assert all("data-data" in each or "data-model" in each for each in untried)


def test_no_two_regions_have_one_name(page: Page) -> None:
    regions = Counter(
        each["aria-label"] for each in page.all("div") if each.get("role") == "region"
    )
    assert len(regions) > 10
    assert not [name for name, count in regions.items() if count > 1]
    sections = [each["aria-labelledby"] for each in page.all("section") if "id" in each]
    assert len(set(sections)) == len(sections) == 3
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert all(set(str(labels).split()) <= ids for labels in sections)


CHOOSE = """<script>
const select = document.querySelector('[data-filter="data"]');
select.value = "{}";
select.dispatchEvent(new Event("change", {{ bubbles: true }}));
</script>"""


class Seen(Page):
    """What is not hidden of a page."""

    def __init__(self, text: str) -> None:
        self.hidden: list[bool] = []
        self.titles = "".join(re.findall("<title>(.*?)</title>", text)[:1])
        super().__init__(
            re.sub(r"<(style|script).*?</\1>|<svg.*?</svg>", "", text, flags=re.DOTALL)
        )

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("meta", "br", "link"):
            return
        self.hidden.append("hidden" in dict(attrs))
        if not any(self.hidden):
            super().handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self.hidden.pop()

    def handle_data(self, data: str) -> None:
        if not any(self.hidden):
            super().handle_data(data)


def in_a_browser(text: str, folder: Path, address: str = "") -> Seen:
    """What a browser makes of a page."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no browser here")
    path = folder / "page.html"
    path.write_text(text)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    browsed = subprocess.run(
        [browser, *flags, "--dump-dom", path.as_uri() + address],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return Seen(browsed.stdout)


def test_a_filter_leaves_no_heading_behind_and_says_how_much_is_left(
    made: Path, tmp_path: Path
) -> None:
    text = (made / "reports" / "index.html").read_text()
    all_ = in_a_browser(text, tmp_path)
    assert "1 of 1 recommendations, 2 of 2 tables, " in "".join(all_.words)
    chosen = in_a_browser(text.replace("</body>", CHOOSE.format("digits") + "</body>"), tmp_path)
    status = (
        r"0 of 1 recommendations, 1 of 2 tables, \d+ of \d+ verdicts, \d+ of \d+ published tables"
    )
    assert re.search(status, "".join(chosen.words))
    title = "ResNet-50 with 128 to 4 images per worker, 90 epochs"
    assert title in set(all_.words) - set(chosen.words)
    for each in [*chosen.all("tr"), *chosen.all("li"), *chosen.all("details")]:
        assert "digits" in str(each.get("data-data", "digits")).split()
    heads = ("verdicts", "untested", "claim", "paper", "published")
    for head in heads:
        assert any(each.get("data-group") == head for _, each in all_.tags)
    assert not any(each.get("data-group") == "verdicts" for _, each in chosen.tags)


def test_the_address_holds_the_filters(made: Path, tmp_path: Path) -> None:
    text = (made / "reports" / "index.html").read_text()
    chosen = in_a_browser(text, tmp_path, "#data=digits&reg=none")
    assert re.search(r"0 of 1 recommendations, 1 of 2 tables", "".join(chosen.words))
    asked = text.replace("</body>", CHOOSE.format("digits") + ADDRESS + "</body>")
    assert "data=digits" in in_a_browser(asked, tmp_path).titles


ADDRESS = "<script>document.title = location.hash</script>"
CLICK = """<script>
document.querySelector('.key[data-line="GN-ReLU"], .key').dispatchEvent(
  new MouseEvent("click", { bubbles: true }));
document.title = [...document.querySelectorAll(".off")].map((each) => each.dataset.line);
</script>"""


def test_a_click_on_the_legend_hides_a_line(made: Path, tmp_path: Path) -> None:
    text = (made / "reports" / "index.html").read_text()
    hidden = in_a_browser(text.replace("</body>", CLICK + "</body>"), tmp_path).titles.split(",")
    assert len(hidden) > 4  # key, line, bars and points, in each panel
    assert len(set(hidden)) == 1


class TabStops(HTMLParser):
    """What the tab key stops at, while every closed part stays closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stops = 0
        self.closed = 0  # depth in closed details
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        focusable = tag in ("a", "select", "summary") or attributes.get("tabindex") == "0"
        outermost = tag == "summary" and self.closed == 1
        if focusable and attributes.get("tabindex") != "-1" and (not self.closed or outermost):
            self.stops += 1
        self.closed += tag == "details"

    def handle_endtag(self, tag: str) -> None:
        self.closed -= tag == "details"


def test_a_page_is_light_and_soon_crossed() -> None:
    text = (ROOT / "reports" / "studies" / "default" / "index.html").read_text()
    assert len(text) < 1_000_000
    assert 10 < TabStops(text).stops < 100


def test_on_paper_closed_parts_are_left_out(page: Page) -> None:
    (rules,) = re.findall(r"@media print \{(.*?)\n\}", "".join(page.words), re.DOTALL)
    assert "details:not([open]) { display: none }" in rules


def test_numbers_of_the_papers_setting_have_their_difference(made: Path) -> None:
    (text,) = (path.read_text() for path in (made / "reports" / "evonorm_9").glob("*.md"))
    assert "| BN-ReLU    | 76.1 ± 0.1 (2) [76.1, 0.0]" in text.replace("+0.0", "0.0")
    assert "70.1 ± 0.1 (2) [70.4, −0.3]" in text
    assert "– [75.8]" in text
    assert "after each, our number minus the paper's" in text


def test_the_whole_report_is_there(made: Path) -> None:
    out = made / "reports"
    assert "Batch normalization is worse with 4 images" in (out / "claims.md").read_text()
    assert (out / "claims.csv").read_text().startswith("claim,paper,place,says,table,")
    tex = (out / "report.tex").read_text()
    assert tex.count(r"\begin{table}") == tex.count(r"\end{table}") == 2
    assert r"\bfseries 76.4 +- 0.1" in tex


def test_what_did_not_change_is_not_made_again(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"runs={made / 'runs'}", f"reports={made / 'reports'}"]
    before = {p: p.stat().st_mtime_ns for p in (made / "reports").rglob("*") if p.is_file()}
    assert main(arguments) == 0
    assert "nothing has changed" in capsys.readouterr().out
    (row_file, *_) = sorted((made / "runs" / "evonorm_9").glob("*/row.json"))
    row_file.write_text(row_file.read_text())  # the same content at another time: read again
    assert main(arguments) == 0
    assert "no file has changed" in capsys.readouterr().out
    after = {p: p.stat().st_mtime_ns for p in (made / "reports").rglob("*") if p.is_file()}
    assert {path for path in after if after[path] != before.get(path)} <= {
        made / "reports" / ".report.json"
    }


def test_a_drawing_takes_the_colour_of_the_text_and_has_names_of_its_own() -> None:
    svg = (
        '<?xml version="1.0"?>\n<svg width="3pt" height="2pt" viewBox="0 0 3 2">'
        '<metadata>x</metadata><g id="axes_1"><path id="mabc" style="stroke: #000000"/></g>'
        '<use xlink:href="#mabc" clip-path="url(#p1)"/><clipPath id="p1"/></svg>'
    )
    assert inline_svg(svg, "t-curves") == (
        '<svg viewBox="0 0 3 2">'
        '<g><path id="t-curves-mabc" style="stroke: currentColor"/></g>'
        '<use xlink:href="#t-curves-mabc" clip-path="url(#t-curves-p1)"/>'
        '<clipPath id="t-curves-p1"/></svg>'
    )


def test_the_number_of_trials_stands_above_the_verdicts(page: Page) -> None:
    text = "".join(page.words)
    assert re.search(r"\d+ of \d+ verdicts are trials.*? false refutations\.", text)
    assert text.index("verdicts are trials") < text.index("A claim compares entries")


# The recommendation


def test_the_recommendation_names_the_best_what_is_as_good_costs_and_what_was_not_tested() -> None:
    own = {"recipe": "evonorm_resnet_90", "data": "imagenet", "model": "resnet50_v2"}
    other: list[tuple[str, list[float | None]]] = [
        ("gn", [76.2, 76.6, 76.0]),
        ("frn", [70.0]),
        ("nf", [None]),
    ]
    more = [run for norm, values in other for run in runs(norm, 4, values, **own)]
    rows = [*paper_runs(), *as_in_evonorms_code(more)]
    (table,) = tables(build.specs(["batch_size"]), rows, None)
    (few, many) = recommendations(table)
    assert [each.name for each in few.good] == ["evonorm_s0", "gn"]
    assert [each.name for each in few.worse] == ["bn"]
    assert [each.name for each in few.unsure] == ["frn"]
    assert few.failed == {"nf": "1 of 1 div."}
    assert "sn" in few.untested
    assert "gn" not in few.untested
    assert few.good[0].memory == pytest.approx(2.0)  # of bn's
    assert many.batch == 128
    said, at_128, untested = sentences(table, [few, many])
    assert said.startswith(
        "With 4 images per worker the highest mean has evonorm_s0 76.4 ± 0.1 (2), 2.00x memory."
    )
    assert "Not significantly worse: gn 76.3 ± 0.3 (3), 0.1 lower [" in said
    assert "Significantly worse: bn 70.1 ± 0.1 (2), 6.3 lower [" in said
    assert "Not testable with one seed or equal results: frn 70.0 (1)" in said
    assert "Unstable" not in said
    assert "Without a result for every seed: nf (1 of 1 div.)." in said
    assert "Not tested here" not in said
    assert at_128.endswith(" Not tested here: frn; gn; nf.")
    assert untested.startswith("Not tested: batch_renorm, bgn, ")
    assert {"bn", "evonorm_s0", "frn", "gn", "nf"}.isdisjoint(untested.strip(".").split(", "))


def test_an_unstable_normalizer_is_named_and_does_not_hide_that_another_is_worse() -> None:
    """With one variance for all, the noise of ln would make 4 points of gn insignificant."""
    quiet = {"bn": 76.0, "frn": 75.9, "gn": 72.0}
    rows = [
        row
        for norm, mean in quiet.items()
        for row in runs(norm, 4, [mean - 0.2, mean, mean + 0.2, mean + 0.1, mean - 0.1])
    ]
    (table,) = batch_size_tables([*rows, *runs("ln", 4, [62.0, 78.0, 75.0, 77.0, 73.0])])
    (at_4,) = recommendations(table)
    assert [each.name for each in at_4.good] == ["bn", "frn", "ln"]
    assert [each.name for each in at_4.worse] == ["gn"]
    assert [each.name for each in (*at_4.good, *at_4.worse) if each.unstable] == ["ln"]
    said = sentences(table, [at_4])[0]
    assert "Significantly worse: gn 72.0 ± 0.2 (5), 4.0 lower [3." in said
    assert "; ln 73.0 ± 6.4 (5)" in said
    assert said.endswith(" Unstable over seeds: ln.")


def test_equal_results_of_all_seeds_decide_nothing() -> None:
    rows = [*runs("bn", 4, [76.0, 76.0, 76.0]), *runs("gn", 4, [75.0, 75.0, 75.0])]
    (table,) = batch_size_tables(rows)
    said = sentences(table, recommendations(table))[0]
    assert said.endswith("Not testable with one seed or equal results: gn 75.0 ± 0.0 (3).")


def test_tables_of_which_hardly_anything_was_trained_are_left_out_unless_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of the recipe stands in many tables; one of 36 cells is no table."""
    own = {"recipe": "evonorm_resnet_90", "data": "imagenet", "model": "resnet50_v2"}
    for row in as_in_evonorms_code(runs("bn", 4, [70.0], **own)):
        results.write(tmp_path / "runs" / "default" / row.id, row)
    arguments = [f"runs={tmp_path / 'runs'}", f"reports={tmp_path / 'out'}"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "evonorm_9:" not in said
    assert "too few of their entries have runs to judge a claim: evonorm_9\n" in said
    left = (tmp_path / "out" / "index.html").read_text()
    assert not set(re.findall(r'href="#([^"]+)"', left)) - set(re.findall(r' id="([^"]+)"', left))
    assert main(["evonorm_9", *arguments]) == 0
    assert "70.0 (1) [70.4, −0.4]" in capsys.readouterr().out
    # By two cells a claim can be judged, so that is worth showing.
    for row in as_in_evonorms_code(runs("bn", 128, [76.0], **own)):
        results.write(tmp_path / "runs" / "default" / row.id, row)
    assert main(arguments) == 0
    assert "evonorm_9: 2 of 36 entries, 2 runs" in capsys.readouterr().out
    assert main(["evonorm_9", *arguments]) == 0
    verdicts = capsys.readouterr().out.partition("**The papers' claims, tested**")[2]
    assert "\n- undecided (bn_falls, evonorm_9): Batch normalization is worse with 4" in verdicts
    assert " Effect: +6.0. Reason: " in verdicts


def test_tables_of_our_own_whose_numbers_stand_in_papers_tables_are_left_out(
    tmp_path: Path,
) -> None:
    """Each seed that goes on from another run is a setting of its own, of one normalizer."""
    for row in results.read(ROOT / "reports" / "studies" / "papers"):
        if row.sweep == "sn_2_hard_small" and row.seed < 2:
            results.write(tmp_path / "runs" / row.sweep / row.id, row)
    assert main([f"runs={tmp_path / 'runs'}", f"reports={tmp_path / 'out'}"]) == 0
    assert len(list((tmp_path / "out" / "batch_size").glob("*.md"))) > 5
    page = (tmp_path / "out" / "index.html").read_text()
    assert set(re.findall(r'<section id="(\w+?)-', page)) == {"sn_2_hard"}
    assert not set(re.findall(r'href="#([^"]+)"', page)) - set(re.findall(r' id="([^"]+)"', page))
