"""`open_demos`: from what a user types to `Demos`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from actionpiece.data.card import Card, read_card, read_card_beside
from actionpiece.data.demos import Demos, Member
from actionpiece.data.generated import NAME as GENERATED
from actionpiece.data.generated import GeneratedReader
from actionpiece.data.npz import NpzReader
from actionpiece.data.reader import Cache, Reader, natural_key
from actionpiece.errors import ActionPieceError
from actionpiece.space import ActionSpace

RECORDED = "recorded"
_EMBEDDED = Path(__file__).parent / RECORDED
_CARD = "actionpiece.json"  # of a folder
_SUFFIXES = (".npz", ".hdf5", ".h5")
_KNOWN = "an .npz, .hdf5 or .h5 file, a LeRobot folder, or a folder of these"


def open_demos(
    *paths: str | os.PathLike[str],
    space: ActionSpace | str | None = None,
    action_key: str | None = None,
    drop_idle: float | None = None,
) -> Demos:
    """Open demonstrations: npz, robomimic/LIBERO/ALOHA HDF5, LeRobot v2.1 and v3.0, folders of them.

    The word `recorded` opens those that come with the package, which scripts recorded in a simulator; `generated`
    makes some that no robot has executed.

    Only metadata is read (npz files, which are compressed as a whole, excepted); episodes are read when asked for,
    and at most about 512 MB of decoded actions stay in memory. Cards are followed: one beside a file (`<stem>.json`),
    or one in a folder (`actionpiece.json`), which is that of everything below it that has no nearer one, whether the
    folder is named or something in it; what it splits, it splits as a whole.

    space: the action space, or its name; it overrides the cards'. Without either, everything but `demos.space` works.
    action_key: the dataset or column that holds the actions, where it is not the format's usual one.
    drop_idle: leave out steps within this distance of rest, in raw units; needs an action space.
    """
    if not paths:
        raise ActionPieceError(f"no demonstrations were named: give {_KNOWN}, or '{RECORDED}'")
    cache = Cache()
    members: list[Member] = []
    for text in paths:
        if str(text) in (GENERATED, RECORDED) and Path(text).exists():
            raise ActionPieceError(
                f"'{text}' is here, and is also what demonstrations that come with the package are called: give its"
                " whole path, or give it another name"
            )
        if str(text) == GENERATED:
            members.append(_generated())
            continue
        for path, label in [(_EMBEDDED, RECORDED)] if str(text) == RECORDED else _find(Path(text)):
            named = path if str(text) == RECORDED else Path(text)
            card = _card_of(path, named)
            if str(text) == RECORDED:  # as the package; the card's own text is part of the fingerprint
                card = replace(card, licence="Apache-2.0")
            members.append(Member.of(_read(path, cache, action_key), card, label))
    where = [str(member.reader.path.resolve()) if member.reader.path else member.where for member in members]
    if len(set(where)) < len(where):  # the copies would end up on both sides of the split
        twice = next(member.where for member, place in zip(members, where, strict=True) if where.count(place) > 1)
        raise ActionPieceError(f"{twice} was named twice")
    resolved = ActionSpace.resolve(space) if isinstance(space, str) else space
    names = [str(text) if str(text) in (GENERATED, RECORDED) else _short(Path(text)) for text in paths]
    return Demos("+".join(dict.fromkeys(names)), members, resolved, drop_idle, action_key)


def _generated() -> Member:
    reader = GeneratedReader()
    return Member.of(reader, Card(space=ActionSpace.preset("libero")), GENERATED)


def _short(path: Path) -> str:
    return path.stem if _is_file(path) else path.resolve().name


def _is_file(path: Path) -> bool:
    """Whether it is called like a file of demonstrations."""
    return path.suffix.lower() in _SUFFIXES


def _is_lerobot(folder: Path) -> bool:
    return (folder / "meta" / "info.json").is_file()


def _find(path: Path) -> list[tuple[Path, str]]:
    """The files and LeRobot folders at `path`, each with a label that holds no machine's path."""
    if path.is_file():
        if not _is_file(path):
            raise ActionPieceError(f"{path} is not a known kind of file: give {_KNOWN}")
        return [(path, path.name)]
    if not path.is_dir():
        raise ActionPieceError(f"{path} does not exist")
    root = path.resolve().name
    if _is_lerobot(path):
        return [(path, root)]
    found: list[Path] = []
    seen: set[Path] = set()
    for folder, folders, files in os.walk(path, onerror=_no_entry, followlinks=True):
        here = Path(folder)
        if here.resolve() in seen:  # links may lead in a circle
            folders.clear()
            continue
        seen.add(here.resolve())
        if _is_lerobot(here):
            folders.clear()
            found.append(here)
            continue
        folders[:] = [name for name in folders if name[0] != "." and name != "lost+found"]  # caches, version control
        folders.sort(key=lambda name: ((here / name).is_symlink(), name))
        found.extend(here / name for name in files if _is_file(Path(name)) and name[0] != ".")
    if not found:
        raise ActionPieceError(f"{path} holds no demonstrations: no .npz, .hdf5 or .h5 file and no LeRobot folder")
    found.sort(key=lambda member: natural_key(member.relative_to(path).as_posix()))
    own: dict[Path, Path] = {}
    for member in sorted(found, key=Path.is_symlink):
        own.setdefault(member.resolve(), member)  # a link beside its file is no second one
    found = [member for member in found if own[member.resolve()] == member]
    return [(member, f"{root}/{member.relative_to(path).as_posix()}") for member in found]


def _no_entry(error: OSError) -> None:
    raise ActionPieceError(f"{error.filename} cannot be looked into: {error.strerror}")


def _card_of(path: Path, named: Path) -> Card:
    """The card of a member: its own, or that of the nearest folder above it that has one.

    named: what the user named, in which the member was found.
    """
    own = read_card_beside(path.with_suffix(".json")) if not path.is_dir() else None
    if own is not None:
        return own
    here = Path(os.path.abspath(path))
    above = here.parents if not path.is_dir() else (here, *here.parents)
    folder = next((folder for folder in above if (folder / _CARD).is_file()), None)
    if folder is None:
        return Card()
    card = read_card(folder / _CARD)
    asked = Path(os.path.abspath(named))
    if card.split is not None and asked != folder and asked not in folder.parents:
        raise ActionPieceError(  # a part of it, split by itself, would have training episodes among its test episodes
            f"{card.path} splits all that is in its folder: name {folder}, or give {named} a card of its own"
        )
    return card


def _read(path: Path, cache: Cache, action_key: str | None) -> Reader:
    # h5py and pyarrow are imported by the formats that need them: opening an npz should not wait for either.
    if path.is_dir():
        from actionpiece.data.lerobot import LeRobotReader

        return LeRobotReader(path, cache, action_key)
    if path.suffix.lower() == ".npz":
        return NpzReader(path, cache, action_key)
    from actionpiece.data.hdf5 import Hdf5Reader

    return Hdf5Reader(path, cache, action_key)
