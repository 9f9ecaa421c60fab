"""The Sweeper plugin: how often it composes."""

from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from normbench.config import files
from normbench.config.compose import compose
from normbench.config.files import CLAIMS, CONF, FIGURES, SWEEPS, TABLES
from normbench.errors import BadInput


@pytest.mark.parametrize(
    ("words", "compositions"),
    [
        (["norm=bn,gn", "batch=4,8", "seed=range(0,50)"], 2),
        (["protocol=fixed_workers", "workers=2,4", "norm=bn"], 1),
        (["recipe.lr=0.1,0.2", "seed=0,1"], 2),
        (["recipe.lr='${batch}'", "batch=4,8"], 1),
        (["norm=bn,gn,ln", "model=resnet8,resnet14", "recipe.lr=0.1,0.2", "norm.eps=1e-4"], 12),
        (["norm=bn,gn", "model=resnet8,resnet14", "precision=32-true,64-true"], 8),
    ],
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
    assert len(sweepers[0].compositions) == compositions


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
