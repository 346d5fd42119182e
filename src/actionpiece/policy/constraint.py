"""Which tokens may come next, as tables on the device, so that a generator never has to ask the CPU.

Both kinds work on ids local to the tokenizer; with an end token it is the id after the last.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.tokenizers.base import ActionTokenizer
from actionpiece.tokenizers.fast import FastTokenizer


class Constraint(Protocol):
    """longest: tokens of a sequence at most, the end token included. state: what changes while one is written."""

    longest: int
    state: list[Tensor]

    def allowed(self, at: Tensor) -> Tensor:
        """(B or 1, n, ids) of the tokens that may stand at positions `at` (n,)."""

    def advance(self, tokens: Tensor) -> None:
        """Take note of the tokens (B, n) that were chosen."""

    def finished(self) -> Tensor | None:
        """(B,) of the sequences that are over; None where all are as long as each other."""


class FixedLength:
    """T tokens, each from the ids of its position."""

    def __init__(self, tokenizer: ActionTokenizer, device: torch.device) -> None:
        assert tokenizer.tokens_per_chunk is not None
        self.longest = tokenizer.tokens_per_chunk
        self.state: list[Tensor] = []
        table = torch.zeros(self.longest, tokenizer.vocab_size, dtype=torch.bool)
        for position in range(self.longest):
            ids = tokenizer.vocab_at(position)
            table[position, ids.start : ids.stop] = True
        self._table = table.to(device)

    def allowed(self, at: Tensor) -> Tensor:
        return self._table[at][None]

    def advance(self, tokens: Tensor) -> None:
        pass

    def finished(self) -> None:
        return None


class Automaton:
    """The sequences of FAST: its grammar's tables, and an end token once a chunk is complete."""

    def __init__(self, tokenizer: FastTokenizer, device: torch.device, batch: int) -> None:
        grammar = tokenizer.grammar
        self.longest = grammar.longest + 1
        self._next, self._makes, self._can_finish = (torch.from_numpy(table).to(device) for table in grammar.tables())
        self._total, self._end = grammar.total, grammar.vocab_size
        #: The grammar's state, the integers made so far, whether the end token was written.
        self.state = [torch.zeros(batch, dtype=torch.int64, device=device) for _ in range(3)]

    def allowed(self, at: Tensor) -> Tensor:
        state, made, over = self.state
        left = self._total - made[:, None] - self._makes[state, :-1]
        reach = self._can_finish[self._next[state, :-1], left.clamp_min(0)] & (left >= 0)
        complete = ((state == 0) & (made == self._total)) | (over > 0)
        reach = reach & ~complete[:, None]
        return torch.cat((reach, complete[:, None]), 1)[:, None]

    def advance(self, tokens: Tensor) -> None:
        state, made, over = self.state
        token = tokens[:, 0]
        ends = token == self._end
        made += torch.where(ends, 0, self._makes[state, token])
        state.copy_(torch.where(ends, state, self._next[state, token]))
        over.copy_(torch.maximum(over, ends.long()))

    def finished(self) -> Tensor:
        return self.state[2] > 0


def constraint(tokenizer: ActionTokenizer, device: torch.device, batch: int) -> FixedLength | Automaton:
    """What keeps every sequence of this tokenizer decodable."""
    if tokenizer.tokens_per_chunk is not None:
        return FixedLength(tokenizer, device)
    if isinstance(tokenizer, FastTokenizer):
        return Automaton(tokenizer, device, batch)
    raise ActionPieceError(f"a policy cannot be kept to the sequences of {tokenizer.kind}, which have no grammar here")
