"""The yamls of conf/, the classes that they name, and the catalog that lists them."""

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

from normbench import catalog
from normbench.config import build
from normbench.config.cells import GROUPS
from normbench.config.files import CONF, LISTS, groups, names
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


@pytest.mark.parametrize("kind", LISTS)
def test_the_catalog_lists_names_with_what_they_are(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert catalog.main([kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]  # sizes of models are below
    assert [line.split()[0] for line in heads] == names(LISTS[kind])
    assert all(len(line) > 30 for line in lines)
    assert catalog.main(["nothing"]) == 2


def test_the_catalog_lists_its_lists_without_torch() -> None:
    assert {folder.name for folder in LISTS.values()} == {*groups(), "sweeps"}
    program = (
        "import sys; from normbench.catalog import main\n"
        "assert main([]) == main(['sweeps']) == main(['recipes']) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    end = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (end.returncode, end.stderr) == (0, "")
    lines = [line.split() for line in end.stdout.splitlines()[: len(LISTS)]]
    assert {line[0]: line[1:3] for line in lines} == {
        kind: [f"{folder.name}=NAME", str(len(names(folder)))] for kind, folder in LISTS.items()
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["evonorm_resnet_90"], "1,281,167 training images of data=imagenet data.area=0.05, glob"),
        (["nf_resnet_15"], "1,281,167 training images of data=imagenet, global batch 1024"),
        (["sn_rmsprop"], "1,281,167 training images of data=imagenet, global batch 256"),
        (["pn_cifar"], "50,000 training images of data=cifar10, global batch 128"),
        (["four_things_cifar"], "40,000 training images of data=cifar100 data.val=0.2, global b"),
        (
            ["demo"],
            "1,293 training images of data=digits_contrast (the default, as the recipe names no ",
        ),
        (["pn_cifar", "images=1000", "global_batch=50"], "1,000 training images, global batch 50"),
    ],
    ids=str,
)
def test_a_schedule_is_counted_with_the_data_of_the_recipe(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert catalog.main(["recipes", *words]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(says)


def test_a_model_takes_a_normalizer_by_its_name() -> None:
    by_name = catalog.model("resnet8", norm="gn", num_classes=10)
    by_object = catalog.model("resnet8", norm=catalog.normalizer("gn"), num_classes=10)
    assert repr(by_name) == repr(by_object)
    with pytest.raises(BadInput, match="norm=gnn is unknown; did you mean gn"):
        catalog.model("resnet8", norm="gnn", num_classes=10)
