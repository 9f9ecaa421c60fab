"""Sparsestmax (Shao et al. 2019, algorithm 1): ratios whose sparsity grows with a radius.

    sparsemax(v)        the nearest point of the simplex {w >= 0, sum w = 1} (Martins and Astudillo
                        2016)
    sparsestmax(v, r)   the same, moved away from the center of the simplex until the
                        distance is r or a corner is reached

No function branches on values, so torch.vmap and torch.compile take them.
"""

import torch
from torch import Tensor


def sparsemax(v: Tensor) -> Tensor:
    """Return the point of the simplex that is nearest to each vector of `v` (..., K)."""
    ordered = torch.sort(v, descending=True).values
    places = torch.arange(1, v.shape[-1] + 1, device=v.device, dtype=v.dtype)
    excess = torch.cumsum(ordered, dim=-1) - 1
    # The largest k whose threshold excess_k / k is below the k-th value; k = 1 always is.
    size = (ordered * places > excess).sum(-1, keepdim=True).clamp(min=1)
    threshold = excess.gather(-1, size - 1) / size
    return (v - threshold).clamp(min=0)


def sparsestmax(v: Tensor, radius: Tensor) -> Tensor:
    """Return the ratios (..., K) of the logits `v` at a `radius` ()."""
    # After each round the ratios lie on the sphere, or are on a face of one dimension less. A
    # further round changes nothing.
    left = radius.to(v.dtype).square()  # squared radius around the center of the current face
    center = None
    for _ in range(v.shape[-1]):
        v = sparsemax(v)
        face_center = _face_center(v)
        if center is not None:
            left = (left - _squared_length(face_center - center)).clamp(min=0)
        center = face_center
        squared = _squared_length(v - center)
        # At a center there is no direction, and at a corner no way to go.
        moves = (squared < left) & (squared > 0)
        scale = torch.sqrt(torch.where(moves, left / torch.where(moves, squared, 1), 1))
        v = center + (v - center) * scale
    return sparsemax(v)


def reference_sparsestmax(v: Tensor, radius: float) -> Tensor:
    """Compute the same as the paper writes it, in the precision of `v`."""
    w = _reference_sparsemax(v)
    center = _face_center(w)
    while (distance := torch.linalg.vector_norm(w - center)) < radius and distance > 0:
        pushed: Tensor = center + radius * (w - center) / distance
        if pushed.min() >= 0:
            return pushed
        w = _reference_sparsemax(pushed)
        before, center = center, _face_center(w)
        radius = float(torch.sqrt(radius**2 - ((center - before) ** 2).sum()))
        if (w > 0).sum() == 1:
            break
    return w


def _face_center(w: Tensor) -> Tensor:
    """Return the center of the smallest face of the simplex that has `w`."""
    center: Tensor = (w > 0).to(w.dtype) / (w > 0).sum(-1, keepdim=True)
    return center


def _squared_length(v: Tensor) -> Tensor:
    return v.square().sum(-1, keepdim=True)


def _reference_sparsemax(v: Tensor) -> Tensor:
    ordered = sorted(v.tolist(), reverse=True)
    size = max(k for k in range(1, len(v) + 1) if 1 + k * ordered[k - 1] > sum(ordered[:k]))
    chosen = v >= ordered[size - 1]
    return torch.where(chosen, v - (v[chosen].sum() - 1) / chosen.sum(), 0.0)
