"""ActionCodec's Perceiver: learned queries that read a sequence by cross-attention alone.

The paper's: cross-attention only, LayerNorm on queries and keys, LayerScale, Fourier features for time, queries of its
own for every embodiment. Gains that start as random signs are ours; `Reader` says why.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actionpiece.nn.attention import attend
from actionpiece.nn.transformer import Block, HalfProducts, random_signs

_LAYER_SCALE = 1e-2
_QUERY_SIZE = 0.005  # queries start small, or what LayerScale lets through would drown in them


class Affine(nn.Module):
    """A gain and an offset for every column: what a LayerNorm has after it has normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, x, self.weight)


class CrossBlock(Block):
    """Queries (B, T, width) read a sequence (B, M, width), then a feed-forward network; each scaled and added.

    The sequence comes normalised: it is the same for all blocks.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.memory_norm = Affine(width)
        self.key_value = nn.Linear(width, 2 * width)
        self.query_norm, self.key_norm = nn.LayerNorm(width // heads), nn.LayerNorm(width // heads)
        self.scales = nn.Parameter(torch.full((2, width), _LAYER_SCALE))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:  # type: ignore[override]
        q = self.query(self.attention_norm(x)).unflatten(-1, (self.heads, -1))
        k, v = self.key_value(self.memory_norm(memory)).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        # LayerNorm gives float32 under autocast, and attention wants one type.
        q, k = self.query_norm(q).to(v.dtype), self.key_norm(k).to(v.dtype)
        read = self.mix(attend(*(side.transpose(1, 2) for side in (q, k, v))).transpose(1, 2).flatten(-2))
        x = x + read * self.scales[0]
        out: Tensor = x + self.feed(self.feed_norm(x)) * self.scales[1]
        return out


class Perceiver(HalfProducts):
    """`wanted` vectors (B, wanted, width) from a sequence (B, given, width).

    embodiments: sets of queries; forward is told each chunk's, (B,). given_times, wanted_times: fixed features of time
    (given or wanted, width) that are added to what is read, or to the queries; None where there is no time.
    """

    given_times: Tensor | None
    wanted_times: Tensor | None

    def __init__(
        self,
        given: int,
        wanted: int,
        *,
        width: int,
        depth: int,
        heads: int,
        embodiments: int,
        given_times: Tensor | None = None,
        wanted_times: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("given_times", given_times, persistent=False)
        self.register_buffer("wanted_times", wanted_times, persistent=False)
        self.gains = nn.Parameter(random_signs(given, width))
        self.queries = nn.Parameter(_QUERY_SIZE * torch.randn(embodiments, wanted, width))
        self.blocks = nn.ModuleList(CrossBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.read_gains = nn.Parameter(random_signs(wanted, width))

    def forward(self, x: Tensor, embodiment: Tensor) -> Tensor:
        with self.half_products(x):
            memory = x * self.gains
            if self.given_times is not None:
                memory = memory + self.given_times
            memory = F.layer_norm(memory, memory.shape[-1:])
            read = self.queries.index_select(0, embodiment)
            if self.wanted_times is not None:
                read = read + _QUERY_SIZE * self.wanted_times
            for block in self.blocks:
                read = block(read, memory)
        out: Tensor = self.norm(read.to(self.norm.weight.dtype)) * self.read_gains
        return out


def fourier_times(steps: int, width: int) -> Tensor:
    """(steps, width) sines and cosines of the steps' times, from one turn per chunk to one per two steps."""
    count = math.ceil(width / 2)
    turns = torch.linspace(1, max(steps / 2, 1), count)
    phase = 2 * math.pi * torch.arange(steps)[:, None] / steps * turns
    return torch.cat((phase.sin(), phase.cos()), 1)[:, :width]
