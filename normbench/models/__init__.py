"""Architectures as plain modules that take the normalizer as an argument.

`resnet`, `resnet_cifar`, `nf_regnet` and `random_net` are our own, built from `blocks` and
`dropout`; `timm_models` builds those of timm by `swap`, which puts a normalizer into any network
that torch.fx can trace (`fx_graph`, `layer_types`, `untraced`). `coverage` counts the layers that a
normalizer reached; `profile` and `network_info` measure a network without training it; `backbone`
and `heads` make networks of dense prediction. Begin with `resnet` or `swap`.
"""
