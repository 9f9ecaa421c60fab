"""Make sparse_switch_norm.npz by the authors' code of sparse switchable normalization.

    git clone https://github.com/switchablenorms/Sparse_SwitchNorm
    python tests/official/make_sparse_switch_norm.py Sparse_SwitchNorm

The file was made at commit 875db480b5 with torch 2.14.1, in double precision: constants of the code
that are single precision are replaced, and so is its use of a CUDA device.
"""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

SHAPE, RADII, LOGITS, STEPS = (4, 6, 5, 3), (0.0, 0.2, 0.45, 0.7, 0.95), 40, 3


def load(folder: Path) -> tuple[types.ModuleType, types.ModuleType]:
    """Return the modules ssn_utils and sparse_switchable_norm of the clone in `folder`."""
    modules = []
    for name in ("ssn_utils", "sparse_switchable_norm"):
        source = (folder / "utils" / f"{name}.py").read_text()
        source = source.replace(".float()", ".double()").replace("torch.cuda.Float", "torch.Double")
        module = types.ModuleType(f"utils.{name}")
        module.__package__ = "utils"
        sys.modules[module.__name__] = module
        exec(compile(source, name, "exec"), module.__dict__)
        modules.append(module)
    return modules[0], modules[1]


def main(folder: Path) -> None:
    """Write ratios of many logits, and outputs of a layer while its radius grows."""
    sys.modules["utils"] = types.ModuleType("utils")
    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(0)
    utils, official = load(folder)
    logits = 2 * torch.rand(LOGITS, 3, generator=generator) - 0.5
    ratios = [[utils.sparsestmax(v, radius) for radius in RADII] for v in logits]
    arrays = {"logits": logits, "ratios": torch.stack([torch.stack(each) for each in ratios])}
    layer = official.SSN2d(SHAPE[1])
    for name, parameter in layer.named_parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
        arrays[name] = parameter.data.clone()
    for step, radius in enumerate(np.linspace(0.1, 0.9, STEPS)):
        x = 2 * torch.randn(SHAPE, generator=generator) + 0.7
        x.requires_grad_()
        layer.set_rad(radius)
        output = layer(x)
        (gradient,) = torch.autograd.grad((output**3).sum(), x)
        arrays |= {f"x{step}": x.detach(), f"output{step}": output.detach()}
        arrays |= {f"gradient{step}": gradient}
    arrays |= {"running_mean": layer.running_mean, "running_var": layer.running_var}
    arrays |= {"evaluated": layer.eval()(x).detach()}
    path = Path(__file__).with_name("sparse_switch_norm.npz")
    plain: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
    np.savez_compressed(path, **plain)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
