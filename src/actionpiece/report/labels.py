"""Labels beside points, placed so that they do not cover each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Box = tuple[float, float, float, float]  # left, bottom, right, top

_ANGLES = (0, 180, 30, 330, 150, 210, 60, 300, 120, 240, 90, 270)  # degrees, the most readable first
_REACHES = (9, 14, 22, 32, 44, 60, 80)  # distances from the point, in units of the drawing
_ROUNDS = 6
_CROSSING = 60.0  # a crossed line is as bad as so much overlap


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
    """A place for each label (width, height) near its point: the first free one, or the least crowded.

    What the first labels took is looked at again when all have a place: most crowding is gone after a few rounds.
    """
    dots = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    taken: dict[int, tuple[Box, Placed]] = {}
    # From right to left: the point nearest to the frame has the fewest choices.
    order = sorted(range(len(points)), key=lambda i: (-points[i][0], points[i][1]))
    for _ in range(_ROUNDS):
        before = dict(taken)
        for i in order:
            taken.pop(i, None)
            taken[i] = _best(i, points, sizes[i], dots, taken, frame)
        if taken == before:
            break
    return [taken[i][1] for i in range(len(points))]


def _best(
    i: int,
    points: Sequence[tuple[float, float]],
    size: tuple[float, float],
    dots: Sequence[Box],
    taken: dict[int, tuple[Box, Placed]],
    frame: Box,
) -> tuple[Box, Placed]:
    """The best place for one label beside those that have theirs."""
    best: tuple[float, Box, Placed] | None = None
    for reach in _REACHES:
        for angle in _ANGLES:
            box = _box(points[i], size, angle, reach)
            place = _placed(points[i][0], box, reach > _REACHES[0])
            others = sum(_overlap(box, other) for other, _ in taken.values())
            others += sum(_overlap(box, dot) for j, dot in enumerate(dots) if j != i)
            # A line through a label or a point seems to belong to it, and so does a label on a line.
            crossed = sum(_crosses(points[i], place.end, other) for other, _ in taken.values())
            crossed += sum(_crosses(points[i], place.end, dot) for j, dot in enumerate(dots) if j != i)
            crossed += sum(_crosses(points[j], other.end, box) for j, (_, other) in taken.items())
            # Outside the frame a label is cut off, which is worse than a neighbour shining through.
            cost = others + _CROSSING * crossed + 4 * (_area(box) - _overlap(box, frame)) + 0.05 * reach
            if best is None or cost < best[0] - 1e-9:
                best = (cost, box, place)
    assert best is not None
    return best[1], best[2]


def _crosses(start: tuple[float, float], end: tuple[float, float] | None, box: Box) -> bool:
    """Whether a line runs through a box, looked at in a few places."""
    if end is None:
        return False
    for step in range(1, 12):
        x, y = (a + (b - a) * step / 12 for a, b in zip(start, end, strict=True))
        if box[0] < x < box[2] and box[1] < y < box[3]:
            return True
    return False


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
