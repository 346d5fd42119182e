"""`quest`: causal convolutions that shorten time by four, a causal Transformer, finite scalar quantisation (QueST).

The paper's: strided causal convolutions, a causal Transformer behind them, levels 8, 5, 5, 5, absolute error, a decoder
whose steps see all codes and earlier steps; two and four layers of width 256. Ours: one convolution of stride two per
halving and one more behind them, kernels; codes and steps as one sequence, without dropout; a chunk whose steps do not
divide repeats its last command; rate, batch and steps of the matched comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actionpiece.errors import ActionPieceError
from actionpiece.nn.conv import CausalConv, repeat_last
from actionpiece.nn.fsq import FSQ
from actionpiece.nn.transformer import Stack
from actionpiece.objectives import weigh
from actionpiece.tokenizers.learned import LearnedTokenizer, check_baseline, training
from actionpiece.tokenizers.oat import TimeDecoder, check_levels
from actionpiece.training import Batch, Losses, Trainable, TrainConfig


def _training() -> TrainConfig:
    return training({"l1": 1.0})


@dataclass(frozen=True)
class QueSTConfig:
    """QueST's skill tokenizer.

    Attributes:
        downsample: steps that share a token: 1, 2, 4, 8 and so on.
        levels: cells of each of the numbers that a token stands for.
        width: of the convolutions and the Transformers.
        encoder_depth: layers that read the chunk.
        decoder_depth: layers that write it.
        heads: attention heads.
        train: how it is trained.
    """

    downsample: int = 4
    levels: tuple[int, ...] = (8, 5, 5, 5)
    width: int = 256
    encoder_depth: int = 2
    decoder_depth: int = 4
    heads: int = 4
    train: TrainConfig = field(default_factory=_training)

    def __post_init__(self) -> None:
        sizes = {"encoder_depth": self.encoder_depth, "decoder_depth": self.decoder_depth}
        check_baseline("quest", self.train, ("l1",), width=self.width, heads=self.heads, **sizes)
        check_levels("quest", self.levels)
        if self.downsample < 1 or self.downsample & (self.downsample - 1):
            raise ActionPieceError(f"quest: downsample must be a power of two, not {self.downsample}")


class ConvEncoder(nn.Module):
    """Chunks (B, H, D) to (B, H / downsample, width); output i sees no step after those it stands for."""

    def __init__(self, horizon: int, dim: int, downsample: int, *, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.downsample = downsample
        halvings = downsample.bit_length() - 1
        layers: list[nn.Module] = []
        for number in range(halvings):
            layers += [CausalConv(dim if number == 0 else width, width, 4, stride=2), nn.GELU()]
        self.convolutions = nn.Sequential(*layers, CausalConv(width if halvings else dim, width, 3))
        length = -(-horizon // downsample)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        self.stack = Stack(length, width=width, depth=depth, heads=heads, mask=mask)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.stack(self.convolutions(repeat_last(x, self.downsample)))
        return out


class QueSTNetwork(Trainable):
    """Convolutions and Transformer, finite scalar quantiser, causal decoder."""

    def __init__(self, horizon: int, dim: int, config: QueSTConfig) -> None:
        super().__init__()
        sizes = {"width": config.width, "heads": config.heads}
        self.encoder = ConvEncoder(horizon, dim, config.downsample, depth=config.encoder_depth, **sizes)
        self.quantizer = FSQ(config.width, config.levels)
        self.decoder = TimeDecoder(horizon, dim, -(-horizon // config.downsample), depth=config.decoder_depth, **sizes)

    @property
    def code_count(self) -> int:
        return self.quantizer.size

    def write(self, values: Tensor) -> Tensor:
        """Chunks of values (B, T, d)."""
        out: Tensor = self.decoder(self.quantizer.project_out(values))
        return out

    def losses(self, batch: Batch) -> Losses:
        decoded = self.write(self.quantizer(self.encoder(batch.x)).values)
        terms = weigh({"l1": lambda: F.l1_loss(decoded, batch.x)}, batch.config.weights, batch.x)
        return Losses(*terms, lambda: None)

    def continuous(self, x: Tensor) -> Tensor:
        return self.write(self.quantizer.bounded(self.encoder(x)))

    def encode(self, x: Tensor) -> Tensor:
        codes: Tensor = self.quantizer(self.encoder(x)).codes
        return codes[..., None]

    def decode(self, codes: Tensor) -> Tensor:
        return self.write(self.quantizer.values(codes[..., 0]))

    def start(self, x: Tensor, generator: torch.Generator, first: Tensor | None) -> None:
        """There are no codebooks to start."""

    def compiled(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]


class QueSTTokenizer(LearnedTokenizer):
    """One token for every few steps."""

    kind = "quest"
    config_class = QueSTConfig
    token_order = "time: a token for every few steps"
    config: QueSTConfig

    def _network(self) -> QueSTNetwork:
        return QueSTNetwork(self.horizon, self.space.dim, self.config)

    @property
    def slots(self) -> int:
        return -(-self.horizon // self.config.downsample)
