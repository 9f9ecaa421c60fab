"""ResNet-50 of tensorflow/tpu, models/official/resnet: v2 with EvoNorm-B0, S0 and BN, v1 with BN.

git clone https://github.com/tensorflow/tpu     # commit 7dc921f
pip install tensorflow-cpu==2.21.0 tf_keras==2.21.0
cd tests && python -m official.make_tpu_resnet PATH_OF_THE_CHECKOUT
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from official.parameters import CLASSES, images, write
from official.tensorflow_double import DoubleTensorFlow, our_parameters, run

SOURCE = f"tensorflow/tpu 7dc921f, tensorflow {tf.__version__}"
DEPTHS = (3, 4, 6, 3)
STARTS = (0, 3, 7, 13)  # blocks with a projection
PARAMETERS = {
    "gamma": "weight",
    "beta": "bias",
    "v": "v",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def list_layers(*, v2: bool) -> tuple[Iterator[str], Iterator[str]]:
    """Return our convolutions and our normalizations, in the order in which theirs are made."""
    convs, norms = ["stem"], [] if v2 else ["norm"]
    for block in range(sum(DEPTHS)):
        path = f"blocks.{block}"
        if block in STARTS:
            convs.append(f"{path}.project" if v2 else f"{path}.shortcut.0")
            norms += [] if v2 else [f"{path}.shortcut.1"]
        convs += [f"{path}.convs.{number}" for number in range(3)]
        norms += [f"{path}.norms.{number}" for number in range(3)]
    return iter(convs), iter([*norms, "last"] if v2 else norms)


def name_variables(*, v2: bool) -> dict[Any, str]:
    """Return our name of every variable."""
    convs, norms = list_layers(v2=v2)
    scopes: dict[str, str] = {}
    names = {}
    for variable in tf.global_variables():
        scope, _, kind = variable.op.name.rpartition("/")
        if scope.startswith("dense"):
            names[variable] = "head.weight" if kind == "kernel" else "head.bias"
        elif kind == "kernel":
            names[variable] = f"{next(convs)}.weight"
        else:
            if scope not in scopes:
                scopes[scope] = next(norms)
            names[variable] = f"{scopes[scope]}.{PARAMETERS[kind]}"
    assert next(convs, next(norms, None)) is None
    return names


def build(layer: str, x: Any, *, v2: bool, training: bool) -> Any:
    """Return logits; the second call uses the variables of the first."""
    import resnet_model

    network = resnet_model.resnet(
        50, CLASSES, data_format="channels_last", pre_activation=v2, norm_act_layer=layer
    )
    return network(x, training)


def make(case: str, layer: str, *, v2: bool = True) -> None:
    """Write logits in both modes, gradients and the gains that start at 0."""
    x = images()
    results = {}
    for training in (True, False):
        with tf.Graph().as_default(), tf.variable_scope("", dtype=tf.float64):
            placeholder = tf.placeholder(tf.float64, (2, 64, 64, 3))
            logits = build(layer, placeholder, v2=v2, training=training)
            names = name_variables(v2=v2)
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                gains = [v for v in names if v.op.name.endswith("gamma")]
                zeros = [
                    names[gain]
                    for gain, start in zip(gains, session.run(gains), strict=True)
                    if not np.any(start)
                ]
                for variable, value in our_parameters(names).items():
                    variable.load(value, session)
                trained = {v: names[v] for v in tf.trainable_variables()}
                values, gradients = run(session, placeholder, x, logits, trained)
        if training:
            results = {"training": values, "zeros": np.array(zeros, dtype=str), **gradients}
    write(case, SOURCE, evaluation=values, **results)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(sys.argv[1]) / "models/official/resnet"))
    import resnet_layers
    import resnet_model

    resnet_model.tf = resnet_layers.tf = DoubleTensorFlow()
    make("resnet50_v2_evonorm_b0", resnet_model.LAYER_EVONORM_B0)
    make("resnet50_v2_evonorm_s0", resnet_model.LAYER_EVONORM_S0)
    make("resnet50_v2_bn", resnet_model.LAYER_BN_RELU)
    make("resnet50_bn", resnet_model.LAYER_BN_RELU, v2=False)
