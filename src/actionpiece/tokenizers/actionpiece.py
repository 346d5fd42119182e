"""`actionpiece`: the paper's codec, trained to reconstruct chunks and to keep their physical order.

A Transformer encoder reads a chunk into S slots, a residual vector quantiser picks one codeword per slot and level, and
a Transformer decoder writes the whole chunk from them in one pass, so that every code sequence is a chunk. H, S, Q, K,
the learning rate, batch, steps and objective weights are the paper's; depth, width, codebook dimension and start,
moving averages and the rule for dead codewords are ours, since the paper does not give them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.metrics.prc import prc
from actionpiece.tokenizers.base import FitJob, Progress
from actionpiece.tokenizers.learned import LEVEL_MAJOR, LearnedTokenizer
from actionpiece.tokenizers.pq import GROUPINGS, PQConfig, PQTokenizer
from actionpiece.training import Run, TrainConfig
from actionpiece.training.physical import PhysicalCodec

_TRIAL = 5_000  # training chunks on which product quantisers to start from are compared


@dataclass(frozen=True)
class ActionPieceConfig:
    """The codec and its training. A recipe's defaults are its own; those of `actionpiece` are the paper's.

    Attributes:
        slots: latent slots, the paper's S.
        levels: residual levels, the paper's Q.
        codes: codewords per level, the paper's K.
        codebook: one codebook for all slots (`shared`, the paper) or one for each (`per_slot`).
        start: how the codec begins. `kmeans`: codebooks from the features of an untrained encoder. `pq`: as a rotated
            product quantiser, of which the Transformers learn corrections; it has one codebook for each slot.
        blends: try product quantisers with these blends, and go on from the one that keeps neighbours' order best among
            those with little more error than the first; none: the training's own blend.
        slack: how much more error, as a share, that may be.
        groups: how that product quantiser shares components among slots; see `pq`. `either`: every blend is tried with
            both ways; a fitted codec has the one that was chosen.
        code_dim: dimension of the codewords; 0: as many as a slot has values of the chunk, H * D / S.
        width: of the Transformers.
        encoder_depth: layers that read the chunk; 0 with a start as a product quantiser: its linear map alone does.
        decoder_depth: layers that write it.
        heads: attention heads.
        deviation: what each slot's vectors are standardised to in codebook space; 0: they are left as they are.
        decay: of the codebooks' and that standardisation's moving averages.
        dead_share: a codeword used less than this share of the average is replaced.
        train: how it is trained.
    """

    slots: int = 16
    levels: int = 1
    codes: int = 512
    codebook: Literal["shared", "per_slot"] = "shared"
    start: Literal["kmeans", "pq"] = "kmeans"
    blends: tuple[float, ...] = ()
    slack: float = 0.0
    groups: Literal["least_error", "balanced", "either"] = "least_error"
    code_dim: int = 2
    width: int = 192
    encoder_depth: int = 2
    decoder_depth: int = 4
    heads: int = 4
    deviation: float = 0.2
    decay: float = 0.99
    dead_share: float = 0.03
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        sizes = (self.slots, self.levels, self.width, self.decoder_depth, self.heads)
        if min(sizes) < 1 or self.codes < 2 or min(self.code_dim, self.encoder_depth) < 0:
            raise ActionPieceError("actionpiece needs at least 1 of everything and 2 codes")
        if self.width % self.heads:
            raise ActionPieceError(f"a width of {self.width} cannot be shared by {self.heads} heads")
        if not 0 < self.decay < 1 or not 0 <= self.dead_share < 1 or min(self.deviation, self.slack) < 0:
            raise ActionPieceError(
                "decay must lie between 0 and 1, dead_share from 0 to below 1, deviation and slack not below 0"
            )
        if self.codebook not in ("shared", "per_slot"):
            raise ActionPieceError(f"codebook must be shared or per_slot, not '{self.codebook}'")
        if self.start not in ("kmeans", "pq"):
            raise ActionPieceError(f"start must be kmeans or pq, not '{self.start}'")
        if self.start == "pq" and (self.codebook != "per_slot" or self.code_dim or self.deviation):
            raise ActionPieceError("a start as a product quantiser needs codebook per_slot, code_dim 0, deviation 0")
        if self.groups not in (*GROUPINGS, "either"):
            raise ActionPieceError(f"groups must be {', '.join(GROUPINGS)} or either, not '{self.groups}'")
        if self.start != "pq" and (self.blends or self.groups != "least_error"):
            raise ActionPieceError(
                "blends and groups are of product quantisers to start from; without one there are none"
            )
        if self.start != "pq" and not self.encoder_depth:
            raise ActionPieceError("an encoder without layers needs a start as a product quantiser")
        self.quantizers()

    def quantizers(self) -> list[PQConfig]:
        """The product quantisers to choose the start from. The others are held against the error of the first."""
        ways: tuple[Any, ...] = tuple(GROUPINGS) if self.groups == "either" else (self.groups,)
        return [
            PQConfig(tokens=self.slots, codes=self.codes, blend=blend, groups=groups)
            for groups in ways
            for blend in self.blends or (self.train.blend,)
        ]

    def started(self, quantizer: PQConfig) -> ActionPieceConfig:
        """This configuration as it is written down after a start from one of them."""
        return replace(self, groups=quantizer.groups, train=replace(self.train, blend=quantizer.blend))

    def outcomes(self) -> list[ActionPieceConfig]:
        """All that this configuration may be after a fit."""
        return [self.started(one) for one in self.quantizers()] if self.start == "pq" else [self]


def rvq() -> ActionPieceConfig:
    """The same codec without physical rank preservation and quantization regularization: the paper's Standard RVQ."""
    return ActionPieceConfig(train=TrainConfig(weights={"reconstruction": 1.0, "commitment": 0.25}))


