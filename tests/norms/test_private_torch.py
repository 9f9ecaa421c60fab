"""Private parts of torch and timm that layers and networks use."""

import inspect

from torch import nn


def test_two_private_methods_of_torch_are_as_the_layers_need_them() -> None:
    """`_apply` keeps running statistics in fp32; `_conv_forward` pads as the convolution does."""
    assert list(inspect.signature(nn.Module._apply).parameters) == ["self", "fn", "recurse"]
    arguments = inspect.signature(nn.Conv2d._conv_forward).parameters
    assert list(arguments) == ["self", "input", "weight", "bias"]
