"""`fused`: functions of many small operations, which on a GPU are compiled into few kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
