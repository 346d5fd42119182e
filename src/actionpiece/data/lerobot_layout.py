"""What a LeRobot v3.0 folder must look like, and a check that one does.

    meta/info.json                                  features with dtype and shape, totals, path templates
    meta/stats.json                                 min, max, mean, std and count of every feature
    meta/tasks.parquet                              a pandas table: instruction (the index) -> task_index
    meta/episodes/chunk-000/file-000.parquet        one row per episode: length, instructions, where its rows are
    data/chunk-000/file-000.parquet                 one row per step, many episodes per file

A picture is a struct of bytes (PNG or JPEG) and path; a row without picture is null. LeRobot itself stores a picture in
every row; null rows load, but only frames that have their pictures can be batched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from actionpiece.errors import ActionPieceError
from actionpiece.files import read_json

VERSION = "v3.0"
INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
COUNTERS = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
STATISTICS = ("min", "max", "mean", "std", "count")

_INFO_KEYS: dict[str, type | tuple[type, ...]] = {
    "codebase_version": str,
    "robot_type": (str, type(None)),
    "total_episodes": int,
    "total_frames": int,
    "total_tasks": int,
    "chunks_size": int,
    "data_files_size_in_mb": int,
    "video_files_size_in_mb": int,
    "fps": int,
    "splits": dict,
    "data_path": str,
    "video_path": (str, type(None)),
    "features": dict,
}
WHOLE = (
    "episode_index",
    "length",
    "data/chunk_index",
    "data/file_index",
    "dataset_from_index",
    "dataset_to_index",
    "meta/episodes/chunk_index",
    "meta/episodes/file_index",
)
_MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")


def check_layout(folder: str | Path) -> list[str]:
    """What is wrong with a LeRobot v3.0 folder, a sentence each; an empty list when nothing is.

    Required files, keys, columns and types; contiguous numbers of episodes, rows and tasks; totals that agree.
    Videos are not looked into.
    """
    root = Path(folder)
    found = _Findings()
    info = found.attempt(read_json, root / INFO)
    if not isinstance(info, dict):
        return found.sentences or [f"{INFO} must be a JSON object"]
    if not _check_info(info, found):
        return found.sentences
    _check_stats(root, info, found)
    before = len(found.sentences)
    tasks = _check_tasks(root, info, found)
    episodes = _check_episodes(root, info, tasks, found)
    if len(found.sentences) == before:  # rows are compared with what the metadata says of them
        _check_data(root, info, tasks, episodes, found)
    return found.sentences


class _Findings:
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def say(self, wrong: Any, sentence: str) -> bool:
        """Note the sentence if something is wrong; true when nothing is."""
        if wrong:
            self.sentences.append(sentence)
        return not wrong

    def attempt(self, read: Callable[[Path], Any], path: Path) -> Any:
        """What is read from a file; None, and a sentence, when it cannot be."""
        try:
            return read(path)
        except ActionPieceError as error:
            self.sentences.append(str(error))
        except (pa.ArrowException, OSError) as error:
            self.sentences.append(f"{path} is not a whole parquet file: {' '.join(str(error).split())}")
        return None


def _check_info(info: dict[str, Any], found: _Findings) -> bool:
    for key, kind in _INFO_KEYS.items():
        if found.say(key not in info, f"{INFO} has no '{key}'"):
            found.say(
                not isinstance(info[key], kind) or isinstance(info[key], bool),
                f"{INFO}: {key} is {info[key]!r}, which is not of the right type",
            )
    if found.sentences:
        return False
    found.say(info["codebase_version"] != VERSION, f"{INFO}: codebase_version is not {VERSION}")
    found.say(info["fps"] <= 0, f"{INFO}: fps must be positive")
    for field in ("{chunk_index", "{file_index"):
        found.say(field not in info["data_path"], f"{INFO}: data_path has no {field}...}}")
    expected = {"train": f"0:{info['total_episodes']}"}
    found.say(info["splits"] != expected, f"{INFO}: splits should be {expected}, not {info['splits']}")
    for name, feature in info["features"].items():
        complete = isinstance(feature, dict) and {"dtype", "shape", "names"} <= feature.keys()
        if found.say(not complete, f"{INFO}: feature {name} needs dtype, shape and names"):
            found.say("/" in name, f"{INFO}: the name of feature {name} holds a slash")
    for name, dtype in COUNTERS.items():
        feature = info["features"].get(name, {})
        right = isinstance(feature, dict) and feature.get("dtype") == dtype and feature.get("shape") == [1]
        found.say(not right, f"{INFO}: feature {name} must be {dtype} of shape [1]")
    return not found.sentences


def _check_stats(root: Path, info: dict[str, Any], found: _Findings) -> None:
    stats = found.attempt(read_json, root / STATS)
    if stats is None:
        return
    for name, feature in info["features"].items():
        of = stats.get(name) if isinstance(stats, dict) else None
        missing = [key for key in STATISTICS if not isinstance(of, dict) or key not in of]
        if found.say(missing, f"{STATS}: {name} has no {', '.join(missing)}") and isinstance(of, dict):
            shape = (3, 1, 1) if feature["dtype"] in ("image", "video") else tuple(feature["shape"])
            for key in STATISTICS[:-1]:
                got = np.shape(of[key])
                found.say(got != shape, f"{STATS}: {key} of {name} has shape {got}, not {shape}")


def _check_tasks(root: Path, info: dict[str, Any], found: _Findings) -> dict[str, int]:
    table = found.attempt(pq.read_table, root / TASKS)
    if table is None:
        return {}
    index = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns")
    named = isinstance(index, list) and len(index) == 1 and isinstance(index[0], str)
    if not found.say(not named, f"{TASKS} is not a pandas table with the instruction as its index"):
        return {}
    right = {"task_index": pa.types.is_int64, index[0]: _is_text}
    if not all(_has(table, name, test, TASKS, found) for name, test in right.items()):
        return {}
    names, numbers = table[index[0]].to_pylist(), table["task_index"].to_pylist()
    found.say(numbers != list(range(len(names))), f"{TASKS}: task_index does not count from 0")
    found.say(len(set(names)) != len(names), f"{TASKS} lists an instruction twice")
    total = info["total_tasks"]
    found.say(total != len(names), f"{INFO} says {total} tasks, {TASKS} has {len(names)}")
    return dict(zip(names, numbers, strict=True))


def _check_episodes(root: Path, info: dict[str, Any], tasks: dict[str, int], found: _Findings) -> list[dict[str, Any]]:
    """The rows of the episode metadata."""
    files = sorted((root / "meta" / "episodes").glob("*/*.parquet"))
    if not found.say(not files, f"there is no {EPISODES.format(chunk_index=0, file_index=0)}"):
        return []
    rows: list[dict[str, Any]] = []
    for file in files:
        name = str(file.relative_to(root))
        table = found.attempt(pq.read_table, file)
        if table is None:
            return []
        right = dict.fromkeys(WHOLE, pa.types.is_int64) | {"tasks": _is_list_of_text}
        if not all([_has(table, column, test, name, found) for column, test in right.items()]):  # noqa: C419  (name all)
            return []
        some = table.select(list(right)).to_pylist()
        places = {(row["meta/episodes/chunk_index"], row["meta/episodes/file_index"]) for row in some}
        own = {place for place in places if EPISODES.format(chunk_index=place[0], file_index=place[1]) == name}
        found.say(places - own, f"{name}: its rows say that they are in another file")
        rows += some
    start = 0
    for number, row in enumerate(rows):
        where = f"episode metadata, row {number}"
        found.say(row["episode_index"] != number, f"{where}: episode_index is {row['episode_index']}")
        found.say(row["length"] <= 0, f"{where}: the episode has no steps")
        end = start + row["length"]
        given = (row["dataset_from_index"], row["dataset_to_index"])
        found.say(given != (start, end), f"{where}: rows {given[0]} to {given[1]}, not {start} to {end}")
        found.say(not row["tasks"], f"{where}: no instruction")
        unknown = [task for task in row["tasks"] if task not in tasks]
        found.say(unknown, f"{where}: instruction {unknown[:1]} is not in {TASKS}")
        start = end
    for key, count in (("total_episodes", len(rows)), ("total_frames", start)):
        found.say(info[key] != count, f"{INFO}: {key} is {info[key]}, the episode metadata has {count}")
    return rows


def _check_data(
    root: Path, info: dict[str, Any], tasks: dict[str, int], episodes: list[dict[str, Any]], found: _Findings
) -> None:
    placed: dict[str, list[dict[str, Any]]] = {}
    for row in episodes:
        name = info["data_path"].format(chunk_index=row["data/chunk_index"], file_index=row["data/file_index"])
        placed.setdefault(name, []).append(row)
    there = {str(path.relative_to(root)) for path in (root / "data").glob("*/*.parquet")}
    for name in sorted(there - placed.keys()):
        found.say(True, f"{name} belongs to no episode, but LeRobot would read it")
    for name, rows in placed.items():
        if not found.say(name not in there, f"there is no {name}, which the episode metadata names"):
            continue
        file = found.attempt(pq.ParquetFile, root / name)
        if file is None:
            continue
        with file:
            for sentence in _check_file(file, name, info, tasks, rows):
                found.say(True, sentence)


def _check_file(
    file: Any, name: str, info: dict[str, Any], tasks: dict[str, int], rows: list[dict[str, Any]]
) -> Iterator[str]:
    schema = file.schema_arrow
    stored = {key: feature for key, feature in info["features"].items() if feature["dtype"] != "video"}
    bad = [
        f"{name}: column {key} is {schema.field(key).type if key in schema.names else 'missing'}, "
        f"but the features say {feature['dtype']} of shape {feature['shape']}"
        for key, feature in stored.items()
        if key not in schema.names or not _fits(schema.field(key).type, feature)
    ]
    extra = [f"{name}: column {key} is not among the features" for key in schema.names if key not in stored]
    if bad or extra:
        yield from (*bad, *extra)
        return
    table = file.read(columns=[key for key, feature in stored.items() if feature["dtype"] != "image"])
    for key in table.column_names:
        vector = stored[key]["shape"] != [1]
        nulls = table[key].null_count or (vector and pc.list_flatten(table[key]).null_count)
        if nulls:
            yield f"{name}: column {key} has {nulls} empty rows"
            return
    lengths = [row["length"] for row in rows]
    if table.num_rows != sum(lengths):
        yield f"{name} has {table.num_rows} rows, its episodes {sum(lengths)}"
        return
    frames = np.concatenate([np.arange(length) for length in lengths])
    wanted = {
        "episode_index": np.repeat([row["episode_index"] for row in rows], lengths),
        "frame_index": frames,
        "index": np.concatenate([np.arange(row["dataset_from_index"], row["dataset_to_index"]) for row in rows]),
    }
    for key, numbers in wanted.items():
        if not np.array_equal(table[key].to_numpy(), numbers):
            yield f"{name}: {key} does not count as the episode metadata says"
    if np.abs(table["timestamp"].to_numpy() - frames / info["fps"]).max() > 1e-3:
        yield f"{name}: timestamp is not frame_index / {info['fps']}"
    asked = np.split(table["task_index"].to_numpy(), np.cumsum(lengths)[:-1])
    for row, numbers in zip(rows, asked, strict=True):
        if set(numbers.tolist()) != {tasks[task] for task in row["tasks"]}:
            yield f"{name}: task_index of episode {row['episode_index']} is not that of its instruction"
    for key, feature in stored.items():
        if feature["dtype"] == "image":
            yield from _check_pictures(file, name, key, np.flatnonzero(frames == 0))


def _check_pictures(file: Any, name: str, key: str, firsts: np.ndarray) -> Iterator[str]:
    present: list[bool] = []
    for group in range(file.num_row_groups):
        column = file.read_row_group(group, columns=[key])[key]
        data = pc.struct_field(column, "bytes").to_pylist()
        wrong = sum(item is not None and not item.startswith(_MAGIC) for item in data)
        if wrong:
            yield f"{name}: {wrong} pictures of {key} are neither PNG nor JPEG"
        present += [item is not None for item in data]
    if not all(np.asarray(present)[firsts]):
        yield f"{name}: an episode has no picture of {key} at its first step"


def _has(table: Any, column: str, test: Callable[[Any], bool], where: str, found: _Findings) -> bool:
    if not found.say(column not in table.column_names, f"{where} has no column '{column}'"):
        return False
    kind = table.schema.field(column).type
    return found.say(not test(kind), f"{where}: column {column} has the wrong type {kind}") and found.say(
        table[column].null_count, f"{where}: column {column} has empty rows"
    )


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list_of_text(kind: Any) -> bool:
    return bool((pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_text(kind.value_type))


def _fits(kind: Any, feature: dict[str, Any]) -> bool:
    """Whether an arrow type is that of a feature."""
    dtype, shape = feature["dtype"], feature["shape"]
    if dtype == "image":
        return bool(kind == PICTURE)
    if shape != [1]:
        sized = pa.types.is_fixed_size_list(kind)
        if not (sized and kind.list_size == shape[0]) and not (pa.types.is_list(kind) and len(shape) == 1):
            return False
        kind = kind.value_type
    name: str = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    return str(kind) == name
