"""`Chunks`: windows of H commands over episodes, found by arithmetic and read when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from actionpiece.data.demos import Demos
from actionpiece.data.reader import Actions, Indices
from actionpiece.errors import ActionPieceError

Tail = Literal["drop", "repeat"]


class Chunks:
    """Action chunks (H, D) over the given episodes: episodes in the order given, starts ascending.

    horizon: steps of a chunk, the paper's H.
    stride: steps between the starts of consecutive chunks of an episode.
    tail: `drop` leaves out windows that would run past the end (for fitting and for figures); `repeat` starts a
        window at every step and repeats the last command (for policies).

    Only one number per episode is kept; `chunks[indices]` reads each episode it needs once.
    """

    def __init__(
        self,
        demos: Demos,
        episodes: Sequence[int] | Indices,
        horizon: int = 8,
        stride: int = 1,
        tail: Tail = "drop",
    ) -> None:
        if horizon < 1 or stride < 1:
            raise ActionPieceError(f"horizon and stride must be at least 1, not {horizon} and {stride}")
        if tail not in get_args(Tail):
            raise ActionPieceError(f"tail must be 'drop' or 'repeat', not '{tail}'")
        self.demos, self.horizon, self.stride, self.tail = demos, int(horizon), int(stride), tail
        self.episodes = np.array(episodes, np.int64)
        if self.episodes.ndim != 1 or self.episodes.size == 0:
            raise ActionPieceError(f"{demos.name}: chunks need at least one episode")
        if self.episodes.min() < 0 or self.episodes.max() >= len(demos):
            raise ActionPieceError(f"{demos.name} has episodes 0 to {len(demos) - 1}, but others were asked for")
        lengths = demos.lengths[self.episodes]
        last = lengths - (self.horizon if tail == "drop" else 1)  # the last start, below 0 when there is none
        self._ends = np.cumsum(np.where(last >= 0, last // self.stride + 1, 0))
        if len(self) == 0:
            raise ActionPieceError(
                f"{demos.name}: no episode is as long as the horizon of {self.horizon} steps"
                f" (the longest has {lengths.max()}); choose a shorter horizon"
            )

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _locate(self, indices: npt.ArrayLike) -> tuple[Indices, Indices]:
        """Position in `self.episodes`, and first step, of each chunk."""
        index = np.asarray(indices, np.int64)
        if index.size and (index.min() < -len(self) or index.max() >= len(self)):
            raise IndexError(f"there are {len(self)} chunks; index out of range")
        index = np.where(index < 0, index + len(self), index)
        position = np.searchsorted(self._ends, index, "right")
        before = np.where(position > 0, self._ends[position - 1], 0)
        return position, (index - before) * self.stride

    def episode_of(self, indices: npt.ArrayLike) -> Indices:
        """The episode of `demos` that each chunk comes from."""
        return self.episodes[self._locate(indices)[0]]

    def start_of(self, indices: npt.ArrayLike) -> Indices:
        """The step of its episode at which each chunk starts."""
        return self._locate(indices)[1]

    def __getitem__(self, key: Any) -> Actions:
        """One chunk (H, D) for a number; (n, H, D) for a slice or a list of numbers, in the order asked for."""
        if isinstance(key, slice):
            key = np.arange(*key.indices(len(self)))
        index = np.asarray(key)
        if index.dtype == np.bool_ and index.shape == (len(self),):
            index = np.flatnonzero(index)
        if index.size and index.dtype.kind not in "iu":
            raise IndexError("chunks are chosen by whole numbers, slices, or one boolean per chunk")
        position, start = self._locate(index.reshape(-1))
        out = np.empty((index.size, self.horizon, self.demos.dim), np.float32)
        # By episode number, not by position: neighbours in the data share files, and each file is decoded once.
        order = np.argsort(self.episodes[position], kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(self.episodes[position[order]])) + 1) if len(order) else []
        window = np.arange(self.horizon)
        for group in groups:
            actions = self.demos.episode(int(self.episodes[position[group[0]]]))
            rows = start[group, None] + window
            out[group] = actions[np.minimum(rows, len(actions) - 1) if self.tail == "repeat" else rows]
        return out.reshape(*index.shape, self.horizon, self.demos.dim)

    def all(self) -> Actions:
        """Every chunk, (n, H, D); for data that fits in memory."""
        return self[:]

    def draw(self, n: int, seed: int = 0) -> Indices:
        """`n` different chunk numbers (all, if there are fewer) in the published order: torch's seeded permutation."""
        import torch  # the draw is torch's by definition; nothing else in this room needs it

        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        drawn: Indices = order[:n].numpy().copy()  # a copy, so that the whole permutation is not kept alive
        return drawn

    def sample(self, n: int, seed: int = 0) -> Actions:
        """The drawn chunks themselves; only they are held in memory, each episode is read once."""
        return self[self.draw(n, seed)]

    def batches(self, size: int) -> Iterator[Actions]:
        """All chunks in order, `size` at a time (the last batch may be smaller)."""
        if size < 1:
            raise ActionPieceError(f"a batch needs at least one chunk, not {size}")
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def describe(self) -> dict[str, Any]:
        """Plain facts to be written beside a result."""
        return {
            "horizon": self.horizon,
            "stride": self.stride,
            "tail": self.tail,
            "episodes": len(self.episodes),
            "chunks": len(self),
        }


def steps(demos: Demos, episodes: Sequence[int] | Indices) -> Iterator[Actions]:
    """The actions (T, D) of each of the episodes, one after the other: what a streaming fit walks over."""
    for index in episodes:
        yield demos.episode(int(index))
