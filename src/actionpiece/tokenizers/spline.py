"""`spline`: each column of a chunk becomes a few B-spline coefficients, each in a uniform bin, as in BEAST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.tokenizers.base import FitJob
from actionpiece.tokenizers.lengths import FixedLengthTokenizer


@dataclass(frozen=True)
class SplineConfig:
    """B-spline coefficients by least squares.

    Attributes:
        bases: coefficients per column (BEAST uses about 5 for 10 steps on LIBERO).
        degree: of the splines of moving columns.
        gripper_degree: of the splines of gripper columns; 0 is piecewise constant.
        bins: uniform bins over each coefficient's training range.
    """

    bases: int = 5
    degree: int = 4
    gripper_degree: int = 0
    bins: int = 256

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ActionPieceError(f"spline needs at least 2 bins, not {self.bins}")
        for degree in (self.degree, self.gripper_degree):
            if not 0 <= degree < self.bases:
                raise ActionPieceError(f"a spline of degree {degree} needs more than {degree} bases, not {self.bases}")


def basis_matrix(steps: int, bases: int, degree: int) -> np.ndarray:
    """Clamped uniform B-spline basis functions (steps, bases) at evenly spaced times, by Cox and de Boor."""
    inner = np.linspace(0.0, 1.0, bases - degree + 1)
    knots = np.concatenate((np.zeros(degree), inner, np.ones(degree)))
    times = np.linspace(0.0, 1.0, steps)
    # Degree 0: which interval each time is in; the end belongs to the last one.
    spans = len(knots) - 1
    values = np.zeros((steps, spans))
    where = np.clip(np.searchsorted(knots, times, side="right") - 1, degree, bases - 1)
    values[np.arange(steps), where] = 1.0
    for p in range(1, degree + 1):
        raised = np.zeros((steps, spans - p))
        for i in range(spans - p):
            left, right = knots[i + p] - knots[i], knots[i + p + 1] - knots[i + 1]
            if left > 0:
                raised[:, i] += (times - knots[i]) / left * values[:, i]
            if right > 0:
                raised[:, i] += (knots[i + p + 1] - times) / right * values[:, i + 1]
        values = raised
    return values


class SplineTokenizer(FixedLengthTokenizer):
    """Least-squares coefficients, quantised uniformly between their training minimum and maximum."""

    kind = "spline"
    config_class = SplineConfig
    token_order = "basis-major: the first coefficient of every column, then the next"
    config: SplineConfig

    def __init__(self, config: SplineConfig, **rest: Any) -> None:
        super().__init__(config, **rest)
        if config.bases > self.horizon:
            raise ActionPieceError(f"spline cannot fit {config.bases} bases to {self.horizon} steps; use fewer bases")
        grippers = {c for group in self.space.of_kind("gripper") for c in group.columns}
        smooth = basis_matrix(self.horizon, config.bases, config.degree)
        square = basis_matrix(self.horizon, config.bases, config.gripper_degree)
        synthesis = np.stack([square if c in grippers else smooth for c in range(self.space.dim)])  # (D, H, bases)
        self.register_buffer("_synthesis", torch.tensor(synthesis, dtype=torch.float32), persistent=False)
        analysis = torch.tensor(np.linalg.pinv(synthesis), dtype=torch.float32)
        self.register_buffer("_analysis", analysis, persistent=False)
        self.register_buffer("low", torch.zeros(config.bases, self.space.dim))
        self.register_buffer("width", torch.ones(config.bases, self.space.dim))

    _synthesis: Tensor
    _analysis: Tensor
    low: Tensor
    width: Tensor

    @property
    def vocab_size(self) -> int:
        return self.config.bins

    @property
    def tokens_per_chunk(self) -> int:
        return self.config.bases * self.space.dim

    def _coefficients(self, x: Tensor) -> Tensor:
        return torch.einsum("dkh,bhd->bkd", self._analysis, x)

    def _fit(self, x: Tensor, job: FitJob) -> None:
        coefficients = self._coefficients(x)
        low, high = coefficients.amin(0), coefficients.amax(0)
        self.low = low
        # A coefficient that never changes keeps width 0 and decodes to itself.
        self.width = (high - low) / self.config.bins
        job.progress(1.0, "coefficient ranges")

    def _encode(self, x: Tensor) -> Tensor:
        width = torch.where(self.width > 0, self.width, torch.ones_like(self.width))
        place = (self._coefficients(x) - self.low) / width
        return place.floor().clamp(0, self.config.bins - 1).long().flatten(1)

    def _decode(self, ids: Tensor) -> Tensor:
        place = ids.unflatten(1, self.low.shape).float() + 0.5
        return torch.einsum("dhk,bkd->bhd", self._synthesis, self.low + place * self.width)
