"""NF-ResNet-50 and NF-RegNet-B0 of deepmind-research, folder nfnets, in JAX.

    git clone https://github.com/google-deepmind/deepmind-research     # commit d8df415
    pip install jax==0.10.2 dm-haiku==0.0.17
    cd tests && python -m official.make_nf PATH_OF_THE_CHECKOUT

NF_RegNet names its activation swish, which the dictionary of activations lacks; its silu is meant.
Dropout and stochastic depth are off.
"""

import sys
from collections.abc import Callable
from typing import Any

import haiku
import jax
import numpy as np

from official.parameters import CLASSES, images, parameter, summarize, uniform, write

jax.config.update("jax_enable_x64", True)

SOURCE = f"deepmind-research d8df415, jax {jax.__version__}, haiku {haiku.__version__}"
LAYERS = {
    "initial_conv": "stem",
    "final_conv": "conv",
    "linear": "head",
    "conv_shortcut": "project",
    "squeeze_excite/~/linear": "excite.1.reduce",
    "squeeze_excite/~/linear_1": "excite.1.expand",
    **{f"conv{number}": f"convs.{number}" for number in range(3)},
}
PARAMETERS = {"w": "weight", "b": "bias", "bias": "bias", "gain": "gain", "skip_gain": "join.gain"}


def our_name(module: str, name: str) -> str:
    """Return the name of a haiku parameter in our network."""
    _, *path = module.split("/~/", 2)
    layer = path[-1]
    if not path[0].startswith("nf_"):
        return f"{LAYERS['/~/'.join(path)]}.{PARAMETERS[name]}"
    number = path[0].rpartition("block")[2].strip("_") or "0"
    inside = "" if len(path) == 1 else f"{LAYERS[layer]}."
    return f"blocks.{number}.{inside}{PARAMETERS[name]}"


def to_ours(array: Any) -> Any:
    """Reorder a weight (height, width, in, out) or (in, out)."""
    array = np.asarray(array)
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def to_theirs(array: Any) -> Any:
    """Reorder a weight (out, in, height, width) or (out, in)."""
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def make(case: str, network: Callable[..., Any]) -> None:
    """Write logits in both modes, and gradients."""
    x = images().transpose(0, 2, 3, 1)
    both = haiku.transform(lambda x, training: network()(x, is_training=training)["logits"])
    shapes = jax.eval_shape(lambda x: both.init(jax.random.PRNGKey(0), x, True), x)
    weights = {
        module: {
            name: to_theirs(parameter(our_name(module, name), to_ours(np.empty(leaf.shape)).shape))
            for name, leaf in leaves.items()
        }
        for module, leaves in shapes.items()
    }
    key = jax.random.PRNGKey(0)  # unused, as nothing is dropped

    def loss(weights: Any, x: Any) -> Any:
        logits = both.apply(weights, key, x, True)
        return (logits * uniform("loss", logits.shape)).sum(), logits

    (by_weights, by_x), logits = jax.grad(loss, argnums=(0, 1), has_aux=True)(weights, x)
    gradients = {
        our_name(module, name): to_ours(leaf)
        for module, leaves in by_weights.items()
        for name, leaf in leaves.items()
    }
    gradients["images"] = np.asarray(by_x).transpose(0, 3, 1, 2)
    evaluated = np.asarray(both.apply(weights, key, x, False))
    write(case, SOURCE, training=np.asarray(logits), evaluation=evaluated, **summarize(gradients))


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    from nfnets.nf_regnet import NF_RegNet
    from nfnets.nf_resnet import NF_ResNet

    make("nf_resnet50", lambda: NF_ResNet(CLASSES, drop_rate=0.0, stochdepth_rate=0.0))
    make(
        "nf_regnet_b0",
        lambda: NF_RegNet(CLASSES, drop_rate=0.0, stochdepth_rate=0.0, activation="silu"),
    )
