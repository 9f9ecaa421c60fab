"""EfficientNet-B0 with group normalization and Proxy Norm of graphcore/examples.

    git clone --branch v3.0.0 https://github.com/graphcore/examples     # commit f60a6b32f8
    pip install tensorflow-cpu==2.21.0 tf_keras==2.21.0 scipy
    cd tests && python -m official.make_graphcore PATH_OF_THE_CHECKOUT

The code of vision/cnns/tensorflow1/training runs on TensorFlow's CPU kernels. Stand-ins replace
what exists for the IPU alone: group normalization by its documentation (channel c in group c mod G,
biased variances), swish, the outlining of functions. Depthwise convolutions, which the code writes
as grouped ones, are TensorFlow's depthwise kernel, as grouped ones have no gradient on a CPU. The
proxy's mean and deviation, and the gradients through them, are computed by the code's optimizer,
with a weight decay of 0. Dropout and stochastic depth are off.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from official.parameters import CLASSES, Array, images, parameter, summarize, uniform, write
from official.tensorflow_double import DoubleTensorFlow, our_parameters, to_ours

SOURCE = f"graphcore/examples f60a6b32f8, tensorflow {tf.__version__}"
REPEATS = (1, 2, 2, 3, 3, 4, 1)
OPTIONS = {
    "model_size": "B0", "width_coefficient": None, "depth_coefficient": None, "dropout_rate": 0.0,
    "block_survival_prob": 1.0, "expand_ratio": 6, "no_se": False, "depth_divisor": 8,
    "use_relu": False, "proxy_epsilon": 0.03, "proxy_recompute": False, "top_width": 1280,
    "group_dim": 1, "norm_type": "group", "groups": 4, "norm_epsilon": 1e-3, "precision": "32.32",
    "dataset": "cifar-10",
}  # fmt: skip
#: Rows of the variable that has all parameters of a proxy-normalized layer.
ROWS = {0: "bias", 1: "weight", 4: "proxy_bias", 5: "proxy_weight"}


def group_norm(x: Any, groups: int, epsilon: float, center: bool, scale: bool) -> Any:
    """Return the group normalization of IPUs, whose groups are strided by default."""
    _, height, width, channels = x.shape.as_list()
    grouped = tf.reshape(x, (-1, height, width, channels // groups, groups))
    mean, var = tf.nn.moments(grouped, (1, 2, 3), keepdims=True)
    x = tf.reshape((grouped - mean) / tf.sqrt(var + epsilon), tf.shape(x))
    if scale:
        x = x * tf.get_variable("gamma", (channels,), x.dtype)
    return x + tf.get_variable("beta", (channels,), x.dtype) if center else x


def conv2d(x: Any, filters: Any, strides: Any, padding: str) -> Any:
    """Return a convolution, which is full or depthwise."""
    size, _, inputs, outputs = filters.shape.as_list()
    if inputs == x.shape[3]:
        return tf.nn.conv2d(x, filters=filters, strides=strides, padding=padding)
    depthwise = tf.reshape(filters, (size, size, outputs, inputs))
    return tf.nn.depthwise_conv2d(x, depthwise, strides, padding)


class GraphcoreTensorFlow(DoubleTensorFlow):
    """TensorFlow with grouped convolutions on a CPU."""

    @property
    def nn(self) -> Any:
        return SimpleNamespace(**{**vars(tf.nn), "conv2d": conv2d, "swish": tf.nn.swish})


def import_official(checkout: str) -> tuple[Any, Any]:
    """Return the modules efficientnet and proxy_norm, with stand-ins for what IPUs have."""
    import tf_keras

    tf_keras.backend.set_floatx("float64")

    ipu: Any = ModuleType("tensorflow.python.ipu")
    ipu.outlined_function = lambda function: function
    ipu.normalization_ops = SimpleNamespace(group_norm=group_norm)
    ipu.nn_ops = SimpleNamespace(swish=tf.nn.swish)
    keras: Any = ModuleType("tensorflow.python.keras")
    keras.layers = tf_keras.layers
    unused = ModuleType("tensorflow.python.training.training_ops")
    sys.modules |= {module.__name__: module for module in (ipu, keras, unused)}
    sys.path.insert(0, str(Path(checkout) / "vision/cnns/tensorflow1/training"))
    from Models import batch_norm, efficientnet, model_base, proxy_norm

    for module in (batch_norm, efficientnet, model_base, proxy_norm):
        module.tf = GraphcoreTensorFlow()
    return efficientnet, proxy_norm


def list_layers() -> tuple[Iterator[str], Iterator[str]]:
    """Return our convolutions and our normalizations, in the order in which theirs are made."""
    convs, norms = ["conv_stem"], ["bn1"]
    for stage, repeats in enumerate(REPEATS):
        for block in range(repeats):
            path = f"blocks.{stage}.{block}"
            excite = ["se.conv_reduce", "se.conv_expand"]
            layers = ["conv_pw", "conv_dw", *excite, "conv_pwl"]
            if stage == 0:  # whose block does not expand
                layers = ["conv_dw", *excite, "conv_pw"]
            convs += [f"{path}.{layer}" for layer in layers]
            norms += [f"{path}.bn{number + 1}" for number in range(len(layers) - 2)]
    return iter([*convs, "conv_head", "classifier"]), iter([*norms, "bn2"])


def name_variables() -> dict[Any, str]:
    """Return our name of every variable, or of the layer whose parameters are in one variable."""
    convs, norms = list_layers()
    names, layer = {}, ""
    for variable in tf.global_variables():
        kind = variable.op.name.rpartition("/")[2]
        if kind in ("kernel", "bias"):
            layer = next(convs) if kind == "kernel" else layer
            names[variable] = f"{layer}.{'weight' if kind == 'kernel' else 'bias'}"
        elif kind in ("gamma", "beta"):
            layer = next(norms) if kind == "gamma" else layer
            names[variable] = f"{layer}.{'weight' if kind == 'gamma' else 'bias'}"
        else:
            names[variable] = next(norms)
    assert next(convs, next(norms, None)) is None
    return names


def proxy_value(name: str, channels: int) -> Array:
    """Return the rows of a proxy-normalized layer; the optimizer fills in rows 2 and 3."""
    rows = [
        parameter(f"{name}.{ROWS[row]}", (channels,)) if row in ROWS else np.zeros(channels)
        for row in range(6)
    ]
    return np.stack(rows).reshape(6, 1, 1, channels)


def proxy_optimizer(module: Any) -> Any:
    """Return the optimizer that computes the proxies' statistics."""
    optimizer = module.make_pn_optimiser(
        object,
        activation=tf.nn.swish,
        proxy_epsilon=np.float64(OPTIONS["proxy_epsilon"]),  # tf.cast takes floats as float32
        dtype=tf.float64,
        weight_decay=0.0,
    )
    return optimizer()


