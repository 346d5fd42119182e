"""`vqbet`: two layers of perceptrons around a residual quantiser of 2 levels with 16 codes (VQ-BeT).

The paper's: a multilayer perceptron over the whole chunk, two residual levels of 16 codes, absolute error plus five
times the commitment term. Ours: width, depth and codebook dimension; standardised vectors, start and moving averages
of the codebooks as in our other codecs; rate, batch and steps of the matched comparison. It has one byte for a chunk:
VQ-BeT's policy predicts an offset beside the codes, which a tokenizer does not have.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor, nn

from actionpiece.objectives import committed, weigh
from actionpiece.tokenizers.learned import (
    LEVEL_MAJOR,
    LearnedTokenizer,
    check_baseline,
    check_codebooks,
    residual_quantizer,
    training,
)
from actionpiece.training import Batch, Losses, TrainConfig, VectorQuantized


def _training() -> TrainConfig:
    return training({"l1": 1.0, "commitment": 5.0}, continuous=1000)


@dataclass(frozen=True)
class VQBeTConfig:
    """VQ-BeT's residual quantiser.

    Attributes:
        levels: residual levels, one token each.
        codes: codewords of a level.
        code_dim: dimension of the codewords.
        width: of the perceptrons.
        depth: hidden layers of each.
        deviation: what the vectors are standardised to in codebook space; 0: they are left as they are.
        decay: of the moving averages.
        dead_share: a codeword used less than this share of the average is replaced.
        train: how it is trained.
    """

    levels: int = 2
    codes: int = 16
    code_dim: int = 32
    width: int = 512
    depth: int = 2
    deviation: float = 0.2
    decay: float = 0.99
    dead_share: float = 0.03
    train: TrainConfig = field(default_factory=_training)

    def __post_init__(self) -> None:
        check_baseline("vqbet", self.train, ("l1", "commitment"), width=self.width, depth=self.depth)
        check_codebooks("vqbet", self)


def perceptron(*widths: int) -> list[nn.Module]:
    """Linear layers of these widths, each with GELU after it."""
    return [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.GELU())]


class VQBeTNetwork(VectorQuantized):
    """A perceptron, one slot of residual codes, a perceptron."""

    def __init__(self, horizon: int, dim: int, config: VQBeTConfig) -> None:
        super().__init__()
        self.shape = (horizon, dim)
        hidden = [config.width] * config.depth
        self.encoder = nn.Sequential(*perceptron(horizon * dim, *hidden))
        self.quantizer = residual_quantizer(config, width=config.width, slots=1)
        # The quantiser's projections are linear on both sides, so a nonlinearity comes before and after them.
        self.decoder = nn.Sequential(nn.GELU(), *perceptron(*hidden), nn.Linear(config.width, horizon * dim))

    def project(self, x: Tensor) -> Tensor:
        return self.quantizer.project(self.encoder(x.flatten(1))[:, None])

    def write(self, output: Tensor) -> Tensor:
        out: Tensor = self.decoder(output[:, 0])
        return out.view(-1, *self.shape)

    def losses(self, batch: Batch) -> Losses:
        quantized = self.quantizer.quantize(self.project(batch.x))
        decoded = self.write(quantized.output)
        objectives = {"l1": lambda: F.l1_loss(decoded, batch.x), "commitment": lambda: committed(quantized)}
        return Losses(*weigh(objectives, batch.config.weights, batch.x), self.follow(quantized))

    def compiled(self) -> list[nn.Module]:
        """Nothing: torch passes an `nn.Sequential` over, and there is little to fuse between a few products."""
        return []


class VQBeTTokenizer(LearnedTokenizer):
    """One token for each residual level."""

    kind = "vqbet"
    config_class = VQBeTConfig
    token_order = LEVEL_MAJOR
    config: VQBeTConfig

    def _network(self) -> VQBeTNetwork:
        return VQBeTNetwork(self.horizon, self.space.dim, self.config)

    @property
    def slots(self) -> int:
        return 1

    @property
    def levels(self) -> int:
        return self.config.levels
