"""Heads that turn the maps of a backbone (`normbench.models.backbone`) into maps of predictions.

`segmentation` has FCN and DeepLabv2, `depth` the up-projection of Laina et al. 2016.
"""
