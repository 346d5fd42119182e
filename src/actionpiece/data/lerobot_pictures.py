"""Pictures and states of a LeRobot data file, one row per step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from actionpiece.data.lerobot_tables import as_matrix
from actionpiece.data.reader import Look, unreadable
from actionpiece.errors import ActionPieceError

PREFIX = "observation.images."
_STATE, _EPISODE = "observation.state", "episode_index"


@dataclass(frozen=True)
class Rows:
    """numbers: each row's episode, ascending (empty when the file does not say). shots: for each camera, bytes or None.

    states: (rows, S) float32; S is 0 where the file has none.
    """

    numbers: npt.NDArray[np.int64]
    shots: list[list[bytes | None]]
    states: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.states)

    def looks(self, episode: int, place: slice) -> Iterator[Look]:
        """The rows of `place` that have a picture of every camera."""
        for step, row in enumerate(range(place.start, place.stop)):
            pictures = [shots[row] for shots in self.shots]
            if all(picture is not None for picture in pictures):
                yield Look(episode, step, tuple(pictures), self.states[row])  # type: ignore[arg-type]


def load_looks(path: Path, cameras: Sequence[str]) -> Rows:
    """Read a data file's pictures (they stay compressed) and states, sorted by episode."""
    try:
        with pq.ParquetFile(path) as file:
            wanted = [n for n in (*cameras, _STATE, _EPISODE) if n in file.schema_arrow.names]
            table = file.read(columns=wanted)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, "parquet", error) from None
    for name in cameras:
        if name not in table.column_names:
            raise ActionPieceError(f"{path} has no column '{name}'")
    numbers = np.empty(0, np.int64)
    if _EPISODE in table.column_names:
        numbers = table[_EPISODE].to_numpy().astype(np.int64)
        order = np.argsort(numbers, kind="stable")
        if (np.diff(order) != 1).any():
            table, numbers = table.take(order), numbers[order]
    states = np.zeros((len(table), 0), np.float32)
    if _STATE in table.column_names and table[_STATE].null_count < len(table):
        states = as_matrix(table[_STATE], f"{path}: {_STATE}").astype(np.float32)
    return Rows(numbers, [[_bytes(row, path, name) for row in table[name].to_pylist()] for name in cameras], states)


def _bytes(row: Any, path: Path, name: str) -> bytes | None:
    if row is None:
        return None
    inside = row.get("bytes") if isinstance(row, dict) else None
    if not isinstance(inside, bytes):
        raise ActionPieceError(f"{path}: {name} holds no pictures as bytes")
    return inside
