"""Class of a GPU kernel by its name: communication or computation, numeric precision, use of tensor cores.

A name that matches no pattern has an unknown precision, which is never guessed. docs/traces.md explains the patterns.
"""

import re
from functools import cache
from typing import NamedTuple

COMMUNICATION = re.compile(
    r"^(nccl|rccl|mscclpp?)|nccl(Dev)?Kernel|nvshmem|all_reduce_kernel|quickreduce", re.IGNORECASE
)
PRECISIONS = {
    "fp8": r"e4m3|e5m2|float8|nvjet_(sm\d+_)?[qr]|_F8|fp8",
    "int8": r"(?<![a-z0-9])i8i8|i8816|i16832|int8|imma",
    "bf16": r"bf16|bfloat16|nvjet_(sm\d+_)?t|_BBS_|_BSS_",
    "fp16": r"fp16|f16|half\b|half_t|half2|[h](884|1688|16816)|hgemm|hcudnn|nvjet_(sm\d+_)?h|_HHS_|_HSS_|_HB_",
    "tf32": r"tf32|tfloat32|s1688|nvjet_(sm\d+_)?s|_XSS_",
    "fp32": r"\bfloat[24]?\b|sgemm|gcgemm|scudnn|f32|fp32|_SB_",
    "fp64": r"\bdouble\b|dgemm|d884|f64|_DB_",
}
"""Precision -> names of kernels that compute with it; the first match counts, so accumulation in fp32 does not."""
TENSOR_CORES = re.compile(
    r"[hsdci](884|1688|8816|16816|16832|161616)"  # shapes of matrix instructions in names of cuBLAS and cuDNN
    r"|[tT]ensor[oO]p|wmma|[hid]mma_|gmma|tcgen05|nvjet_"
    r"|xmma(?!.*(ffma|simt))"
    r"|flash_(fwd|bwd)|FlashAttn|flash::|fmha_cutlass[FB]_(f16|bf16)|cudnn.*sdpa.*(f16|bf16)"
    r"|_MI\d+x\d+x|_gtcx?\d?_|mfma",  # matrix cores of AMD: Tensile, MIOpen
)
PLAIN_CORES = re.compile(
    r"simt|ffma|[sdh]gemm_\d|scudnn_|elementwise|reduce_kernel|softmax|norm|bn_(fw|bw)|pool|copy"
    r"|[dw]grad_(alg0_)?engine|implicit_convolve|winograd|fft2d|multi_tensor_apply|nhwcTo|nchwTo|gcgemm",
    re.I,
)
"""Kernels that are known not to use tensor cores. For all others it is unknown."""


class KernelClass(NamedTuple):
    """Class of a kernel; `tensor_cores` is None if the name does not show whether it uses them."""

    is_communication: bool
    precision: str
    tensor_cores: bool | None


@cache
def classify(name: str) -> KernelClass:
    """Classify a kernel by its demangled or mangled name."""
    if name.startswith("triton_"):  # named after the operators that it replaces, not after its instructions
        return KernelClass(False, "unknown", None)
    matching = (precision for precision, pattern in PRECISIONS.items() if re.search(pattern, name, re.IGNORECASE))
    precision = next(matching, "unknown")
    if COMMUNICATION.search(name):
        return KernelClass(True, precision, False)
    if TENSOR_CORES.search(name):
        return KernelClass(False, precision, True)
    return KernelClass(False, precision, False if PLAIN_CORES.search(name) else None)
