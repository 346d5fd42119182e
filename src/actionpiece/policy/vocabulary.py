"""`ActionVocabulary`: where a tokenizer's ids live in the vocabulary of a language model.

The model's table grows by named tokens, `<action_start>`, `<action_0>`, `<action_1>`, ..., and `<action_end>` where
chunks have different lengths. They follow the ids that the text tokenizer knows, which may be fewer than the table has
rows: Qwen3-VL has 151,669 ids and 151,936 rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from actionpiece.errors import ActionPieceError
from actionpiece.tokenizers.base import ActionTokenizer

ROWS = 64  # the table's rows come in multiples of this, which products like
_NOISE = 0.1  # of the deviation of the rows that are there: enough to tell new ids apart


@dataclass(frozen=True)
class ActionVocabulary:
    """start: the id that stands before a chunk. first: the id of action id 0; the others follow.

    size: action ids. ends: whether an end token, the id after the last, closes a chunk.
    fingerprint: of the tokenizer whose ids these are.
    """

    start: int
    first: int
    size: int
    ends: bool
    fingerprint: str

    @classmethod
    def add(cls, text: Any, model: nn.Module, tokenizer: ActionTokenizer, *, seed: int = 0) -> ActionVocabulary:
        """Teach a Hugging Face text tokenizer and its model the ids of an action tokenizer.

        New rows are the mean of the rows that are there plus a little seeded noise, by id, so that none is left as it
        was allocated; a head that is tied to the table stays tied.
        """
        known = len(text)
        ends = tokenizer.tokens_per_chunk is None
        names = ["<action_start>", *(f"<action_{i}>" for i in range(tokenizer.vocab_size))]
        names += ["<action_end>"] if ends else []
        if text.add_tokens(names, special_tokens=True) != len(names):
            raise ActionPieceError("the text tokenizer has tokens named <action_...> already; take one without them")
        vocabulary = cls(known, known + 1, tokenizer.vocab_size, ends, tokenizer.fingerprint())
        table = model.get_input_embeddings()  # type: ignore[operator]
        if len(text) > len(table.weight):
            model.resize_token_embeddings(len(text), pad_to_multiple_of=ROWS, mean_resizing=False)  # type: ignore[operator]
        generator = torch.Generator().manual_seed(seed)
        tables = [model.get_input_embeddings().weight]  # type: ignore[operator]
        head = model.get_output_embeddings()  # type: ignore[operator]
        if head is not None and head.weight is not tables[0]:
            tables.append(head.weight)
        with torch.no_grad():
            for rows in tables:
                old = rows[:known].float()
                noise = torch.randn(len(rows) - known, rows.shape[1], generator=generator).to(rows.device)
                rows[known:] = (old.mean(0) + _NOISE * old.std(0) * noise).to(rows.dtype)
        return vocabulary

    @property
    def rows(self) -> slice:
        """The rows of the head that can be predicted: all action ids, and the end token after them if there is one."""
        return slice(self.first, self.first + self.size + self.ends)

    def to_text(self, ids: Tensor) -> Tensor:
        """Ids of the language model for a tokenizer's own; `size` stands for the end token."""
        self._check(ids, 0, self.size + self.ends, "action ids")
        return ids + self.first

    def from_text(self, ids: Tensor) -> Tensor:
        """The inverse of `to_text`."""
        self._check(ids, self.first, self.first + self.size + self.ends, "action tokens")
        return ids - self.first

    def check(self, tokenizer: ActionTokenizer) -> None:
        """An error unless this is the tokenizer that the vocabulary was made for."""
        if tokenizer.fingerprint() != self.fingerprint:
            raise ActionPieceError(
                f"this {tokenizer.kind} tokenizer is not the one that the policy's vocabulary was made for;"
                " its ids would mean other commands"
            )

    def _check(self, ids: Tensor, low: int, high: int, what: str) -> None:
        if ids.numel() and (int(ids.min()) < low or int(ids.max()) >= high):
            raise ActionPieceError(
                f"{what} run from {low} to {high - 1}, and there is {int(ids.min())} or {int(ids.max())}"
            )
