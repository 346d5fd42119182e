"""How things are computed: small operations fused into few kernels on a GPU, and how exact products are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

#: What `torch.compile` is told. Both are on by default, and with either gradients can be silently wrong. Where strides
#: are padded, what reads a tensor may assume other strides than what wrote it (pytorch issue 194281; in torch 2.11
#: attention over 22 vectors was learned from what lay beside). Reductions that are fused over two orders may never be
#: written (pytorch issue 193061).
GPU_OPTIONS: dict[str, str | int | bool | Callable[..., object]] = {
    "comprehensive_padding": False,
    "triton.mix_order_reduction": False,
}

#: Whether this CPU has instructions for products of bfloat16; others imitate them, slowly.
CPU_HALVES: bool = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()


def fast_halves(device: torch.device) -> bool:
    """Whether products of bfloat16 are faster there than those of float32."""
    return device.type == "cuda" or (device.type == "cpu" and CPU_HALVES)


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Compile the function for training on a GPU, on its first call.

    It is left as it is on a CPU, where one machine may lack a compiler, and without gradients, where batches are of any
    size and each would be compiled for. The first argument tells the device, and must be a tensor.
    `torch.compiler.set_stance("force_eager")` switches this off.
    """
    compiled = functools.cache(lambda: torch.compile(function, dynamic=False, options=GPU_OPTIONS))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        assert isinstance(first, torch.Tensor)
        return (compiled() if first.is_cuda and torch.is_grad_enabled() else function)(*args, **kwargs)

    return call


@contextmanager
def products(precision: Literal["highest", "high"]) -> Iterator[None]:
    """Matrix products of float32 in whole float32 (`highest`), or on GPUs with ten bits of mantissa (`high`, TF32).

    torch has an old switch for all devices and newer ones for each, and who has used the newer ones may not ask for
    the old one any more.
    """
    backends: Any = torch.backends
    places = backends.cuda.matmul, backends.mkldnn.matmul
    before = [place.fp32_precision for place in places]
    if precision == "highest" and set(before) <= {"none", "ieee"}:  # so it is, and one chunk is encoded quickly
        yield
        return
    try:
        old = torch.get_float32_matmul_precision()
    except RuntimeError:
        old = None
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        if old is not None:
            torch.set_float32_matmul_precision(old)
        for place, was in zip(places, before, strict=True):
            place.fp32_precision = was
