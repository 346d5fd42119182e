"""Finite scalar quantisation: a few bounded numbers, each cut into equal cells, instead of a codebook.

The idea is Mentzer et al.'s (2023), the derivation ours: tanh bounds a number to (-1, 1), which is cut into L equal
cells; the number becomes the centre of its cell. The gradient is that of tanh, as if nothing had been rounded. A code
counts the cells of all numbers, the first number fastest.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from actionpiece.nn.fused import fused


class Finite(NamedTuple):
    """codes: (B, S) int64. values: (B, S, d) centres of cells, with a straight-through gradient."""

    codes: Tensor
    values: Tensor


class FSQ(nn.Module):
    """Features (B, S, width) to one of prod(levels) codes each, and back to features."""

    levels: Tensor  # (d,)
    strides: Tensor  # (d,) how much a cell of each number counts in a code

    def __init__(self, width: int, levels: tuple[int, ...]) -> None:
        super().__init__()
        self.size = math.prod(levels)
        self.project_in = nn.Linear(width, len(levels))
        self.project_out = nn.Linear(len(levels), width)
        strides = [math.prod(levels[:number]) for number in range(len(levels))]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        self.register_buffer("strides", torch.tensor(strides), persistent=False)

    def forward(self, features: Tensor) -> Finite:
        return self.quantize(self.bounded(features))

    def bounded(self, features: Tensor) -> Tensor:
        """What is quantised: (B, S, d) within (-1, 1)."""
        return torch.tanh(self.project_in(features))

    def quantize(self, bounded: Tensor) -> Finite:
        return Finite(*_quantized(bounded, self.levels, self.strides))

    def values(self, codes: Tensor) -> Tensor:
        """The centres (B, S, d) of the cells that codes (B, S) stand for."""
        return _centres(codes[..., None] // self.strides % self.levels, self.levels)


@fused
def _quantized(bounded: Tensor, levels: Tensor, strides: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and centres of cells of numbers (B, S, d) within (-1, 1)."""
    # In float32 tanh reaches 1, which belongs to the last cell.
    cells = ((bounded.detach() + 1) / 2 * levels).long().minimum(levels - 1)
    # bounded - bounded.detach() is exactly zero and carries the gradient: the values are those of `values`, which a
    # compiler may divide a last bit differently.
    return (cells * strides).sum(-1), _centres(cells, levels) + (bounded - bounded.detach())


def _centres(cells: Tensor, levels: Tensor) -> Tensor:
    return (2 * cells + 1) / levels - 1
