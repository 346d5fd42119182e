"""The one contract every tokenizer keeps.

The base classes check shapes and finiteness, convert numpy and torch, normalise, and save. A tokenizer's own file
sees only float32 normalised chunks (B, H, D) on its device, and says how they become ids and come back.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from actionpiece.arrays import chunks_tensor, to_tensor
from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError, DecodeError
from actionpiece.normalize import Method, Normalizer
from actionpiece.space import ActionSpace
from actionpiece.tokenizers.saving import SavedFolder

Errors = Literal["raise", "mask"]
Progress = Callable[[float, str], None]  # fraction done, what is being done
_BLOCK = 16384  # chunks worked on at a time, so that a large batch does not need a large machine


class ActionTokenizer(SavedFolder, nn.Module, abc.ABC):
    """Turns action chunks into token ids and back.

    kind: the tokenizer's name in files and commands.
    config_class: its frozen configuration.
    token_order: in words, what the position of a token stands for.
    space, normalizer, distance, horizon: what it was fitted for; they travel with it.
    provenance: what it was fitted on (seed, data, versions), for people; it does not change the tokenizer.
    """

    kind: ClassVar[str]
    config_class: ClassVar[type]
    token_order: ClassVar[str]
    #: Whether `decode(ids[:, :k], prefix=True)` works: the first tokens alone give a coarse chunk.
    has_prefix: ClassVar[bool] = False

    def __init__(
        self, config: Any, *, space: ActionSpace, normalizer: Normalizer, distance: PhysicalDistance, horizon: int
    ) -> None:
        super().__init__()
        if not isinstance(config, self.config_class):
            raise ActionPieceError(f"{self.kind} needs a {self.config_class.__name__}, not {type(config).__name__}")
        if normalizer.dim != space.dim or distance.space != space or horizon < 1:
            raise ActionPieceError(f"{self.kind}: normaliser, distance and action space do not belong together")
        self.config = config
        self.space = space
        self.normalizer = normalizer
        self.distance = distance
        self.horizon = horizon
        self.provenance: dict[str, Any] = {}
        self.register_buffer("_device", torch.empty(0), persistent=False)

    @classmethod
    def fit(
        cls,
        chunks: Any,
        space: ActionSpace,
        config: Any = None,
        *,
        normalizer: Method | Normalizer = "minmax",
        distance: PhysicalDistance | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Self:
        """Fit on training chunks (N, H, D) of raw commands.

        normalizer: a method to fit on these chunks, or one fitted before (on whole episodes, say).
        distance: the physical distance; fitted on these chunks when not given.
        progress: called with the fraction done and what is being done.
        """
        x = chunks_tensor(chunks, space.dim, dtype=torch.float32)
        if not isinstance(normalizer, Normalizer):
            normalizer = Normalizer.fit(normalizer, x)
        distance = distance or PhysicalDistance.fit(space, x)
        config = cls.config_class() if config is None else config
        tokenizer = cls(config, space=space, normalizer=normalizer, distance=distance, horizon=x.shape[1])
        tokenizer._fit(normalizer.normalize(x), seed, progress or (lambda fraction, what: None))
        tokenizer.provenance = {"seed": seed, "chunks": len(x)}
        return tokenizer

    # What the contract offers -------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Ids run from 0 to vocab_size - 1."""

    @property
    @abc.abstractmethod
    def tokens_per_chunk(self) -> int | None:
        """How many tokens a chunk takes, or None when it varies."""

    @abc.abstractmethod
    def vocab_at(self, position: int) -> range:
        """The ids that can stand at a position."""

    @abc.abstractmethod
    def allowed_next(self, ids: Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """A mask (vocab_size,) of the ids that may follow `ids` so that the sequence can still be decoded.

        No id is allowed after a complete sequence: that is how a generator knows it is done.
        """

    @abc.abstractmethod
    def bits_per_chunk(self, mean_tokens: float) -> float:
        """How many bits a chunk's tokens can hold, for a mean number of tokens per chunk."""

    def encode(self, actions: Any, *, normalized: bool = False) -> Any:
        """Token ids of one chunk (H, D) or of many (B, H, D).

        Fixed length: (T,) or (B, T) int64. Variable length: one array, or a list of arrays. Numpy in gives numpy
        out; torch in gives torch out on the same device. `normalized` says the actions are normalised already.
        """
        is_torch = isinstance(actions, Tensor)
        x = to_tensor(actions)
        if x.ndim not in (2, 3) or tuple(x.shape[-2:]) != (self.horizon, self.space.dim):
            wanted = f"({self.horizon}, {self.space.dim})"
            raise ActionPieceError(f"{self.kind} encodes chunks of shape {wanted}, not {tuple(x.shape)}")
        device = x.device
        batch = (x if x.ndim == 3 else x[None]).to(self.device)
        if not normalized:
            batch = self.normalizer.normalize(batch.to(torch.float64))
        with torch.no_grad():
            blocks = self._encode_all(batch.float()) if len(batch) else []
        return self._pack_ids(blocks, single=x.ndim == 2, device=device, as_torch=is_torch)

    def decode(self, ids: Any, *, prefix: bool = False, errors: Errors = "raise", normalized: bool = False) -> Any:
        """Actions (H, D) or (B, H, D), float32, of token ids as `encode` gives them.

        prefix: the ids are the first tokens of each sequence (only where `has_prefix`).
        errors: `raise` a `DecodeError` that names the sequences that stand for nothing, or `mask`: return
            (actions, valid) with NaN where a sequence is not valid. Nothing is ever decoded to a silent guess.
        normalized: return normalised actions.
        """
        if prefix and not self.has_prefix:
            raise ActionPieceError(f"{self.kind} has no coarse-to-fine order, so it cannot decode a prefix")
        if errors not in ("raise", "mask"):
            raise ActionPieceError(f"errors must be 'raise' or 'mask', not '{errors}'")
        flat, lengths, single, like = _flatten_ids(ids)
        with torch.no_grad():
            actions, reasons = self._decode_flat(flat, lengths, prefix)
        if reasons and errors == "raise":
            first = min(reasons)
            more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
            raise DecodeError(f"sequence {first} cannot be decoded: {reasons[first]}{more}", tuple(sorted(reasons)))
        out = actions if normalized else self.normalizer.denormalize(actions)
        valid = torch.ones(len(lengths), dtype=torch.bool)
        valid[sorted(reasons)] = False
        out = out.to(like.device if like is not None else "cpu")
        answer: Any = (out[0] if single else out, valid[0] if single else valid.to(out.device))
        if like is None:
            answer = tuple(part.numpy() for part in answer)
        return answer if errors == "mask" else answer[0]

    @property
    def device(self) -> torch.device:
        """Where the tokenizer computes; `tok.to("cuda")` moves it."""
        return self._device.device  # type: ignore[return-value]

    # What a tokenizer's own file fills in ---------------------------------------------------------------------------

    @abc.abstractmethod
    def _fit(self, x: Tensor, seed: int, progress: Progress) -> None:
        """Learn from normalised training chunks (N, H, D)."""

    @abc.abstractmethod
    def _encode(self, x: Tensor) -> Any:
        """Ids of normalised chunks (B, H, D)."""

    def _encode_all(self, x: Tensor) -> list[Any]:
        """What `_encode` says of each block of a large batch."""
        return [self._encode(block) for block in x.split(_BLOCK)]

    @abc.abstractmethod
    def _pack_ids(self, blocks: list[Any], *, single: bool, device: torch.device, as_torch: bool) -> Any:
        """Join the blocks `_encode` gave and hand them out in the caller's kind of array."""

    @abc.abstractmethod
    def _decode_flat(self, flat: Tensor, lengths: Tensor, prefix: bool) -> tuple[Tensor, dict[int, str]]:
        """Normalised actions (B, H, D) of B sequences laid end to end, and why any of them cannot be decoded."""


class FixedLengthTokenizer(ActionTokenizer):
    """A tokenizer whose chunks all take T tokens: every sequence of the right length decodes."""

    @abc.abstractmethod
    def _encode(self, x: Tensor) -> Tensor:
        """Ids (B, T) of normalised chunks (B, H, D)."""

    @abc.abstractmethod
    def _decode(self, ids: Tensor) -> Tensor:
        """Normalised chunks (B, H, D) of ids (B, T), or (B, k) with k <= T where `has_prefix`."""

    @property
    @abc.abstractmethod
    def tokens_per_chunk(self) -> int: ...

    def vocab_at(self, position: int) -> range:
        if not 0 <= position < self.tokens_per_chunk:
            raise ActionPieceError(f"{self.kind} has positions 0 to {self.tokens_per_chunk - 1}, not {position}")
        return range(self.vocab_size)

    def allowed_next(self, ids: Sequence[int] | np.ndarray | Tensor) -> Tensor:
        mask = torch.zeros(self.vocab_size, dtype=torch.bool)
        if len(ids) < self.tokens_per_chunk:
            here = self.vocab_at(len(ids))
            mask[here.start : here.stop] = True
        return mask

    def bits_per_chunk(self, mean_tokens: float) -> float:
        return sum(math.log2(len(self.vocab_at(position))) for position in range(self.tokens_per_chunk))

    def _pack_ids(self, blocks: list[Tensor], *, single: bool, device: torch.device, as_torch: bool) -> Any:
        ids = torch.cat(blocks) if blocks else torch.empty(0, self.tokens_per_chunk, dtype=torch.int64)
        ids = ids[0] if single else ids
        return ids.to(device) if as_torch else ids.cpu().numpy()

    def _decode_flat(self, flat: Tensor, lengths: Tensor, prefix: bool) -> tuple[Tensor, dict[int, str]]:
        count, full = len(lengths), self.tokens_per_chunk
        # A prefix batch has one length; the first sequence says which.
        length = int(lengths[0]) if prefix and count else full
        actions = torch.full((count, self.horizon, self.space.dim), torch.nan, device=self.device)
        reasons: dict[int, str] = {}
        good = lengths == length
        if not 1 <= length <= full:
            good[:] = False
        for item in torch.nonzero(~good).flatten().tolist():
            reasons[item] = (
                f"it has {int(lengths[item])} tokens, not {full if not prefix else f'1 to {full}, all alike'}"
            )
        ids = (
            flat[torch.repeat_interleave(good, lengths)].reshape(-1, length)
            if bool(good.any())
            else flat.new_empty(0, full)
        )
        rows = torch.nonzero(good).flatten()
        low, high = self._bounds(ids.shape[1])
        wrong = (ids < low) | (ids >= high)
        for at in torch.nonzero(wrong.any(1)).flatten().tolist():
            position = int(wrong[at].nonzero()[0])
            reasons[int(rows[at])] = (
                f"id {int(ids[at, position])} at position {position} is not in {self.vocab_at(position)}"
            )
        keep = ~wrong.any(1)
        ids, rows = ids[keep].to(self.device), rows[keep].to(self.device)
        for part, where in zip(ids.split(_BLOCK), rows.split(_BLOCK), strict=True):
            if len(part):
                actions[where] = self._decode(part)
        return actions, reasons

    def _bounds(self, length: int) -> tuple[Tensor, Tensor]:
        ranges = [self.vocab_at(position) for position in range(length)]
        return torch.tensor([r.start for r in ranges]), torch.tensor([r.stop for r in ranges])


class VariableLengthTokenizer(ActionTokenizer):
    """A tokenizer whose chunks take different numbers of tokens: not every sequence decodes."""

    @abc.abstractmethod
    def _encode(self, x: Tensor, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Ids of normalised chunks (B, H, D) laid end to end, and how many each chunk has: int64 (sum,) and (B,).

        first: the number of the first of these chunks in the caller's batch, for errors that name one.
        """

    @property
    def tokens_per_chunk(self) -> None:
        return None

    def vocab_at(self, position: int) -> range:
        if position < 0:
            raise ActionPieceError(f"{self.kind} has positions from 0 on, not {position}")
        return range(self.vocab_size)

    def bits_per_chunk(self, mean_tokens: float) -> float:
        return mean_tokens * math.log2(self.vocab_size)

    def _encode_all(self, x: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
        return [self._encode(x[first : first + _BLOCK], first) for first in range(0, len(x), _BLOCK)]

    def _pack_ids(
        self, blocks: list[tuple[np.ndarray, np.ndarray]], *, single: bool, device: torch.device, as_torch: bool
    ) -> Any:
        if not blocks:
            return []
        flat = np.concatenate([ids for ids, _ in blocks])
        lengths = np.concatenate([counts for _, counts in blocks])
        if as_torch:
            rows: list[Any] = list(torch.from_numpy(flat).to(device).split(lengths.tolist()))
        else:
            stops = np.cumsum(lengths).tolist()
            rows = [flat[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
        return rows[0] if single else rows


def _flatten_ids(ids: Any) -> tuple[Tensor, Tensor, bool, Tensor | None]:
    """Ids as (flat int64 on the CPU, lengths, whether it was one sequence, a tensor to copy the kind of, or None)."""
    like = ids if isinstance(ids, Tensor) else None
    if isinstance(ids, (Tensor, np.ndarray)):
        tensor = ids if isinstance(ids, Tensor) else torch.from_numpy(np.ascontiguousarray(ids))
        if tensor.ndim not in (1, 2) or tensor.is_floating_point() or tensor.dtype == torch.bool:
            raise ActionPieceError(
                f"ids must be integers of shape (T,) or (B, T), not {tensor.dtype} {tuple(ids.shape)}"
            )
        single = tensor.ndim == 1
        rows = tensor[None] if single else tensor
        return rows.flatten().cpu().long(), torch.full((len(rows),), rows.shape[1]), single, like
    if not isinstance(ids, (list, tuple)):
        raise ActionPieceError(f"ids must be an array or a list, not {type(ids).__name__}")
    single = bool(ids) and isinstance(ids[0], (int, np.integer))
    rows_list = [ids] if single else ids
    if rows_list and isinstance(rows_list[0], Tensor):
        like = rows_list[0]
        rows_list = [row.cpu().numpy() if isinstance(row, Tensor) else row for row in rows_list]
    arrays = [np.asarray(row, dtype=np.int64) if len(row) else np.zeros(0, np.int64) for row in rows_list]
    if any(row.ndim != 1 for row in arrays):
        raise ActionPieceError("a list of ids must hold one flat sequence per chunk")
    flat = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
    return torch.from_numpy(flat), torch.tensor([len(row) for row in arrays], dtype=torch.int64), single, like
