"""What a file format has to answer, and what all formats share: checks on action arrays and a bounded cache."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from actionpiece.errors import ActionPieceError
from actionpiece.files import sha256_of

Actions = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Block = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True)
class Start:
    """Where an episode that was recorded in a simulator began: its task there, and the seed of its start."""

    task: str
    seed: int


@dataclass(frozen=True)
class Look:
    """What was seen before a step. episode: counted from 0 within the reader. pictures: PNG or JPEG bytes.

    state: the robot's, float32, or empty where the data has none.
    """

    episode: int
    step: int
    pictures: tuple[bytes, ...]
    state: npt.NDArray[np.float32]


class Reader(ABC):
    """One file or LeRobot folder, open for reading.

    path: the file or folder; None when there is none.
    name: short, for reports.
    lengths: steps of each episode as stored, (episodes,) int64.
    dim: columns of an action.
    tasks: one instruction per episode, or None.
    rate: control rate in Hz as the file states it, or None.
    licence, note: as the file states them, or empty.
    generated: whether no robot ever made these actions.
    """

    path: Path | None
    name: str
    lengths: Indices
    dim: int
    tasks: list[str] | None = None
    rate: float | None = None
    licence: str = ""
    note: str = ""
    generated: bool = False

    @abstractmethod
    def read(self, episode: int) -> Actions:
        """The actions (T, D) of one episode as stored: neither clipped nor checked for NaN. Not to be written to."""

    @abstractmethod
    def mask(self, name: str) -> npt.NDArray[np.bool_]:
        """The boolean array of this name, one value per episode: what a card's `keep` refers to."""

    @abstractmethod
    def files(self) -> list[Path]:
        """Every file that the actions and their boundaries depend on, in a fixed order. Never a video."""

    def starts(self) -> list[Start] | None:
        """Where each episode began in the simulator; None when the data does not say, as most does not."""
        return None

    def cameras(self) -> list[str]:
        """The names of the cameras whose pictures lie with the data; none where there are none."""
        return []

    def looks(self, cameras: Sequence[str]) -> Iterator[Look]:
        """Every step that has a picture of each of these cameras, episode by episode."""
        raise ActionPieceError(f"{self.name} holds no pictures, which a policy needs")

    def digest(self, *more: Path) -> str:
        """sha256 over `files()` and the files in `more`, read in small blocks."""
        return sha256_of([*self.files(), *more])


class Cache:
    """Decoded blocks by key; beyond `budget` bytes the least recently used one goes first.

    The newest block always stays, however large. `loads` counts how often something was really read.
    """

    def __init__(self, budget: int = 1 << 29) -> None:
        self.budget = budget
        self.loads = 0
        self._blocks: OrderedDict[Hashable, Block] = OrderedDict()

    def get(self, key: Hashable, load: Callable[[], Block]) -> Block:
        """The block of `key`, from memory or through `load`."""
        if key not in self._blocks:
            block = load()
            self.loads += 1
            for array in block:  # shared between callers, so nobody may write to it
                array.setflags(write=False)
            self._blocks[key] = block
            while len(self._blocks) > 1 and self.nbytes > self.budget:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        return self._blocks[key]

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return sum(array.nbytes for block in self._blocks.values() for array in block)


def as_actions(values: npt.NDArray[Any], where: str) -> Actions:
    """`values` as float32 (T, D); anything that is not a table of numbers is an error that starts with `where`."""
    if values.dtype.kind not in "fiub":
        raise ActionPieceError(f"{where} must be numbers, not {values.dtype}")
    if values.ndim != 2 or values.shape[1] == 0:
        raise ActionPieceError(f"{where} must have shape (steps, columns), not {values.shape}")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, which the finiteness check reports
        return np.ascontiguousarray(values, np.float32)


def as_lengths(values: list[int], where: str) -> Indices:
    """Episode lengths; no episodes, or none with a single step, is an error that starts with `where`."""
    lengths = np.asarray(values, np.int64)
    if lengths.size == 0 or lengths.sum() == 0:
        raise ActionPieceError(f"{where} holds no episodes")
    return lengths


def as_text(value: Any) -> str:
    """Text that a file may keep as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def as_rate(value: Any) -> float | None:
    """A control rate in Hz; None for anything that is not a positive finite number."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max
    return float(value) if known else None


def as_mask(values: Any, episodes: int, where: str) -> npt.NDArray[np.bool_]:
    """A boolean per episode; 0 and 1 will do, anything else is an error that starts with `where`."""
    array = np.asarray(values)
    if array.shape != (episodes,) or array.dtype.kind not in "bui" or not np.isin(array, (0, 1)).all():
        raise ActionPieceError(f"{where} must hold one true or false per episode ({episodes} of them)")
    return array.astype(np.bool_)


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """A sort key that puts demo_10 after demo_9."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


def unreadable(path: Path, kind: str, error: BaseException) -> ActionPieceError:
    """The one-sentence error for a damaged file, told apart from data that was never downloaded."""
    if not path.exists():
        return ActionPieceError(f"{path} does not exist")
    if path.is_file():
        with path.open("rb") as handle:
            if handle.read(40).startswith(b"version https://git-lfs"):
                return ActionPieceError(f"{path} is a Git LFS pointer, not the data: run 'git lfs pull' first")
    if "pickled" in str(error):  # numpy takes anything for a pickle, and advises to load it unsafely
        return ActionPieceError(f"{path} is no {kind} file")
    reason = " ".join(str(error).split()) or type(error).__name__
    return ActionPieceError(f"{path} is not a whole {kind} file: {reason[:200]}")
