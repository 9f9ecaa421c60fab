"""Claims of papers about the curves of a figure."""

import json
from pathlib import Path
from typing import Any

import pytest

from normbench.config.files import FIGURES, ROOT, load, names
from normbench.errors import DamagedFile
from normbench.probe.claims import describe_verdicts, judge_claims, parse_claim
from normbench.probe.request import parse_request
from normbench.records.probes import Record, read_records
from support.commands import Probe
from support.probes import SMALLER

WITH_CLAIMS = [name for name in names(FIGURES) if "claims" in load(FIGURES / f"{name}.yaml")]
COLUMNS = ("variance", "branch")


def records(seed: int = 0, last: float = 8.0) -> list[Record]:
    """Return two blocks of two networks."""
    return [
        {"network": network, "seed": seed, "variance": variance, "branch": branch}
        for network, variance, branch in (
            ("BN", 2.0, None), ("BN", 4.0, 1.0), ("NF", 2.0, 0.5), ("NF", last, 0.5),
        )
    ]  # fmt: skip


def holds(lines: list[Record], **entry: Any) -> bool:
    raw = {"says": "So.", "place": "figure 1", **entry}
    (verdict,) = judge_claims([parse_claim(raw, ["BN", "NF"], COLUMNS)], lines)
    return bool(verdict["holds"])


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"higher": [["NF", "variance"], ["BN", "variance"]]}, True),
        ({"higher": [["BN", "variance"], ["NF", "variance"]]}, False),
        ({"higher": [["NF", "variance"], ["BN", "variance"]], "bound": 3.9}, True),
        ({"higher": [["NF", "variance"], ["BN", "variance"]], "bound": 4.0}, False),
        ({"higher": [["NF", "variance"], ["BN", "variance"]], "bound": 2, "mean": True}, False),
        ({"higher": [["NF", "variance"], ["NF", "branch"]], "bound": 7}, True),
        ({"higher": [["NF", "variance"]], "than": 7.5}, True),
        ({"alike": [["NF", "variance"], ["BN", "variance"]], "bound": 4}, True),
        ({"alike": [["BN", "variance"], ["NF", "variance"]], "bound": 3.9}, False),
        ({"alike": [["BN", "branch"]], "than": 1, "mean": True}, True),
    ],
)
def test_a_claim_compares_the_last_blocks_or_the_means(
    entry: dict[str, Any], expected: bool
) -> None:
    assert holds(records(), **entry) is expected


def test_a_claim_holds_if_it_does_with_every_seed() -> None:
    claim = {"higher": [["NF", "variance"], ["BN", "variance"]]}
    assert holds([*records(0), *records(1, 9.0)], **claim)
    assert not holds([*records(0), *records(1, 3.0)], **claim)


def test_a_claim_about_a_network_that_does_not_work_here_is_untested() -> None:
    claim = parse_claim(
        {"says": "So.", "place": "figure 1", "higher": [["NF", "variance"], ["GN", "variance"]]},
        ["NF", "GN"],
        COLUMNS,
    )
    judged = judge_claims([claim], records())
    assert not judged[0]["holds"]
    assert describe_verdicts(judged) == "untested: So. (figure 1; no numbers)"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({}, "a claim about a figure needs exactly one of higher, alike"),
        ({"higher": [["GN", "variance"]]}, "GN is no network of the figure; BN, NF are"),
        ({"higher": [["NF", "varience"]]}, "varience is no quantity of the probe; variance, bra"),
        ({"higher": []}, "higher compares one curve with a number, or two curves"),
        ({"higher": [["NF", "variance"]], "then": 1}, "then is no key of .*; did you mean than"),
        ({"higher": [["NF", "variance"]], "mean": 1}, "mean=1 is no bool"),
    ],
)
def test_an_invalid_claim_is_named(entry: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        holds(records(), **entry)


def test_the_file_of_an_invalid_claim_is_named(monkeypatch: Any, tmp_path: Path) -> None:
    text = (FIGURES / "nf_1.yaml").read_text()
    (tmp_path / "nf_1.yaml").write_text(text.replace("mean: true", "mean: 3"))
    monkeypatch.setattr("normbench.probe.request.FIGURES", tmp_path)
    with pytest.raises(DamagedFile, match=r"nf_1\.yaml, claims: mean=3 is no bool"):
        parse_request("nf_1", [])


@pytest.mark.parametrize("name", WITH_CLAIMS)
def test_the_figures_in_the_repository_show_what_the_papers_say(name: str) -> None:
    drawn = read_records(ROOT / "reports" / "studies" / "probes" / f"{name}.csv")
    judged = judge_claims(parse_request(name, []).claims, drawn)
    assert all(verdict["holds"] for verdict in judged), describe_verdicts(judged)


def test_a_figure_prints_the_verdicts_and_keeps_them(probe_command: Probe) -> None:
    result = probe_command("nf_1", *SMALLER)
    assert result.out.count("holds: With ") == 4
    assert "holds: With BN-ReLU-Conv the variance of the branch is 0.68. (section 3" in result.out
    kept = json.loads(Path("reports/probes/nf_1-changed.json").read_text())["claims"]
    assert [verdict["holds"] for verdict in kept] == [True] * 4
    assert abs(kept[0]["effects"]["0"]) < 0.03
