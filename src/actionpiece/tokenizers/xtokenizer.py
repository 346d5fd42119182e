"""`xtokenizer`: four residual levels, the first of which is to say what a motion is about (X-Tokenizer).

The paper's: four residual levels of 2048 codes; the first trained by masked action modelling, the others by
reconstruction; contrastive alignment of the first with features of a frozen teacher where there are some. Ours: four
slots; the Transformers of our codec; half of the steps are masked, and the first level of what the encoder makes of the
rest has to give them back, through the decoder that all levels share; codewords of the first level follow such masked
chunks only, those of the others whole ones; weights and temperature; codebook dimension, standardised vectors, start
and moving averages as in our other codecs; no prediction of features of the next frame; rate, batch and steps of
the matched comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actionpiece.errors import ActionPieceError
from actionpiece.nn.transformer import Reader, StepDecoder
from actionpiece.objectives import committed, info_nce, weigh
from actionpiece.tokenizers.base import FitJob
from actionpiece.tokenizers.learned import (
    LEVEL_MAJOR,
    LearnedTokenizer,
    check_baseline,
    check_codebooks,
    check_extra,
    residual_quantizer,
    training,
)
from actionpiece.training import Batch, Losses, TrainConfig, VectorQuantized

OBJECTIVES = ("reconstruction", "masked", "commitment", "teacher")


def _training() -> TrainConfig:
    return training({"reconstruction": 1.0, "masked": 0.05, "commitment": 0.25}, continuous=1000)


@dataclass(frozen=True)
class XTokenizerConfig:
    """X-Tokenizer.

    Attributes:
        slots: tokens of a residual level.
        levels: residual levels; the first is trained by masked action modelling.
        codes: codewords of a level.
        code_dim: dimension of the codewords.
        width: of the Transformers.
        encoder_depth: layers that read the chunk.
        decoder_depth: layers that write it.
        heads: attention heads.
        hide: share of the steps that masked action modelling hides.
        teacher: dimension of the features that `fit` gets among its extras, as `teacher`, for the objective of that
            name; 0: there are none.
        temperature: of that objective.
        deviation: what each slot's vectors are standardised to in codebook space; 0: they are left as they are.
        decay: of the moving averages.
        dead_share: a codeword used less than this share of the average is replaced.
        train: how it is trained.
    """

    slots: int = 4
    levels: int = 4
    codes: int = 2048
    code_dim: int = 8
    width: int = 256
    encoder_depth: int = 2
    decoder_depth: int = 4
    heads: int = 4
    hide: float = 0.5
    teacher: int = 0
    temperature: float = 0.1
    deviation: float = 0.2
    decay: float = 0.99
    dead_share: float = 0.03
    train: TrainConfig = field(default_factory=_training)

    def __post_init__(self) -> None:
        sizes = {"slots": self.slots, "encoder_depth": self.encoder_depth, "decoder_depth": self.decoder_depth}
        check_baseline("xtokenizer", self.train, OBJECTIVES, width=self.width, heads=self.heads, **sizes)
        check_codebooks("xtokenizer", self)
        if not 0 < self.hide < 1 or self.teacher < 0 or not 0 < self.temperature < math.inf:
            raise ActionPieceError("hide must lie between 0 and 1, teacher not below 0, temperature above 0")
        if bool(self.teacher) != bool(self.train.weights.get("teacher")):
            raise ActionPieceError("features of a teacher and a weight of that objective come together or not at all")


class MaskedEncoder(nn.Module):
    """Chunks (B, H, D) to slots (B, S, width); a learned token stands for steps that are hidden (B, H)."""

    def __init__(self, horizon: int, dim: int, slots: int, *, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Linear(dim, width)
        self.mask_token = nn.Parameter(0.02 * torch.randn(width))
        self.reader = Reader(horizon, slots, width=width, depth=depth, heads=heads)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        out: Tensor = self.reader(torch.where(hidden[..., None], self.mask_token, self.embed(x)))
        return out


class XTokenizerNetwork(VectorQuantized):
    """An encoder that may be shown part of a chunk, a residual quantiser, a decoder for any number of levels."""

    def __init__(self, horizon: int, dim: int, config: XTokenizerConfig) -> None:
        super().__init__()
        self.hide, self.temperature = config.hide, config.temperature
        slots, sizes = config.slots, {"width": config.width, "heads": config.heads}
        self.encoder = MaskedEncoder(horizon, dim, slots, depth=config.encoder_depth, **sizes)
        self.quantizer = residual_quantizer(config, width=config.width, slots=slots)
        self.decoder = StepDecoder(horizon, dim, slots, depth=config.decoder_depth, **sizes)
        self.align = nn.Linear(config.width, config.teacher) if config.teacher else None

    def project(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        if hidden is None:
            hidden = torch.zeros_like(x[..., 0], dtype=torch.bool)
        return self.quantizer.project(self.encoder(x, hidden))

    def write(self, output: Tensor) -> Tensor:
        out: Tensor = self.decoder(output)
        return out

    def losses(self, batch: Batch) -> Losses:
        x = batch.x
        hidden = batch.rand(x.shape[1]) < self.hide
        # One pass for the chunk as it is and as it is masked.
        whole, part = self.project(torch.cat((x, x)), torch.cat((torch.zeros_like(hidden), hidden))).chunk(2)
        gist, full = self.quantizer.quantize(part, levels=1), self.quantizer.quantize(whole)
        decoded, guessed = self.write(torch.cat((full.output, gist.output))).chunk(2)
        quantized = full._replace(levels=gist.levels + full.levels[1:])  # what each level learns from
        objectives = {
            "reconstruction": lambda: F.mse_loss(decoded, x),
            "masked": lambda: hidden_error(guessed, x, hidden),
            "commitment": lambda: committed(quantized),
            "teacher": lambda: self._teacher(gist.output, batch.extra("teacher")),
        }
        return Losses(*weigh(objectives, batch.config.weights, x), self.follow(quantized))

    def _teacher(self, output: Tensor, features: Tensor) -> Tensor:
        assert self.align is not None
        return info_nce(self.align(output.mean(1)), features.to(output.dtype), self.temperature)

    def compiled(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]


def hidden_error(guessed: Tensor, x: Tensor, hidden: Tensor) -> Tensor:
    """Mean squared error of chunks (B, H, D) over the steps that were hidden (B, H)."""
    error = (guessed - x).square().mean(-1) * hidden
    return error.sum() / hidden.sum().clamp_min(1)


class XTokenizer(LearnedTokenizer):
    """X-Tokenizer behind the contract."""

    kind = "xtokenizer"
    config_class = XTokenizerConfig
    token_order = LEVEL_MAJOR
    takes_extras = ("teacher",)
    config: XTokenizerConfig

    def _network(self) -> XTokenizerNetwork:
        return XTokenizerNetwork(self.horizon, self.space.dim, self.config)

    @property
    def needs_extras(self) -> tuple[str, ...]:
        return ("teacher",) if self.config.teacher else ()

    def _fit(self, x: Tensor, job: FitJob) -> None:
        check_extra(job.extras, "teacher", self.config.teacher)
        super()._fit(x, job)

    @property
    def slots(self) -> int:
        return self.config.slots

    @property
    def levels(self) -> int:
        return self.config.levels
