"""Architectures of timm with the normalizer put in by `normbench.models.swap`.

`timm_model` builds any of them by name; `mbconv_net` builds networks of the blocks of MobileNetV2,
MnasNet and EfficientNet with timm's builder and in its notation:

    ir_r2_k3_s2_e6_c24_se0.25   two (r) inverted residual blocks: 3x3 (k), stride 2 (s) in the
                                first, expansion 6 (e), 24 channels (c), squeeze-excite 1/4 (se)
    ds_r1_k3_s1_c16             one depthwise separable convolution
"""

from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import timm
import torch
from pydantic import Field, PositiveInt
from timm.models.efficientnet import EfficientNet, decode_arch_def, round_channels
from torch import nn

from normbench.errors import one_line
from normbench.models.blocks import V2, require_residual
from normbench.models.dropout import Fraction
from normbench.models.fx_graph import CallGraph
from normbench.models.mobile_blocks import join_blocks
from normbench.models.swap import swap, swap_calls
from normbench.norms.base.layer import Normalizer
from normbench.norms.base.residual import Residual

_ACTS = {"relu": nn.ReLU, "relu6": nn.ReLU6, "silu": nn.SiLU, "hardswish": nn.Hardswish}
Multiplier = Annotated[float, Field(ge=0.05)]
#: As of timm's EfficientNet, for `normbench.training.parameter_groups.number_blocks`.
_MOBILE_BLOCKS = {
    "stem": r"^conv_stem|^bn1",
    "blocks": [(r"^blocks\.(\d+)\.(\d+)", None), (r"^conv_head|^bn2", (99999,))],
}
_FILE = "arguments.pretrained_cfg_overlay.file"
IMAGE = (224, 224)  # of the trace; images of other sizes work too


def timm_model(
    norm: Normalizer,
    num_classes: int,
    in_chans: int = 3,
    *,
    name: str | None,
    arguments: dict[str, Any],
    dropout: Fraction = 0.0,
    stochastic_depth: Fraction = 0.0,
    max_groups: PositiveInt | None = None,
    allow_left: bool = False,
) -> nn.Module:
    """Build a model of timm: (N, in_chans, H, W) -> logits (N, num_classes).

    Args:
        name: a name of `timm.create_model`, with a tag for pretrained weights.
        arguments: more arguments of `timm.create_model`, such as zero_init_last or pretrained.
        dropout: rate before the classifier, timm's drop_rate.
        stochastic_depth: rate of the last block, timm's drop_path_rate; not passed if 0.
        max_groups: cap on the normalizer's groups; null leaves the normalizer's own number.
        allow_left: keep batch normalizations that cannot be replaced.

    Raises:
        ValueError: there is no such model, or it does not take the arguments.
        Impossible: the network cannot use this normalizer.
    """
    name = _require_model(name)
    for reserved in {"num_classes", "in_chans", "drop_rate", "drop_path_rate"} & arguments.keys():
        raise ValueError(
            f"arguments.{reserved}={arguments[reserved]}: classes and channels follow from the "
            "data, the others are model.dropout and model.stochastic_depth"
        )
    options = dict(arguments)
    file = (options.get("pretrained_cfg_overlay") or {}).get("file")
    if torch.get_default_device().type == "meta":  # the check looks at shapes, without a download
        options.pop("pretrained", None)
    if stochastic_depth:  # not every model of timm takes it
        options["drop_path_rate"] = stochastic_depth
    try:
        if file is not None:
            create = partial(timm.create_model, name, num_classes=num_classes, in_chans=in_chans)
            _require_weights(file, name, partial(create, **arguments))
        network = timm.create_model(
            name, num_classes=num_classes, in_chans=in_chans, drop_rate=dropout, **options
        )
    except RuntimeError as error:
        raise ValueError(f"name={name}: {error}") from error  # an unknown tag: resnet18.nowhere
    except TypeError as error:
        raise ValueError(
            f"arguments={options}: timm's {name} does not take them ({error})"
        ) from error
    _, *size = network.default_cfg["input_size"]  # type: ignore[index]
    if "img_size" in arguments:
        size = [arguments["img_size"]] * 2
    norm = norm.with_max_groups(max_groups)
    # A traced network has other methods.
    matcher: Any = getattr(network, "group_matcher", None)
    patterns = None if matcher is None else matcher()
    swapped = swap(network, norm, image=(in_chans, *size), allow_left=allow_left)
    swapped.block_patterns = patterns  # type: ignore[assignment]
    return swapped


