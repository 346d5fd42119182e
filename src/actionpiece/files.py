"""Files that are either whole or not there: written aside, then renamed into place."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from actionpiece.errors import ActionPieceError

NO_FINGERPRINT = "not known"  # of code from elsewhere


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it onto `path` if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        aside.chmod(0o644)  # mkstemp makes 0600, which would outlive the rename, and so do some writers
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def check_folder(path: Path) -> None:
    """An error if no files can be written in a folder at `path`, which need not be there yet: better known before."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if there == path and not path.is_dir():
        raise ActionPieceError(f"{path} is a file; a folder is to be written there")
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ActionPieceError(f"nothing can be written in {path}: {there} is no folder that may be changed")


def check_replaceable(path: Path, marker: str, known: Collection[str] | None = None) -> None:
    """An error if a folder cannot be written at `path`: a file is there, or a folder that is not one of ours.

    known: the files that may go, relative to the folder; any other is an error. None: whatever is in it.
    """
    if path.exists() and not path.is_dir():
        raise ActionPieceError(f"{path} is a file; a folder is to be written there")
    if path.is_dir() and any(path.iterdir()) and not (path / marker).exists():
        raise ActionPieceError(
            f"{path} is not empty and has no {marker}, so it is not overwritten; choose another folder"
        )
    if known is None:
        return
    for found in sorted(path.rglob("*")):
        name = found.relative_to(path).as_posix()
        if name not in known and (found.is_symlink() or not found.is_dir()):
            raise ActionPieceError(f"{path} also holds {name}, so it is not replaced; move it away")


def files_in(folder: Path) -> set[str]:
    """All files in a folder and those below it, relative to it."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@contextlib.contextmanager
def writing_folder(path: Path, marker: str, known: Collection[str] = ()) -> Iterator[Path]:
    """Yield a temporary folder; put it in place of `path` if the block succeeds.

    A folder is only ever replaced when it is empty, or holds `marker`, the file that says it is one of ours, and
    nothing but what is written anew, or is `known` (see `check_replaceable`): a mistyped `--out` must not cost anybody
    their data.
    """
    path = path.resolve()  # a link to a folder, or ".", cannot be renamed
    check_replaceable(path, marker)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    aside.chmod(0o755)
    try:
        yield aside
        for file in aside.rglob("*"):
            if file.is_file():
                file.chmod(0o644)  # safetensors makes 0600
        if not path.is_dir():
            os.replace(aside, path)
            return
        check_replaceable(path, marker, {*known, *files_in(aside)})
        # A folder cannot be swapped in one step everywhere, so the old one steps aside first.
        old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".old"))
        os.replace(path, old)
        try:
            os.replace(aside, path)
        except BaseException:
            os.replace(old, path)
            raise
        shutil.rmtree(old)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def not_finite(value: Any, within: str = "") -> str | None:
    """Where plain data holds NaN or infinity, which JSON has not; None where it does not."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{within} is {value}"
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    found = (not_finite(part, f"{within}.{name}" if within else str(name)) for name, part in parts)
    return next((one for one in found if one is not None), None)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all; NaN and infinity are an error that says where they are."""
    if odd := not_finite(value):
        raise ActionPieceError(f"{path} cannot be written: {odd}, and JSON has no such number")
    with writing(path) as aside:
        aside.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file; an unreadable one is an error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ActionPieceError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ActionPieceError(f"{path} is not readable JSON: {error}") from None


def sha256_of(paths: list[Path]) -> str:
    """One hash over the contents of several files, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
