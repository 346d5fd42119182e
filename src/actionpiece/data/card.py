"""The data card: a small JSON file beside the data that says what nobody may guess."""

from __future__ import annotations

import difflib
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actionpiece.data.split import SplitRule
from actionpiece.errors import ActionPieceError
from actionpiece.files import read_json
from actionpiece.space import ActionSpace


@dataclass(frozen=True)
class Card:
    """What is known about a data set beyond its numbers.

    path: the card's file, None when there is none. space_path: that of the action space, where the card names one.
    space: the action space: in JSON a preset's name, `joints:N`, a path relative to the card, or written out.
    keep: name of the boolean array that says which episodes count: an array of an npz, a filter under `mask/` of a
        robomimic file, a column of LeRobot's episode metadata.
    clip: a bound per column, applied at +- the bound; infinite (null in JSON) where a column is left alone.
    split: the published split, or None for the default one.
    rate: control rate in Hz.
    ahead: steps after a look with pictures that are fit to be learned, None for all; what comes later may be a mistake.
    licence, note: for people.
    """

    path: Path | None = None
    space_path: Path | None = None
    space: ActionSpace | None = None
    keep: str | None = None
    clip: tuple[float, ...] | None = None
    split: SplitRule | None = None
    rate: float | None = None
    ahead: int | None = None
    licence: str = ""
    note: str = ""

    @property
    def files(self) -> list[Path]:
        """What it was read from."""
        return [path for path in (self.path, self.space_path) if path is not None]


# Keys that change numbers: a misspelled one must not pass for an unknown one, which would be ignored.
_DECISIVE = ("space", "keep", "clip", "split", "rate", "ahead")
_FOR_PEOPLE = ("licence", "license", "note")


def read_card(path: Path) -> Card:
    """The card at `path`, or an empty one when there is no such file; a wrong entry is an error that names it."""
    if not path.is_file():
        return Card()
    value = read_json(path)
    if not isinstance(value, dict):
        raise ActionPieceError(f"{path} must be a data card, a JSON object")
    for key in value:
        close = difflib.get_close_matches(key.lower(), _DECISIVE, 1, 0.8)
        if close and key not in _DECISIVE:
            raise ActionPieceError(f"{path}: the key '{key}' is not known; is it meant to be '{close[0]}'?")
    try:
        return Card(
            path=path,
            space_path=_space_path(value.get("space"), path),
            space=_space(value.get("space"), path),
            keep=_text(value.get("keep")) or None,
            clip=_clip(value.get("clip")),
            split=_split(value.get("split")),
            rate=_positive(value.get("rate")),
            ahead=_steps(value.get("ahead")),
            licence=_text(value.get("licence", value.get("license"))),
            note=_text(value.get("note")),
        )
    except _Unfit as error:
        raise ActionPieceError(f"{path}: {error}") from None


def read_card_beside(path: Path) -> Card | None:
    """The card at `path`, which is a data file's name with .json; None where none is there.

    Others keep such files, too: what says nothing that a card says is none.
    """
    if not path.is_file():
        return None
    value = read_json(path)
    if not isinstance(value, dict):
        return None
    said = any(difflib.get_close_matches(key.lower(), (*_DECISIVE, *_FOR_PEOPLE), 1, 0.8) for key in value)
    return read_card(path) if said else None


class _Unfit(Exception):  # noqa: N818  (never leaves this file)
    """Why an entry cannot be used; `read_card` adds the file."""


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _Unfit(f"keep, licence and note must be text, not {value!r}")
    return value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _positive(value: Any) -> float | None:
    if value is None:
        return None
    if not _number(value) or value <= 0:
        raise _Unfit(f"rate must be a positive number of Hz, not {value!r}")
    return float(value)


def _steps(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise _Unfit(f"ahead must be a whole number of steps, at least 1, not {value!r}")
    return value


def _clip(value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(bound is None or (_number(bound) and bound > 0) for bound in value):
        raise _Unfit("clip must be a list with a positive bound, or null, for each column")
    return tuple(math.inf if bound is None else float(bound) for bound in value)


def _split(value: Any) -> SplitRule | None:
    if value is None:
        return None
    wanted = ("seed", "test", "validation")
    if not isinstance(value, dict) or not all(type(value.get(key)) is int and value[key] >= 0 for key in wanted):
        raise _Unfit("split must give seed, test and validation as whole numbers")
    return SplitRule(value["seed"], value["test"], value["validation"])


def _space_path(value: Any, path: Path) -> Path | None:
    return path.parent / value if isinstance(value, str) and value.endswith(".json") else None


def _space(value: Any, path: Path) -> ActionSpace | None:
    if value is None:
        return None
    try:
        if isinstance(value, dict):
            return ActionSpace.from_dict(value)
        elsewhere = _space_path(value, path)
        if elsewhere is not None:
            return ActionSpace.from_json(elsewhere)
        if isinstance(value, str):
            return ActionSpace.resolve(value)
    except ActionPieceError as error:
        raise _Unfit(str(error)) from None
    raise _Unfit("space must be a preset's name, joints:N, a path, or an action space written out")
