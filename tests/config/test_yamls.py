"""The yamls of conf/, the classes that they name, and the catalog that lists them."""

import inspect
from importlib import import_module

import pytest

from normbench import catalog
from normbench.config import build
from normbench.config.cells import GROUPS
from normbench.config.files import CONF, names
from normbench.errors import BadInput

SCIENCE = [(group, name) for group in GROUPS for name in names(CONF / group)]


@pytest.mark.parametrize(("group", "name"), SCIENCE)
def test_a_yaml_names_every_argument_of_its_target_and_no_other(group: str, name: str) -> None:
    chosen = build.options(group, name, {})
    module, _, attribute = chosen.pop("_target_").rpartition(".")
    target = getattr(import_module(module), attribute)
    accepted = set(inspect.signature(target).parameters) - {"norm", "num_classes", "in_chans"}
    assert set(chosen) == accepted


@pytest.mark.parametrize("group", ["norm", "data", "model"])
def test_a_misspelt_name_or_option_is_an_error_in_python_too(group: str) -> None:
    name = names(CONF / group)[0]
    with pytest.raises(BadInput, match=f"{group}={name}x is unknown; did you mean {name}"):
        build.options(group, f"{name}x", {})
    with pytest.raises(BadInput, match=f"{group}.surplus is no option of {name}"):
        build.options(group, name, {"surplus": 1})


@pytest.mark.parametrize("kind", catalog.LISTS)
def test_the_catalog_lists_names_with_what_they_are(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert catalog.main([kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]  # sizes of models are below
    assert [line.split()[0] for line in heads] == names(catalog.LISTS[kind])
    assert all(len(line) > 30 for line in lines)
    assert catalog.main(["nothing"]) == 2


def test_a_model_takes_a_normalizer_by_its_name() -> None:
    by_name = catalog.model("resnet8", norm="gn", num_classes=10)
    by_object = catalog.model("resnet8", norm=catalog.normalizer("gn"), num_classes=10)
    assert repr(by_name) == repr(by_object)
    with pytest.raises(BadInput, match="norm=gnn is unknown; did you mean gn"):
        catalog.model("resnet8", norm="gnn", num_classes=10)
