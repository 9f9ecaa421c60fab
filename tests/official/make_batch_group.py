"""Write batch_group.npz: inputs and outputs of the authors' layer of Four Things.

    python tests/official/make_batch_group.py normalization.py

The argument is the file of github.com/ceciliaresearch/four_things_batch_norm, of commit 3d281c3. It
is written for TensorFlow 1. A stand-in in numpy has its operations (reshape, tile, means, sums of
squares, variables and their assignment), in double precision, also where the file asks for floats;
the file itself runs as it is.
"""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

STEPS = 2  # of training, each on other images
ALPHAS = (0.0, 0.1, 0.5, 1.0)
#: Channels, groups, images of a step, images that share statistics, side of the maps.
CASES = ((48, 32, 2, 2, 2), (80, 32, 2, 2, 2), (6, 4, 4, 2, 3), (8, 2, 4, 1, 3))
CHANNELS = (6, 16, 32, 48, 64, 80, 96, 128, 160, 192, 320, 384, 448, 2048)


class Maps(np.ndarray):
    """An array with a static shape, as a tensor of TensorFlow has."""

    def get_shape(self) -> Any:
        return SimpleNamespace(as_list=lambda: list(self.shape))


def stand_in(variables: dict[str, np.ndarray]) -> ModuleType:
    """Return a module in place of tensorflow, whose variables are `variables`."""

    def get_variable(
        name: str,
        shape: Sequence[int] = (),
        initializer: Any = None,
        **_: Any,
    ) -> np.ndarray:
        initial: np.ndarray = initializer(shape) if callable(initializer) else initializer
        return variables.setdefault(name, initial)

    def assign(variable: np.ndarray, value: np.ndarray) -> None:
        variable[...] = value

    def reduce_mean(
        x: np.ndarray, axis: Any, keepdims: bool = False, keep_dims: bool = False
    ) -> np.ndarray:
        axes = tuple(axis) if isinstance(axis, list) else axis
        mean: np.ndarray = np.mean(x, axis=axes, keepdims=keepdims or keep_dims)
        return mean

    def sufficient_statistics(x: np.ndarray, axes: list[int], keep_dims: bool) -> tuple[Any, ...]:
        x = np.asarray(x)
        count = float(np.prod([x.shape[axis] for axis in axes]))
        sums = (np.sum(each, axis=tuple(axes), keepdims=keep_dims) for each in (x, x**2))
        return count, *sums, None

    module = ModuleType("tensorflow")
    operations = {
        "variable_scope": lambda scope: nullcontext(scope),
        "shape": lambda x: np.array(x.shape),
        "get_variable": get_variable,
        "constant": lambda value, shape: np.full(shape, value),
        "initializers": SimpleNamespace(zeros=np.zeros, ones=np.ones),
        "nn": SimpleNamespace(sufficient_statistics=sufficient_statistics),
        "assign": assign,
        "add_to_collection": lambda *_: None,
        "GraphKeys": SimpleNamespace(UPDATE_OPS=""),
        "reduce_mean": reduce_mean,
        "minimum": min,
        "reshape": np.reshape,
        "tile": np.tile,
        "pow": np.power,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "float32": None,
    }
    vars(module).update(operations)
    return module


def run_official(source: str) -> dict[str, np.ndarray]:
    """Return the arrays of all cases, by the case's number and what they are."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for number, (channels, groups, images, together, side) in enumerate(CASES):
        variables = {
            "gamma": random.normal(1, 0.2, (1, channels, 1, 1)),
            "beta": random.normal(0, 0.2, (1, channels, 1, 1)),
        }
        sys.modules["tensorflow"] = stand_in(variables)
        namespace: dict[str, Any] = {}
        exec(source, namespace)
        layer, options = namespace["normalization_layer"], {"channel_groups": groups}
        shape = (images, channels, side, side)
        means = random.normal(0, 1, (1, channels, 1, 1))
        for step in range(STEPS):
            x = means + random.normal(0, 1 + step, shape)
            y = layer(x.view(Maps), examples_per_group=together, **options)
            arrays |= {f"{number} x{step}": x, f"{number} y{step}": np.asarray(y)}
        x = means + random.normal(0, 1, shape)
        arrays |= {f"{number} {name}": each.ravel() for name, each in variables.items()}
        arrays[f"{number} x"] = x
        for alpha in ALPHAS:
            y = layer(x.view(Maps), is_training=False, example_eval_weight=alpha, **options)
            arrays[f"{number} alpha={alpha:g}"] = np.asarray(y)
        count = namespace["get_num_channel_groups"]
        arrays["groups"] = np.array([count(each, 0, 32)[0] for each in CHANNELS])
    return arrays


if __name__ == "__main__":
    arrays: dict[str, Any] = {
        "cases": np.array(CASES),
        "alphas": np.array(ALPHAS),
        "channels": np.array(CHANNELS),
        "numpy": np.array(np.__version__),
        **run_official(Path(sys.argv[1]).read_text()),
    }
    np.savez_compressed(Path(__file__).with_name("batch_group.npz"), **arrays)
