"""LeRobot folders, v2.1 (a parquet file per episode) and v3.0 (many episodes per file): the action column only."""

from __future__ import annotations

import json
import math
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from actionpiece.data.lerobot_pictures import PREFIX, load_looks
from actionpiece.data.lerobot_tables import as_matrix
from actionpiece.data.reader import (
    Actions,
    Block,
    Cache,
    Look,
    Reader,
    Start,
    as_actions,
    as_lengths,
    as_mask,
    as_rate,
    unreadable,
)
from actionpiece.errors import ActionPieceError
from actionpiece.files import read_json

_V2_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_V3_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_V3_COLUMNS = ("episode_index", "length", "tasks", "data/chunk_index", "data/file_index")
_RANGE = ("dataset_from_index", "dataset_to_index")
SIM_TASK, SIM_SEED = "sim.task", "sim.seed"  # columns of our own: where a recorded episode began


@dataclass(frozen=True)
class _Episode:
    index: int  # LeRobot's own number
    length: int
    file: Path
    first: int  # its first row, when the file's episodes are laid end to end
    task: str


class LeRobotReader(Reader):
    """A LeRobot folder, v2.0, v2.1 or v3.x. Opening reads `meta/` alone; videos are never touched."""

    def __init__(self, root: Path, cache: Cache, action_key: str | None = None) -> None:
        self.path = self._root = root
        self.name = root.resolve().name
        self._cache = cache
        self._key = action_key or "action"
        self._info = _info(root)
        self._episodes = self._list_episodes()
        self._owners = Counter(episode.file for episode in self._episodes)
        for file in self._owners:
            if not file.is_file():
                raise ActionPieceError(f"{file} does not exist, but the metadata of {root} names it")
        self.lengths = as_lengths([episode.length for episode in self._episodes], str(root))
        self.dim = self._width()
        tasks = [episode.task for episode in self._episodes]
        self.tasks = tasks if any(tasks) else None
        fps = self._info.get("fps")
        self.rate = as_rate(fps)
        self.licence = str(self._info.get("license") or "")

    def _list_episodes(self) -> list[_Episode]:
        rows = sorted(
            _episode_rows(self._root, (*_V3_COLUMNS, *_RANGE)), key=lambda row: _whole(row, "episode_index", self._root)
        )
        template = self._info.get("data_path") or (_V3_PATH if _is_v3(self._info, self._root) else _V2_PATH)
        filled: Counter[Path] = Counter()
        episodes: list[_Episode] = []
        for row in rows:
            index = _whole(row, "episode_index", self._root)
            if episodes and episodes[-1].index == index:
                raise ActionPieceError(f"{self._root}: the metadata lists episode {index} twice")
            file = self._file_of(row, index, template)
            length = _length(row, self._root)
            episodes.append(_Episode(index, length, file, filled[file], _task(row.get("tasks"))))
            filled[file] += length
        return episodes

    def _file_of(self, row: dict[str, Any], index: int, template: str) -> Path:
        try:
            fields = {field for _, field, _, _ in string.Formatter().parse(template) if field}
            if fields & {"chunk_index", "file_index"} and row.get("data/file_index") is None:
                files = sorted((self._root / "data").rglob("*.parquet"))
                if len(files) != 1:
                    raise ActionPieceError(
                        f"{self._root}: the metadata does not say which of {len(files)} data files"
                        f" holds episode {index}"
                    )
                return files[0]
            size = self._info.get("chunks_size") or 1000
            if type(size) is not int or size < 1:
                raise ValueError("chunks_size is no whole number")
            if Path(template).is_absolute() or ".." in Path(template).parts:
                raise ValueError("it leads out of the folder")
            numbers = {"episode_index": index, "episode_chunk": index // size}
            if row.get("data/file_index") is not None:
                numbers["file_index"] = _whole(row, "data/file_index", self._root)
                numbers["chunk_index"] = _whole({"data/chunk_index": 0, **row}, "data/chunk_index", self._root)
            return self._root / template.format(**numbers)
        except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
            raise ActionPieceError(f"{self._root}: data_path '{template}' cannot be filled in: {error}") from None

    def _width(self) -> int:
        features = self._info.get("features")
        if isinstance(features, dict) and features:
            if self._key not in features:
                raise ActionPieceError(
                    f"{self._root} has no column '{self._key}'; its features are {', '.join(features)}"
                )
            shape = features[self._key].get("shape") if isinstance(features[self._key], dict) else None
            if isinstance(shape, list) and len(shape) == 1 and isinstance(shape[0], int):
                return shape[0]
        return int(self._block(self._episodes[0].file)[0].shape[1])

    def _block(self, file: Path) -> Block:
        return self._cache.get(file, lambda: _load(file, self._key))

    def read(self, episode: int) -> Actions:
        """See `Reader.read`."""
        entry = self._episodes[episode]
        actions, numbers = self._block(entry.file)
        if actions.shape[1] != self.dim:
            raise ActionPieceError(
                f"{entry.file}: actions have {actions.shape[1]} columns, but {self.dim} are announced"
            )
        return actions[self._rows_of(entry, numbers, len(actions))]

    def _rows_of(self, entry: _Episode, numbers: npt.NDArray[np.int64], count: int) -> slice:
        """Where an episode lies among the `count` rows of its file, which are sorted by the episodes' `numbers`."""
        if self._owners[entry.file] == 1 and count == entry.length:
            low, high = 0, count  # the file is this episode, whatever number its rows carry
        elif len(numbers):
            low, high = (int(np.searchsorted(numbers, entry.index, side)) for side in ("left", "right"))  # type: ignore[call-overload]
        else:
            low, high = entry.first, min(entry.first + entry.length, count)
        if high - low != entry.length:
            raise ActionPieceError(
                f"{entry.file}: episode {entry.index} has {high - low} steps, but the metadata says {entry.length}"
            )
        return slice(low, high)

    def cameras(self) -> list[str]:
        """The features that are pictures, without LeRobot's prefix; those that are videos are not read."""
        return list(self._camera_columns())

    def _camera_columns(self) -> dict[str, str]:
        return {name.removeprefix(PREFIX): name for name in self._features("image")}

    def _features(self, kind: str) -> list[str]:
        features = self._info.get("features")
        known = features.items() if isinstance(features, dict) else ()
        return [name for name, about in known if isinstance(about, dict) and about.get("dtype") == kind]

    def looks(self, cameras: Sequence[str]) -> Iterator[Look]:
        """See `Reader.looks`."""
        columns = self._camera_columns()
        for name in cameras:
            if name in columns:
                continue
            if name in [video.removeprefix(PREFIX) for video in self._features("video")]:
                raise ActionPieceError(f"{self._root} keeps '{name}' as a video; convert it to images to train on it")
            raise ActionPieceError(f"{self._root} has no camera '{name}'; there are: {', '.join(columns) or 'none'}")
        by_file: dict[Path, list[int]] = {}
        for position, entry in enumerate(self._episodes):
            by_file.setdefault(entry.file, []).append(position)
        for file, positions in by_file.items():
            rows = load_looks(file, [columns[name] for name in cameras])
            for position in positions:
                place = self._rows_of(self._episodes[position], rows.numbers, len(rows))
                yield from rows.looks(position, place)

    def mask(self, name: str) -> npt.NDArray[np.bool_]:
        """A boolean column of the episode metadata."""
        rows = self._metadata(name)
        if rows is None:
            raise ActionPieceError(
                f"{self._root}: the episode metadata has no '{name}', which its card names under keep"
            )
        return as_mask([row[name] for row in rows], len(rows), f"{self._root}: {name}")

    def starts(self) -> list[Start] | None:
        """What `actionpiece record` wrote into the episode metadata."""
        rows = self._metadata(SIM_TASK, SIM_SEED)
        if rows is None:
            return None
        return [Start(str(row[SIM_TASK]), _whole(row, SIM_SEED, self._root)) for row in rows]

    def _metadata(self, *names: str) -> list[dict[str, Any]] | None:
        """These columns of the metadata, by episode; None if one of them is missing."""
        found = _episode_rows(self._root, ("episode_index", *names))
        if not all(name in row for row in found for name in names):
            return None
        rows = {_whole(row, "episode_index", self._root): row for row in found}
        return [rows[episode.index] for episode in self._episodes]

    def files(self) -> list[Path]:
        """Metadata and the data files that hold actions, in the order of the episodes."""
        meta = [self._root / "meta" / "info.json", *_episode_files(self._root)]
        return [*meta, *dict.fromkeys(episode.file for episode in self._episodes)]


def _info(root: Path) -> dict[str, Any]:
    path = root / "meta" / "info.json"
    info = read_json(path)
    if not isinstance(info, dict):
        raise ActionPieceError(f"{path} must be a JSON object")
    version = info.get("codebase_version")
    if version is not None and str(version) not in ("v2.0", "v2.1") and not str(version).startswith("v3."):
        raise ActionPieceError(f"{path}: LeRobot version {version} is not known; v2.0, v2.1 and v3.x are read")
    return info


def _is_v3(info: dict[str, Any], root: Path) -> bool:
    if "codebase_version" in info:
        return str(info["codebase_version"]).startswith("v3.")
    return (root / "meta" / "episodes").is_dir()


def _episode_files(root: Path) -> list[Path]:
    """Where the episodes are listed: v3's parquet files, else v2's JSON lines."""
    files = sorted((root / "meta" / "episodes").rglob("*.parquet")) or [root / "meta" / "episodes.jsonl"]
    if not files[0].is_file():
        raise ActionPieceError(
            f"{root} has neither meta/episodes.jsonl nor meta/episodes/*.parquet, so no episodes are known"
        )
    return files


def _episode_rows(root: Path, columns: Iterable[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in _episode_files(root):
        if path.suffix == ".parquet":
            rows.extend(_table(path, columns).to_pylist())
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ActionPieceError(f"{path} is not readable text: {error}") from None
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                rows.append(_json_line(path, number, line))
    return rows


def _json_line(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ActionPieceError(f"{path}: line {number} is not valid JSON: {error}") from None
    if not isinstance(row, dict):
        raise ActionPieceError(f"{path}: line {number} must be a JSON object")
    return row


def _whole(row: dict[str, Any], key: str, root: Path) -> int:
    value = row.get(key)
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not 0 <= number <= 2**53 or number != int(number):
        raise ActionPieceError(f"{root}: {key} of an episode must be a whole number, not {value!r}")
    return int(number)


def _length(row: dict[str, Any], root: Path) -> int:
    if row.get("length") is not None:
        return _whole(row, "length", root)
    first, end = (_whole(row, key, root) for key in _RANGE)
    return max(0, end - first)


def _task(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(str(task) for task in value)
    return value if isinstance(value, str) else ""


def _table(path: Path, columns: Iterable[str]) -> Any:
    """Those of `columns` that a parquet file has; a damaged file is an error that names it."""
    try:
        with pq.ParquetFile(path) as file:
            wanted = [name for name in columns if name in file.schema_arrow.names]
            return file.read(columns=wanted).select(wanted)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, "parquet", error) from None


def _load(path: Path, key: str) -> Block:
    """Actions (rows, D) of a data file sorted by episode, and each row's episode (empty when the file has none)."""
    table = _table(path, (key, "episode_index"))
    if key not in table.column_names:
        raise ActionPieceError(f"{path} has no column '{key}'")
    actions = as_actions(as_matrix(table[key], f"{path}: {key}"), f"{path}: {key}")
    if "episode_index" not in table.column_names:
        return actions, np.empty(0, np.int64)
    column = table["episode_index"]
    if column.null_count or not pa.types.is_integer(column.type):
        raise ActionPieceError(f"{path}: episode_index must be a whole number in every row")
    numbers = column.to_numpy().astype(np.int64)
    if (np.diff(numbers) < 0).any():
        order = np.argsort(numbers, kind="stable")
        actions, numbers = actions[order], numbers[order]
    return actions, numbers
