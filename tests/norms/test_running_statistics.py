"""Running statistics of workers in several passes or devices are those of one pass with all."""

import copy

import pytest
import torch
from torch import Tensor, nn

from normbench.catalog import normalizer, normalizers
from normbench.norms.base.running import NetworkStatistics, RunningStatistics, blend_moments
from normbench.norms.recalibration import recalibrate
from normbench.norms.workers import set_workers
from support.layers import images, perturbed_layer

TRACKING = [
    name
    for name in normalizers()
    if isinstance(normalizer(name).layer(6), RunningStatistics)
    and name not in ("sync_bn", "frozen_bn")
]  # sync_bn has one worker, in one pass; frozen_bn moves nothing


def tracking_network(name: str) -> nn.Sequential:
    """Return two layers of different widths, and between them one of torch."""
    layers = [
        perturbed_layer(normalizer(name).with_max_groups(3), width, "relu", torch.float64)
        for width in (6, 9)
    ]
    torch.manual_seed(0)
    return nn.Sequential(layers[0], nn.Conv2d(6, 9, 1), nn.BatchNorm2d(9), layers[1]).double()


def running(network: nn.Module) -> dict[str, Tensor]:
    return {key: value for key, value in network.named_buffers() if "running" in key}


def assert_equal_statistics(network: nn.Module, expected: dict[str, Tensor]) -> None:
    for key, value in running(network).items():
        torch.testing.assert_close(value, expected[key], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("name", TRACKING)
def test_passes_of_one_worker_move_statistics_like_one_pass_of_all(name: str, workers: int) -> None:
    layer = perturbed_layer(normalizer(name, momentum=0.5), 6, "relu", torch.float64)
    together = copy.deepcopy(layer)
    set_workers(together, workers)
    x = images((32, 6, 3, 3)).detach()
    together(x)
    numbers = []
    for number in NetworkStatistics(layer).passes(workers):
        layer(x[number::workers])
        numbers.append(number)
    assert numbers == list(range(workers))
    assert_equal_statistics(layer, running(together))


@pytest.mark.parametrize("name", TRACKING)
def test_the_mean_over_devices_is_that_of_one_pass_of_all_workers(name: str) -> None:
    layer = perturbed_layer(normalizer(name, momentum=0.5), 6, "relu", torch.float64)
    devices = [copy.deepcopy(layer) for _ in range(4)]
    x = images((32, 6, 3, 3)).detach()
    for rank, device in enumerate(devices):
        device(x[rank::4])
    mean = torch.stack([NetworkStatistics(device).read() for device in devices]).mean(0)
    set_workers(layer, 4)
    layer(x)
    for device in devices:
        NetworkStatistics(device).write(mean)
        assert_equal_statistics(device, running(layer))


def test_batch_renorm_averages_deviations_not_variances() -> None:
    layer = normalizer("batch_renorm", eps=0.25).layer(2).double()
    statistics = NetworkStatistics(layer)
    values = []
    for mean, var in ((1.0, 3.75), (3.0, 15.75)):  # deviations 2 and 4 with eps
        layer.get_buffer("running_mean").fill_(mean)
        layer.get_buffer("running_var").fill_(var)
        values.append(statistics.read())
    statistics.write(torch.stack(values).mean(0))
    assert layer.get_buffer("running_mean").tolist() == [2.0, 2.0]
    assert layer.get_buffer("running_var").tolist() == pytest.approx([3.0**2 - 0.25] * 2)


@pytest.mark.parametrize("name", TRACKING)
def test_statistics_of_a_network_are_read_and_written_layer_by_layer(name: str) -> None:
    network, other = tracking_network(name), tracking_network(name)
    for value in running(other).values():
        value.mul_(2).add_(0.5)
    state = {key: value.clone() for key, value in running(other).items()}
    vector = NetworkStatistics(other).read()
    assert vector.dim() == 1
    assert len(vector) == sum(value.numel() for value in state.values())
    NetworkStatistics(network).write(vector)
    assert_equal_statistics(network, state)
    vector.zero_()  # a copy: the network keeps its statistics
    assert_equal_statistics(other, state)


def test_a_network_without_running_statistics_has_none() -> None:
    statistics = NetworkStatistics(nn.Sequential(normalizer("gn").layer(32), nn.Conv2d(3, 3, 1)))
    assert not statistics
    assert not statistics.read_in_training
    assert list(statistics.passes(3)) == [0, 1, 2]


@pytest.mark.parametrize("name", TRACKING)
def test_training_of_batch_renorm_alone_reads_running_statistics(name: str) -> None:
    layer = normalizer(name).layer(6)
    assert NetworkStatistics(layer).read_in_training == (name == "batch_renorm")
    assert not NetworkStatistics(nn.BatchNorm2d(6)).read_in_training


def test_blended_moments_are_those_of_the_mixture_of_both_distributions() -> None:
    """E[x^2] - E[x]^2 of the mixture, where 1/4 of the values are an image's."""
    blended = blend_moments((torch.tensor([[2.0]]), torch.tensor([[9.0]])),
                            (torch.tensor([-2.0]), torch.tensor([1.0])), 0.25)  # fmt: skip
    mean = 0.25 * 2 + 0.75 * -2
    square = 0.25 * (9 + 4) + 0.75 * (1 + 4)
    assert blended[0].item() == pytest.approx(mean)
    assert blended[1].item() == pytest.approx(square - mean**2)


def test_frozen_statistics_are_neither_moved_nor_recalibrated() -> None:
    network = nn.Sequential(*(normalizer(name).layer(6) for name in ("frozen_bn", "bn"))).double()
    before = copy.deepcopy(network.state_dict())
    x = 3 + images((8, 6, 3, 3)).detach()
    assert len(NetworkStatistics(network).layers) == 1
    assert recalibrate(network, [x]) == 1
    for name, value in network.state_dict().items():
        if "running" in name:
            assert torch.equal(value, before[name]) == name.startswith("0.")


def test_layers_that_an_evaluation_does_not_call_are_not_recalibrated() -> None:
    """Those of an auxiliary head."""

    class WithAuxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.auxiliary = normalizer("bn").layer(6), normalizer("bn").layer(6)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.used(x)
            return torch.cat([y, self.auxiliary(x)]) if self.training else y

    network = WithAuxiliary()
    assert recalibrate(network, [3 + images((8, 6, 3, 3)).detach().float()]) == 1
    assert network.get_buffer("used.running_mean").mean() > 2
    assert not network.get_buffer("auxiliary.running_mean").any()
    with pytest.raises(ValueError, match="there is no batch"):
        recalibrate(network, [])


@pytest.mark.parametrize("name", ["bn", "bn_ws", "batch_renorm", "sync_bn"])
def test_statistics_stay_in_single_precision_from_double_to_half(name: str) -> None:
    layer = normalizer(name).layer(6).double().half()
    assert {each.dtype for each in layer.buffers() if each.is_floating_point()} == {torch.float32}
    assert layer(images((8, 6, 3, 3)).detach().half()).dtype == torch.float16
