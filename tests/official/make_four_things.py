"""The normalization layer of ceciliaresearch/four_things_batch_norm, normalization.py.

    git clone https://github.com/ceciliaresearch/four_things_batch_norm     # commit 3d281c3
    pip install tensorflow-cpu==2.21.0 tf_keras==2.21.0
    cd tests && python -m official.make_four_things PATH_OF_THE_CHECKOUT

Its example groups are adjacent images; ours are every n-th image, so images are reordered. Its
moving averages are those of x and x^2, which are set from ours.
"""

import sys
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from official.parameters import (
    EXAMPLE_WEIGHTS,
    Array,
    layer_images,
    parameter,
    summarize,
    uniform,
    write,
)
from official.tensorflow_double import DoubleTensorFlow

SOURCE = f"four_things_batch_norm 3d281c3, tensorflow {tf.__version__}"


def regroup(x: Array, sets: int) -> Array:
    """Move image k of set k mod `sets` behind the other images of its set."""
    return np.concatenate([x[first::sets] for first in range(sets)])


def compute(images: Array, *, training: bool, **options: Any) -> tuple[Array, dict[str, Array]]:
    """Return the layer's output, and the gradients of its weighted sum by our names."""
    import normalization

    channels = images.shape[1]
    sets = len(images) // options["examples_per_group"]
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float64, images.shape)
        output = normalization.normalization_layer(x, training, **options)
        by_name = {v.op.name.rpartition("/")[2]: v for v in tf.global_variables()}
        mean = parameter("running_mean", (channels,))
        square = parameter("running_var", (channels,)) + mean**2
        values = {"gamma": parameter("weight", (channels,)), "beta": parameter("bias", (channels,))}
        for name, value in {**values, "moving_x": mean, "moving_x2": square}.items():
            by_name[name].load(value.reshape(1, channels, 1, 1), session)
        weights = regroup(uniform("loss", images.shape), sets)
        inputs = {"images": x, "weight": by_name["gamma"], "bias": by_name["beta"]}
        gradients = tf.gradients(tf.reduce_sum(output * weights), list(inputs.values()))
        results = session.run([output, *gradients], {x: regroup(images, sets)})
    output, by_x, *others = results
    gradients = [regroup(by_x, len(images) // sets), *(each.ravel() for each in others)]
    return regroup(output, len(images) // sets), dict(zip(inputs, gradients, strict=True))


def make(case: str, **options: Any) -> None:
    """Write the outputs of training and of evaluation with several example weights."""
    images = layer_images()
    output, gradients = compute(images, training=True, **options)
    evaluated = [
        compute(images, training=False, example_eval_weight=weight, **options)[0]
        for weight in EXAMPLE_WEIGHTS
    ]
    write(case, SOURCE, training=output, evaluation=np.stack(evaluated), **summarize(gradients))


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    import normalization

    normalization.tf = DoubleTensorFlow()
    make("four_things_ghost_bn", channels_per_group=1, examples_per_group=2)
    make("four_things_bgn", channel_groups=3, examples_per_group=2)
    make("four_things_gn", channel_groups=3, examples_per_group=1)
