"""Private names of other packages: docs/development.md lists them, and they still exist."""

import ast
import inspect
from collections.abc import Iterator
from multiprocessing import forkserver

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._python_dispatch import TorchDispatchMode
from wandb.sdk.lib.service.service_connection import WandbApiFailedError

from normbench.config.files import ROOT

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="not a checkout, so there are no documents"
)

#: Names with an underscore that are documented: of named tuples, and of the module os.
DOCUMENTED = {"_replace", "_fields", "_exit"}


def private_names(code: str) -> Iterator[str]:
    """Yield the private names of other objects and modules in `code`."""
    for node in ast.walk(ast.parse(code)):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            if ast.unparse(node.value) not in ("self", "cls"):
                names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [name for alias in node.names for name in alias.name.split(".")]
        yield from (name for name in names if name.startswith("_") and not name.startswith("__"))


def defined_names(code: str) -> Iterator[str]:
    """Yield the names that `code` itself defines or assigns."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_private_names_are_found_in_attributes_and_imports() -> None:
    code = (
        "from torch._x import y\nfrom a import _b\nimport c._d\ne.f()._g\nself._h\nimport __i__\n"
    )
    assert set(private_names(code)) == {"_x", "_b", "_d", "_g"}


def test_every_private_name_of_another_package_is_listed() -> None:
    page = (ROOT / "docs" / "development.md").read_text()
    table = page.partition("## Private names of other packages")[2]
    paths = [
        path for room in ("normbench", "hydra_plugins") for path in (ROOT / room).rglob("*.py")
    ]
    sources = [path.read_text() for path in paths]
    used = {name for source in sources for name in private_names(source)}
    foreign = used - DOCUMENTED - {name for source in sources for name in defined_names(source)}
    assert foreign
    assert sorted(name for name in foreign if name not in table) == []


def test_torch_has_the_private_names() -> None:
    assert issubclass(nn.Conv2d, nn.modules.conv._ConvNd)
    assert issubclass(nn.ConvTranspose2d, nn.modules.conv._ConvNd)
    assert callable(TorchDispatchMode.__torch_dispatch__)
    assert callable(torch.cuda._sleep)


def test_a_schedule_of_torch_counts_its_steps_under_that_key() -> None:
    schedule = LambdaLR(SGD([nn.Parameter(torch.zeros(1))], lr=1.0), float)
    assert {"last_epoch", "_step_count"} <= schedule.state_dict().keys()


def test_wandb_raises_its_private_error() -> None:
    assert issubclass(WandbApiFailedError, Exception)


def test_the_fork_server_can_be_started_before_the_first_process() -> None:
    assert "ensure_running" in forkserver.__all__
    assert list(inspect.signature(forkserver.ensure_running).parameters) == []
