"""Names of FFCV that it does not document and `normbench.data.ffcv_patches` lists."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from normbench.catalog import dataset
from normbench.prepare import main
from support import dataset_files

pytestmark = pytest.mark.ffcv


@pytest.fixture
def patches() -> Any:
    """The module, which imports FFCV."""
    from normbench.data import ffcv_patches

    return ffcv_patches


def arguments(function: Any) -> list[str]:
    """Names of the arguments of `function`."""
    return [*inspect.signature(function).parameters]


def test_signatures_are_unchanged(patches: Any) -> None:
    loader, writer = patches.ffcv.Loader, patches.ffcv.DatasetWriter
    assert arguments(patches.epochs.EpochIterator) == ["loader", "order"]
    assert arguments(patches.managers.OSCacheManager) == ["reader"]
    assert arguments(patches.reader.Reader)[0] == "fname"
    assert {"batch_size", "num_workers", "os_cache", "pipelines", "drop_last"} <= {
        *arguments(loader)
    }
    assert {"fname", "fields", "page_size", "num_workers"} <= {*arguments(writer)}
    assert arguments(patches.fields.RGBImageField.encode)[1:] == ["destination", "image", "malloc"]
    assert len(arguments(patches.libffcv.imdecode)) == 12
    assert isinstance(patches.epochs.IS_CUDA, bool)
    assert {"num_threads", "get_iterator", "compile"} <= {*dir(patches.pipeline.Compiler)}


def test_attributes_exist(patches: Any, tmp_path: Path) -> None:
    options = dataset_files.cifar10(tmp_path, images=4)
    assert main([*dataset_files.words("cifar10", options), "readers=1"]) == 0
    path = dataset("cifar10", **options).prepared_file("train")
    reader = patches.reader.Reader(str(path))
    assert reader.metadata["f1"].tolist() == [0, 1, 2, 3] * 5
    assert (reader.alloc_table["size"] == 3 * 32 * 32).all()
    assert reader.num_samples == 20
    assert reader.file_name == str(path)
    pipelines = {"image": [patches.decoders.NDArrayDecoder()], "label": None}
    loader = patches.ffcv.Loader(
        str(path), batch_size=8, num_workers=1, drop_last=False, pipelines=pipelines
    )
    assert vars(loader).keys() >= {"reader", "memory_manager"}
    batches = iter(loader)
    assert {"output_queue", "terminate_event"} <= vars(batches).keys()
    assert sum(len(batch) for (batch,) in batches) == 20
    source = inspect.getsource(patches.ffcv.DatasetWriter)
    assert "self.metadata_sm = shared_memory.SharedMemory(" in source


def test_threads_of_torch_stay_what_a_run_sets(patches: Any) -> None:
    before = torch.get_num_threads()
    patches.pipeline.Compiler.set_num_threads(before + 1)
    assert torch.get_num_threads() == before
    patches.pipeline.Compiler.set_num_threads(1)
