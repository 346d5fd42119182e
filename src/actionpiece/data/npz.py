"""The npz layout: all actions in one array, and how long each episode is."""

from __future__ import annotations

import json
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from actionpiece.data.reader import (
    Actions,
    Block,
    Cache,
    Reader,
    as_actions,
    as_lengths,
    as_mask,
    as_rate,
    as_text,
    unreadable,
)
from actionpiece.errors import ActionPieceError

#: What numpy raises for files that are damaged, encrypted, compressed otherwise, or lie about their size.
_DAMAGED = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


class NpzReader(Reader):
    """An `.npz` with `actions (sum_T, D)` and `ep_len (episodes,)`; optional `task`, boolean arrays and JSON `meta`.

    The array is compressed as a whole, so it is read as a whole; the cache decides how long it stays.
    """

    def __init__(self, path: Path, cache: Cache, action_key: str | None = None) -> None:
        self.path = path
        self.name = path.stem
        self._cache = cache
        self._key = action_key or "actions"
        total, self.dim = self._actions().shape
        ep_len = _load(path, "ep_len")
        if ep_len.ndim != 1 or ep_len.dtype.kind not in "ui" or (ep_len < 0).any():
            raise ActionPieceError(f"{path}: ep_len must be a list of whole numbers, one per episode")
        if (ep_len > total).any():  # the sum of such might come round to the total
            raise ActionPieceError(f"{path}: ep_len has {ep_len.max()} steps, but {self._key} has {total} rows")
        self.lengths = as_lengths(ep_len.tolist(), str(path))
        if self.lengths.sum() != total:
            raise ActionPieceError(
                f"{path}: ep_len adds up to {self.lengths.sum()} steps, but {self._key} has {total} rows"
            )
        self._ends = np.cumsum(self.lengths)
        self.tasks = self._tasks()
        meta = self._meta()
        self.rate = as_rate(meta.get("hz"))
        self.licence = str(meta.get("licence") or "")

    def _actions(self) -> Actions:
        def load() -> Block:
            return (as_actions(_load(self._path, self._key), f"{self.path}: {self._key}"),)

        return self._cache.get(self.path, load)[0]

    @property
    def _path(self) -> Path:
        assert self.path is not None
        return self.path

    def _tasks(self) -> list[str] | None:
        if "task" not in _names(self._path):
            return None
        tasks = _load(self._path, "task")
        if tasks.shape != self.lengths.shape:
            raise ActionPieceError(f"{self.path}: task must hold one text per episode ({len(self.lengths)} of them)")
        if tasks.dtype.kind not in "US":
            raise ActionPieceError(f"{self.path}: task must hold texts, not {tasks.dtype}")
        return [as_text(task) for task in tasks]

    def _meta(self) -> dict[str, Any]:
        if "meta" not in _names(self._path):
            return {}
        try:
            meta = json.loads(as_text(_load(self._path, "meta").item()))
        except (ValueError, RecursionError) as error:
            raise ActionPieceError(f"{self.path}: meta is not valid JSON: {error}") from None
        return meta if isinstance(meta, dict) else {}

    def read(self, episode: int) -> Actions:
        """See `Reader.read`."""
        end = int(self._ends[episode])
        return self._actions()[end - int(self.lengths[episode]) : end]

    def mask(self, name: str) -> npt.NDArray[np.bool_]:
        """A boolean array of the file."""
        if name not in _names(self._path):
            raise ActionPieceError(f"{self.path} has no array '{name}', which its card names under keep")
        return as_mask(_load(self._path, name), len(self.lengths), f"{self.path}: {name}")

    def files(self) -> list[Path]:
        """The file itself."""
        return [self._path]


def _open(path: Path) -> Any:
    try:
        archive = np.load(path, allow_pickle=False)
    except _DAMAGED as error:
        raise unreadable(path, "npz", error) from None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ActionPieceError(f"{path} is a single array, not an npz file with actions and ep_len")
    return archive


def _names(path: Path) -> list[str]:
    with _open(path) as archive:
        return list(archive.files)


def _load(path: Path, name: str) -> npt.NDArray[Any]:
    with _open(path) as archive:
        if name not in archive.files:
            raise ActionPieceError(f"{path} has no array '{name}'; it has {', '.join(archive.files) or 'none'}")
        try:
            array: npt.NDArray[Any] = archive[name]
        except _DAMAGED as error:
            if "Object arrays" in str(error):  # numpy advises to unpickle them, which would execute what is in there
                raise ActionPieceError(
                    f"{path}: {name} is an array of Python objects, which is not read; for episodes of several lengths"
                    " put all steps in one array actions (steps, columns), and their lengths in ep_len"
                ) from None
            raise unreadable(path, "npz", error) from None
    if not isinstance(array, np.ndarray):
        raise ActionPieceError(f"{path}: {name} is no array")
    return array