def _require_weights(file: str, name: str, create: "partial[nn.Module]") -> None:
    """Refuse a file of weights that timm would not read, or not for every layer of the network.

    timm itself loads what fits if the number of classes is another one.

    Args:
        file: with the weights.
        name: of the network.
        create: creates it with them.

    Raises:
        ValueError: the file is missing or damaged, of another network, or not asked for.
    """
    if not create.keywords.get("pretrained"):
        raise ValueError(f"{_FILE}={file}: only +model.arguments.pretrained=true reads it")
    if not Path(file).is_file():
        raise ValueError(f"{_FILE}={file}: there is no such file")
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        create(pretrained=False)  # other arguments may be at fault
        try:
            loaded = []
            for seed in range(2):
                torch.default_generator.manual_seed(seed)
                loaded.append(create())
        except RuntimeError as error:
            # The first line names the class of the network alone.
            mismatch = str(error).partition("\n")[2].strip().partition("\n")[0]
            raise ValueError(f"{_FILE}={file}: {mismatch or one_line(error)}") from error
        except Exception as error:  # readers of weights raise many kinds
            raise ValueError(f"{_FILE}={file} cannot be read ({one_line(error)})") from error
    network: Any = loaded[0]
    classifiers = network.pretrained_cfg.get("classifier") or ()
    classifiers = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
    first, second = (dict(each.named_parameters()) for each in loaded)
    weights = [key for key in first if not key.startswith(classifiers)]
    # What the file has not is drawn at random.
    drawn = [key for key in weights if not torch.equal(first[key], second[key])]
    if drawn:
        raise ValueError(
            f"{_FILE}={file}: it is of another network, without {len(drawn)} of the parameters, "
            f"such as {drawn[0]}; use a file of {name}"
        )


def _require_model(name: str | None) -> str:
    if not name:
        raise ValueError("name is missing: any of timm.list_models(), as resnet50")
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=1)
        hint = f"did you mean {near[0]}?" if near else "timm.list_models() has their names"
        raise ValueError(f"name={name}: timm has no model of that name; {hint}")
    return name


def mbconv_net(
    norm: Normalizer,
    num_classes: int,
    in_chans: int = 3,
    *,
    blocks: tuple[str, ...],
    width: Multiplier = 1.0,
    depth: Multiplier = 1.0,
    group_size: int | None = None,
    act: Literal["relu", "relu6", "silu", "hardswish"] = "silu",
    stem_stride: PositiveInt = 2,
    stem: PositiveInt = 32,
    head: PositiveInt = 1280,
    padding: Literal["same"] | None = None,
    dropout: Fraction = 0.0,
    stochastic_depth: Fraction = 0.0,
    max_groups: PositiveInt | None = None,
) -> nn.Module:
    """Build a network of mobile blocks: (N, in_chans, H, W) -> logits (N, num_classes).

    Normalizers with residual schemes of their own, nf and skipinit, change the blocks
    (`normbench.models.mobile_blocks`).

    Args:
        blocks: the stages, in timm's notation.
        width: multiplies the channels of all blocks, to the nearest multiple of 8.
        depth: multiplies the blocks of every stage, rounded up.
        group_size: channels per group of the 3x3 and 5x5 convolutions; null: depthwise.
        act: the activation.
        stem_stride: stride of the first convolution.
        stem: channels of the first convolution.
        head: channels of the last convolution.
        padding: same pads strided convolutions as SAME of TensorFlow, on even maps at one side
            alone (Graphcore's code); null: at both sides.
        dropout: rate before the classifier.
        stochastic_depth: rate that grows linearly from 0; kept branches are rescaled.
        max_groups: cap on the normalizer's groups; null leaves the normalizer's own number.

    Raises:
        ValueError: a block is not in timm's notation.
        Impossible: the network cannot use this normalizer.
    """
    require_residual(norm, V2)
    options = (
        num_classes, in_chans, blocks, width, depth, group_size, act, stem_stride, stem, head,
        padding, dropout, stochastic_depth,
    )  # fmt: skip
    if type(norm.residual) is Residual and torch.get_default_device().type == "meta":
        graph = _trace_on_meta(*options).copy()
    else:
        network = _efficientnet(*options)
        if type(norm.residual) is not Residual:
            join_blocks(network, norm)
        graph = CallGraph(network, (in_chans, *IMAGE))
    swapped = swap_calls(graph, norm.with_max_groups(max_groups), residual=V2)
    swapped.block_patterns = _MOBILE_BLOCKS  # type: ignore[assignment]
    return swapped


@lru_cache(maxsize=32)
def _trace_on_meta(num_classes: int, in_chans: int, *options: Any) -> CallGraph:
    """Trace a network without values; many cells differ in the normalizer alone."""
    return CallGraph(_efficientnet(num_classes, in_chans, *options), (in_chans, *IMAGE))


def _efficientnet(
    num_classes: int, in_chans: int, blocks: tuple[str, ...], width: float, depth: float,
    group_size: int | None, act: str, stem_stride: int, stem: int, head: int, padding: str | None,
    dropout: float, stochastic_depth: float,
) -> EfficientNet:  # fmt: skip
    """Build a network of timm's blocks with batch normalization; options are `mbconv_net`'s."""
    try:
        stages = decode_arch_def([[block] for block in blocks], depth, group_size=group_size)
    except (AssertionError, ValueError, KeyError) as error:
        raise ValueError(
            f"blocks={list(blocks)}: stages are written as ir_r2_k3_s2_e6_c24_se0.25 ({error})"
        ) from error
    network = EfficientNet(
        stages, num_classes, head, in_chans, stem, fix_stem=True, pad_type=padding or "",
        round_chs_fn=partial(round_channels, multiplier=width), act_layer=_ACTS[act],
        drop_rate=dropout, drop_path_rate=stochastic_depth,
    )  # fmt: skip
    network.conv_stem.stride = (stem_stride, stem_stride)  # timm's builder always takes 2
    return network
