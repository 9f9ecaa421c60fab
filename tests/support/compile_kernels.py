"""Compiles the kernels of layers for a GPU of compute capability 9.0, which need not be there.

    python tests/support/compile_kernels.py      # what runs of bn and gn launch
    python tests/support/compile_kernels.py all  # all layers with kernels, more shapes: minutes

A line for each: what is launched for which map, its registers for a thread, and the bytes of them
that would lie in memory.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_
from triton.runtime.jit import JITFunction

from normbench.catalog import normalizer
from normbench.norms import kernels
from normbench.norms.kernels.dispatch import set_triton

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.bfloat16: "*bf16", torch.float16: "*fp16",
}  # fmt: skip
SHAPES = [(8, 64, 56, 56), (32, 256, 14, 14)]
MORE = [*SHAPES, (4, 256, 56, 56), (32, 2048, 7, 7), (4, 512, 1, 1), (4, 1, 28, 28)]
LAYERS = ["bn", "gn"]
ALL = ["bn", "bn_pn", "evonorm_b0", "evonorm_b1", "evonorm_b2", "evonorm_s0", "frn", "gn", "gn_pn",
       "in", "ln", "sn"]  # fmt: skip
done: set[tuple[Any, ...]] = set()


def compile_launch(kernel: JITFunction[Any], *positional: Any, **options: Any) -> None:
    """In the place of a launch: compile what would be launched, as Triton specializes it."""
    del options["grid"], options["warmup"]
    chosen = {name: options.pop(name) for name in ("num_warps", "enable_fp_fusion")}
    arguments = dict(zip(kernel.arg_names, positional, strict=False)) | options
    constants = {p.name: arguments[p.name] for p in kernel.params if p.is_constexpr}
    one = 1  # by identity: True and 1.0 equal it, and are no constants
    constants |= {k: value for k, value in arguments.items() if value is one or value is None}
    signature, attributes = {}, {}
    for place, name in enumerate(kernel.arg_names):
        value = arguments[name]
        if name in constants:
            signature[name] = "constexpr"
            continue
        signature[name] = TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"
        if isinstance(value, torch.Tensor) or value % 16 == 0:
            attributes[(place,)] = [["tt.divisibility", 16]]
    key = (kernel, *sorted(signature.items()), *map(str, constants.items()), *attributes)
    if key in done:
        return
    done.add(key)
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature=signature, constexprs=places, attrs=attributes)
    binary = compile_(source, target=TARGET, options=chosen)
    print(f"  {kernel.__name__:<16} {chosen['num_warps']:2} warps, {usage(binary.asm['cubin'])}")


def usage(cubin: bytes) -> str:
    """Registers of a thread, and what did not fit them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", path]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = (
        re.search(rf"{what}:(\d+)", said) for what in ("REG", "STACK", "LOCAL")
    )
    assert registers
    assert stack
    assert local
    return f"{registers[1]} registers, {int(stack[1]) + int(local[1])} bytes outside of them"


def work(names: list[str], shapes: list[tuple[int, ...]], dtypes: list[torch.dtype]) -> None:
    """Forward and backward passes of layers, nothing computed."""
    JITFunction.run = compile_launch
    kernels.supports = lambda x: True
    for dtype in dtypes:
        for layout in (torch.channels_last, torch.contiguous_format):
            for shape in shapes:
                x = torch.empty(shape, dtype=dtype, device="meta").to(memory_format=layout)
                for name in names:
                    act = "silu" if name in ("bn", "gn_pn") else "relu"
                    layer = normalizer(name).layer(shape[1], act).to("meta")
                    if layer.refusal(x.shape):
                        continue
                    print(f"{name} {dtype} {layout} {shape}", flush=True)
                    set_triton(layer)
                    layer(x.requires_grad_()).sum().backward()


if sys.argv[1:] == ["all"]:
    work(ALL, MORE, [torch.bfloat16, torch.float32])
    work(["gn", "bn"], SHAPES[:1], [torch.float64, torch.float16])
else:
    work(LAYERS, SHAPES[:1], [torch.bfloat16])
