"""Which token sequences stand for a chunk: a small automaton that reads tokens and counts the integers they make.

State 0 means that nothing is pending. A sequence is complete when it ends in state 0 having made exactly as many
integers as a chunk has. The same tables decide whether a sequence decodes and which tokens may come next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Reading:
    """What became of B sequences.

    state, made: (B,), the state they end in and the integers they make.
    unlawful_at, unlawful: (B,), position and id of the first token that may not stand where it does, or -1.
    """

    state: np.ndarray
    made: np.ndarray
    unlawful_at: np.ndarray
    unlawful: np.ndarray


class Grammar:
    """The automaton of one tokenizer.

    next_state: (S, V), the state after reading a token in a state, or -1 where it may not stand.
    makes: (S, V), how many integers become known by reading it.
    total: integers in a chunk.
    depth: how many tokens one integer takes at most.
    """

    def __init__(self, next_state: np.ndarray, makes: np.ndarray, *, total: int, depth: int) -> None:
        self.states, self.vocab_size = next_state.shape
        self.total = total
        self.longest = total * depth
        # One more column for ids that are no tokens, one more row for sequences that are past saving.
        self._next = np.full((self.states + 1, self.vocab_size + 1), self.states, np.int64)
        self._next[:-1, :-1] = np.where(next_state < 0, self.states, next_state)
        self._makes = np.zeros_like(self._next)
        self._makes[:-1, :-1] = np.where(next_state < 0, 0, makes)

    def read(self, flat: np.ndarray, lengths: np.ndarray) -> Reading:
        """Read sequences laid end to end; of an overlong one, as much as the longest chunk could take."""
        # In order of length, the sequences that still have a token at some position are the first ones.
        order = np.argsort(-lengths, kind="stable")
        starts = (np.cumsum(lengths) - lengths)[order]
        ids = np.where((flat < 0) | (flat >= self.vocab_size), self.vocab_size, flat)
        state, made = np.zeros((2, len(lengths)), np.int64)
        unlawful_at, unlawful = np.full((2, len(lengths)), -1)
        steps = min(int(lengths.max(initial=0)), self.longest)
        reading = np.searchsorted(-lengths[order], -np.arange(steps), side="left")
        for position, count in enumerate(reading.tolist()):
            token = ids[starts[:count] + position]
            before = state[:count]
            after = self._next[before, token]
            made[:count] += self._makes[before, token]
            fallen = (after == self.states) & (before != self.states)
            if fallen.any():
                unlawful_at[:count][fallen] = position
                unlawful[:count][fallen] = flat[starts[:count][fallen] + position]
            state[:count] = after
        back = np.argsort(order)
        return Reading(state[back], made[back], unlawful_at[back], unlawful[back])

    def complete(self, reading: Reading, lengths: np.ndarray) -> np.ndarray:
        """Which of the sequences read stand for a chunk."""
        complete: np.ndarray = (reading.state == 0) & (reading.made == self.total) & (lengths <= self.longest)
        return complete

    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the automaton is made of, for a generator that runs it elsewhere.

        The next state and the integers made, (S + 1, V + 1) each: column V is for what is no token, row S for sequences
        past saving; and (S + 1, total + 1), whether exactly so many more integers can be made from a state.
        """
        return self._next, self._makes, self._can_finish

    def allowed(self, state: int, made: int) -> np.ndarray:
        """The tokens (V,) after which a sequence can still be completed."""
        left = self.total - made - self._makes[state, :-1]
        allowed: np.ndarray = self._can_finish[self._next[state, :-1], np.maximum(left, 0)] & (left >= 0)
        return allowed

    def can_finish(self, state: int, made: int) -> bool:
        """Whether any continuation, also an empty one, completes the sequence."""
        return made <= self.total and bool(self._can_finish[state, self.total - made])

    @cached_property
    def _can_finish(self) -> np.ndarray:
        # (S + 1, total + 1): from this state, can exactly so many more integers be made? Worked out from 0 up.
        states = np.repeat(np.arange(self.states), self.vocab_size)
        edges = np.stack((states, self._next[:-1, :-1].ravel(), self._makes[:-1, :-1].ravel()), 1)
        edges = np.unique(edges[(edges[:, 1] < self.states) & (edges[:, 2] <= self.total)], axis=0)
        source, target, makes = edges.T
        table = np.zeros((self.states + 1, self.total + 1), bool)
        table[0, 0] = True
        for left in range(self.total + 1):
            column = table[:, left]
            while True:  # tokens that make nothing yet link states within a column, so it is filled until it rests
                good = (makes <= left) & table[target, np.maximum(left - makes, 0)] & ~column[source]
                if not good.any():
                    break
                column[source[good]] = True
        return table
