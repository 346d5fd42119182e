"""A shallow Transformer that reads a chunk into slots, and one that writes a chunk from slots.

The paper says "a shallow Transformer encoder and decoder"; the rest is our choice: pre-LN blocks, GELU with four times
the width, no causal mask. Slots and steps attend to each other as one sequence; the slots (or the steps) are kept.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Self-attention and a feed-forward network, each behind a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int, expansion: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width))

    def forward(self, x: Tensor, keep: int | None = None) -> Tensor:
        """(B, T, width), or only the first `keep` of them."""
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q[:, :, :keep], k, v).transpose(1, 2).flatten(-2)
        x = x[:, :keep] + self.mix(attended)
        out: Tensor = x + self.feed(self.feed_norm(x))
        return out


class Reader(nn.Module):
    """Learned queries read a sequence: `wanted` vectors (B, wanted, width) from (B, given, width).

    A position is an offset and a gain, and gains start as random signs: attention begins as an average, and an average
    of differently signed vectors still holds all of them. With offsets alone training spends most of its time at the
    chunk's mean over time.
    """

    def __init__(self, given: int, wanted: int, *, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(0.02 * torch.randn(given, width))
        self.gains = nn.Parameter(_signs(given, width))
        self.queries = nn.Parameter(0.02 * torch.randn(wanted, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.read_gains = nn.Parameter(_signs(wanted, width))

    def forward(self, x: Tensor) -> Tensor:
        wanted = len(self.queries)
        sequence = torch.cat((self.queries.expand(len(x), -1, -1), x * self.gains + self.positions), dim=1)
        # Training on a GPU does the blocks' products with eight bits of mantissa; all that adds up stays in float32.
        half = self.training and torch.is_grad_enabled() and x.is_cuda
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
            for block in self.blocks[:-1]:
                sequence = block(sequence)
            sequence = self.blocks[-1](sequence, keep=wanted)
        out: Tensor = self.norm(sequence.float()) * self.read_gains
        return out


def _signs(*shape: int) -> Tensor:
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
