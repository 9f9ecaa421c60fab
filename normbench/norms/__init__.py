"""Normalizers: one file per family, each layer a page with formula, forward and reference.

N images of a forward pass, C channels, H W positions, G groups, W workers. A layer maps
(N, C, H, W) to the same shape and is normalization and activation together: `layer(channels, act)`.
Without a following activation it is `layer(channels, None)`; an activation without a preceding
normalization is `activation(channels, act)`. Gains start at 1 and shifts at 0. Statistics are
computed in at least fp32, also under autocast, so that squares of fp16 maps do not overflow; the
output has the dtype and memory format of the input. `eps` is added inside the square root unless a
page says otherwise. All layers can be exported by `torch.export`; docs/guide/deploy.md says which
of them fold into convolutions.

Use in the blocks of the papers' networks:

    v1          conv, layer(act), conv, layer(act), conv, layer(None); shortcut: conv, layer(None);
                after the addition activation(act)
    v2          layer(act), conv, layer(act), conv, layer(act), conv; a shortcut's conv takes what
                the first layer returns; before the final mean over positions final_layer(act)
    MBConv      conv, layer(act), depthwise conv, layer(act), [squeeze-excite,] conv, layer(None)

Convolutions in front of a layer have no bias. Squeeze-excite stays as it is.

Batch-independent layers support gradients of single images (`torch.func.vmap`), as training with
differential privacy needs them; other layers raise an error. A batch-invariant layer gives an image
bitwise the same output and gradient at every batch size, on a CPU, except with SiLU, which torch
rounds differently at the end of a tensor. Other batch-independent layers agree up to rounding,
because the order of their sums may depend on the batch size.
"""
