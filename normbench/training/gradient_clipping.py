"""Clipping of gradients before each step of an optimizer, and so before its weight decay."""

from collections.abc import Callable, Iterator
from functools import partial

from torch import nn
from torch.optim import Optimizer

from normbench.training.parameter_groups import classifier_layers, list_parameters


def clip_gradients(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    value: float | None = None,
    norm: float | None = None,
    adaptive: float | None = None,
    ratios: float | None = None,
) -> None:
    """Clip the gradients of `model` before each step of `optimizer`, in the order of arguments.

    Args:
        model: the network.
        optimizer: gradients are clipped before each of its steps.
        value: largest absolute value.
        norm: largest norm of all gradients together.
        adaptive: largest norm of the gradient of a unit, as a fraction of the unit's own norm
            (Brock, De, Smith and Simonyan 2021, eq. 3): a unit is a row of a linear layer, a filter
            of a convolution or another parameter as a whole. The classifier is left out, as they
            recommend: the last linear layer, and others of its shape, as a second head.
        ratios: largest norm of the gradients of all ratios together (Shao et al. 2019, the authors'
            code).
    """
    parameters = [*model.parameters()]
    clips: list[Callable[[], object]] = []
    if value is not None:
        clips.append(partial(nn.utils.clip_grad_value_, parameters, value))
    if norm is not None:
        clips.append(partial(nn.utils.clip_grad_norm_, parameters, norm))
    if adaptive is not None:
        from timm.utils.agc import adaptive_clip_grad  # here, as timm takes a second to import

        clips.append(partial(adaptive_clip_grad, [*_all_but_classifier(model)], adaptive))
    if ratios is not None:
        of_ratios = [each.parameter for each in list_parameters(model) if each.role == "ratio"]
        clips.append(partial(nn.utils.clip_grad_norm_, of_ratios, ratios))

    def before_step(*_: object) -> None:
        for clip in clips:
            clip()

    if clips:
        optimizer.register_step_pre_hook(before_step)


def _all_but_classifier(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of `model` without those of the last linear layer and of its likes."""
    heads = classifier_layers(model).values()
    left_out = {id(parameter) for layer in heads for parameter in layer.parameters()}
    yield from (each for each in model.parameters() if id(each) not in left_out)
