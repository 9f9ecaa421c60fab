"""FFCV, imported without its side effects on torch.

FFCV sets torch's number of threads when it is imported and in every pass; that number changes
floating-point sums, so a run sets it. Where a GPU is visible FFCV also creates streams on the first
one, even for images that stay in memory.

FFCV documents Loader, DatasetWriter, fields, decoders and user-defined operations (Operation,
AllocationQuery, Compiler). This package also uses undocumented names, because nothing documented
does the same:

    Compiler.set_num_threads      replaced here: it sets torch's threads
    epoch_iterator.IS_CUDA        turned off here: it creates streams
    EpochIterator(loader, order), output_queue, terminate_event
                                  subclassed: a pass must end early, and say what ended it
    Loader.reader, memory_manager set for each pass: one compiled loader reads several files
    Reader.metadata, alloc_table, num_samples, page_size, file_name
                                  labels, sizes and places of the images
    OSCacheManager                finds the images of a file
    libffcv.imdecode              decodes one JPEG into memory of its own size
    RGBImageField.encode          replaced when writing: an image is stored as it was compressed
    DatasetWriter.fname           the file that is written
    DatasetWriter.metadata_sm     shared memory that remains when writing is interrupted

A test fails if FFCV changes these names or signatures.
"""

import warnings
from importlib import import_module
from typing import Any

import torch


def _import(name: str) -> Any:
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # FFCV imports distutils
            return import_module(name)
    finally:
        torch.set_num_threads(threads)


ffcv = _import("ffcv")
fields = _import("ffcv.fields")
decoders = _import("ffcv.fields.decoders")
libffcv = _import("ffcv.libffcv")
epochs = _import("ffcv.loader.epoch_iterator")
managers = _import("ffcv.memory_managers")
operations = _import("ffcv.pipeline.allocation_query")
pipeline = _import("ffcv.pipeline")
reader = _import("ffcv.reader")
numba = _import("numba")


def _set_num_threads(compiler: Any, threads: int) -> None:
    compiler.num_threads = min(max(1, threads), numba.config.NUMBA_NUM_THREADS)
    numba.set_num_threads(compiler.num_threads)


pipeline.Compiler.set_num_threads = classmethod(_set_num_threads)
epochs.IS_CUDA = False