def to_named_gradients(names: Mapping[Any, str], gradients: Mapping[Any, Any]) -> dict[str, Array]:
    """Return gradients by the names of our parameters."""
    named: dict[str, Array] = {}
    for variable, gradient in gradients.items():
        if variable.shape.as_list()[0] == 6 and gradient.ndim == 4 and gradient.shape[1] == 1:
            for row, parameter_name in ROWS.items():
                named[f"{names[variable]}.{parameter_name}"] = gradient[row].ravel()
        else:
            named[names[variable]] = to_ours(gradient)
    return named


def compute(network: Any, proxy_norm: Any, *, proxied: bool, training: bool) -> tuple[Any, Any]:
    """Return logits and gradients by the names of our parameters."""
    with tf.Graph().as_default(), tf.variable_scope("", dtype=tf.float64):
        x = tf.placeholder(tf.float64, (2, 64, 64, 3))
        logits = network({**OPTIONS, "proxy_norm": proxied}, training)(x)
        names = name_variables()
        proxies = [v for v in names if v.op.name.endswith("proxy")]
        weights = {v: name for v, name in names.items() if v not in proxies}
        loss = tf.reduce_sum(logits * uniform("loss", (2, CLASSES)))
        by_x, *gradients = tf.gradients(loss, [x, *names])
        by_variable = dict(zip(names, gradients, strict=True))
        optimizer = proxy_optimizer(proxy_norm)
        samples = tf.reshape(tf.constant(proxy_norm.get_rand(), tf.float64), (1, 1, 1, 1, -1))
        filled = [optimizer.proxy_fw(v, samples) for v in proxies]
        for v in proxies:
            by_variable[v] = optimizer.proxy_bw(v, by_variable[v], samples)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for variable, value in our_parameters(weights).items():
                variable.load(value, session)
            for v in proxies:
                v.load(proxy_value(names[v], v.shape[3]), session)
            for v, value in zip(proxies, session.run(filled), strict=True):
                v.load(value, session)
            feed = {x: images().transpose(0, 2, 3, 1)}
            values, image, computed = session.run((logits, by_x, list(by_variable.values())), feed)
    computed = dict(zip(by_variable, computed, strict=True))
    named = to_named_gradients(names, computed)
    return values, {"images": image.transpose(0, 3, 1, 2), **named}


def make(case: str, efficientnet: Any, proxy_norm: Any, *, proxied: bool) -> None:
    """Write logits in both modes, and gradients."""
    network = efficientnet.EfficientNet
    values, gradients = compute(network, proxy_norm, proxied=proxied, training=True)
    evaluated, _ = compute(network, proxy_norm, proxied=proxied, training=False)
    write(case, SOURCE, training=values, evaluation=evaluated, **summarize(gradients))


if __name__ == "__main__":
    modules = import_official(sys.argv[1])
    make("efficientnet_b0_gn", *modules, proxied=False)
    make("efficientnet_b0_gn_pn", *modules, proxied=True)
