"""Axes that show small differences near the good end: decades for errors, and nines for correlations.

Values are transformed before they are drawn, on plain linear axes, and the ticks carry the values themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axis import Axis

_TOP = 1 - 3e-4  # among 32 neighbours the smallest step below a perfect correlation is 3.7e-4
_NINES = (-1, 0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 1)
_FEW_NINES = (-1, 0, 0.5, 0.9, 0.97, 0.99, 0.997, 1)


@dataclass(frozen=True)
class Scale:
    """place: from values to places on a linear axis. ticks: (place, text) pairs between two places."""

    place: Callable[[np.ndarray], np.ndarray]
    ticks: Callable[[float, float], list[tuple[float, str]]]

    def dress(self, axis: Axis, places: Sequence[float], set_limits: Callable[[float, float], object]) -> None:
        """Fit an axis to what is drawn on it, with some room, and write its ticks."""
        low, high = min(places), max(places)
        room = max(0.08 * (high - low), 0.12)
        low, high = low - room, high + room
        set_limits(low, high)
        ticks = self.ticks(low, high)
        axis.set_ticks([place for place, _ in ticks], [text for _, text in ticks])


def logarithmic(floor: float) -> Scale:
    """Decades; what is below `floor`, zero for example, is drawn there."""
    return Scale(lambda values: np.log10(np.maximum(values, floor)), _log_ticks)


def floor_of(values: np.ndarray) -> float:
    """Where zeros go on a logarithmic axis: a little below everything else."""
    positive = values[values > 0]
    return float(positive.min()) / 2 if len(positive) else 1e-6


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    steps: tuple[int, ...] = (1, 2, 5) if high - low < 2.2 else (1,)
    if high - low < 0.5:
        steps = (1, 2, 3, 4, 5, 6, 8)
    every = max(1, math.ceil((high - low) / 7))
    decades = [d for d in range(math.floor(low) - 1, math.ceil(high) + 1) if d % every == 0]
    places = [d + math.log10(step) for d in decades for step in steps]
    return [(p, f"{10**p:.3g}") for p in places if low <= p <= high]


def _nine_ticks(low: float, high: float) -> list[tuple[float, str]]:
    values = np.array(_NINES if high - low < 2.4 else _FEW_NINES)
    return [(float(p), f"{v:g}") for p, v in zip(nines.place(values), values, strict=True) if low <= p <= high]


# 0.9, 0.99 and 0.999 are equally far apart: -log10 of what is missing to a perfect correlation.
nines = Scale(lambda values: -np.log10(1 - np.minimum(values, _TOP)), _nine_ticks)