def best() -> ActionPieceConfig:
    """What did best on validation at 16 tokens of 512 codes: a product quantiser with corrections by Transformers.

    The weight of the commitment term matters: the straight-through gradient of a product quantiser points away from
    the codewords, the commitment term towards them. At S d / (H D), about 1.1, the two cancel where the quantiser
    starts. In short trials on validation chunks training at 0.25 made the codec worse and at 3 better; the trials
    differed in blend and length, so 3 is a choice, not an optimum.

    Training takes a third off the quantiser's error, so a start with a quarter more of it is worth its better order.
    """
    return ActionPieceConfig(
        codebook="per_slot",
        start="pq",
        blends=(0.0, 0.35, 0.5, 0.7),
        slack=0.25,
        code_dim=0,
        deviation=0.0,
        width=128,
        decoder_depth=2,
        dead_share=0.0,
        train=TrainConfig(
            steps=20_000,
            batch=512,
            learning_rate=5e-4,
            warmup=500,
            continuous=0,
            weights={"reconstruction": 1.0, "commitment": 3.0},
        ),
    )


def small() -> ActionPieceConfig:
    """`best` for a minute on a CPU: narrow, shallow, short."""
    large = best()
    train = replace(
        large.train, steps=400, batch=256, learning_rate=2e-3, warmup=50, checkpoint_every=100, validate_every=100
    )
    return replace(large, blends=(), slack=0.0, width=32, heads=2, encoder_depth=1, decoder_depth=1, train=train)


class ActionPieceTokenizer(LearnedTokenizer):
    """The paper's codec behind the contract."""

    kind = "actionpiece"
    config_class = ActionPieceConfig
    token_order = LEVEL_MAJOR
    config: ActionPieceConfig
    codec: PhysicalCodec

    def _network(self) -> PhysicalCodec:
        config = self.config
        return PhysicalCodec(
            self.horizon,
            self.space.dim,
            slots=config.slots,
            levels=config.levels,
            codes=config.codes,
            code_dim=config.code_dim or math.ceil(self.horizon * self.space.dim / config.slots),
            codebook=config.codebook,
            width=config.width,
            encoder_depth=config.encoder_depth,
            decoder_depth=config.decoder_depth,
            heads=config.heads,
            deviation=config.deviation,
            decay=config.decay,
            dead_share=config.dead_share,
            linear=config.start == "pq",
        )

    @property
    def slots(self) -> int:
        return self.config.slots

    @property
    def levels(self) -> int:
        return self.config.levels

    def _run(
        self,
        x: Tensor,
        seed: int,
        folder: Path | None,
        *,
        resume: bool,
        progress: Progress = lambda fraction, what: None,
    ) -> Run:
        """A new codec and how to train it."""
        first = None
        if self.config.start == "pq":
            pq = self._product_quantizer(x, seed, progress)
            self.config = self.config.started(pq.config)
            first = pq.codebooks
        run = super()._run(x, seed, folder, resume=resume)
        if first is not None:
            basis = pq.basis.flatten(1)  # (H * D, S * d)
            self.codec.start_linear(
                analysis=((basis * pq.weight[:, None]).T, -basis.T @ pq.mean),
                synthesis=(basis / pq.weight[:, None], pq.mean / pq.weight),
            )
        return replace(run, first=first)

    def _product_quantizer(self, x: Tensor, seed: int, progress: Progress) -> PQTokenizer:
        """The product quantiser to start from: of several, the one to be preferred on training chunks."""
        own = self.config
        sample = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:_TRIAL].to(x.device)]
        raw = self.normalizer.denormalize(sample)
        tried = []
        choice = own.quantizers()
        for config in choice:
            shared = {"space": self.space, "normalizer": self.normalizer, "distance": self.distance}
            pq = PQTokenizer(config, **shared, horizon=self.horizon)
            say = functools.partial(_say_start, progress, config)
            pq._fit(x, FitJob(seed, say, None, None, False, str(x.device)))
            if len(choice) == 1:
                return pq
            pq.to(x.device)
            decoded = pq._decode(pq._encode(sample))
            order = prc(raw, self.normalizer.denormalize(decoded), distance=self.distance, k=min(32, len(raw) - 1))
            tried.append((float((decoded - sample).square().mean()), order.value, pq.cpu()))
        limit = (1 + own.slack) * tried[0][0]
        return max((trial for trial in tried if trial[0] <= limit), key=lambda trial: trial[1])[2]


def _say_start(progress: Progress, config: PQConfig, fraction: float, what: str) -> None:
    # The bar is for the training that follows.
    progress(0.0, f"product quantiser, blend {config.blend}, {config.groups.replace('_', ' ')} groups: {what}")
