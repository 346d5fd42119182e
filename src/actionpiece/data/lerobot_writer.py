"""Writes LeRobot v3.0 data sets: episodes in, a folder out that is whole or not there.

    written = write_lerobot("demos", episodes, About(fps=20, robot_type="panda", action=(...), state=(...)))
    check_layout("demos")                              # [] when all is well

Pictures go into the data files as PNG or JPEG bytes (LeRobot's `image` features). The same episodes give the same
bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from actionpiece.data.lerobot_layout import (
    COUNTERS,
    DATA,
    EPISODES,
    INFO,
    PICTURE,
    STATS,
    TASKS,
    VERSION,
    WHOLE,
    check_layout,
)
from actionpiece.data.lerobot_stats import picture_statistics, statistics
from actionpiece.data.lerobot_tables import FILE_MB, FILES_PER_CHUNK, DataFiles, column, task_table
from actionpiece.errors import ActionPieceError
from actionpiece.files import write_json, writing_folder

__all__ = ["About", "Episode", "Written", "check_layout", "write_lerobot"]


Picture = bytes | None
_OWN = {"tasks", *WHOLE}


@dataclass(frozen=True)
class Episode:
    """One demonstration of T steps.

    actions (T, D) and states (T, S), float32; a state is the one before its action. task: the instruction.
    pictures: for each camera T pictures as PNG or JPEG bytes, None where there is none (the first must be there).
    more: further columns of the episode metadata; the same names in every episode, whole numbers, numbers or text.
    """

    actions: npt.NDArray[np.float32]
    states: npt.NDArray[np.float32]
    task: str
    pictures: Mapping[str, Sequence[Picture]] = field(default_factory=dict)
    more: Mapping[str, int | float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class About:
    """What a data set says of itself.

    action, state: names of the columns. cameras: names, with the side of their square pictures in pixels.
    """

    fps: int
    robot_type: str
    action: tuple[str, ...]
    state: tuple[str, ...]
    cameras: Mapping[str, int] = field(default_factory=dict)

    def features(self) -> dict[str, Any]:
        """LeRobot's description of every column."""
        vectors = {"action": self.action, "observation.state": self.state}
        return (
            {name: {"dtype": "float32", "shape": [len(names)], "names": list(names)} for name, names in vectors.items()}
            | {
                camera_column(name): {
                    "dtype": "image",
                    "shape": [size, size, 3],
                    "names": ["height", "width", "channels"],
                }
                for name, size in self.cameras.items()
            }
            | {name: {"dtype": kind, "shape": [1], "names": None} for name, kind in COUNTERS.items()}
        )


@dataclass(frozen=True)
class Written:
    """What was written: counts, and the instructions in the order of their numbers."""

    episodes: int
    frames: int
    tasks: tuple[str, ...]


def camera_column(name: str) -> str:
    """The column that holds a camera's pictures."""
    return f"observation.images.{name}"


def write_lerobot(
    folder: str | Path, episodes: Iterable[Episode], about: About, *, more: Mapping[str, Any] | None = None
) -> Written:
    """Write a LeRobot v3.0 data set; it is written aside and renamed, so that `folder` never holds half of one.

    episodes: may be made while they are written; pictures are not kept in memory. more: JSON files that lie in the
    folder too, by name.
    """
    with writing_folder(Path(folder), INFO) as aside:
        writer = _Writer(aside, about)
        for episode in episodes:
            writer.add(episode)
        written = writer.finish()
        for name, value in (more or {}).items():
            write_json(aside / name, value)
    return written


