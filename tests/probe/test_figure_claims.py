"""Claims of papers about the curves of a figure."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from normbench.config.files import FIGURES, ROOT, load, names
from normbench.errors import DamagedFile
from normbench.measurements.ratios import fields_of_layers, groups_of_layers
from normbench.probe.claims import describe_verdicts, judge_claims, parse_claim
from normbench.probe.ratios import with_changes
from normbench.probe.request import parse_request
from normbench.records.probes import Record, read_records
from normbench.training.experiment import Experiment
from support.cells import SHORT, composed
from support.commands import Command, Probe
from support.probes import SMALLER
from support.slow import slow_except

WITH_CLAIMS = [name for name in names(FIGURES) if "claims" in load(FIGURES / f"{name}.yaml")]
COLUMNS = ("variance", "branch")
STUDY = ROOT / "reports" / "studies" / "probes"
#: Sentences of papers that do not hold here (docs/probes.md).
REFUTED = {
    (
        "sn_2_small",
        "In each snapshot about half of the layers choose different normalizers for means and "
        "variances.",
    ),
    ("nf_2_swish", "With Swish, too, branches have variance 1."),
    (
        "sn_7_small",
        "After finetuning to segmentation the share of IN is larger than that of BN.",
    ),
    (
        "sn_7_small",
        "After finetuning to segmentation the share of LN is larger than that of BN.",
    ),
    ("sn_7_small", "The share of BN falls during finetuning to segmentation."),
    (
        "sn_7_small",
        "In detection the share of BN is larger in the backbone than in the pyramid.",
    ),
    (
        "sn_7_small",
        "In detection the share of BN is larger in the backbone than in the mask stream.",
    ),
    (
        "sn_7_small",
        "In detection the share of BN is larger in the box stream than in the pyramid.",
    ),
    (
        "sn_7_small",
        "In detection the share of BN is larger in the box stream than in the mask stream.",
    ),
    (
        "sn_7_small",
        "After pretraining with 32 images per worker the share of BN falls in finetuning with 2.",
    ),
    ("pn_random", "With LN+PN the means of images have the power that they have with BN."),
}


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
        ({"higher": []}, "higher compares 1 or 2 curves"),
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


@pytest.mark.parametrize("name", [n for n in WITH_CLAIMS if (STUDY / f"{n}.csv").exists()])
def test_the_figures_in_the_repository_show_what_the_papers_say(name: str) -> None:
    drawn = read_records(STUDY / f"{name}.csv")
    judged = judge_claims(parse_request(name, []).claims, drawn)
    holding = {(name, verdict["says"]) for verdict in judged if verdict["holds"]}
    stated = {(name, verdict["says"]) for verdict in judged}
    assert holding == stated - REFUTED, describe_verdicts(judged)
    assert "untested" not in describe_verdicts(judged)


def of_layers(network: str, **shares: tuple[float, ...]) -> list[Record]:
    """Return the records of layers in two groups after two epochs; columns are by `of`."""
    places = [(epoch, group) for epoch in (1, 2) for group in ("low", "high")]
    return [
        {"network": network, "epoch": epoch, "group": group, "of": of, "bn": share}
        for of, each in shares.items()
        for (epoch, group), share in zip(places, each, strict=True)
    ]


LAYERS = [
    *of_layers("large", mean=(0.1, 0.1, 0.4, 0.6), var=(0.1, 0.1, 0.4, 0.5)),
    *of_layers("small", mean=(0.9, 0.9, 0.3, 0.4), var=(0.9, 0.9, 0.3, 0.5)),
]


@pytest.mark.parametrize(
    ("large", "small", "effect"),
    [
        ({}, {}, 0.475 - 0.375),  # at the last epoch
        ({"epoch": 1}, {"epoch": 1}, 0.1 - 0.9),
        ({"of": "mean"}, {"of": "mean"}, 0.5 - 0.35),
        ({"of": "mean", "group": "high"}, {"of": "mean", "group": "low"}, 0.6 - 0.3),
        ({"group": "*"}, {"group": "*"}, 0.4 - 0.3),
        ({"of": "*", "group": "*"}, {"of": "*", "group": "*"}, 0.0),
        ({"of": "*", "group": "*", "epoch": "*"}, {"of": "*", "group": "*", "epoch": "*"}, -0.8),
        ({"group": "deep"}, {"group": "low"}, None),
        ({"group": "deep", "of": "*"}, {"group": "low", "of": "*"}, None),
    ],
)
def test_a_curve_has_the_records_that_its_conditions_name(
    large: dict[str, Any], small: dict[str, Any], effect: float | None
) -> None:
    curves = [["large", "bn", large], ["small", "bn", small]]
    raw = {"says": "So.", "place": "figure 1", "higher": curves, "mean": True}
    claim = parse_claim(raw, ["large", "small"], ["bn"], {"epoch": (), "group": (), "of": ()})
    assert claim.effect(LAYERS) == (None if effect is None else pytest.approx(effect))


def test_a_claim_about_networks_without_records_is_untested() -> None:
    raw = {"says": "So.", "place": "figure 1", "higher": [["large", "bn"]]}
    (verdict,) = judge_claims(
        [parse_claim(raw, ["large"], ["bn"])], of_layers("small", mean=(1,) * 4)
    )
    assert not verdict["holds"]
    assert verdict["effects"] == {None: None}


def test_of_several_differences_the_largest_must_be_within_the_bound() -> None:
    raw: dict[str, Any] = {"says": "So.", "place": "figure 1", "mean": True, "than": 0.3}
    raw["alike"] = [["small", "bn", {"of": "*", "group": "*"}]]
    claim = parse_claim(raw, ["small"], ["bn"], {"group": (), "of": ()})
    assert claim.effect(LAYERS) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("curve", "says"),
    [
        ({"off": 1}, "off is no key of a curve; did you mean of"),
        ({"of": "vra"}, "of: vra is unknown; did you mean var"),
        ({"of": "*"}, "stands for the same value in both curves"),
    ],
)
def test_an_invalid_condition_is_named(curve: dict[str, Any], says: str) -> None:
    raw = {"says": "So.", "place": "figure 1", "higher": [["a", "bn", curve], ["a", "bn"]]}
    with pytest.raises(ValueError, match=says):
        parse_claim(raw, ["a"], ["bn"], {"of": ("mean", "var")})


@cache
def groups_of(*words: str) -> frozenset[str]:
    """The groups of layers of the network that `words` describe."""
    experiment = Experiment(composed(*words))
    network = experiment.info.network
    fields = fields_of_layers(network, experiment.data.image_shape)
    return frozenset(groups_of_layers(fields).values())


@pytest.mark.parametrize(
    "name", slow_except([name for name in WITH_CLAIMS if name.startswith("sn_")], ["sn_2_small"])
)
def test_claims_about_ratios_name_groups_and_epochs_that_the_figure_has(name: str) -> None:
    """Otherwise they would stay untested, however long somebody trains."""
    request = parse_request(name, [])
    words = dict(request.networks)
    for curve in (curve for claim in request.claims for curve in claim.curves):
        first = curve.network.partition(" || ")[0]
        others = {"*", "all"} if "||" in curve.network else {"*"}
        assert curve.where.get("group", "*") in {*groups_of(*words[first]), *others}
        if request.kind == "hard_ratios":
            assert curve.where["epoch"] in ("*", *request.options.epochs)


def test_a_figure_prints_the_verdicts_and_keeps_them(probe_command: Probe) -> None:
    result = probe_command("nf_1", *SMALLER)
    assert result.out.count("holds: With ") == 5
    assert "holds: With BN-ReLU-Conv the variance of the branch is 0.68. (section 3" in result.out
    kept = json.loads(Path("runs/reports/probes/nf_1-changed.json").read_text())["claims"]
    assert [verdict["holds"] for verdict in kept] == [True] * 5
    assert abs(kept[0]["effects"]["0"]) < 0.03


def test_the_list_of_a_papers_statements_has_every_figure_with_claims_about_ratios() -> None:
    page = (ROOT / "docs" / "claims.md").read_text()
    listed = set(re.findall(r"\]\(\.\./reports/figures/(\w+)\.yaml\)", page))
    assert {name for name in listed if name.startswith("sn_")} == {
        name for name in WITH_CLAIMS if name.startswith("sn_")
    }


RATIOS = """
title: Ratios
source: figure 1
kind: ratios
words: [norm=sn, model=resnet8, model.stem_stride=1]
networks:
  "first": [seed=0]
  "second": [seed=1]
