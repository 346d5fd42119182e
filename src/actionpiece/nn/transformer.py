"""A shallow Transformer that reads a chunk into slots, and one that writes a chunk from slots.

The paper says "a shallow Transformer encoder and decoder"; the rest is our choice: pre-LN blocks, GELU with four times
the width, no mask. Learned queries, one for each slot (or step), read the embedded steps (or slots) in every block.
`Stack` is for the baselines whose sequences read themselves.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from actionpiece.nn.attention import attend
from actionpiece.nn.fused import fast_halves


def feed_forward(width: int, expansion: int = 4) -> nn.Sequential:
    """What every vector goes through by itself."""
    return nn.Sequential(nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width))


class Block(nn.Module):
    """Attention to given keys and values, then a feed-forward network; each behind a LayerNorm, added to its input."""

    def __init__(self, width: int, heads: int, expansion: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = feed_forward(width, expansion)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, width) after reading keys and values (B, heads, M, width / heads), where the mask (T, M) allows it."""
        q = self.query(self.attention_norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        x = x + self.mix(attend(q, keys, values, mask).transpose(1, 2).flatten(-2))
        out: Tensor = x + self.feed(self.feed_norm(x))
        return out


class HalfProducts(nn.Module):
    """A network whose `nn.Linear` layers all work under `half_products`."""

    def half_products(self, x: Tensor) -> AbstractContextManager[object]:
        """Training does products with eight bits of mantissa, where that is fast; all that adds up stays in float32."""
        half = fast_halves(x.device) and self.training and torch.is_grad_enabled()
        return torch.autocast(x.device.type, torch.bfloat16) if half else nullcontext()


class Reader(HalfProducts):
    """Learned queries read a sequence: `wanted` vectors (B, wanted, width) from (B, given, width).

    What is read does not change from block to block, so the keys and values of all blocks are one product.

    A position is an offset and a gain, and gains start as random signs: attention begins as an average, and an average
    of differently signed vectors still holds all of them. With offsets alone training spends most of its time at the
    chunk's mean over time.
    """

    def __init__(self, given: int, wanted: int, *, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.depth, self.heads = depth, heads
        self.positions = nn.Parameter(0.02 * torch.randn(given, width))
        self.gains = nn.Parameter(random_signs(given, width))
        self.memory_norm = nn.LayerNorm(width)
        self.key_value = nn.Linear(width, 2 * depth * width)
        self.queries = nn.Parameter(0.02 * torch.randn(wanted, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.read_gains = nn.Parameter(random_signs(wanted, width))

    def forward(self, x: Tensor) -> Tensor:
        with self.half_products(x):
            both = self.key_value(self.memory_norm(torch.addcmul(self.positions, x, self.gains)))
            memory = both.unflatten(-1, (2 * self.depth, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            read = self.queries.expand(len(x), -1, -1)
            for number, block in enumerate(self.blocks):
                read = block(read, memory[2 * number], memory[2 * number + 1])
        out: Tensor = self.norm(read.to(self.norm.weight.dtype)) * self.read_gains
        return out


class SelfBlock(nn.Module):
    """A block whose vectors (B, T, width) read each other, where a mask (T, T) allows it.

    Queries, keys and values are of the same vectors, so they are one product.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = feed_forward(width)

    def forward(self, x: Tensor, mask: Tensor | None = None, wanted: int | None = None) -> Tensor:
        """(B, T, width) after reading each other. wanted: only so many at the end go on, and have read all of them."""
        three = self.query_key_value(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, keys, values = three.permute(2, 0, 3, 1, 4).unbind(0)
        if wanted is not None:
            x, q = x[:, -wanted:], q[..., -wanted:, :]
            mask = None if mask is None else mask[-wanted:]
        x = x + self.mix(attend(q, keys, values, mask).transpose(1, 2).flatten(-2))
        out: Tensor = x + self.feed(self.feed_norm(x))
        return out


class Stack(HalfProducts):
    """A sequence (B, T, width) that reads itself. mask: (T, T), true where the row may read the column; None: anywhere.

    wanted: how many vectors are asked for, the last ones; what the others would be is not computed to the end.
    Positions are an offset and a gain at both ends, for the reason given at `Reader`.
    """

    mask: Tensor | None

    def __init__(
        self,
        length: int,
        *,
        width: int,
        depth: int,
        heads: int,
        mask: Tensor | None = None,
        wanted: int | None = None,
    ) -> None:
        super().__init__()
        self.wanted = length if wanted is None else wanted
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.gains = nn.Parameter(random_signs(length, width))
        self.blocks = nn.ModuleList(SelfBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        # Drawn for all: how many are asked for does not change what else is drawn.
        self.read_gains = nn.Parameter(random_signs(length, width)[-self.wanted :].clone())
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        with self.half_products(x):
            read = torch.addcmul(self.positions, x, self.gains)
            *others, last = self.blocks
            for block in others:
                read = block(read, self.mask)
            read = last(read, self.mask, self.wanted)
        out: Tensor = self.norm(read.to(self.norm.weight.dtype)) * self.read_gains
        return out


def random_signs(*shape: int) -> Tensor:
    """1 or -1 at random: what gains start as."""
    return torch.randint(2, shape) * 2.0 - 1.0


class SlotEncoder(nn.Module):
    """Normalised chunks (B, H, D) to slot features (B, S, width), the paper's h."""

    def __init__(self, horizon: int, dim: int, slots: int, *, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Linear(dim, width)
        self.reader = Reader(horizon, slots, width=width, depth=depth, heads=heads)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.reader(self.embed(x))
        return out


class StepDecoder(nn.Module):
    """Quantised slots (B, S, width) to a whole normalised chunk (B, H, D) in one pass."""

    def __init__(self, horizon: int, dim: int, slots: int, *, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.reader = Reader(slots, horizon, width=width, depth=depth, heads=heads)
        self.command = nn.Linear(width, dim)

    def forward(self, q: Tensor) -> Tensor:
        out: Tensor = self.command(self.reader(q))
        return out