class _Writer:
    def __init__(self, root: Path, about: About) -> None:
        self._root, self._about = root, about
        self._rows: list[dict[str, Any]] = []
        self._tasks: dict[str, int] = {}
        self._frames = 0
        self._columns: dict[str, list[npt.NDArray[Any]]] = {}
        self._histograms = {camera_column(name): np.zeros((3, 256), np.int64) for name in about.cameras}
        self._shown = dict.fromkeys(self._histograms, 0)
        self._file = DataFiles(root)

    def add(self, episode: Episode) -> None:
        number, length = len(self._rows), len(episode.actions)
        self._check(episode, number)
        task = self._tasks.setdefault(episode.task, len(self._tasks))
        frame = np.arange(length)
        numeric: dict[str, npt.NDArray[Any]] = {
            "action": np.ascontiguousarray(episode.actions, np.float32),
            "observation.state": np.ascontiguousarray(episode.states, np.float32),
            "timestamp": (frame / self._about.fps).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full(length, number),
            "index": self._frames + frame,
            "task_index": np.full(length, task),
        }
        for name, values in numeric.items():
            self._columns.setdefault(name, []).append(values)
        pictures = {camera_column(name): episode.pictures[name] for name in self._about.cameras}
        for name, shots in pictures.items():
            self._look(name, shots)
        arrays = {name: column(values) for name, values in numeric.items()} | {
            name: pa.array([None if shot is None else {"bytes": shot, "path": None} for shot in shots], PICTURE)
            for name, shots in pictures.items()
        }
        place = self._file.write(pa.table({name: arrays[name] for name in self._about.features()}))
        self._rows.append(
            {
                "episode_index": number,
                "tasks": [episode.task],
                "length": length,
                "data/chunk_index": place // FILES_PER_CHUNK,
                "data/file_index": place % FILES_PER_CHUNK,
                "dataset_from_index": self._frames,
                "dataset_to_index": self._frames + length,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
                **episode.more,
            }
        )
        self._frames += length

    def _check(self, episode: Episode, number: int) -> None:
        where = f"episode {number}"
        for name, values, names in (
            ("actions", episode.actions, self._about.action),
            ("states", episode.states, self._about.state),
        ):
            if values.shape != (len(episode.actions), len(names)) or not len(values):
                raise ActionPieceError(
                    f"{where}: {name} have shape {values.shape}; (steps, {len(names)}) with a step at least is needed"
                )
            if not np.isfinite(values).all():
                raise ActionPieceError(f"{where}: {name} hold values that are not finite")
        if not episode.task:
            raise ActionPieceError(f"{where} has no instruction")
        if self._rows and episode.more.keys() != self._rows[0].keys() - _OWN:
            raise ActionPieceError(f"{where} has other metadata columns than the episodes before")
        if clash := sorted(episode.more.keys() & _OWN):
            raise ActionPieceError(f"{where}: the metadata column {clash[0]} is LeRobot's own")
        for name in self._about.cameras:
            shots = episode.pictures.get(name, ())
            if len(shots) != len(episode.actions) or shots[0] is None:
                raise ActionPieceError(f"{where}: camera {name} needs an entry for every step and a first picture")

    def _look(self, column: str, shots: Sequence[Picture]) -> None:
        """Count the values of every channel: what all statistics of pictures follow from."""
        from PIL import Image

        for shot in shots:
            if shot is not None:
                pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"))
                side = next(size for name, size in self._about.cameras.items() if camera_column(name) == column)
                if pixels.shape != (side, side, 3):
                    raise ActionPieceError(f"a picture of {column} is {pixels.shape[:2]}, not {(side, side)}")
                for channel in range(3):
                    self._histograms[column][channel] += np.bincount(pixels[..., channel].ravel(), minlength=256)
                self._shown[column] += 1

    def finish(self) -> Written:
        if not self._rows:
            raise ActionPieceError("there are no episodes to write")
        self._file.close()
        total = len(self._rows)
        info = {
            "codebase_version": VERSION,
            "robot_type": self._about.robot_type,
            "total_episodes": total,
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_PER_CHUNK,
            "data_files_size_in_mb": FILE_MB,
            "video_files_size_in_mb": 500,
            "fps": self._about.fps,
            "splits": {"train": f"0:{total}"},
            "data_path": DATA,
            "video_path": None,
            "features": self._about.features(),
        }
        write_json(self._root / INFO, info)
        stats = {name: statistics(np.concatenate(parts)) for name, parts in self._columns.items()}
        stats |= {name: picture_statistics(self._histograms[name], self._shown[name]) for name in self._histograms}
        write_json(self._root / STATS, {name: stats[name] for name in self._about.features()})
        pq.write_table(task_table(list(self._tasks)), self._root / TASKS)
        path = self._root / EPISODES.format(chunk_index=0, file_index=0)
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(self._rows), path, compression="zstd")
        return Written(total, self._frames, tuple(self._tasks))
