"""Networks of one architecture as one vmapped network.

The weights of K networks lie in one tensor each, (K, ...), and torch.vmap computes all networks in
one pass. Each network keeps views of its slices, so what reads it between two steps (evaluation,
moving average, probes, checkpoints) sees it as if it were trained alone.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from normbench.errors import one_line
from normbench.models.random_layers import random_layers
from normbench.norms.base.running import NetworkStatistics


class StackedNetworks:
    """K networks of one architecture whose weights have a leading dimension K.

    Parameters and buffers of `networks` become views of the stacked ones.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self.networks = networks
        # torch.func.stack_module_state refuses graphs of torch.fx: each has a class of its own.
        parameters = {
            name: nn.Parameter(
                torch.stack([each.get_parameter(name).detach() for each in networks]),
                first.requires_grad,
            )
            for name, first in networks[0].named_parameters()
        }
        self.buffers = {
            name: torch.stack([each.get_buffer(name) for each in networks])
            for name, _ in networks[0].named_buffers()
        }
        #: Structure and parameter roles of the networks, with stacked parameters; it has no forward
        #: of its own, only `__call__` can compute it.
        self.model = deepcopy(networks[0])
        # A graph of torch.fx drops it.
        self.model.block_patterns = getattr(networks[0], "block_patterns", None)  # type: ignore[assignment]
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for module in self.model.modules():
            for leaf, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, leaf, parameters[names[parameter]])
        tensors = parameters | self.buffers
        for number, network in enumerate(networks):
            for name, tensor in chain(network.named_parameters(), network.named_buffers()):
                # `.data` keeps the parameter object, which optimizers hold, and needs no autograd.
                tensor.data = tensors[name].detach()[number]

    def __call__(self, compute: Callable[..., Any], *inputs: Tensor) -> Any:
        """Map `compute` over the networks and their slices of `inputs`, all (K, ...).

        `compute` takes a function images -> logits, and the inputs of one network.
        """

        def compute_one(weights: dict[str, Tensor], *slices: Tensor) -> Any:
            return compute(lambda x: functional_call(self.model, weights, (x,)), *slices)

        return torch.vmap(compute_one)(dict(self.model.named_parameters()) | self.buffers, *inputs)

    def split_optimizer_state(self, stacked: Optimizer, optimizers: Sequence[Optimizer]) -> None:
        """Give the optimizer of each network its slices of the stacked optimizer's state."""
        for number, (network, optimizer) in enumerate(zip(self.networks, optimizers, strict=True)):
            pairs = zip(self.model.parameters(), network.parameters(), strict=True)
            for parameter, slice_ in pairs:
                state = stacked.state[parameter].items()
                optimizer.state[slice_] = {
                    name: value[number] if _is_stacked(value) else value for name, value in state
                }

    def stack_optimizer_state(self, stacked: Optimizer, optimizers: Sequence[Optimizer]) -> None:
        """Stack the states of the networks' optimizers, for resumed trainings."""
        slices = zip(*(network.parameters() for network in self.networks), strict=True)
        for parameter, of_networks in zip(self.model.parameters(), slices, strict=True):
            pairs = zip(optimizers, of_networks, strict=True)
            states = [optimizer.state[slice_] for optimizer, slice_ in pairs]
            stacked.state[parameter] = {
                name: torch.stack([state[name] for state in states])
                if isinstance(value, Tensor) and value.shape == parameter.shape[1:]
                else value
                for name, value in states[0].items()
            }


def _is_stacked(value: Any) -> bool:
    """Return True if a value of an optimizer's state has a slice for each network."""
    return isinstance(value, Tensor) and value.dim() > 0


def explain_unstackable_network(
    network: nn.Module, images: int, image: tuple[int, int, int]
) -> str:
    """Return why torch.vmap cannot compute several of `network`, on the meta device, or "".

    A step has so many `images`, each of the shape (C, H, W) of `image`.
    """
    if random_layers(network):
        return "paths that are dropped by the seed of each run"
    if NetworkStatistics(network).read_in_training:
        return "running statistics that training reads"
    try:
        x = torch.empty(2, images, *image, device="meta")
        copy = deepcopy(network)
        buffers = dict(copy.named_buffers())
        copy(x[0])
        if any(buffer is not buffers[name] for name, buffer in copy.named_buffers()):
            return "a layer that replaces its buffers, where vmap needs them changed in place"
        stack = StackedNetworks([deepcopy(network), deepcopy(network)])
        stack(lambda model, slice_: model(slice_), x).sum().backward()
    except Exception as error:  # layers of other packages can fail in any way
        return one_line(error)
    return ""
