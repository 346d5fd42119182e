"""Code that users bring, named on the command line: `package.module:maker` or `path/to/file.py:maker`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from actionpiece.errors import ActionPieceError

_SPELLING = re.compile(r"(?P<place>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")


def names_maker(text: str) -> bool:
    """Whether a text is spelled like a maker; what it names may still not be there."""
    return _SPELLING.fullmatch(text) is not None


def find_maker(text: str, what: str) -> Callable[..., Any]:
    """The function that a text names. what: it makes, for errors."""
    spelled = _SPELLING.fullmatch(text)
    if spelled is None:
        raise ActionPieceError(f"'{text}' names no {what}: write package.module:maker or path/to/file.py:maker")
    place, name = spelled["place"], spelled["name"]
    if place.endswith(".py") and not Path(place).is_file():
        raise ActionPieceError(f"{place} does not exist")
    try:
        maker = getattr(_module(place), name, None)
    except (Exception, SystemExit) as error:  # it is the user's code: whatever it raises, one sentence says so
        raise ActionPieceError(f"the {what} '{text}' cannot be loaded: {_said(error)}") from error
    if maker is None:
        raise ActionPieceError(f"the {what} '{text}' cannot be loaded: {place} has no function '{name}'")
    if not callable(maker):
        raise ActionPieceError(f"the {what} '{text}' cannot be made: {name} is not a function")
    found: Callable[..., Any] = maker
    return found


def make(text: str, what: str, *arguments: Any, maker: Callable[..., Any] | None = None) -> Any:
    """What the maker makes of the arguments; its own mistakes are said in one sentence."""
    maker = maker or find_maker(text, what)
    try:
        return maker(*arguments)
    except ActionPieceError:
        raise
    except (Exception, SystemExit) as error:
        raise ActionPieceError(f"the {what} '{text}' cannot be made: {_said(error)}") from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        here = os.getcwd()
        if here not in sys.path:
            sys.path.append(here)  # last: what lies here must not stand in for a package that others import
        return importlib.import_module(place)
    # A name of its own: a user's `tokenizers.py` must not stand in for a package that others import by that name.
    path = Path(place).resolve()
    name = f"made_by_user_{hashlib.sha256(os.fsencode(path) + path.read_bytes()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
