"""Moments over all devices that share the images of an optimizer step."""

from torch import Tensor, distributed
from torch.distributed.nn.functional import all_reduce

from normbench.norms.base.moments import Moments


def count_devices() -> int:
    """Return the number of processes that share the images of an optimizer step."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def merge_devices(device_mean: Tensor, device_var: Tensor) -> Moments:
    """Merge the moments of the devices, which have equally many images; gradients flow through."""
    devices = count_devices()
    if devices == 1:
        return device_mean, device_var
    mean = all_reduce(device_mean) / devices
    # The law of total variance: within devices plus between them.
    return mean, all_reduce(device_var + (device_mean - mean).square()) / devices
