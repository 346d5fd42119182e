"""Score one tokenizer on one set of chunks: every metric, in one row."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from actionpiece.data import Chunks, Demos, steps
from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError
from actionpiece.metrics.codes import CodeUse, code_use, token_overlap, valid_after_corruption
from actionpiece.metrics.fidelity import Fidelity, fidelity
from actionpiece.metrics.latency import latency
from actionpiece.metrics.prc import PRCResult, prc
from actionpiece.normalize import Normalizer
from actionpiece.tokenizers.base import ActionTokenizer

_CORRUPTED = 2000  # chunks whose tokens are corrupted
_PAIRS = 4000  # consecutive chunks whose tokens are compared
_SCALE_VALUES = 1 << 25  # values on which the physical scales are fitted, where there are more


@dataclass(frozen=True)
class Protocol:
    """What is scored, and how.

    split: the episodes that are scored: test, validation, train or all.
    horizon: steps of a chunk. n: chunks drawn. k: neighbours of PRC. seed: of the draw.
    """

    split: str = "test"
    horizon: int = 8
    n: int = 10_000
    k: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("horizon", 1), ("n", 1), ("k", 2)):
            if getattr(self, name) < least:
                raise ActionPieceError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.n <= self.k:
            raise ActionPieceError(f"n = {self.n} is too few for PRC@{self.k}, which needs {self.k + 1} chunks or more")


@dataclass(frozen=True)
class Training:
    """What tokenizers are fitted on: chunks of training episodes, and the statistics every contender shares.

    validation: chunks of the episodes that are there for choosing.
    """

    chunks: Chunks
    validation: Chunks
    normalizer: Normalizer
    distance: PhysicalDistance

    @classmethod
    def of(cls, demos: Demos, horizon: int) -> Training:
        """The training side of `demos`: min-max over all its steps, physical scales over its chunks."""
        split = demos.split()
        episodes = split.train
        chunks = Chunks(demos, episodes, horizon)
        low = np.full(demos.dim, np.inf)
        high = np.full(demos.dim, -np.inf)
        for actions in steps(demos, episodes):
            if len(actions):
                low, high = np.minimum(low, actions.min(0)), np.maximum(high, actions.max(0))
        distance = PhysicalDistance.fit(demos.space, chunks.sample(_SCALE_VALUES // (horizon * demos.dim)))
        validation = Chunks(demos, split.validation, horizon)
        return cls(chunks, validation, Normalizer.fit("minmax", np.stack((low, high))), distance)


@dataclass(frozen=True)
class ScoringSet:
    """The drawn chunks (n, H, D), their episodes (n,), and the one coordinate system all contenders are scored in.

    pairs: two arrays (m, H, D) of chunks a step apart, for the overlap rate. rate: of the data, in Hz.
    """

    chunks: np.ndarray
    episodes: np.ndarray
    pairs: tuple[np.ndarray, np.ndarray]
    normalizer: Normalizer
    distance: PhysicalDistance
    protocol: Protocol
    rate: float | None

    @classmethod
    def of(cls, demos: Demos, training: Training, protocol: Protocol) -> ScoringSet:
        """Draw the chunks to score; the normaliser and the physical scales stay those of the training side."""
        chunks = Chunks(demos, split_episodes(demos, protocol.split), protocol.horizon)
        drawn = chunks.draw(protocol.n, protocol.seed)
        if len(drawn) <= protocol.k:
            raise ActionPieceError(
                f"{demos.name}: the {protocol.split} split has {len(drawn)} chunks of {protocol.horizon} steps, "
                f"and PRC@{protocol.k} needs at least {protocol.k + 1}; use more episodes, another split or a smaller k"
            )
        starts = drawn[: 2 * _PAIRS]
        following = starts[(starts + 1 < len(chunks))]
        same = chunks.episode_of(following) == chunks.episode_of(following + 1)
        first = following[same][:_PAIRS]
        return cls(
            chunks=chunks[drawn],
            episodes=chunks.episode_of(drawn),
            pairs=(chunks[first], chunks[first + 1]),
            normalizer=training.normalizer,
            distance=training.distance,
            protocol=protocol,
            rate=demos.rate,
        )


def split_episodes(demos: Demos, split: str) -> np.ndarray:
    """The episodes of a split by its name, in drawn order: test, validation, train or all."""
    if split == "all":
        return np.arange(len(demos))
    if split not in ("train", "validation", "test"):
        raise ActionPieceError(f"split must be train, validation, test or all, not '{split}'")
    return np.asarray(getattr(demos.split(), split))


@dataclass(frozen=True)
class Score:
    """One tokenizer's row, and what the report draws of it."""

    row: dict[str, Any]
    decoded: np.ndarray
    fidelity: Fidelity
    prc: PRCResult
    use: CodeUse


