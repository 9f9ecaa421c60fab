"""Losses by worker and metrics of tasks other than classification.

`segment` is semantic segmentation, `depth` the estimation of depth. Images (N, ...) of a forward
pass belong to workers as everywhere: image k to worker k mod W (`normbench.norms.workers`).
"""
