"""Episode-wise splits into train, validation and test: one seeded permutation, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actionpiece.data.reader import Indices
from actionpiece.errors import ActionPieceError


@dataclass(frozen=True)
class SplitRule:
    """How many episodes are set aside, and the seed that chooses them."""

    seed: int
    test: int
    validation: int

    def __post_init__(self) -> None:
        if min(self.seed, self.test, self.validation) < 0:
            raise ActionPieceError("a split's seed, test and validation must not be negative")

    @classmethod
    def default(cls, episodes: int, seed: int, where: str) -> SplitRule:
        """A tenth for test and a tenth for validation, at least one episode each."""
        if episodes < 3:
            raise ActionPieceError(
                f"{where} has {episodes} episode{'s' * (episodes != 1)}, too few for training, validation and test:"
                " add episodes, at least 3 are needed"
            )
        tenth = max(1, round(0.1 * episodes))
        return cls(seed, tenth, tenth)

    def apply(self, episodes: int, where: str) -> Split:
        """Split 0 .. episodes-1: the first of the permutation are test, the next validation, the rest training."""
        if self.test + self.validation >= episodes:
            raise ActionPieceError(
                f"{where}: a split with {self.test} test and {self.validation} validation episodes"
                f" leaves none of {episodes} for training"
            )
        order = np.random.default_rng(self.seed).permutation(episodes).astype(np.int64)
        held_out = self.test + self.validation
        return Split(train=order[held_out:], validation=order[self.test : held_out], test=order[: self.test])


@dataclass(frozen=True, eq=False)
class Split:
    """Episode numbers for training, for choosing anything at all, and for the published figure, in drawn order."""

    train: Indices
    validation: Indices
    test: Indices

    def of(self, episodes: Indices) -> Split:
        """The same split with each number i replaced by `episodes[i]`."""
        return Split(episodes[self.train], episodes[self.validation], episodes[self.test])

    @staticmethod
    def union(parts: list[Split]) -> Split:
        """Several splits of different episodes as one."""
        return Split(
            np.concatenate([part.train for part in parts]),
            np.concatenate([part.validation for part in parts]),
            np.concatenate([part.test for part in parts]),
        )

    def counts(self) -> dict[str, int]:
        """How many episodes each part has."""
        return {"train": len(self.train), "validation": len(self.validation), "test": len(self.test)}
