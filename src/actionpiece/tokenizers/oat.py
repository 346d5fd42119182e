"""`oat`: ordered action tokens. Registers that read a chunk in order, so that the first few tokens are a coarse motion.

The paper's: registers appended to the embedded steps; steps see steps, a register sees steps and the registers up to
itself; finite scalar quantisation with levels 8, 5, 5, 5; a decoder that is causal over time; nested dropout, which
keeps the first 1, 2, 4 or all registers and puts a learned token in place of the rest; plain squared error; depths,
width, AdamW's betas, clipping and warmup. Ours: one sequence of tokens and time queries in the decoder; positions as in
our other codecs; no dropout of activations and no averaging of weights; rate, batch and steps of the matched
comparison (the paper's rate is 5e-5, its batch 256). Written from the paper's idea; none of its code is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actionpiece.errors import ActionPieceError
from actionpiece.nn.fsq import FSQ
from actionpiece.nn.transformer import Stack
from actionpiece.objectives import weigh
from actionpiece.tokenizers.learned import LearnedTokenizer, check_baseline, training
from actionpiece.training import Batch, Losses, Trainable, TrainConfig


def _training() -> TrainConfig:
    return training({"reconstruction": 1.0}, warmup=100)


@dataclass(frozen=True)
class OATConfig:
    """Ordered action tokens.

    Attributes:
        tokens: registers, one token each.
        levels: cells of each of the numbers that a token stands for.
        width: of the Transformers.
        encoder_depth: layers that read the chunk.
        decoder_depth: layers that write it.
        heads: attention heads.
        train: how it is trained.
    """

    tokens: int = 8
    levels: tuple[int, ...] = (8, 5, 5, 5)
    width: int = 256
    encoder_depth: int = 2
    decoder_depth: int = 4
    heads: int = 4
    train: TrainConfig = field(default_factory=_training)

    def __post_init__(self) -> None:
        sizes = {"tokens": self.tokens, "encoder_depth": self.encoder_depth, "decoder_depth": self.decoder_depth}
        check_baseline("oat", self.train, ("reconstruction",), width=self.width, heads=self.heads, **sizes)
        check_levels("oat", self.levels)


def check_levels(kind: str, levels: tuple[int, ...]) -> None:
    """Refuse levels that finite scalar quantisation cannot have."""
    if not levels or not all(isinstance(level, int) and level >= 2 for level in levels):
        raise ActionPieceError(f"{kind}: levels must be whole numbers of cells, at least 2 each, not {levels}")
    if math.prod(levels) > 1 << 20:
        raise ActionPieceError(f"{kind}: levels {levels} would make {math.prod(levels):,} codes; at most a million do")


class RegisterEncoder(nn.Module):
    """Chunks (B, H, D) to registers (B, T, width); register i depends on no later register."""

    def __init__(self, horizon: int, dim: int, tokens: int, *, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Linear(dim, width)
        self.registers = nn.Parameter(0.02 * torch.randn(tokens, width))
        mask = torch.ones(horizon + tokens, horizon + tokens, dtype=torch.bool).tril()
        mask[:horizon, :horizon] = True
        self.stack = Stack(horizon + tokens, width=width, depth=depth, heads=heads, mask=mask, wanted=tokens)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.stack(torch.cat((self.embed(x), self.registers.expand(len(x), -1, -1)), 1))
        return out


class TimeDecoder(nn.Module):
    """Tokens (B, T, width) to chunks (B, H, D); a step is written with a view of all tokens and of earlier steps."""

    def __init__(self, horizon: int, dim: int, tokens: int, *, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(0.02 * torch.randn(horizon, width))
        mask = torch.ones(tokens + horizon, tokens + horizon, dtype=torch.bool).tril()
        mask[:tokens, :tokens] = True
        self.stack = Stack(len(mask), width=width, depth=depth, heads=heads, mask=mask, wanted=horizon)
        self.command = nn.Linear(width, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        out = self.stack(torch.cat((tokens, self.queries.expand(len(tokens), -1, -1)), 1))
        written: Tensor = self.command(out)
        return written


class OATNetwork(Trainable):
    """Registers, finite scalar quantiser, causal decoder."""

    betas: ClassVar[tuple[float, float]] = (0.9, 0.95)
    kept: Tensor

    def __init__(self, horizon: int, dim: int, config: OATConfig) -> None:
        super().__init__()
        self.tokens = tokens = config.tokens
        sizes = {"width": config.width, "heads": config.heads}
        self.encoder = RegisterEncoder(horizon, dim, tokens, depth=config.encoder_depth, **sizes)
        self.quantizer = FSQ(config.width, config.levels)
        self.mask_token = nn.Parameter(0.02 * torch.randn(config.width))
        self.decoder = TimeDecoder(horizon, dim, tokens, depth=config.decoder_depth, **sizes)
        kept = [2**power for power in range(tokens.bit_length()) if 2**power < tokens] + [tokens]
        self.register_buffer("kept", torch.tensor(kept), persistent=False)

    @property
    def code_count(self) -> int:
        return self.quantizer.size

    def write(self, values: Tensor, keep: Tensor) -> Tensor:
        """Chunks of values (B, T, d), where the tokens that are not kept (B, T) give way to the mask token."""
        tokens = torch.where(keep[..., None], self.quantizer.project_out(values), self.mask_token)
        out: Tensor = self.decoder(tokens)
        return out

    def losses(self, batch: Batch) -> Losses:
        values = self.quantizer(self.encoder(batch.x)).values
        kept = self.kept[batch.randint(0, len(self.kept))]
        keep = torch.arange(self.tokens, device=values.device) < kept[:, None]
        decoded = self.write(values, keep)
        terms = weigh({"reconstruction": lambda: F.mse_loss(decoded, batch.x)}, batch.config.weights, batch.x)
        return Losses(*terms, lambda: None)

    def continuous(self, x: Tensor) -> Tensor:
        values = self.quantizer.bounded(self.encoder(x))
        return self.write(values, torch.ones_like(values[..., 0], dtype=torch.bool))

    def encode(self, x: Tensor) -> Tensor:
        codes: Tensor = self.quantizer(self.encoder(x)).codes
        return codes[..., None]

    def decode(self, codes: Tensor) -> Tensor:
        """Chunks of codes (B, k, 1) of the first k tokens."""
        values = self.quantizer.values(codes[..., 0])
        missing = self.tokens - values.shape[1]
        keep = F.pad(torch.ones_like(values[..., 0], dtype=torch.bool), (0, missing))
        return self.write(F.pad(values, (0, 0, 0, missing)), keep)

    def start(self, x: Tensor, generator: torch.Generator, first: Tensor | None) -> None:
        """There are no codebooks to start."""

    def compiled(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]


class OATTokenizer(LearnedTokenizer):
    """Tokens in the order of the registers: every prefix decodes.

    Training knows prefixes of 1, 2, 4, ... and all tokens; with one in between, a token more need not be nearer.
    """

    kind = "oat"
    config_class = OATConfig
    token_order = "registers from coarse to fine, in steps of 1, 2, 4, ... tokens"
    has_prefix = True
    config: OATConfig

    def _network(self) -> OATNetwork:
        return OATNetwork(self.horizon, self.space.dim, self.config)

    @property
    def slots(self) -> int:
        return self.config.tokens
