"""Architectures as plain modules that take the normalizer as an argument.

`resnet`, `resnet_cifar`, `nf_regnet` and `random_net` are our own, built from `blocks` and `drop`;
`timm_models` builds those of timm by `swap`, which puts a normalizer into any network that torch.fx
can trace (`fx_graph`, `layer_types`). `coverage` counts the layers that a normalizer replaces,
`profile` counts parameters and multiply-accumulates. Begin with `resnet` or `swap`.
"""
