"""Unequal workers: classes divided among workers by a Dirichlet distribution.

As in federated or sharded training, every worker has images of its own for the whole run. The
shares of classes that a worker draws are a sample of Dirichlet(alpha * C * p), where p are the
shares of the C classes in the training set (Hsu, Qi and Brown 2019, section 3, whose alpha is C
times this one). With alpha = 100 they are nearly those of the training set; with alpha = 0.01 a
worker has nearly one class, until the classes run out.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

STREAM = 15  # apart from other draws of a seed by numpy


def divide(labels: Tensor, workers: int, alpha: float, seed: int) -> Tensor:
    """Divide images among workers.

    Workers take turns. Each draws a class that has images left, with its shares as probabilities,
    and takes one of the images. If all classes with a share above 0 are used up, it draws new
    shares of the others.

    Args:
        labels: class (N,) of each training image.
        workers: W, at most N.
        alpha: concentration; the smaller, the less equal the workers are.
        seed: of the run.

    Returns:
        Indices (W, N // W) of each worker's images.
    """
    draw = np.random.default_rng((seed, STREAM))
    classes, counts = np.unique(labels.numpy(), return_counts=True)
    shuffled = draw.permutation(len(labels))
    by_class = shuffled[np.argsort(labels.numpy()[shuffled], kind="stable")]
    concentration = alpha * len(classes) * counts / counts.sum()
    shares = draw.dirichlet(concentration, workers)
    ends = counts.cumsum()
    images = np.empty((len(labels) // workers, workers), dtype=np.int64)
    left = counts.copy()
    for (turn, worker), uniform in np.ndenumerate(draw.random(images.shape)):
        chances: NDArray[np.float64] = shares[worker] * (left > 0)
        if not chances.any():  # its classes have run out
            shares[worker, left > 0] = draw.dirichlet(concentration[left > 0])
            chances = shares[worker] * (left > 0)
        bounds = (chances / chances.max()).cumsum()  # tiny shares would be rounded to 0
        drawn = int(np.searchsorted(bounds, uniform * bounds[-1], side="right"))
        images[turn, worker] = by_class[ends[drawn] - left[drawn]]
        left[drawn] -= 1
    return torch.from_numpy(images.T.copy())
