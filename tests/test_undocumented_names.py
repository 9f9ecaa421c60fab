"""Private names of other packages: docs/development.md lists them, and they still exist."""

import ast
import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing import context, forkserver, resource_tracker
from multiprocessing.process import BaseProcess

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from wandb.sdk.lib.service.service_connection import WandbApiFailedError

from normbench.config.files import ROOT

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="not a checkout, so there are no documents"
)

#: Names with an underscore that are documented: of named tuples, and of the module os.
DOCUMENTED = {"_asdict", "_replace", "_fields", "_exit"}


def private_names(code: str) -> Iterator[tuple[str, str]]:
    """Yield the private names that `code` reads, each with the object or "import" before it."""
    for node in ast.walk(ast.parse(code)):
        names: list[str] = []
        owner = "import"
        if isinstance(node, ast.Attribute):
            owner, names = ast.unparse(node.value), [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [name for alias in node.names for name in alias.name.split(".")]
        for name in names:
            if name.startswith("_") and not name.startswith("__"):
                yield owner, name


def defined_names(code: str) -> Iterator[str]:
    """Yield the names that `code` itself defines or assigns."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] * (ast.unparse(node.value) in ("self", "cls"))


def foreign_names(sources: Sequence[str]) -> set[str]:
    """Return the private names in `sources` that belong to other packages.

    A name of `self` may be defined in any file, and one of `super()` twice: here and
    in a base class. Of any other object, a file may use the private names that it defines itself.
    """
    defined = [[*defined_names(source)] for source in sources]
    definitions = Counter(name for names in defined for name in names)
    foreign = set()
    for source, own in zip(sources, defined, strict=True):
        for owner, name in private_names(source):
            needed = {"self": 1, "cls": 1, "super()": 2}.get(owner)
            is_own = name in own if needed is None else definitions[name] >= needed
            if not is_own:
                foreign.add(name)
    return foreign - DOCUMENTED


def test_private_names_are_found_wherever_they_stand() -> None:
    base = "class A:\n    def _a(self): self._b = 1\n"
    code = (
        "from torch._x import y\nfrom a import _c\nimport c._d\ne.f()._g\nimport __i__\n"
        "class B(A):\n    def _apply(self):\n        super()._apply()\n        super()._a()\n"
        "        self._a()\n        self._b\n        self._h\n        other._a\n"
        "        other._i = 1\n"
    )
    assert foreign_names([base, code]) == {"_x", "_c", "_d", "_g", "_apply", "_h", "_a", "_i"}


def test_every_private_name_of_another_package_is_listed() -> None:
    page = (ROOT / "docs" / "development.md").read_text()
    table = page.partition("## Private names of other packages")[2]
    paths = [
        path for room in ("normbench", "hydra_plugins") for path in (ROOT / room).rglob("*.py")
    ]
    foreign = foreign_names([path.read_text() for path in paths])
    assert {"_apply", "_conv_forward", "_ConvNd", "_internal_id"} <= foreign
    assert sorted(name for name in foreign if name not in table) == []


def test_torch_has_the_private_names() -> None:
    assert issubclass(nn.Conv2d, nn.modules.conv._ConvNd)
    assert issubclass(nn.ConvTranspose2d, nn.modules.conv._ConvNd)
    assert callable(TorchDispatchMode.__torch_dispatch__)
    assert callable(torch.cuda._sleep)


def test_torch_has_formulas_of_operations() -> None:
    x, weight = torch.empty(2, 3, 5, 5), torch.empty(4, 3, 1, 1)
    options = None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1  # as aten.convolution has them
    result = torch.empty(2, 4, 5, 5)
    count = flop_registry[torch.ops.aten.convolution]
    assert count(x, weight, *options, out_val=result) == 2 * weight[0].numel() * result.numel()


def test_a_schedule_of_torch_counts_its_steps_under_that_key() -> None:
    schedule = LambdaLR(SGD([nn.Parameter(torch.zeros(1))], lr=1.0), float)
    assert {"last_epoch", "_step_count"} <= schedule.state_dict().keys()


def test_wandb_raises_its_private_error() -> None:
    assert issubclass(WandbApiFailedError, Exception)


def test_the_fork_server_can_be_started_before_the_first_process() -> None:
    assert "ensure_running" in forkserver.__all__
    assert list(inspect.signature(forkserver.ensure_running).parameters) == []
    assert "ensure_running" in resource_tracker.__all__
    assert issubclass(context.ForkServerProcess, BaseProcess)
