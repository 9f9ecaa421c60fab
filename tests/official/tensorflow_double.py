"""TensorFlow 1 code in double precision: where it says float32 it gets float64.

The legacy Keras layers (tf_keras) stand behind `tf.layers`, which Keras 3 lacks.
"""

import os
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from official.parameters import Array, parameter, summarize, uniform

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # read when `tf.layers` is used first
tf.disable_eager_execution()


class DoubleTensorFlow(ModuleType):
    """The module tensorflow of version 1, with float64 as its float32."""

    float32 = tf.float64
    float16 = tf.float64

    def __init__(self) -> None:
        super().__init__("tensorflow")
        self.compat = SimpleNamespace(v1=self)

    @staticmethod
    def constant(value: Any, dtype: Any = None, **options: Any) -> Any:
        """Return a constant, of float64 where TensorFlow takes float32 by default."""
        return tf.constant(value, tf.float64 if isinstance(value, float) else dtype, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(tf, name)


def to_ours(array: Any) -> Any:
    """Reorder maps and weights: (height, width, in, out) becomes (out, in, height, width)."""
    array = np.asarray(array)
    if array.ndim == 4 and array.shape[:3] == (1, 1, 1):  # a value per channel
        return array.ravel()
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def to_theirs(array: Array, shape: tuple[int, ...]) -> Array:
    """Undo `to_ours`."""
    if array.ndim == 1:
        return array.reshape(shape)
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def our_parameters(names: Mapping[Any, str]) -> dict[Any, Array]:
    """Return the values of variables, which have `names` in our network."""
    values = {}
    for variable, name in names.items():
        shape = tuple(variable.shape.as_list())
        size = (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else shape[::-1]
        size = (shape[-1],) if len(shape) == 4 and shape[:3] == (1, 1, 1) else size
        values[variable] = to_theirs(parameter(name, size), shape)
    return values


def run(session: Any, x: Any, images: Array, logits: Any, names: Mapping[Any, str]) -> Any:
    """Return logits, and the summary of the gradients of their weighted sum.

    `x` is the placeholder of the images (N, H, W, C), `names` has the trained variables.
    """
    feed = {x: images.transpose(0, 2, 3, 1)}
    weights = tf.constant(uniform("loss", logits.shape.as_list()))
    variables = list(names)
    gradients = tf.gradients(tf.reduce_sum(logits * weights), [x, *variables])
    values, (by_x, *by_variables) = session.run((logits, gradients), feed)
    summary = {names[v]: to_ours(g) for v, g in zip(variables, by_variables, strict=True)}
    return values, summarize({"images": by_x.transpose(0, 3, 1, 2), **summary})
