"""`actioncodec`: a Perceiver between chunks and tokens that stay the same from one moment to the next (ActionCodec).

The paper's: Perceiver encoder and decoder of six layers, width 256, eight heads, cross-attention only, LayerNorm on
queries and keys, LayerScale, Fourier features of time, queries for every embodiment; 16 tokens of 2048 codes, or three
residual levels with quantiser dropout in level-major order (`actioncodec-48`); commitment 0.25, moving averages of
0.99, a start by k-means; a time-contrastive term, and one that aligns chunks with embeddings of what they do.

Ours, since its training was never released: squared error; weights and temperatures of the two contrastive terms (warm
for the windows, which it then draws together; a cold one has chunks told apart, by details that change from step to
step); which training chunks are overlapping windows is found out from the chunks, since nothing else is given; both
terms compare chunks of one batch; codebook dimension and standardised vectors as in our other codecs; a codeword is
dead below a share of the average use (the paper's threshold of 2 is more than the average in a batch of ours); rate,
batch and steps of the matched comparison, and its min-max normaliser.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actionpiece.errors import ActionPieceError
from actionpiece.nn.perceiver import Perceiver, fourier_times
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

OBJECTIVES = ("reconstruction", "commitment", "contrast", "alignment")


def _training() -> TrainConfig:
    return training({"reconstruction": 1.0, "commitment": 0.25, "contrast": 4e-3}, continuous=1000)


@dataclass(frozen=True)
class ActionCodecConfig:
    """ActionCodec.

    Attributes:
        tokens: of a residual level.
        levels: residual levels.
        codes: codewords of a level.
        code_dim: dimension of the codewords.
        width: of the Perceivers.
        depth: layers of each.
        heads: attention heads.
        embodiments: robots that share codebooks; each has queries of its own. `fit` is told which chunk is whose among
            its extras, as `embodiment`; see `for_embodiment`. Steps without codebooks (`train.continuous`) share chunks
            out among all queries.
        embodiment: whose chunks it encodes and decodes; validation figures of the training are of this one, too.
        quantizer_dropout: share of the chunks that keep only the first few residual levels in training: any number of
            them, all included.
        embedding: dimension of the embeddings that `fit` gets among its extras, as `embedding`, for the objective
            `alignment`; 0: there are none.
        temperature: of the contrast of overlapping windows.
        alignment_temperature: of the alignment with embeddings.
        deviation: what each slot's vectors are standardised to in codebook space; 0: they are left as they are.
        decay: of the moving averages.
        dead_share: a codeword used less than this share of the average is replaced.
        train: how it is trained.
    """

    tokens: int = 16
    levels: int = 1
    codes: int = 2048
    code_dim: int = 2
    width: int = 256
    depth: int = 6
    heads: int = 8
    embodiments: int = 1
    embodiment: int = 0
    quantizer_dropout: float = 0.0
    embedding: int = 0
    temperature: float = 2.0
    alignment_temperature: float = 0.5
    deviation: float = 0.2
    decay: float = 0.99
    dead_share: float = 0.03
    train: TrainConfig = field(default_factory=_training)

    def __post_init__(self) -> None:
        sizes = {"tokens": self.tokens, "depth": self.depth, "embodiments": self.embodiments}
        check_baseline("actioncodec", self.train, OBJECTIVES, width=self.width, heads=self.heads, **sizes)
        check_codebooks("actioncodec", self)
        if (
            not 0 <= self.quantizer_dropout < 1
            or self.embedding < 0
            or not (0 < self.temperature < math.inf and 0 < self.alignment_temperature < math.inf)
        ):
            raise ActionPieceError(
                "quantizer_dropout must lie from 0 to below 1, embedding not below 0, temperatures above 0"
            )
        if not 0 <= self.embodiment < self.embodiments:
            raise ActionPieceError(f"there are embodiments 0 to {self.embodiments - 1}, not {self.embodiment}")
        if bool(self.embedding) != bool(self.train.weights.get("alignment")):
            raise ActionPieceError("embeddings and a weight of the objective alignment come together or not at all")


def three_levels() -> ActionCodecConfig:
    """Three residual levels with quantiser dropout: 48 tokens, for block-wise generation.

    Four dimensions a codeword, ours: 16 of two could not hold all of a chunk however many levels there are, and eight
    had more error on validation chunks after a short training.
    """
    return replace(ActionCodecConfig(), levels=3, quantizer_dropout=0.25, code_dim=4)


class ActionCodecNetwork(VectorQuantized):
    """Perceiver, residual quantiser, Perceiver.

    Codebooks start from chunks as seen by all embodiments in turn: who they are of is not known there.
    """

    def __init__(self, horizon: int, dim: int, config: ActionCodecConfig) -> None:
        super().__init__()
        self.horizon, self.levels, self.embodiments = horizon, config.levels, config.embodiments
        self.dropout, self.temperature = config.quantizer_dropout, config.temperature
        self.alignment_temperature = config.alignment_temperature
        self.embodiment = config.embodiment
        times = fourier_times(horizon, config.width)
        sizes = {"width": config.width, "depth": config.depth, "heads": config.heads}
        shared: dict[str, Any] = {**sizes, "embodiments": config.embodiments}
        self.embed = nn.Linear(dim, config.width)
        self.encoder = Perceiver(horizon, config.tokens, **shared, given_times=times)
        self.quantizer = residual_quantizer(config, width=config.width, slots=config.tokens)
        self.decoder = Perceiver(config.tokens, horizon, **shared, wanted_times=times)
        self.command = nn.Linear(config.width, dim)
        self.align = nn.Linear(config.width, config.embedding) if config.embedding else None

    def _own(self, x: Tensor) -> Tensor:
        return torch.full((len(x),), self.embodiment, device=x.device)

    def _in_turn(self, x: Tensor) -> Tensor:
        return torch.arange(len(x), device=x.device) % self.embodiments

    def project(self, x: Tensor, embodiment: Tensor | None = None) -> Tensor:
        return self.quantizer.project(self.encoder(self.embed(x), self._own(x) if embodiment is None else embodiment))

    def continuous(self, x: Tensor) -> Tensor:
        whose = self._in_turn(x)
        return self.write(self.quantizer.project_out(self.project(x, whose)), whose)

    def start(self, x: Tensor, generator: torch.Generator, first: Tensor | None) -> None:
        self.quantizer.start(self.project(x, self._in_turn(x)), generator, first)

    def write(self, output: Tensor, embodiment: Tensor | None = None) -> Tensor:
        out: Tensor = self.command(self.decoder(output, self._own(output) if embodiment is None else embodiment))
        return out

    def losses(self, batch: Batch) -> Losses:
        x, weights = batch.x, batch.config.weights
        embodiment = batch.extra("embodiment").long() if self.embodiments > 1 else self._own(x)
        views, whose = x, embodiment
        if weights.get("contrast"):  # one pass for both windows of every chunk
            views, whose = torch.cat((x, later(batch))), torch.cat((embodiment, embodiment))
        features = self.encoder(self.embed(views), whose)
        u = self.quantizer.project(features)
        quantized = self.quantizer.quantize(u[: len(x)], self._kept_levels(batch))
        decoded = self.write(quantized.output, embodiment)
        objectives = {
            "reconstruction": lambda: F.mse_loss(decoded, x),
            "commitment": lambda: committed(quantized),
            "contrast": lambda: info_nce(u[: len(x)].flatten(1), u[len(x) :].flatten(1), self.temperature),
            "alignment": lambda: self._alignment(features[: len(x)], batch.extra("embedding")),
        }
        return Losses(*weigh(objectives, weights, x), self.follow(quantized))

    def _alignment(self, features: Tensor, embedding: Tensor) -> Tensor:
        assert self.align is not None
        return info_nce(self.align(features.mean(1)), embedding.to(features.dtype), self.alignment_temperature)

    def _kept_levels(self, batch: Batch) -> Tensor | None:
        """(Q, B) which levels each chunk keeps: all, or for the share that is dropped, any first few."""
        if not self.dropout:
            return None
        few, dropped = batch.randint(1, self.levels + 1), batch.rand() < self.dropout
        count = torch.where(dropped, few, self.levels)
        return (torch.arange(self.levels, device=count.device)[:, None] < count).float()

    def compiled(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]


def later(batch: Batch) -> Tensor:
    """For every chunk of (B, H, D) the window one or more steps later, up to a quarter of it.

    Where an episode ends, and where a window is not among the training chunks, the last command is repeated.
    """
    chunks, following = batch.examples.chunks, batch.examples.following
    horizon = chunks.shape[1]
    most = max(horizon // 4, 1)
    at, left = batch.index, batch.randint(1, most + 1)
    for _ in range(most):
        goes_on = (left > 0) & (following[at] >= 0)
        at, left = torch.where(goes_on, following[at], at), left - goes_on.long()
    steps = (torch.arange(horizon, device=at.device) + left[:, None]).clamp_max(horizon - 1)
    return chunks[at].gather(1, steps[..., None].expand_as(batch.x))


class ActionCodecTokenizer(LearnedTokenizer):
    """ActionCodec behind the contract."""

    kind = "actioncodec"
    config_class = ActionCodecConfig
    token_order = LEVEL_MAJOR
    takes_extras = ("embodiment", "embedding")
    config: ActionCodecConfig
    codec: ActionCodecNetwork

    def _network(self) -> ActionCodecNetwork:
        return ActionCodecNetwork(self.horizon, self.space.dim, self.config)

    @property
    def needs_extras(self) -> tuple[str, ...]:
        several, aligned = self.config.embodiments > 1, self.config.embedding > 0
        return ("embodiment",) * several + ("embedding",) * aligned

    def _fit(self, x: Tensor, job: FitJob) -> None:
        check_extra(job.extras, "embedding", self.config.embedding)
        if "embodiment" in job.extras:
            whose = job.extras["embodiment"]
            if whose.ndim != 1 or not bool(((whose % 1 == 0) & (whose >= 0) & (whose < self.config.embodiments)).all()):
                raise ActionPieceError(
                    f"'embodiment' must be a number from 0 to {self.config.embodiments - 1} per chunk"
                )
        super()._fit(x, job)

    def for_embodiment(self, number: int) -> ActionCodecTokenizer:
        """The same tokenizer for the chunks of another of the robots it was fitted on; it is saved as such."""
        config = replace(self.config, embodiment=number)
        shared = {"space": self.space, "normalizer": self.normalizer, "distance": self.distance}
        other = type(self)(config, **shared, horizon=self.horizon)
        other.codec.load_state_dict(self.codec.state_dict())
        other.codec.requires_grad_(False)
        other.provenance = dict(self.provenance)
        return other.to(self.device)

    @property
    def slots(self) -> int:
        return self.config.tokens

    @property
    def levels(self) -> int:
        return self.config.levels
