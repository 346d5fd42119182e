"""Settings of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from actionpiece.errors import ActionPieceError

_DECODED = ("reconstruction", "physical_error", "temporal", "neighbor_order")  # objectives that a decoder feels


def paper_weights() -> dict[str, float]:
    """The paper's objective: reconstruction, commitment, physical rank preservation, quantization regularization."""
    return {"reconstruction": 1.0, "commitment": 0.25, "physical_rank": 6.25e-4, "quantization_order": 6.25e-4}


@dataclass(frozen=True)
class TrainConfig:
    """How a codec is trained. Steps, batch, learning rate and weights are the paper's; the rest is our choice.

    Attributes:
        steps: optimiser steps.
        batch: chunks per step, of all processes together.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        warmup: steps over which the learning rate rises from zero.
        schedule: `constant` after the warmup, or `cosine` down to zero.
        clip: largest norm of the gradient.
        weights: of the training objectives, by name.
        blend: the coordinates of the reconstruction term and of a start as a product quantiser: 0 is normalised ones,
            1 those of the physical distance, values between blend the columns' scales geometrically.
        part: what is trained: `all`, or the `decoder` alone, with encoder and codebooks as they started.
        companions: for every chunk drawn, this many of its physical neighbours in the training data join the batch.
        continuous: steps of plain autoencoding before the codebooks are started from the features and used.
        settle: steps at the end in which codebooks, if there are any, stay as they are, for the network to catch up.
        start_chunks: training chunks whose features start the codebooks, by k-means.
        checkpoint_every: steps between checkpoints.
        validate_every: steps between looks at the validation chunks.
        tensorboard: write the log for TensorBoard too, in a folder of that name beside it.
    """

    steps: int = 100_000
    batch: int = 128
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    warmup: int = 1000
    schedule: Literal["constant", "cosine"] = "cosine"
    clip: float = 1.0
    weights: dict[str, float] = field(default_factory=paper_weights)
    blend: float = 0.0
    part: Literal["all", "decoder"] = "all"
    companions: int = 0
    continuous: int = 1000
    settle: int = 0
    start_chunks: int = 4096
    checkpoint_every: int = 5000
    validate_every: int = 5000
    tensorboard: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.weights, dict):
            raise ActionPieceError("weights must be numbers by the names of objectives")
        for name, weight in self.weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
                raise ActionPieceError(f"the weight of {name} must be a number, zero or more, not {weight!r}")
        if not any(self.weights.values()):
            raise ActionPieceError("nothing is learned where no objective has a weight above zero")
        for name in ("steps", "batch", "start_chunks", "checkpoint_every", "validate_every"):
            if getattr(self, name) < 1:
                raise ActionPieceError(f"{name} must be at least 1, not {getattr(self, name)}")
        if (
            not 0 < self.learning_rate < math.inf
            or not 0 < self.clip < math.inf
            or min(self.warmup, self.weight_decay, self.continuous, self.settle) < 0
        ):
            raise ActionPieceError("learning_rate and clip must be positive and finite, no other setting negative")
        if self.continuous >= self.steps:
            raise ActionPieceError(
                f"{self.continuous} steps without codebooks leave none of {self.steps} with them; lower `continuous`"
            )
        if self.settle and self.part == "decoder":
            raise ActionPieceError("where the decoder alone is trained codebooks never move: leave out `settle`")
        if self.settle and self.continuous + self.settle >= self.steps:
            raise ActionPieceError(
                f"of {self.steps} steps none is left in which codebooks follow; lower `continuous` or `settle`"
            )
        if not 0 <= self.blend <= 1:
            raise ActionPieceError(f"blend runs from 0 (normalised) to 1 (physical), and is {self.blend}")
        if self.part not in ("all", "decoder"):
            raise ActionPieceError(f"part must be all or decoder, not '{self.part}'")
        if self.part == "decoder" and not any(self.weights.get(name) for name in _DECODED):
            raise ActionPieceError(f"a decoder alone learns nothing without one of {', '.join(_DECODED)}")
        if self.companions < 0 or self.batch % (self.companions + 1):
            raise ActionPieceError(f"a batch of {self.batch} is not made of chunks with {self.companions} companions")
        if self.weights.get("neighbor_order") and self.companions < 2:
            raise ActionPieceError("neighbor_order needs at least 2 companions for every chunk drawn")
        if self.schedule not in ("constant", "cosine"):
            raise ActionPieceError(f"schedule must be constant or cosine, not '{self.schedule}'")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.learning_rate
        share = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * share))
