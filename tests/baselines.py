"""Learned baselines small enough to be trained in a blink, for the tests of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import actionpiece
from actionpiece.distance import PhysicalDistance
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace
from actionpiece.tokenizers import build_config, tokenizer_class
from actionpiece.tokenizers.learned import LearnedTokenizer, fit_side_by_side
from actionpiece.training import Batch, Examples

_SHORT = {"steps": 6, "batch": 16, "start_chunks": 64, "warmup": 0, "continuous": 2, "schedule": "constant"}
_NARROW = {"width": 16, "heads": 2}
_BOOKS = {"codes": 16, "code_dim": 4}


def _short(**weights: float) -> dict[str, Any]:
    return {**_SHORT, "weights": weights}


#: Settings by kind, as plain data.
BASELINES: dict[str, dict[str, Any]] = {
    "oat": {
        **_NARROW,
        "tokens": 4,
        "levels": [4, 3],
        "encoder_depth": 1,
        "decoder_depth": 1,
        "train": _short(reconstruction=1.0),
    },
    "actioncodec": {
        **_NARROW,
        **_BOOKS,
        "tokens": 4,
        "levels": 2,
        "depth": 1,
        "quantizer_dropout": 0.25,
        "train": _short(reconstruction=1.0, commitment=0.25, contrast=0.03),
    },
    "fastervq": {**_NARROW, **_BOOKS, "levels": 2, "depth": 1, "train": _short(l1=1.0, dct=1.0, commitment=0.25)},
    "xtokenizer": {
        **_NARROW,
        **_BOOKS,
        "slots": 3,
        "levels": 2,
        "encoder_depth": 1,
        "decoder_depth": 1,
        "train": _short(reconstruction=1.0, masked=0.25, commitment=0.25),
    },
    "vqbet": {**_BOOKS, "levels": 3, "width": 16, "depth": 1, "train": _short(l1=1.0, commitment=5.0)},
    "quest": {
        **_NARROW,
        "downsample": 2,
        "levels": [4, 3],
        "encoder_depth": 1,
        "decoder_depth": 1,
        "train": _short(l1=1.0),
    },
}


def config(kind: str, settings: dict[str, Any] | None = None, **train: Any) -> Any:
    """A configuration of `BASELINES` with some settings of its own and of its training."""
    plain = {**BASELINES[kind], **(settings or {})}
    plain["train"] = {**plain["train"], **train}
    return build_config(tokenizer_class(kind).config_class, plain, kind)


@functools.cache
def recorded(horizon: int = 8) -> tuple[np.ndarray, np.ndarray, ActionSpace]:
    """Chunks of the embedded demonstrations, of training and of validation episodes, and their action space."""
    demos = actionpiece.open_demos("recorded")
    split = demos.split()
    train, look = (actionpiece.Chunks(demos, side, horizon=horizon) for side in (split.train, split.validation))
    return train.sample(6000, 0), look.sample(500, 0), demos.space


def fit(
    kind: str, given: Any = None, run: Path | None = None, *, resume: bool = False, seed: int = 0, **rest: Any
) -> Any:
    """A baseline trained on embedded demonstrations."""
    train, _, space = recorded()
    cls = tokenizer_class(kind)
    return cls.fit(train[:500], space, given or config(kind), run=run, resume=resume, seed=seed, **rest)


def new(kind: str, given: Any = None, *, horizon: int = 8) -> Any:
    """A baseline that is not trained, and the examples to train it on."""
    train, _, space = recorded(horizon)
    raw = torch.from_numpy(train[:500])
    normalizer, distance = Normalizer.fit("minmax", raw), PhysicalDistance.fit(space, raw)
    shared: dict[str, Any] = {"space": space, "normalizer": normalizer, "distance": distance, "horizon": horizon}
    return tokenizer_class(kind)(given or config(kind), **shared)


def examples_for(tokenizer: LearnedTokenizer, extras: dict[str, torch.Tensor] | None = None) -> Examples:
    train, _, _ = recorded(tokenizer.horizon)
    chunks = tokenizer.normalizer.normalize(torch.from_numpy(train[:500]))
    return Examples(chunks, None, tokenizer.distance, tokenizer.normalizer, "cpu", extras)


def batch_of(
    tokenizer: LearnedTokenizer, size: int = 16, *, seed: int = 0, extras: dict[str, torch.Tensor] | None = None
) -> Batch:
    """The first chunks as a batch."""
    examples, index = examples_for(tokenizer, extras), torch.arange(size)
    generator = torch.Generator().manual_seed(seed)
    emphasis = torch.ones(tokenizer.space.dim)
    return Batch(examples.chunks[:size], index, examples, tokenizer.config.train, generator, emphasis)


def fit_together(kinds: Sequence[str], seeds: Sequence[int], folders: Sequence[Path | None]) -> list[LearnedTokenizer]:
    tokenizers = [new(kind) for kind in kinds]
    fit_side_by_side(
        tokenizers,
        seeds,
        examples_for(tokenizers[0]).chunks,
        folders,
        resumed=[False] * len(tokenizers),
        device="cpu",
        progress=lambda fraction, what: None,
    )
    return tokenizers


def same(a: LearnedTokenizer, b: LearnedTokenizer) -> bool:
    one, other = a.codec.state_dict(), b.codec.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
