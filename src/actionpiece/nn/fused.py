"""How things are computed on a GPU: small operations fused into few kernels, and how exact products are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Compile the function for a GPU on its first call; on a CPU, where one machine may lack a compiler, leave it.

    The first argument decides, and must be a tensor. `torch.compiler.set_stance("force_eager")` switches this off.
    """
    compiled = functools.cache(lambda: torch.compile(function, dynamic=False))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        assert isinstance(first, torch.Tensor)
        return (compiled() if first.is_cuda else function)(*args, **kwargs)

    return call


@contextmanager
def products(precision: Literal["highest", "high"]) -> Iterator[None]:
    """Matrix products of float32 in whole float32 (`highest`), or on GPUs with ten bits of mantissa (`high`, TF32)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
