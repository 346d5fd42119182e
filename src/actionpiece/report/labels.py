"""Labels beside points, placed so that they do not cover each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Box = tuple[float, float, float, float]  # left, bottom, right, top

_ANGLES = (0, 180, 30, 330, 150, 210, 60, 300, 120, 240, 90, 270)  # degrees, the most readable first
_REACHES = (9, 14, 22, 32, 44, 60, 80)  # distances from the point, in units of the drawing


@dataclass(frozen=True)
class Placed:
    """Where a label goes: its middle line y, and x with what is there, its left end, right end or centre.

    end: where a leader from the point would meet it, or None where the label is close enough without one.
    """

    x: float
    y: float
    align: Literal["left", "right", "center"]
    end: tuple[float, float] | None


def place(points: Sequence[tuple[float, float]], sizes: Sequence[tuple[float, float]], frame: Box) -> list[Placed]:
    """A place for each label (width, height) near its point: the first free one, or the least crowded."""
    dots = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    taken: list[Box] = []
    placed: dict[int, Placed] = {}
    # From right to left: the point nearest to the frame has the fewest choices.
    for i in sorted(range(len(points)), key=lambda i: (-points[i][0], points[i][1])):
        best: tuple[float, Box, int] | None = None
        for reach in _REACHES:
            for angle in _ANGLES:
                box = _box(points[i], sizes[i], angle, reach)
                others = sum(_overlap(box, other) for other in taken)
                others += sum(_overlap(box, dot) for j, dot in enumerate(dots) if j != i)
                # Outside the frame a label is cut off, which is worse than a neighbour shining through.
                cost = others + 4 * (_area(box) - _overlap(box, frame)) + 0.05 * reach
                if best is None or cost < best[0] - 1e-9:
                    best = (cost, box, reach)
        assert best is not None
        _, box, reach = best
        taken.append(box)
        placed[i] = _placed(points[i][0], box, reach > _REACHES[0])
    return [placed[i] for i in range(len(points))]


def _placed(x: float, box: Box, far: bool) -> Placed:
    # Text is held at the end nearest to its point, so that a font of another width does not open a gap.
    middle = (box[1] + box[3]) / 2
    if box[0] >= x:
        return Placed(box[0], middle, "left", (box[0], middle) if far else None)
    if box[2] <= x:
        return Placed(box[2], middle, "right", (box[2], middle) if far else None)
    return Placed((box[0] + box[2]) / 2, middle, "center", (x, middle) if far else None)


def _box(point: tuple[float, float], size: tuple[float, float], angle: float, reach: float) -> Box:
    dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    width, height = size
    x = point[0] + reach * dx + width * ((dx > 0.1) - (dx < -0.1) - 1) / 2
    y = point[1] + reach * dy + height * (0.3 * dy - 0.5)
    return (x, y, x + width, y + height)


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _overlap(a: Box, b: Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0
