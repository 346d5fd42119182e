"""What all learned tokenizers share: a network between chunks and codes, its training, and how codes become ids."""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from actionpiece.errors import ActionPieceError, BrokenRunsError
from actionpiece.nn.quantize import ResidualVQ
from actionpiece.tokenizers.base import FitJob, Progress
from actionpiece.tokenizers.lengths import FixedLengthTokenizer
from actionpiece.training import Examples, Run, Trainable, TrainConfig, join, train

LEVEL_MAJOR = "level-major: all slots of the first residual level, then of the next"


class LearnedTokenizer(FixedLengthTokenizer):
    """Token (level l, slot s) has the id l * K + code: residual levels have their own ids, slots share them.

    The configuration has a `train: TrainConfig`.
    """

    codec: Trainable
    #: Far beyond what it was trained on, and well before float32 overflows within the network.
    reach: ClassVar[float] = 1e9

    def __init__(self, config: Any, **rest: Any) -> None:
        super().__init__(config, **rest)
        self.codec = self._new_codec(seed=0)

    @abc.abstractmethod
    def _network(self) -> Trainable:
        """The network of this configuration, its weights drawn by torch's random state."""

    @property
    @abc.abstractmethod
    def slots(self) -> int:
        """Codes of a residual level."""

    @property
    def levels(self) -> int:
        """Residual levels."""
        return 1

    def _new_codec(self, seed: int) -> Any:
        """A network with weights drawn by the seed; the caller's random state stays as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs, too
            return self._network()

    @property
    def vocab_size(self) -> int:
        return self.levels * self.codec.code_count

    @property
    def tokens_per_chunk(self) -> int:
        return self.slots * self.levels

    def vocab_at(self, position: int) -> range:
        super().vocab_at(position)
        first = position // self.slots * self.codec.code_count
        return range(first, first + self.codec.code_count)

    def _fit(self, x: Tensor, job: FitJob) -> None:
        fit_side_by_side(
            [self],
            [job.seed],
            x,
            [job.run],
            validation=job.validation,
            resumed=[job.resume],
            device=job.device,
            progress=job.progress,
            extras=job.extras,
        )

    def _run(
        self,
        x: Tensor,
        seed: int,
        folder: Path | None,
        *,
        resume: bool,
        progress: Progress = lambda fraction, what: None,
    ) -> Run:
        """A new network and how to train it on x (N, H, D)."""
        self.codec = self._new_codec(seed)
        return Run(self.codec, self.config.train, seed, folder, resume=resume, about=self._about())

    def _about(self) -> dict[str, Any]:
        """What a checkpoint must have been made with, as JSON gives it back: it is compared with that."""
        # The training is compared by itself; here it is put at its defaults, the same for every run.
        return {"codec": json.loads(json.dumps({**asdict(self.config), "train": asdict(TrainConfig())}))}

    def _encode(self, x: Tensor) -> Tensor:
        codes = self.codec.encode_all(x)
        codes = codes + self.codec.code_count * torch.arange(self.levels, device=x.device)
        return codes.transpose(1, 2).flatten(1)

    def _decode(self, ids: Tensor) -> Tensor:
        codes = ids.unflatten(1, (self.levels, -1)).transpose(1, 2)
        return self.codec.decode(codes % self.codec.code_count)


def fit_side_by_side(
    tokenizers: Sequence[LearnedTokenizer],
    seeds: Sequence[int],
    x: Tensor,
    folders: Sequence[Path | None],
    *,
    validation: Tensor | None = None,
    resumed: Sequence[bool],
    device: str,
    progress: Progress,
    extras: Mapping[str, Tensor] | None = None,
) -> None:
    """Train several tokenizers of one action space on the same normalised chunks (N, H, D), in one process.

    One leaves most of a large GPU idle. See `ActionTokenizer.fit` for the rest; `resumed` says which go on.
    """
    device = join(device)
    examples = Examples(x, validation, tokenizers[0].distance, tokenizers[0].normalizer, device, extras)
    runs = [
        tokenizer._run(examples.chunks, seed, folder, resume=resume, progress=progress)
        for tokenizer, seed, folder, resume in zip(tokenizers, seeds, folders, resumed, strict=True)
    ]
    broken: BrokenRunsError | None = None
    try:
        train(runs, examples, progress=progress)
    except BrokenRunsError as error:  # the others have come to their end
        broken = error
    for tokenizer in tokenizers:
        tokenizer.codec.cpu().requires_grad_(False)
    if broken is not None:
        raise broken


def training(
    weights: Mapping[str, float],
    *,
    weight_decay: float = 0.01,
    warmup: int = 1000,
    schedule: Literal["constant", "cosine"] = "cosine",
    continuous: int = 0,
) -> TrainConfig:
    """Training for the matched comparison, AdamW at 1e-4 for 100,000 steps of 128 chunks, with these objectives."""
    return TrainConfig(
        weights=dict(weights), weight_decay=weight_decay, warmup=warmup, schedule=schedule, continuous=continuous
    )


def check_baseline(
    kind: str, train: TrainConfig, objectives: Collection[str], *, width: int = 1, heads: int = 1, **sizes: int
) -> None:
    """Refuse settings of a baseline that do not fit. sizes: what there must be at least one of."""
    for name, size in {"width": width, "heads": heads, **sizes}.items():
        if size < 1:
            raise ActionPieceError(f"{kind}: {name} must be at least 1, not {size}")
    if width % heads:
        raise ActionPieceError(f"a width of {width} cannot be shared by {heads} heads")
    unknown = sorted(set(train.weights) - set(objectives))
    if unknown:
        raise ActionPieceError(
            f"{kind} has no objective '{unknown[0]}' to weigh in its training; it has {', '.join(objectives)}"
        )
    if train.part != "all" or train.companions or train.blend:
        raise ActionPieceError(f"{kind} trains as a whole: part, companions and blend are of the paper's codec")


def check_extra(extras: Mapping[str, Tensor], name: str, width: int) -> None:
    """Refuse what came under a name with the chunks, if it is not a row of this width for each."""
    if name in extras and not width:
        raise ActionPieceError(f"'{name}' came with the chunks, and the configuration has no objective for it")
    if name in extras and extras[name].shape[1:] != (width,):
        shape = tuple(extras[name].shape)
        raise ActionPieceError(f"'{name}' must have {width} values for every chunk, not shape {shape}")


class Codebooks(Protocol):
    """The settings of a residual quantiser, as the baselines' configurations have them."""

    @property
    def levels(self) -> int: ...
    @property
    def codes(self) -> int: ...
    @property
    def code_dim(self) -> int: ...
    @property
    def deviation(self) -> float: ...
    @property
    def decay(self) -> float: ...
    @property
    def dead_share(self) -> float: ...


def check_codebooks(kind: str, config: Codebooks) -> None:
    """Refuse settings of a residual quantiser that do not fit."""
    if config.levels < 1 or config.codes < 2 or config.code_dim < 1:
        raise ActionPieceError(f"{kind} needs at least 1 level and 2 codes of at least 1 dimension")
    if not 0 < config.decay < 1 or not 0 <= config.dead_share < 1 or not 0 <= config.deviation < math.inf:
        raise ActionPieceError("decay must lie between 0 and 1, dead_share from 0 to below 1, deviation not below 0")


def residual_quantizer(config: Codebooks, *, width: int, slots: int) -> ResidualVQ:
    """The residual quantiser of a baseline: one codebook for all slots of a level."""
    return ResidualVQ(
        width,
        slots=slots,
        levels=config.levels,
        codes=config.codes,
        dim=config.code_dim,
        deviation=config.deviation,
        decay=config.decay,
        dead_share=config.dead_share,
    )
