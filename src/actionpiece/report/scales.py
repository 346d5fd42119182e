"""Axes that show small differences near the good end: decades for errors, and nines for correlations.

Values are transformed before they are drawn, on plain linear axes, and the ticks carry the values themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

_TOP = 1 - 3e-4  # among 32 neighbours the smallest step below a perfect correlation is 3.7e-4
_NINES = (0.9, 0.99, 1, 0, 0.999, 0.5, 0.97, 0.997, -1, 0.98, 0.95, 0.995, 0.8, 0.998)  # the most telling first
_GAPS = {"x": 36, "y": 18}  # room that the text of a tick needs, in units of the drawing


@dataclass(frozen=True)
class Scale:
    """place: from values to places on a linear axis. ticks: values worth a tick between two places, the best first."""

    place: Callable[[np.ndarray], np.ndarray]
    ticks: Callable[[float, float], Sequence[float]]

    def dress(self, axes: Axes, side: Literal["x", "y"], places: Sequence[float]) -> None:
        """Fit an axis to what is drawn on it, with some room, and give it as many ticks as can be read."""
        low, high = min(places), max(places)
        room = max(0.08 * (high - low), 0.3 - (high - low), 0.08)
        low, high = low - room, high + room
        length = axes.bbox.width if side == "x" else axes.bbox.height
        gap = _GAPS[side] * (high - low) / length
        shown: dict[float, str] = {}
        for value in self.ticks(low, high):
            at = float(self.place(np.array([value]))[0])
            if low <= at <= high and all(abs(at - other) >= gap for other in shown):
                shown[at] = f"{value:.4g}"
        axis, set_limits = (axes.xaxis, axes.set_xlim) if side == "x" else (axes.yaxis, axes.set_ylim)
        set_limits(low, high)
        axis.set_ticks(list(shown), list(shown.values()))


def logarithmic(floor: float) -> Scale:
    """Decades; what is below `floor`, zero for example, is drawn there."""
    return Scale(lambda values: np.log10(np.maximum(values, floor)), _log_ticks)


def floor_of(values: np.ndarray) -> float:
    """Where zeros go on a logarithmic axis: a little below everything else."""
    positive = values[values > 0]
    return float(positive.min()) / 2 if len(positive) else 1e-6


def _log_ticks(low: float, high: float) -> list[float]:
    if high - low < 0.7:
        return [float(value) for value in MaxNLocator(4).tick_values(10**low, 10**high) if value > 0]
    every = math.ceil((high - low) / 7)
    decades = [d for d in range(math.floor(low), math.ceil(high) + 1) if d % every == 0]
    finer = [step * 10.0**d for step in (2, 5) for d in decades] if every == 1 else []
    return [10.0**d for d in decades] + finer


# 0.9, 0.99 and 0.999 are equally far apart: -log10 of what is missing to a perfect correlation.
nines = Scale(lambda values: -np.log10(1 - np.minimum(values, _TOP)), lambda low, high: _NINES)
