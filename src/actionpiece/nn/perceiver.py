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


class CrossBlock(Block):
    """Queries (B, T, width) read keys and values (B, heads, M, width / heads), then a feed-forward network; each scaled
    and added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.query_norm = nn.LayerNorm(width // heads)
        self.scales = nn.Parameter(torch.full((2, width), _LAYER_SCALE))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        q = self.query_norm(self.query(self.attention_norm(x)).unflatten(-1, (self.heads, -1)))
        # Under a GPU's autocast LayerNorm gives float32, and attention wants one type.
        read = attend(q.to(values.dtype).transpose(1, 2), keys, values, mask)
        x = x + self.mix(read.transpose(1, 2).flatten(-2)) * self.scales[0]
        out: Tensor = x + self.feed(self.feed_norm(x)) * self.scales[1]
        return out


class Perceiver(HalfProducts):
    """`wanted` vectors (B, wanted, width) from a sequence (B, given, width).

    What is read does not change from block to block, so the keys and values of all blocks are one product.
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
        self.depth, self.heads = depth, heads
        self.memory_norm = nn.LayerNorm(width)
        self.key_value = nn.Linear(width, 2 * depth * width)
        # Of a LayerNorm of its own for the keys of every block.
        self.key_gains = nn.Parameter(torch.ones(depth, 1, 1, 1, width // heads))
        self.key_offsets = nn.Parameter(torch.zeros(depth, 1, 1, 1, width // heads))
        self.queries = nn.Parameter(_QUERY_SIZE * torch.randn(embodiments, wanted, width))
        self.blocks = nn.ModuleList(CrossBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.read_gains = nn.Parameter(random_signs(wanted, width))

    def forward(self, x: Tensor, embodiment: Tensor) -> Tensor:
        with self.half_products(x):
            memory = x * self.gains
            if self.given_times is not None:
                memory = memory + self.given_times
            both = self.key_value(self.memory_norm(memory)).unflatten(-1, (2, self.depth, self.heads, -1))
            keys, values = both.permute(2, 3, 0, 4, 1, 5).unbind(0)
            alike = F.layer_norm(keys, keys.shape[-1:])
            keys = torch.addcmul(self.key_offsets, alike, self.key_gains).to(values.dtype)
            read = self.queries.index_select(0, embodiment)
            if self.wanted_times is not None:
                read = read + _QUERY_SIZE * self.wanted_times
            for number, block in enumerate(self.blocks):
                read = block(read, keys[number], values[number])
        out: Tensor = self.norm(read.to(self.norm.weight.dtype)) * self.read_gains
        return out


def fourier_times(steps: int, width: int) -> Tensor:
    """(steps, width) sines and cosines of the steps' times, from one turn per chunk to one per two steps."""
    count = math.ceil(width / 2)
    turns = torch.linspace(1, max(steps / 2, 1), count)
    phase = 2 * math.pi * torch.arange(steps)[:, None] / steps * turns
    return torch.cat((phase.sin(), phase.cos()), 1)[:, :width]
