"""Private parts of torch and timm that layers and networks use."""

import inspect
import re
from pathlib import Path

from torch import nn

import normbench.models
import normbench.norms

FOREIGN = re.compile(
    r"\b(nn|torch|timm|torchvision)(\.\w+)*\._[a-z]|from (torch|timm)\S*\._|import _"
)


def test_two_private_methods_of_torch_are_as_the_layers_need_them() -> None:
    """`_apply` keeps running statistics in fp32; `_conv_forward` pads as the convolution does."""
    assert list(inspect.signature(nn.Module._apply).parameters) == ["self", "fn", "recurse"]
    arguments = inspect.signature(nn.Conv2d._conv_forward).parameters
    assert list(arguments) == ["self", "input", "weight", "bias"]


def test_no_other_private_name_of_torch_or_timm_is_used() -> None:
    folders = [Path(room.__path__[0]) for room in (normbench.norms, normbench.models)]
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    assert len(paths) > 30
    assert [path.name for path in paths if FOREIGN.search(path.read_text())] == []