claims:
  - {says: A., place: figure 1, alike: [[first, bn, {of: "*"}]], than: 0.33, bound: 0.1, mean: true}
  - says: B.
    place: figure 1
    higher: [["first || second", divergence, {of: mean, group: all}]]
"""


@pytest.mark.slow
def test_claims_compare_networks_and_how_far_they_are_apart(
    probe_command: Probe, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "pairs.yaml").write_text(RATIOS)
    monkeypatch.setattr("normbench.probe.request.FIGURES", tmp_path / "figures")
    words = ("norm=sn", "model=resnet8", "model.stem_stride=1", *SHORT)
    assert command("-m", *words, "seed=0,1", "probe=ratios", "checkpoint=keep").code == 0
    end = probe_command("pairs", *SHORT)
    assert end.code == 0, end.err
    assert "holds: A. (figure 1; " in end.out
    assert "holds: B. (figure 1; " in end.out
    kept = [
        json.loads(Path(f"runs/reports/probes/{name}.json").read_text())["claims"]
        for name in ("pairs-changed", "pairs-changed_apart")
    ]
    assert [[verdict["says"] for verdict in of_file] for of_file in kept] == [["A."], ["B."]]


def test_the_change_of_ratios_is_the_length_of_their_path_over_the_steps() -> None:
    """Steps that were not measured count; the order of the records does not."""
    of_run = {"network": "SN", "seed": 0, "run": "a", "layer": "stem", "of": "mean"}
    shares = {0: (0.2, 0.3, 0.5), 1: (0.4, 0.3, 0.3), 4: (0.3, 0.3, 0.4)}
    means: list[Record] = [
        {**of_run, "epoch": epoch, "step": 1000 * epoch, "in": first, "ln": second, "bn": third}
        for epoch, (first, second, third) in shares.items()
    ]
    variances: list[Record] = [{**record, "of": "var", "ln": record["epoch"]} for record in means]
    changes = {
        (record["of"], record["epoch"]): record["change_per_1000_steps"]
        for record in with_changes([*means[::-1], *variances])
    }
    assert changes["mean", 0] is None
    assert changes["mean", 1] == pytest.approx(0.2)
    assert changes["mean", 4] == pytest.approx((0.2 + 0.1) / 4)
    assert changes["var", 4] == pytest.approx(((0.2 + 1 + 0.2) / 2 + (0.1 + 3 + 0.1) / 2) / 4)
