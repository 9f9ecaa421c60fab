"""Compiles the kernels for a GPU of compute capability 9.0, which need not be there."""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from normbench.kernels import sample_kernels, worker_kernels

TARGET = GPUTarget("cuda", 90, 32)
NUMBERS = ("C", "P", "sn", "sc", "sp", "apart")
MAPS = ("x", "out", "gradient", "dx")
OF_SAMPLE = {
    "GROUP": 8, "SETS": 1, "CENTER": True, "GATED": False, "ACT": 1, "HAS_WEIGHT": True,
    "HAS_BIAS": True, "HAS_GATE": False, "PROXY": False, "BLOCK_C": 8, "BLOCK_P": 1024,
    "ONE": True, "ACC": tl.float32,
}  # fmt: skip
SAMPLES = [
    {}, {"ONE": False}, {"SETS": 4, "GROUP": 2, "PROXY": True},
    {"SETS": 8, "GROUP": 1, "CENTER": False, "ACT": 3},
    {"GATED": True, "ACT": 0, "HAS_GATE": True, "GROUP": 3, "BLOCK_C": 4},
]  # fmt: skip
OF_WORKER = {
    "BOUND": 0, "ACT": 2, "HAS_WEIGHT": True, "HAS_BIAS": True, "HAS_GATE": False, "PROXY": False,
    "BLOCK_C": 4, "BLOCK_P": 256, "ACC": tl.float32,
}  # fmt: skip
WORKERS = [{"PROXY": True}, {"BOUND": 1, "HAS_GATE": True}, {"BOUND": 2}, {"BOUND": 3}]


def build(kernel, known, one):
    """Compile for maps in bfloat16 that lie beside each other along the stride `one`."""
    names = kernel.arg_names
    known = {name: value for name, value in known.items() if name in names} | {one: 1}
    signature = {
        name: "constexpr" if name in known else "i32" if name in NUMBERS
        else "fp32" if name == "eps" else "*bf16" if name in MAPS else "*fp32"
        for name in names
    }  # fmt: skip
    constants = {(names.index(name),): value for name, value in known.items()}
    source = ASTSource(kernel, signature=signature, constexprs=constants)
    triton.compile(source, target=TARGET, options={"num_warps": 8, "enable_fp_fusion": True})
    print(kernel.__name__)


for changed in SAMPLES:
    for kernel in (sample_kernels.forward, sample_kernels.backward):
        build(kernel, OF_SAMPLE | changed, "sc" if "SETS" in changed else "sp")
build(worker_kernels.moments_of, OF_WORKER, "sp")
for changed in WORKERS:
    for kernel in (worker_kernels.forward, worker_kernels.sums, worker_kernels.inputs):
        build(kernel, OF_WORKER | changed, "sc" if "PROXY" in changed else "sp")
