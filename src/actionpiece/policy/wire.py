"""openpi's wire format: msgpack, with arrays as small maps. Nothing that arrives is ever executed or unpickled.

The format itself is written down in `robot_client.py`, which has to stand alone; here its mistakes become ours.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from actionpiece.errors import ActionPieceError, not_installed


def robot_client() -> ModuleType:
    """The module, which needs what the extra brings."""
    try:
        from actionpiece.policy import robot_client as module
    except ImportError as error:
        raise not_installed(error, "serve") from None
    return module


def pack(value: Any) -> bytes:
    """Plain data and numpy arrays as bytes."""
    robot = robot_client()
    try:
        packed: bytes = robot.pack(value)
    except robot.PolicyError as error:
        raise ActionPieceError(str(error)) from None
    return packed


def unpack(data: bytes) -> Any:
    """The inverse of `pack`; anything that is not well-formed is an error."""
    robot = robot_client()
    try:
        return robot.unpack(data)
    except robot.PolicyError as error:
        raise ActionPieceError(str(error)) from None
