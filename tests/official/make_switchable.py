"""SwitchNorm2d of switchablenorms/Switchable-Normalization, devkit/ops/switchable_norm.py.

    git clone https://github.com/switchablenorms/Switchable-Normalization     # commit 5472286
    cd tests && python -m official.make_switchable PATH_OF_THE_CHECKOUT

It needs PyTorch alone.
"""

import sys
from pathlib import Path

import torch

from official.parameters import layer_images, parameter, summarize, uniform, write

SOURCE = f"Switchable-Normalization 5472286, torch {torch.__version__}"
NAMES = {
    "weight": "weight",
    "bias": "bias",
    "mean_weight": "mean_logits",
    "var_weight": "var_logits",
    "running_mean": "running_mean",
    "running_var": "running_var",
}


def make() -> None:
    """Write outputs in both modes, gradients, and the statistics after the training step."""
    from switchable_norm import SwitchNorm2d

    x = torch.from_numpy(layer_images()).requires_grad_()
    layer = SwitchNorm2d(x.shape[1]).double()
    state = {
        name: torch.from_numpy(parameter(NAMES[name], (value.numel(),))).view_as(value)
        for name, value in layer.state_dict().items()
    }
    layer.load_state_dict(state)
    evaluated = layer.eval()(x)
    output = layer.train()(x)
    parameters = dict(layer.named_parameters())
    loss = (output * torch.from_numpy(uniform("loss", output.shape))).sum()
    gradients = torch.autograd.grad(loss, [x, *parameters.values()])
    names = ["images", *(NAMES[name] for name in parameters)]
    arrays = {
        name: each.numpy() if name == "images" else each.numpy().ravel()
        for name, each in zip(names, gradients, strict=True)
    }
    write(
        "sn",
        SOURCE,
        training=output.detach().numpy(),
        evaluation=evaluated.detach().numpy(),
        running_mean=layer.running_mean.numpy().ravel(),
        running_var=layer.running_var.numpy().ravel(),
        **summarize(arrays),
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(sys.argv[1]) / "devkit/ops"))
    make()
