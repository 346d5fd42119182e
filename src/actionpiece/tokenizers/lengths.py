"""The two lengths a tokenizer can have: the same for every chunk, or as many tokens as a chunk needs."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.tokenizers.base import BLOCK, ActionTokenizer


class FixedLengthTokenizer(ActionTokenizer):
    """A tokenizer whose chunks all take T tokens: every sequence of the right length decodes."""

    def __init__(self, config: Any, **rest: Any) -> None:
        super().__init__(config, **rest)
        self._known_bounds: dict[int, tuple[Tensor, Tensor]] = {}

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
        low, high = self._bounds(min(max(length, 0), full))
        if 1 <= length <= full and bool((lengths == length).all()):  # as it should be; a robot waits for one chunk
            ids = flat.view(-1, length)
            if count and not bool(((ids < low) | (ids >= high)).any()):
                return torch.cat([self._decode(part) for part in ids.to(self.device).split(BLOCK)]), {}
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
        low, high = self._bounds(ids.shape[1])  # no sequence may be left
        wrong = (ids < low) | (ids >= high)
        for at in torch.nonzero(wrong.any(1)).flatten().tolist():
            position = int(wrong[at].nonzero()[0])
            reasons[int(rows[at])] = (
                f"id {int(ids[at, position])} at position {position} is not in {self.vocab_at(position)}"
            )
        keep = ~wrong.any(1)
        ids, rows = ids[keep].to(self.device), rows[keep].to(self.device)
        for part, where in zip(ids.split(BLOCK), rows.split(BLOCK), strict=True):
            if len(part):
                actions[where] = self._decode(part)
        return actions, reasons

    def _bounds(self, length: int) -> tuple[Tensor, Tensor]:
        if length not in self._known_bounds:
            ranges = [self.vocab_at(position) for position in range(length)]
            self._known_bounds[length] = torch.tensor([r.start for r in ranges]), torch.tensor([r.stop for r in ranges])
        return self._known_bounds[length]


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
        return [self._encode(x[first : first + BLOCK], first) for first in range(0, len(x), BLOCK)]

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
