"""The errors a user can cause. Each carries one clear sentence; the CLI prints it and exits with 2."""

from __future__ import annotations


class ActionPieceError(Exception):
    """Something the caller gave cannot be used: a file, a shape, a name, a setting."""


def not_installed(what: object, extra: str) -> ActionPieceError:
    """What is said where an optional part is missing. (The package comes from a clone, not from PyPI.)"""
    return ActionPieceError(f"{what}; in your clone of ActionPiece: pip install -e '.[{extra}]'")


class BrokenRunsError(ActionPieceError):
    """Trainings that broke off or could not go on, while others beside them came to their end. errors: by number."""

    def __init__(self, errors: dict[int, ActionPieceError]) -> None:
        super().__init__(str(next(iter(errors.values()))))
        self.errors = errors


class DecodeError(ActionPieceError):
    """A token sequence does not stand for any action chunk.

    `items` are the positions in the batch of the sequences that could not be decoded.
    """

    def __init__(self, message: str, items: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.items = items
