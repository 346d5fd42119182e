"""Stand-ins for other projects' interfaces, so that their callers can use any tokenizer of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from actionpiece.arrays import to_tensor
from actionpiece.errors import ActionPieceError
from actionpiece.tokenizers.base import ActionTokenizer


class FastProcessor:
    """Answers like FAST's own processor, for any tokenizer.

    Callers of FAST normalise before they call and un-normalise after decoding, so chunks go in and come out
    normalised, and the tokenizer's own normaliser is left out. It must be the one the caller uses.
    """

    def __init__(self, tokenizer: ActionTokenizer) -> None:
        self.tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to vocab_size - 1."""
        return self.tokenizer.vocab_size

    @property
    def time_horizon(self) -> int:
        """Steps of a chunk."""
        return self.tokenizer.horizon

    @property
    def action_dim(self) -> int:
        """Columns of a chunk."""
        return self.tokenizer.space.dim

    def __call__(self, action_chunk: Any) -> list[list[int]]:
        """The token ids of normalised chunks (B, H, D); one chunk (H, D) counts as a batch of one."""
        chunks = to_tensor(action_chunk)
        if not chunks.numel():
            return []
        ids = self.tokenizer.encode(chunks[None] if chunks.ndim == 2 else chunks, normalized=True)
        return [row.tolist() for row in ids]

    def decode(
        self,
        tokens: Sequence[Sequence[int]] | np.ndarray | Tensor,
        *,
        time_horizon: int | None = None,
        action_dim: int | None = None,
    ) -> np.ndarray:
        """Normalised chunks (B, H, D), float32, of one sequence of ids per chunk.

        The tokenizer knows its shape: `time_horizon` and `action_dim` may be given, but must agree with it. A
        sequence that stands for no chunk is a `DecodeError` (FAST's own processor answers with zeros).
        """
        for name, asked, own in (
            ("time_horizon", time_horizon, self.time_horizon),
            ("action_dim", action_dim, self.action_dim),
        ):
            if asked is not None and asked != own:
                raise ActionPieceError(f"{name} {asked} was asked for, but the tokenizer's chunks have {own}")
        rows = tokens.cpu().numpy() if isinstance(tokens, Tensor) else tokens
        actions: np.ndarray = self.tokenizer.decode(rows, normalized=True)
        return actions if actions.ndim == 3 else actions[None]
