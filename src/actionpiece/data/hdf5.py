"""HDF5 files: robomimic and LIBERO (`data/demo_N/actions`), and one episode per file as ALOHA writes them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from actionpiece.data.reader import (
    Actions,
    Block,
    Cache,
    Reader,
    as_actions,
    as_lengths,
    as_rate,
    as_text,
    natural_key,
    unreadable,
)
from actionpiece.errors import ActionPieceError


class Hdf5Reader(Reader):
    """A robomimic, LIBERO or ALOHA file; only shapes are read at first, an episode when it is asked for.

    Episodes are the groups below `data` (or below the root when there is no `data`) that hold the action dataset,
    in natural order; a file with the action dataset at its root is one episode. The file is opened per read, so
    nothing stays open and readers survive being copied into worker processes.
    """

    def __init__(self, path: Path, cache: Cache, action_key: str | None = None) -> None:
        self.path = self._path = path
        self.name = path.stem
        self._cache = cache
        keys = (action_key,) if action_key else ("actions", "action")
        with _opened(path) as file:
            self._datasets, self._demos = _action_datasets(file, keys, path)
            shapes = [(name, file[name].shape) for name in self._datasets]
            attributes = dict(file["data"].attrs) if isinstance(file.get("data"), h5py.Group) else {}
        for name, shape in shapes:
            if shape is None or len(shape) != 2:
                raise ActionPieceError(f"{path}: {name} has shape {shape}, but actions must be (steps, columns)")
            if shape[1] != shapes[0][1][1]:
                raise ActionPieceError(
                    f"{path}: {name} has shape {shape}, but every episode must be (steps, {shapes[0][1][1]})"
                )
        self.lengths = as_lengths([shape[0] for _, shape in shapes], str(path))
        self.dim = int(shapes[0][1][1])
        text = _json_attribute(attributes, "problem_info").get("language_instruction")
        if text:  # LIBERO stores it as a string or as its letters
            self.tasks = ["".join(map(str, text)) if isinstance(text, list) else str(text)] * len(shapes)
        kwargs = _json_attribute(attributes, "env_args").get("env_kwargs")
        rate = kwargs.get("control_freq") if isinstance(kwargs, dict) else None
        self.rate = as_rate(rate)

    def read(self, episode: int) -> Actions:
        """See `Reader.read`."""
        name = self._datasets[episode]

        def load() -> Block:
            with _opened(self._path) as file:
                return (as_actions(file[name][()], f"{self.path}: {name}"),)

        actions: Actions = self._cache.get((self.path, name), load)[0]
        return actions

    def mask(self, name: str) -> npt.NDArray[np.bool_]:
        """A robomimic filter key: `mask/<name>` lists the demos that belong to it."""
        with _opened(self._path) as file:
            if not isinstance(file.get(f"mask/{name}"), h5py.Dataset):
                raise ActionPieceError(f"{self.path} has no filter 'mask/{name}', which its card names under keep")
            listed = {as_text(demo) for demo in np.asarray(file[f"mask/{name}"]).ravel()}
        return np.array([demo in listed for demo in self._demos])

    def files(self) -> list[Path]:
        """The file itself."""
        return [self._path]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, KeyError, RuntimeError, MemoryError) as error:  # what h5py raises for a damaged file
        raise unreadable(path, "HDF5", error) from None


def _action_datasets(file: Any, keys: tuple[str, ...], path: Path) -> tuple[list[str], list[str]]:
    """The full names of the action datasets, and of the demos they belong to."""
    for key in keys:
        if isinstance(file.get(key), h5py.Dataset):
            return [key], [path.stem]
    base, prefix = (file["data"], "data/") if isinstance(file.get("data"), h5py.Group) else (file, "")
    groups = [name for name in sorted(base, key=natural_key) if isinstance(base.get(name), h5py.Group)]
    for key in keys:
        found = [name for name in groups if isinstance(base[name].get(key), h5py.Dataset)]
        missing = [name for name in groups if name not in found]
        # Below `data` every group is a demo; other groups at the root are somebody's own affair.
        if found and missing and prefix:
            raise ActionPieceError(f"{path}: data/{missing[0]} has no '{key}' dataset")
        if found:
            return [f"{prefix}{name}/{key}" for name in found], found
    there = f"{prefix}{groups[0]} has {', '.join(base[groups[0]]) or 'nothing'}" if groups else "it holds no episodes"
    raise ActionPieceError(f"{path} has no dataset '{keys[0]}' for any episode; {there}")


def _json_attribute(attributes: dict[str, Any], name: str) -> dict[str, Any]:
    """A JSON attribute as a dict, empty when it is absent or something else: instructions and rates are a courtesy."""
    try:
        value = json.loads(as_text(attributes.get(name, "{}")))
    except (ValueError, RecursionError):  # no text, no JSON, or JSON without an end
        return {}
    return value if isinstance(value, dict) else {}
