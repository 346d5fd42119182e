"""Settings of policy training, by name."""

from __future__ import annotations

import math
from dataclasses import dataclass

from actionpiece.errors import ActionPieceError


@dataclass(frozen=True)
class PolicyTrainConfig:
    """How a policy is trained. The defaults are for an untrained `small` model.

    Attributes:
        steps: optimiser steps.
        batch: examples per step, of all processes together.
        learning_rate: of AdamW, after the warmup.
        least_rate: where the cosine ends.
        warmup: steps over which the learning rate rises from zero.
        beta1: of AdamW.
        beta2: of AdamW.
        weight_decay: of AdamW.
        clip: largest norm of the gradient.
        augment: move pictures a little and change their light, at random; --no-augment leaves them as they are.
        checkpointing: run layers again in the backward pass, which saves memory and costs a third more time.
        cotrain_weight: of the loss on image questions, where some are given.
        cotrain_batch: questions per step, of all processes together.
        validate_every: steps between looks at held-out episodes.
        validate_chunks: held-out chunks that are generated and decoded then.
        checkpoint_every: steps between checkpoints.
        tensorboard: write the log for TensorBoard too.
    """

    steps: int = 6000
    batch: int = 128
    learning_rate: float = 5e-4
    least_rate: float = 0.0
    warmup: int = 300
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.05
    clip: float = 1.0
    augment: bool = True
    checkpointing: bool = False
    cotrain_weight: float = 0.1
    cotrain_batch: int = 16
    validate_every: int = 500
    validate_chunks: int = 256
    checkpoint_every: int = 1000
    tensorboard: bool = False

    def __post_init__(self) -> None:
        counts = (self.steps, self.batch, self.cotrain_batch, self.validate_every, self.checkpoint_every)
        if min(counts) < 1 or min(self.warmup, self.validate_chunks) < 0:
            raise ActionPieceError("steps, batches and intervals of a policy's training must be at least 1")
        numbers = (self.learning_rate, self.clip, self.least_rate, self.weight_decay, self.cotrain_weight)
        if not all(map(math.isfinite, numbers)):
            raise ActionPieceError("rates, clip, weight_decay and cotrain_weight must be finite")
        if not self.learning_rate > 0 or not self.clip > 0 or min(self.least_rate, self.weight_decay) < 0:
            raise ActionPieceError("learning_rate and clip must be positive, least_rate and weight_decay not negative")
        if not 0 <= self.beta1 < 1 or not 0 <= self.beta2 < 1 or self.cotrain_weight < 0:
            raise ActionPieceError("beta1 and beta2 lie between 0 and 1, cotrain_weight is not negative")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        share = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.least_rate + (self.learning_rate - self.least_rate) * 0.5 * (1 + math.cos(math.pi * min(share, 1)))


def paper() -> PolicyTrainConfig:
    """The paper's, which follows StarVLA: released weights, 16 examples on each of 8 GPUs, ZeRO-2, 30,000 steps."""
    return PolicyTrainConfig(
        steps=30_000,
        batch=128,
        learning_rate=1e-5,
        least_rate=1e-6,
        warmup=5000,
        weight_decay=1e-8,
        augment=False,
        checkpointing=True,
        cotrain_batch=128,
        validate_every=1000,
    )


RECIPES = {"small": PolicyTrainConfig, "paper": paper}
