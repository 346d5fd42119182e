"""`wrap`: a tokenizer from elsewhere, given as two functions, behind this package's contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError
from actionpiece.files import NO_FINGERPRINT
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace
from actionpiece.tokenizers.base import BLOCK, ActionTokenizer, FitJob
from actionpiece.tokenizers.lengths import FixedLengthTokenizer, VariableLengthTokenizer

Encode = Callable[[np.ndarray], Any]
Decode = Callable[[Any], Any]


@dataclass(frozen=True)
class WrappedConfig:
    """What is known of a tokenizer from elsewhere.

    Attributes:
        name: what to call it in errors; a row of a comparison has the name of its maker.
        vocab_size: ids run from 0 to vocab_size - 1.
        tokens_per_chunk: the same for every chunk; None where it varies.
    """

    name: str
    vocab_size: int
    tokens_per_chunk: int | None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ActionPieceError(f"a wrapped tokenizer's name must be a text, not {self.name!r}")
        for what, value in (("vocab_size", self.vocab_size), ("tokens_per_chunk", self.tokens_per_chunk)):
            if value is None and what == "tokens_per_chunk":
                continue
            least = 2 if what == "vocab_size" else 1
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
                raise ActionPieceError(f"{self.name}: {what} must be a whole number from {least} on, not {value!r}")
            object.__setattr__(self, what, int(value))  # JSON knows no other kind


def wrap(
    encode: Encode,
    decode: Decode,
    *,
    space: ActionSpace | str,
    horizon: int,
    vocab_size: int,
    name: str = "wrapped",
    tokens_per_chunk: int | None = None,
    normalizer: Normalizer | None = None,
    distance: PhysicalDistance | None = None,
) -> ActionTokenizer:
    """Put a tokenizer from elsewhere behind this package's contract, so that it can be scored and compared.

    encode: from chunks (B, H, D), float32 numpy, to ids: an integer array (B, T) or a list of B lists.
    decode: from what `encode` gives back to chunks (B, H, D). It gets an int64 array (B, T) where tokens_per_chunk is
        given, and a list of B lists of ints where it is not. A sequence for which it raises, or answers with another
        shape or with values that are not finite, is reported as not decodable. A guess that it passes off as an
        answer cannot be noticed from here.
    space: of the commands, or its name.
    tokens_per_chunk: where it is the same for every chunk.
    normalizer: chunks are normalised by it before `encode` and restored after `decode`; without one both see raw
        commands.
    distance: the physical distance to carry along; without one all its scales are 1. Comparisons use their own.

    The result cannot be saved: its code is not ours.
    """
    for what, function in (("encode", encode), ("decode", decode)):
        if not callable(function):
            raise ActionPieceError(f"{name}: {what} must be a function, not {type(function).__name__}")
    space = ActionSpace.resolve(space) if isinstance(space, str) else space
    if not isinstance(space, ActionSpace):
        raise ActionPieceError(f"{name}: space must be an action space or the name of one, not {space!r}")
    kind = WrappedVariableTokenizer if tokens_per_chunk is None else WrappedFixedTokenizer
    return kind(
        WrappedConfig(name, vocab_size, tokens_per_chunk),
        encode=encode,
        decode=decode,
        space=space,
        normalizer=normalizer or Normalizer("identity", np.zeros(space.dim), np.ones(space.dim)),
        distance=distance or PhysicalDistance(space, (1.0,) * len(space.groups)),
        horizon=horizon,
    )


class _Wrapped(ActionTokenizer):
    """What both lengths share: asking the two functions, and checking what they answer."""

    kind = "wrapped"
    config_class = WrappedConfig
    token_order = "as its own code has it"
    config: WrappedConfig

    def __init__(self, config: WrappedConfig, *, encode: Encode, decode: Decode, **rest: Any) -> None:
        super().__init__(config, **rest)
        self._functions = (encode, decode)  # in a tuple, so that a network is not taken for a part of this module

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def _fit(self, x: Tensor, job: FitJob) -> NoReturn:
        raise ActionPieceError(f"{self.config.name} is wrapped: fit it in its own code, then wrap it")

    def fingerprint(self) -> str:
        """Not known: what decides its ids is code from elsewhere."""
        return NO_FINGERPRINT

    def save_pretrained(self, path: str | Path, *, half: bool = False) -> NoReturn:
        """An error: its code is not ours."""
        raise ActionPieceError(f"{self.config.name} is wrapped around code from elsewhere and cannot be saved")

    def push_to_hub(self, repo_id: str, *, private: bool = True, token: str | None = None) -> NoReturn:
        """An error: its code is not ours."""
        self.save_pretrained(repo_id)

    def _rows(self, x: Tensor, first: int) -> list[np.ndarray]:
        """One int64 array of ids for each chunk (B, H, D), checked. first: the number of the first chunk."""
        name, size = self.config.name, self.config.tokens_per_chunk
        try:
            answer = self._functions[0](x.cpu().numpy())
        except ActionPieceError:
            raise
        except Exception as error:
            raise ActionPieceError(
                f"{name} cannot encode chunks {first} to {first + len(x) - 1}: {_said(error)}"
            ) from error
        answer = answer.detach().cpu().numpy() if isinstance(answer, Tensor) else answer
        counted = isinstance(answer, (list, tuple)) or (isinstance(answer, np.ndarray) and answer.ndim > 0)
        if not counted or len(answer) != len(x):
            got = f"{len(answer)} sequences" if counted else type(answer).__name__
            raise ActionPieceError(f"{name} was asked to encode {len(x)} chunks and answered with {got}")
        rows = []
        for number, ids in enumerate(answer, first):
            try:
                row = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
            except (ValueError, TypeError) as error:  # lists of lists of different lengths
                raise ActionPieceError(f"{name} encoded chunk {number} as no integers (T,): {error}") from None
            if row.size == 0:
                raise ActionPieceError(f"{name} encoded chunk {number} as no token at all")
            if row.ndim != 1 or row.dtype.kind not in "iu":
                raise ActionPieceError(
                    f"{name} encoded chunk {number} as {row.dtype} {row.shape}, not as integers (T,)"
                )
            if size is not None and len(row) != size:
                raise ActionPieceError(f"{name} encoded chunk {number} as {len(row)} tokens, not {size}")
            if not (row.min() >= 0 and row.max() < self.vocab_size):
                beyond = next(int(one) for one in row if not 0 <= one < self.vocab_size)
                raise ActionPieceError(f"{name} gave chunk {number} the id {beyond}, not one below {self.vocab_size}")
            rows.append(row.astype(np.int64))
        return rows

    def _decode_flat(self, flat: Tensor, lengths: Tensor, prefix: bool) -> tuple[Tensor, dict[int, str]]:
        size, counts = self.config.tokens_per_chunk, lengths.tolist()
        owner = np.repeat(np.arange(len(counts)), counts)
        ids = flat.numpy()
        reasons: dict[int, str] = {}
        for at in np.flatnonzero((ids < 0) | (ids >= self.vocab_size))[::-1]:  # the first of a sequence is said
            reasons[int(owner[at])] = f"id {ids[at]} is not in {range(self.vocab_size)}"
        if size is not None:
            reasons |= {i: f"it has {count} tokens, not {size}" for i, count in enumerate(counts) if count != size}
        actions = torch.full((len(counts), self.horizon, self.space.dim), torch.nan)
        good = [i for i in range(len(counts)) if i not in reasons]
        starts = np.concatenate(([0], np.cumsum(counts)))
        for first in range(0, len(good), BLOCK):
            block = good[first : first + BLOCK]
            answers, told = self._ask([ids[starts[i] : starts[i + 1]] for i in block])
            actions[block] = torch.from_numpy(answers)
            reasons |= {block[i]: f"{self.config.name} has no chunk for it: {reason}" for i, reason in told.items()}
        return actions.to(self.device), reasons

    def _ask(self, rows: Sequence[np.ndarray]) -> tuple[np.ndarray, dict[int, str]]:
        """Decoded chunks (B, H, D), NaN where there is none, and why; one by one where the batch does not work."""
        shape = (len(rows), self.horizon, self.space.dim)
        fixed = self.config.tokens_per_chunk is not None
        given: Any = np.stack(rows) if fixed else [row.tolist() for row in rows]
        try:
            answer = self._functions[1](given)
            answer = answer.detach().cpu().numpy() if isinstance(answer, Tensor) else answer
            chunks = np.array(answer, np.float32)  # a copy: theirs may be read-only, or changed by them later
        except Exception as error:  # noqa: BLE001  it is the user's code: whatever it raises, the sequence does not decode
            chunks, reason = np.zeros(0, np.float32), _said(error)
        else:
            reason = f"the answer has shape {chunks.shape}, not {shape}"
        if chunks.shape == shape:
            finite = np.isfinite(chunks).all((1, 2))
            chunks[~finite] = np.nan
            return chunks, {int(i): "the answer is not finite" for i in np.flatnonzero(~finite)}
        if len(rows) == 1:
            return np.full(shape, np.nan, np.float32), {0: reason}
        single = [self._ask([row]) for row in rows]
        return np.concatenate([chunk for chunk, _ in single]), {
            i: told[0] for i, (_, told) in enumerate(single) if told
        }


class WrappedFixedTokenizer(_Wrapped, FixedLengthTokenizer):
    """A wrapped tokenizer whose chunks all take the same number of tokens."""

    @property
    def tokens_per_chunk(self) -> int:
        assert self.config.tokens_per_chunk is not None
        return self.config.tokens_per_chunk

    def _encode_all(self, x: Tensor) -> list[Tensor]:
        firsts = range(0, len(x), BLOCK)
        return [torch.from_numpy(np.stack(self._rows(x[first : first + BLOCK], first))) for first in firsts]

    def _encode(self, x: Tensor) -> Tensor:
        return torch.cat(self._encode_all(x))

    def _decode(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(self._ask(list(ids.cpu().numpy()))[0])


class WrappedVariableTokenizer(_Wrapped, VariableLengthTokenizer):
    """A wrapped tokenizer whose chunks take different numbers of tokens."""

    def _encode(self, x: Tensor, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        rows = self._rows(x, first)
        return np.concatenate(rows), np.array([len(row) for row in rows], np.int64)

    def allowed_next(self, ids: Sequence[int] | np.ndarray | Tensor) -> NoReturn:
        """An error: which ids may follow is known to its own code alone."""
        raise ActionPieceError(f"{self.config.name} is wrapped: which ids may follow is known to its own code alone")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
