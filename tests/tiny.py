"""Codecs small enough to be trained in a blink, for the tests of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from actionpiece.distance import PhysicalDistance
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace
from actionpiece.tokenizers.actionpiece import ActionPieceConfig, ActionPieceTokenizer
from actionpiece.tokenizers.learned import fit_side_by_side
from actionpiece.training import Examples, TrainConfig
from actionpiece.training.replica import Replica
from conftest import libero_like

SPACE = ActionSpace.preset("libero")
CHUNKS = libero_like(300)
PLAIN = {"reconstruction": 1.0, "commitment": 0.25}
AS_PQ: dict[str, Any] = {"codebook": "per_slot", "start": "pq", "code_dim": 0, "deviation": 0.0}


def tiny(codec: dict[str, Any] | None = None, **train: Any) -> ActionPieceConfig:
    """Some settings of the codec, and any of its training."""
    small = {"slots": 4, "codes": 8, "code_dim": 4, "width": 16, "heads": 2, "encoder_depth": 1, "decoder_depth": 1}
    plain = {"warmup": 0, "schedule": "constant", "continuous": 0}
    short = {"steps": 12, "batch": 16, "start_chunks": 64, "checkpoint_every": 3, "validate_every": 6}
    return ActionPieceConfig(**{**small, **(codec or {})}, train=TrainConfig(**{**plain, **short, **train}))


def fit(
    config: ActionPieceConfig, run: Path | None = None, *, resume: bool = False, seed: int = 0
) -> ActionPieceTokenizer:
    return ActionPieceTokenizer.fit(
        CHUNKS[:240], SPACE, config, seed=seed, validation=CHUNKS[240:], run=run, resume=resume
    )


def new(config: ActionPieceConfig) -> ActionPieceTokenizer:
    """A tokenizer for the same chunks, not trained yet."""
    raw = torch.from_numpy(CHUNKS[:240])
    normalizer, distance = Normalizer.fit("minmax", raw), PhysicalDistance.fit(SPACE, raw)
    return ActionPieceTokenizer(config, space=SPACE, normalizer=normalizer, distance=distance, horizon=8)


def examples_for(tokenizer: ActionPieceTokenizer) -> Examples:
    train, look = (tokenizer.normalizer.normalize(torch.from_numpy(x)) for x in (CHUNKS[:240], CHUNKS[240:]))
    return Examples(train, look, tokenizer.distance, tokenizer.normalizer, "cpu")


def replica_of(config: ActionPieceConfig, seed: int = 0) -> Replica:
    """What `fit` trains, before its first step."""
    tokenizer = new(config)
    examples = examples_for(tokenizer)
    return Replica(tokenizer._run(examples.chunks, seed, None, resume=False), examples, captured=False)


def fit_together(
    configs: Sequence[ActionPieceConfig],
    seeds: Sequence[int],
    folders: Sequence[Path | None],
    *,
    resume: bool = False,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> list[ActionPieceTokenizer]:
    tokenizers = [new(config) for config in configs]
    examples = examples_for(tokenizers[0])
    fit_side_by_side(
        tokenizers,
        seeds,
        examples.chunks,
        folders,
        validation=examples.validation,
        resumed=[resume] * len(tokenizers),
        device="cpu",
        progress=progress,
    )
    return tokenizers


def tensors(tokenizer: ActionPieceTokenizer) -> dict[str, torch.Tensor]:
    return tokenizer.codec.state_dict()


def same(a: ActionPieceTokenizer, b: ActionPieceTokenizer) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tensors(a).values(), tensors(b).values(), strict=True))


class StopError(Exception):
    """What stops a run in the tests below, as a kill would."""


def stop_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """Let training break off before this step of any run."""
    advance = Replica.advance

    def stopping(self: Replica) -> None:
        if self.done == step:
            raise StopError
        advance(self)

    patch.setattr(Replica, "advance", stopping)
