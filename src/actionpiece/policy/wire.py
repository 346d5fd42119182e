"""openpi's wire format: msgpack, with arrays as small maps. Nothing that arrives is ever executed or unpickled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from actionpiece.errors import ActionPieceError

_NUMBERS = "biufc"  # kinds of dtypes that may travel


def _msgpack() -> Any:
    try:
        import msgpack  # type: ignore[import-untyped]
    except ImportError as error:
        raise ActionPieceError(f"{error}; pip install 'actionpiece[serve]'") from None
    return msgpack


def pack(value: Any) -> bytes:
    """Plain data and numpy arrays as bytes."""
    packed: bytes = _msgpack().packb(value, default=_to_map)
    return packed


def unpack(data: bytes) -> Any:
    """The inverse of `pack`; anything that is not well-formed is an error."""
    msgpack = _msgpack()
    try:
        return msgpack.unpackb(data, object_hook=_from_map)
    except (msgpack.UnpackException, ValueError, TypeError, KeyError) as error:
        raise ActionPieceError(f"a message is not well-formed msgpack: {error}") from None


def _to_map(value: Any) -> dict[bytes, Any]:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _NUMBERS:
        if isinstance(value, np.generic):
            return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    raise ActionPieceError(f"{type(value).__name__} cannot be sent: plain data and arrays of numbers can")


def _from_map(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        dtype, shape, data = _dtype(value[b"dtype"]), tuple(value[b"shape"]), value[b"data"]
        if any(not isinstance(n, int) or n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"an array of {len(data)} bytes is not of shape {shape}")
        return np.frombuffer(data, dtype).reshape(shape)
    if b"__npgeneric__" in value:
        return _dtype(value[b"dtype"]).type(value[b"data"])
    return value


def _dtype(name: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(name)
    if dtype.kind not in _NUMBERS:
        raise ValueError(f"arrays of {dtype} are not accepted")
    return dtype
