"""Normalisers: one affine map per column, fitted on training actions, inverted exactly, stored inside tokenizers."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from actionpiece.arrays import to_tensor
from actionpiece.errors import ActionPieceError

Method = Literal["minmax", "quantile", "symmetric", "meanstd", "identity"]
OutOfRange = Literal["pass", "clip"]
#: As it is written on a command line: a method, and whether values beyond its range are clipped.
Way = Literal[
    "minmax", "quantile", "symmetric", "meanstd", "identity", "minmax+clip", "quantile+clip", "symmetric+clip"
]
_RANGED = ("minmax", "quantile", "symmetric")


def parse_way(text: str) -> tuple[Method, OutOfRange]:
    """The method of a `Way`, and what becomes of values beyond its range."""
    if text not in get_args(Way):
        raise ActionPieceError(f"'{text}' is no way to normalise; there are {', '.join(get_args(Way))}")
    method, clip, _ = text.partition("+clip")
    return method, "clip" if clip else "pass"  # type: ignore[return-value]


class Normalizer:
    """`(x - offset) / scale` per column, and its inverse.

    method: `minmax` maps the training range to [-1, 1]; `quantile` maps the 1st and 99th percentile there;
        `symmetric` divides by the larger of these two in size and leaves 0 where it is, as ActionCodec does;
        `meanstd` gives zero mean and unit deviation; `identity` leaves values alone.
    out_of_range: what to do with normalised values outside [-1, 1]: `pass` them on, or `clip` them and count them
        in `clipped`. Only the methods with a range (minmax, quantile, symmetric) can clip.

    A constant column has no range: it is centred and keeps scale 1, so it normalises to 0 and comes back exactly.
    A column that is constant between its percentiles but not outside falls back to its minimum and maximum.
    """

    def __init__(self, method: Method, offset: Any, scale: Any, out_of_range: OutOfRange = "pass") -> None:
        if method not in get_args(Method):
            raise ActionPieceError(f"normaliser must be one of {', '.join(get_args(Method))}, not '{method}'")
        if out_of_range not in get_args(OutOfRange):
            raise ActionPieceError(f"out_of_range must be 'pass' or 'clip', not '{out_of_range}'")
        if out_of_range == "clip" and method not in _RANGED:
            raise ActionPieceError(f"a {method} normaliser has no range to clip to; use {' or '.join(_RANGED)}")
        self.method = method
        self.out_of_range = out_of_range
        self.offset = np.asarray(offset, np.float64)
        self.scale = np.asarray(scale, np.float64)
        self.clipped = 0
        if self.offset.ndim != 1 or self.offset.shape != self.scale.shape:
            raise ActionPieceError("a normaliser needs one offset and one scale per column")
        if not np.isfinite(self.offset).all() or not (np.isfinite(self.scale) & (self.scale > 0)).all():
            raise ActionPieceError("a normaliser's offsets must be finite and its scales finite and positive")

    @classmethod
    def fit(cls, method: Method, actions: Any, out_of_range: OutOfRange = "pass") -> Normalizer:
        """Fit on actions (..., D): the steps of the training episodes."""
        x = to_tensor(actions, dtype=torch.float64).detach().cpu().numpy()
        if x.size == 0:
            raise ActionPieceError("a normaliser cannot be fitted on no actions")
        x = x.reshape(-1, x.shape[-1])
        if method == "meanstd":
            offset, scale = x.mean(0), x.std(0)
        elif method == "identity":
            offset, scale = np.zeros(x.shape[1]), np.ones(x.shape[1])
        else:
            low, high = x.min(0), x.max(0)
            if method != "minmax":
                q01, q99 = np.quantile(x, (0.01, 0.99), axis=0)
            if method == "symmetric":
                size, moving = np.maximum(np.abs(q01), np.abs(q99)), high > low
                size = np.where(size > 0, size, np.maximum(np.abs(low), np.abs(high)))
                low, high = np.where(moving, -size, low), np.where(moving, size, high)
            elif method == "quantile":
                spread = q99 > q01
                low, high = np.where(spread, q01, low), np.where(spread, q99, high)
            offset, scale = (low + high) / 2, (high - low) / 2
        # Rounding leaves a constant column a deviation of order eps, which must not be blown up to 1.
        constant = scale <= 1e-12 * np.maximum(np.abs(offset), 1e-300)
        return cls(method, np.where(constant, x[0], offset) if method != "identity" else offset,
                   np.where(constant, 1.0, scale), out_of_range)  # fmt: skip

    @property
    def way(self) -> str:
        """Method and clipping in one word, see `Way`."""
        return self.method + ("+clip" if self.out_of_range == "clip" else "")

    @property
    def dim(self) -> int:
        """Number of columns."""
        return len(self.offset)

    def _constants(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.shape[-1] != self.dim:
            raise ActionPieceError(f"actions have {x.shape[-1]} columns, but the normaliser was fitted on {self.dim}")
        return (torch.as_tensor(self.offset, device=x.device), torch.as_tensor(self.scale, device=x.device))

    def normalize(self, actions: Tensor) -> Tensor:
        """Normalised actions in the dtype that came in; arithmetic is in float64 so that the inverse is exact."""
        offset, scale = self._constants(actions)
        x = (actions.double() - offset) / scale
        if self.out_of_range == "clip":
            self.clipped += int(_outside(x).sum())
            x = x.clamp(-1.0, 1.0)
        return x.to(actions.dtype)

    def denormalize(self, normalized: Tensor) -> Tensor:
        """The inverse of `normalize`."""
        offset, scale = self._constants(normalized)
        return (normalized.double() * scale + offset).to(normalized.dtype)

    def count_outside(self, actions: Any) -> int | None:
        """How many values lie outside [-1, 1] when normalised, whatever the policy for them is.

        None where the method has no range.
        """
        if self.method not in _RANGED:
            return None
        x = to_tensor(actions, dtype=torch.float64)
        offset, scale = self._constants(x)
        return int(_outside((x - offset) / scale).sum())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; Python writes doubles so that they read back exactly."""
        return {
            "method": self.method,
            "out_of_range": self.out_of_range,
            "offset": self.offset.tolist(),
            "scale": self.scale.tolist(),
        }

    @classmethod
    def from_dict(cls, value: Any) -> Normalizer:
        """The inverse of `to_dict`."""
        try:
            return cls(**value)
        except ActionPieceError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise ActionPieceError(f"the saved normaliser does not fit: {error}") from None


def _outside(normalized: Tensor) -> Tensor:
    # A training extreme may land a rounding error beyond 1; that is not out of range.
    return normalized.abs() > 1 + 1e-6
