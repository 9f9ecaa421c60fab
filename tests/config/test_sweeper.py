"""The Sweeper plugin: how often it composes, and that shared compositions change no cell."""

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from normbench.config import files
from normbench.config.cells import GROUPS, Cell
from normbench.config.compose import compose
from normbench.config.files import CLAIMS, CONF, FIGURES, SWEEPS, TABLES
from normbench.errors import BadInput
from support.slow import slow_after


@pytest.mark.parametrize(
    ("words", "compositions"),
    slow_after(
        5,
        [
            (["norm=bn,gn", "batch=4,8", "seed=range(0,50)"], 1),
            (["protocol=fixed_workers", "workers=2,4", "norm=bn"], 1),
            (["recipe.lr=0.1,0.2", "seed=0,1"], 1),
            (["recipe.lr=0.1,'0.2'", "seed=0,1"], 2),
            (["recipe.lr='${batch}'", "batch=4,8"], 1),
            (["norm=bn,gn,ln", "model=resnet8,resnet14", "recipe.lr=0.1,0.2"], 1),
            (["norm=bn,gn,ln", "model=resnet8,resnet14", "norm.eps=1e-4,1e-3"], 1),
            (["recipe.lr=1,2", "recipe.epochs='${recipe.lr}'"], 2),
            (["norm=bn,gn", "model=resnet8,resnet14", "precision=32-true,64-true"], 2),
            (["norm=bn,gn", "recipe.lr='${batch}'"], 2),
            (["norm=bn,gn", "trainer=cpu,gpu"], 2),
            (["sweeps=proxy_norm_14_small"], 6),
            (["sweeps=small_pilot", "recipe=sn_resnet", "recipe.lr=0.1,0.2,0.4"], 12),
        ],
    ),
)
def test_cells_share_compositions(
    words: list[str], compositions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose(["norm=bn"])  # Hydra has scanned its plugins
    sweeper: Any = import_module("hydra_plugins.normbench_sweeper").NormbenchSweeper
    setup, sweepers = sweeper.setup, []

    def record(self: Any, **arguments: Any) -> None:
        sweepers.append(self)
        setup(self, **arguments)

    monkeypatch.setattr(sweeper, "setup", record)
    compose(["-m", *words])
    assert sum(map(len, sweepers[0].compositions.values())) == compositions


def test_hydras_own_configuration_is_copied_once_a_composition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies, set_config = [], HydraConfig.set_config

    def record(self: HydraConfig, config: DictConfig) -> None:
        copies.append(config)
        set_config(self, config)

    monkeypatch.setattr(HydraConfig, "set_config", record)
    compose(["-m", "norm=bn,gn"])
    few = len(copies)
    compose(["-m", "norm=bn,gn", "batch=2,4,8", "seed=range(0,5)"])
    assert len(copies) == 2 * few


@pytest.mark.parametrize("group", slow_after(1, GROUPS))
def test_a_grid_has_the_cells_of_its_single_runs(group: str) -> None:
    other = "seed=0,1" if group == "reg" else "reg=none,extra"
    require_single_runs([f"{group}={','.join(files.names(CONF / group)[::5])}", other])


@pytest.mark.parametrize(
    "path",
    sorted(CONF.glob("*/*.yaml")),
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_a_file_of_conf_sets_no_option_of_another_group(path: Path) -> None:
    content, headers = files.load(path), re.findall(r"@package\s+(\S+)", path.read_text())
    for base in content.get("defaults", []):
        if path.parent.name == "task":  # which is never exchanged
            ((key, _),) = base.items()
            group = key.partition("@")[2].removeprefix("_global_.")
            assert key == f"override /{group}@_global_.{group}"
            assert group in GROUPS
            continue
        assert isinstance(base, str)
        assert not {"/", "@"} & set(base)
    if path.parent.name in GROUPS:
        assert not headers
        assert "${" not in path.read_text()
    else:
        assert headers in ([], ["_global_"])
        assert not content.keys() & set(GROUPS)


BN, DIGITS = ((CONF / name).read_text() for name in ("norm/bn.yaml", "data/digits.yaml"))
EPS = "eps: 1e-5\n"  # the value that bn has anyway, and others have not
GLOBAL = "# @package _global_\n"
OWN = {
    "sweeps/own.yaml": f"{GLOBAL}norm:\n  {EPS}",
    "sweeps/based.yaml": f"{GLOBAL}defaults:\n  - own\n",
    "sweeps/mixed.yaml": f"{GLOBAL}defaults:\n  - /norm/extra@norm: own\n",
    "sweeps/elsewhere.yaml": f"# @package norm\n{EPS}",
    "sweeps/upon_elsewhere.yaml": f"{GLOBAL}defaults:\n  - elsewhere\n",
    "norm/follows.yaml": BN.replace("0.1", "${recipe.momentum}"),
    "norm/missing.yaml": BN.replace("1e-5", "???"),
    "norm/extra/own.yaml": f"# @package norm\n{EPS}",
    "own/extra/own.yaml": f"{GLOBAL}norm:\n  {EPS}",
    "data/own.yaml": f"defaults:\n  - override /reg@_global_.reg: extra\n{DIGITS}",
}


@pytest.mark.parametrize(
    "words",
    slow_after(
        5,
        [
            ["sweeps=own", "norm=bn,frn,gn"],
            ["sweeps=based", "norm=bn,frn"],
            ["sweeps=mixed", "norm=bn,frn"],
            ["sweeps=elsewhere", "norm=bn,frn"],
            ["sweeps=upon_elsewhere", "norm=bn,frn"],
            ["norm=bn,follows", "reg=none,extra"],
            ["norm=bn,missing"],
            ["norm=bn,frn", "+norm/extra=own"],
            ["norm=bn,frn", "+own/extra=own"],
            ["data=digits,own", "norm=bn,frn"],
            ["norm=frn,bn", "init_from=reg:extra@1"],
            ["norm=gn,bn", "norm.eps=1e-4"],
            ["sweeps=own", "norm.eps=1e-4,1e-3"],
            ["sweeps=own", "norm=bn,frn", "norm.eps=1e-4,1e-3"],
            ["sweeps=elsewhere", "norm.eps=1e-4,1e-3"],
            ["norm=follows", "recipe.momentum=0.5,0.9"],
            ["recipe.lr=0.1,0.2", "init_from=recipe.lr:0.3@1"],
            ["norm=gn", "norm.groups=2,4", "logger.project='${oc.select:norm.groups}'"],
            ["norm=bn,gn", "model.width='${oc.select:norm.groups}'"],
            ["norm=bn,gn", "logger.project='${oc.select:norm._target_}'"],
            ["batch=4,8", "recipe.lr='${oc.select:batch}'"],
            ["batch=4,8", "recipe.lr='${..batch}'"],
            ["~norm", "model=resnet8,resnet14"],
        ],
    ),
    ids=" ".join,
)
def test_a_choice_is_not_exchanged_where_other_options_follow_from_it(
    words: list[str], tmp_path: Path
) -> None:
    for name, content in OWN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(content)
    require_single_runs(words, ["--config-dir", str(tmp_path)])


@pytest.mark.parametrize(
    "words",
    slow_after(
        2,
        [
            ["norm=bn,gn,sn", "norm.eps=1e-4,0.001", "recipe.lr=0.1,1", "reg=none,extra"],
            ["norm.hard=true,false", "norm=sn,ssn"],
            ["reg=extra,none", "reg.dropout=0,0.1,null"],
            ["data=digits,fashion_mnist", "data.size=10,12"],
            ["model=resnet20,resnet20_v2", "model.width=8,16.0"],
            ["norm=gn,frn", "norm.groups=2,null"],
            ["norm=frn,gn", "norm.learned_eps=true"],
            ["norm=bn,gn", "norm.eps=-1,nan"],
            ["recipe.lr=0.1,1e39"],
            ["recipe.lr=0.1,-1e-3,text"],
        ],
    ),
    ids=" ".join,
)
def test_options_of_a_grid_are_those_of_its_single_runs(words: list[str]) -> None:
    require_single_runs(words)


def require_single_runs(words: list[str], base: Sequence[str] = ()) -> None:
    """Compare the cells of a grid with those composed one by one, and errors with the first."""
    values = [
        [f"{key}{sign}{value}" for value in values.split(",")]
        for key, sign, values in (word.partition("=") for word in words)
    ]
    singles = [_outcome([*base, *cell]) for cell in product(*values)]
    errors = [single for single in singles if isinstance(single, str)]
    expected = errors[0] if errors else [cell for single in singles for cell in single]
    assert _outcome([*base, "-m", *words]) == expected


def _outcome(words: list[str]) -> list[Cell] | str:
    """Return the cells of a command line, or why it is refused."""
    try:
        return [replace(cell, command_seeds=1) for cell in compose(words)[0]]
    except BadInput as error:
        return str(error)


def test_values_of_a_launcher_that_differ_are_refused() -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = ["hydra/launcher=slurm", "hydra.launcher.cpus_per_task='${model.depth}'"]
    with pytest.raises(BadInput, match="give one value"):
        compose(["-m", "model=resnet8,resnet14", *words])


def test_a_file_of_one_group_may_override_another_group(tmp_path: Path) -> None:
    (tmp_path / "reg").mkdir()
    defaults = "defaults:\n  - override /data@_global_.data: fashion_mnist\n"
    (tmp_path / "reg/grey.yaml").write_text(defaults + (CONF / "reg/none.yaml").read_text())
    base = ["--config-dir", str(tmp_path)]
    cells, _ = compose([*base, "-m", "reg=none,grey", "norm=bn,gn"])
    alone = [
        compose([*base, f"reg={reg}", f"norm={norm}"])[0][0]
        for reg, norm in product(("none", "grey"), ("bn", "gn"))
    ]
    assert cells == alone
    assert [each.data.name for each in cells] == ["digits_contrast"] * 2 + ["fashion_mnist"] * 2


def test_an_option_may_follow_a_number_of_the_cell() -> None:
    cells, _ = compose(["-m", "recipe.lr='${batch}'", "batch=4,8", "seed=0,1"])
    assert [each.recipe.options["lr"] for each in cells] == [4, 4, 8, 8]


def test_an_option_may_follow_the_choices_of_the_cell() -> None:
    cells, _ = compose(["-m", "norm=bn,gn", "logger.project='${hydra:runtime.choices.norm}'"])
    assert [each.logger.options["project"] for each in cells] == ["bn", "gn"]


def test_a_single_run_has_the_launcher_of_its_options() -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = ["hydra/launcher=slurm", "hydra.launcher.tasks_per_node='${trainer.devices}'"]
    for flags in ([], ["-m"]):
        _, settings = compose([*flags, *words, "trainer.devices=2"])
        assert settings is not None
        assert '"tasks_per_node": 2' in settings.launcher


def test_an_interval_is_no_list_of_values() -> None:
    with pytest.raises(BadInput, match="a grid needs a list of values, as"):
        compose(["-m", "recipe.lr=interval(0,1)"])


@pytest.mark.parametrize(
    "path",
    [path for top in (CONF, SWEEPS, TABLES, CLAIMS, FIGURES) for path in top.rglob("*.yaml")],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_every_yaml_is_read_as_hydra_reads_it(path: Path) -> None:
    expected = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(expected, dict)
    assert files.load(path) == {str(key): value for key, value in expected.items()}