def score(
    tokenizer: ActionTokenizer,
    data: ScoringSet,
    *,
    name: str | None = None,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> Score:
    """Encode and decode the drawn chunks and measure everything."""
    if tokenizer.horizon != data.protocol.horizon:
        raise ActionPieceError(
            f"{name or tokenizer.kind} was fitted for {tokenizer.horizon} steps"
            f" and cannot encode {data.protocol.horizon}"
        )
    space = data.distance.space
    if (tokenizer.space.groups, tokenizer.space.rate) != (space.groups, space.rate):
        raise ActionPieceError(
            f"{name or tokenizer.kind} was fitted for the action space '{tokenizer.space.name}',"
            f" the data is in '{space.name}'"
        )
    progress(0.0, "encode and decode")
    ids = tokenizer.encode(data.chunks)
    decoded = tokenizer.decode(ids)
    fid = fidelity(data.chunks, decoded, space=space, normalizer=data.normalizer, rate=data.rate)
    progress(0.1, "physical rank consistency")
    ranks = prc(
        data.chunks,
        decoded,
        distance=data.distance,
        k=data.protocol.k,
        episodes=data.episodes,
        progress=lambda fraction: progress(0.1 + 0.7 * fraction, "physical rank consistency"),
    )
    progress(0.8, "tokens")
    use = code_use(tokenizer, ids)
    overlap = token_overlap(*(tokenizer.encode(side) for side in data.pairs)) if len(data.pairs[0]) else None
    valid = valid_after_corruption(tokenizer, ids[:_CORRUPTED], seed=data.protocol.seed)
    progress(0.9, "latency")
    speed = latency(tokenizer, data.chunks)
    across = ranks.across_episodes
    row = {
        "name": name or tokenizer.kind,
        "kind": tokenizer.kind,
        "tokens_per_chunk": use.mean_tokens,
        "fixed_length": tokenizer.tokens_per_chunk is not None,
        "vocab_size": tokenizer.vocab_size,
        "bits_per_chunk": tokenizer.bits_per_chunk(use.mean_tokens),
        "mse": fid.mse,
        "l1": fid.l1,
        "prc": _number(ranks.value),
        "prc_left_out": ranks.left_out,
        "prc_collapsed": ranks.collapsed,
        "prc_across_episodes": _number(across.value) if across else None,
        "prc_quantiles": {level: _number(value) for level, value in ranks.quantiles.items()},
        "groups": [dataclasses.asdict(group) for group in fid.groups],
        "gripper_flips": _mean([group.flips for group in fid.groups if group.flips is not None]),
        "jerk_error": fid.jerk,
        "jerk_unit": fid.jerk_unit,
        "codes_used": use.used,
        "perplexity": use.perplexity,
        "position_perplexity": use.position_perplexity,
        "overlap": overlap,
        "valid_changed": valid["changed"],
        "valid_dropped": valid["dropped"],
        "outside_range": tokenizer.normalizer.count_outside(data.chunks),
        **dataclasses.asdict(speed),
        "device": str(tokenizer.device),
        "seed": tokenizer.provenance.get("seed"),
        "n": len(data.chunks),
        "config": tokenizer.settings,
        "normalizer": tokenizer.normalizer.way,
        "fingerprint": tokenizer.fingerprint(),
        "fitted_on": tokenizer.provenance,
    }
    progress(1.0, "scored")
    return Score(row, decoded, fid, ranks, use)


def _number(value: float) -> float | None:
    """JSON has no NaN; a figure that does not exist is null."""
    return value if math.isfinite(value) else None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def environment() -> dict[str, Any]:
    """Versions and machine, to be written beside every figure."""
    import safetensors
    import tokenizers

    from actionpiece import __version__

    return {
        "actionpiece": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "tokenizers": tokenizers.__version__,
        "safetensors": safetensors.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }
