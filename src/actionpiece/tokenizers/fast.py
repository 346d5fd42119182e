"""`fast`: a cosine transform over time, rounding, and byte-pair encoding of the integers (FAST).

Every integer has tokens: those outside the training range are escaped, so any chunk round-trips to the rounding of
its coefficients. Token sequences that stand for no chunk are reported, never decoded to a guess.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError, DecodeError
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace
from actionpiece.tokenizers import bpe
from actionpiece.tokenizers.base import FitJob
from actionpiece.tokenizers.coders import ESCAPES, Coder, IntegerCoder, TextCoder, coder_from_tensors
from actionpiece.tokenizers.fast_format import FastFolder, read_fast, write_fast
from actionpiece.tokenizers.grammar import Grammar, Reading
from actionpiece.tokenizers.lengths import VariableLengthTokenizer

_BLOCK = 16384  # sequences decoded at a time
_FIT_INTEGERS = 8_000_000  # learned from at most; long chunks would otherwise take minutes
_LARGEST = 2.0**52  # beyond it a float64 no longer holds every integer


@dataclass(frozen=True)
class FastConfig:
    """Settings of FAST.

    Attributes:
        scale: coefficients are multiplied by it before rounding; larger is finer and takes more tokens.
        vocab_size: most ids there may be, escapes included. Fewer are used when training data offers no more merges.
        fit_chunks: byte-pair merges are learned from at most so many chunks, drawn by the seed (fewer of long ones).
    """

    scale: float = 10.0
    vocab_size: int = 1024
    fit_chunks: int = 60_000

    def __post_init__(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise ActionPieceError(f"fast: scale must be positive, not {self.scale}")
        if not 1 <= self.vocab_size <= bpe.MOST_SYMBOLS:
            raise ActionPieceError(f"fast: vocab_size must be from 1 to {bpe.MOST_SYMBOLS}, not {self.vocab_size}")
        if self.fit_chunks < 1:
            raise ActionPieceError(f"fast: fit_chunks must be positive, not {self.fit_chunks}")


@functools.lru_cache(maxsize=32)
def cosine_matrix(steps: int) -> np.ndarray:
    """The orthonormal DCT-II as a matrix (steps, steps), read-only: row f holds the cosine of frequency f."""
    frequency, step = np.arange(steps)[:, None], np.arange(steps)[None]
    matrix: np.ndarray = math.sqrt(2 / steps) * np.cos(math.pi / steps * (step + 0.5) * frequency)
    matrix[0] = math.sqrt(1 / steps)
    matrix.setflags(write=False)
    return matrix


class FastTokenizer(VariableLengthTokenizer):
    """FAST, with an alphabet of integers instead of text, or as FAST's own processor saved it (`from_fast`)."""

    kind = "fast"
    config_class = FastConfig
    config: FastConfig
    token_order = "frequency-major: all columns of the lowest frequency first; a token stands for a run of integers"
    _coder: Coder | None = None
    _grammar: Grammar | None = None

    @classmethod
    def from_fast(
        cls,
        path: str | Path,
        *,
        space: ActionSpace,
        normalizer: Normalizer,
        horizon: int | None = None,
        distance: PhysicalDistance | None = None,
    ) -> Self:
        """Read a folder saved by FAST's own processor (or by `save_fast`).

        Such a folder knows neither normaliser nor action space. `space` and `horizon` decide the chunk's shape,
        whatever shape FAST's processor last saw; without `horizon`, the folder's own is used.
        distance: the physical distance to keep with it; scales of 1 when not given, as there is no data to fit on.
        """
        saved = read_fast(path)
        horizon = saved.time_horizon if horizon is None else horizon
        if horizon is None:
            raise ActionPieceError(f"{path} does not say how many steps a chunk has: give horizon")
        distance = distance or PhysicalDistance(space, (1.0,) * len(space.groups))
        config = FastConfig(scale=saved.scale, vocab_size=saved.vocab_size)
        tokenizer = cls(config, space=space, normalizer=normalizer, distance=distance, horizon=horizon)
        tokenizer._use(TextCoder(saved.tokenizer_json, saved.min_token))
        tokenizer.provenance = {"read_from": "FAST's own format"}
        return tokenizer

    def save_fast(self, path: str | Path) -> Path:
        """Write a folder that FAST's own processor loads; returns the folder.

        Ids stay the same for chunks within the training range. FAST has no escapes, so it cannot encode others, and
        it expects normalised chunks: its folder has no place for the normaliser.
        """
        text, vocab_size, min_token = self.coder.fast_json()
        shape = {"time_horizon": self.horizon, "action_dim": self.space.dim}
        return write_fast(path, FastFolder(self.config.scale, vocab_size, min_token, text, **shape))

    @property
    def vocab_size(self) -> int:
        return self.coder.vocab_size

    @property
    def coder(self) -> Coder:
        """What turns integers into tokens; there is none before fitting."""
        if self._coder is None:
            raise ActionPieceError("this fast tokenizer has not been fitted")
        return self._coder

    @property
    def grammar(self) -> Grammar:
        """What says which token sequences stand for a chunk."""
        if self._grammar is None:
            raise ActionPieceError("this fast tokenizer has not been fitted")
        return self._grammar

    def allowed_next(self, ids: Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """A mask (vocab_size,) of exactly those ids after which the sequence can still be completed.

        All are False once it is complete. A prefix that nothing can complete is a `DecodeError`.
        """
        flat = np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids)
        flat = flat if flat.size else flat.astype(np.int64)
        if flat.ndim != 1 or flat.dtype.kind not in "iu":
            raise ActionPieceError(f"ids must be one flat sequence of integers, not {flat.dtype} {flat.shape}")
        flat = flat.astype(np.int64)
        lengths = np.array([len(flat)])
        reading = self.grammar.read(flat, lengths)
        state, made = int(reading.state[0]), int(reading.made[0])
        if len(flat) > self.grammar.longest or not self.grammar.can_finish(state, made):
            raise DecodeError(f"no continuation can be decoded: {self._reason(0, lengths, reading)}", (0,))
        return torch.from_numpy(self.grammar.allowed(state, made))

    def _fit(self, x: Tensor, job: FitJob) -> None:
        job.progress(0.0, "transforming")
        integers = self._integers(x, 0)
        lo, hi = int(integers.min()), int(integers.max())
        alphabet = hi - lo + 1
        most = self.config.vocab_size - ESCAPES - alphabet
        if most < 0:
            raise ActionPieceError(
                f"fast: rounded coefficients run from {lo} to {hi}, and with {ESCAPES} escapes they do not fit in a "
                f"vocabulary of {self.config.vocab_size}: lower scale, or raise vocab_size above {alphabet + ESCAPES}"
            )
        enough = min(self.config.fit_chunks, max(1, _FIT_INTEGERS // integers.shape[1]))
        if len(integers) > enough:
            integers = integers[np.random.default_rng(job.seed).permutation(len(integers))[:enough]]
        job.progress(0.1, "learning byte pairs")
        merges = bpe.train_merges(integers - lo, alphabet, most)
        self._use(IntegerCoder(lo, hi, merges, longest=integers.shape[1]))
        job.progress(1.0, "fitted")

    def _use(self, coder: Coder) -> None:
        total = self.horizon * self.space.dim
        self._coder = coder
        self._grammar = Grammar(coder.next_state, coder.makes, total=total, depth=coder.depth)

    def _integers(self, x: Tensor, first: int) -> np.ndarray:
        """Rounded coefficients (B, H * D), the lowest frequency first."""
        coefficients = cosine_matrix(self.horizon) @ x.cpu().numpy().astype(np.float64) * self.config.scale
        rounded = np.rint(coefficients).reshape(len(x), -1)
        large = (np.abs(rounded) > _LARGEST).any(1)
        if large.any():
            raise ActionPieceError(f"chunk {first + int(np.argmax(large))} holds values too large to be rounded")
        return rounded.astype(np.int64)

    def _encode(self, x: Tensor, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        return self.coder.encode(self._integers(x, first), first)

    def _decode_flat(self, flat: Tensor, lengths: Tensor, prefix: bool) -> tuple[Tensor, dict[int, str]]:
        shape = (self.horizon, self.space.dim)
        actions = torch.full((len(lengths), *shape), torch.nan)
        reasons: dict[int, str] = {}
        inverse = cosine_matrix(self.horizon).T
        ends = np.cumsum(lengths.numpy())
        for first in range(0, len(lengths), _BLOCK):
            sizes = lengths[first : first + _BLOCK].numpy()
            ids = flat[ends[first] - sizes[0] : ends[first + len(sizes) - 1]].numpy()
            reading = self.grammar.read(ids, sizes)
            good = self.grammar.complete(reading, sizes)
            for item in np.flatnonzero(~good).tolist():
                reasons[first + item] = self._reason(item, sizes, reading)
            integers = self.coder.decode(ids if good.all() else ids[np.repeat(good, sizes)])
            values = inverse @ (integers.reshape(-1, *shape) / self.config.scale)
            actions[first + np.flatnonzero(good)] = torch.from_numpy(values.astype(np.float32))
        return actions.to(self.device), reasons

    def _reason(self, item: int, lengths: np.ndarray, reading: Reading) -> str:
        """Why a sequence cannot be decoded, in words."""
        coder, total = self.coder, self.grammar.total
        position = int(reading.unlawful_at[item])
        if position >= 0:
            found = int(reading.unlawful[item])
            if not 0 <= found < coder.vocab_size:
                return f"id {found} at position {position} is not in {range(coder.vocab_size)}"
            return f"token {found} at position {position} {coder.unlawful}"
        if lengths[item] > self.grammar.longest:
            return f"it has {lengths[item]} tokens, and no chunk takes more than {self.grammar.longest}"
        if reading.made[item] > total or reading.state[item] == 0:
            return f"its tokens stand for {reading.made[item]} integers, not {total}"
        return coder.unfinished

    def _tensors(self) -> dict[str, Tensor]:
        return self.coder.tensors()

    def _load_tensors(self, tensors: dict[str, Tensor]) -> None:
        total = self.horizon * self.space.dim
        self._use(coder_from_tensors(tensors, longest=total, vocab_size=self.config.vocab_size))
