"""Labels beside points, placed so that they cover no other and none seems to belong to another point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, bottom, right, top

_ANGLES = (0, 180, 30, 330, 150, 210, 60, 300, 120, 240, 90, 270)  # degrees, the most readable first
_REACHES = (9, 14, 22, 32, 44, 60, 80)  # distances from the point
_DOT = 6  # as far from its middle a point may reach
_NEAR = _REACHES[0]  # within it a label needs no leader
_STARTS = 30  # orders in which labels get their places; the best outcome counts
_CROSSING = 150.0  # a line across a label, a point or another line is as bad as so much overlap
_STRANGE = 150.0  # and so is a label that stands nearer to another point
_TOUCHING = 20.0  # where labels meet at all it looks careless
_OUTSIDE = 4.0  # outside the frame a label is cut off, which is worse than a neighbour shining through


def name_points(
    figure: Figure,
    axes: Axes,
    points: np.ndarray,
    texts: Sequence[str],
    *,
    fontsize: float,
    line: str,
    frame: tuple[float, float, float, float] = (0, 0, 0, 0),
) -> None:
    """Write a text beside each of the points (n, 2) of the axes, with a line to it where it had to go further away.

    The axes' limits must be set. frame: how far labels may reach beyond the axes on the left, below, right and above,
    in typographic points, as all that is placed here.
    """
    scale = 72 / figure.dpi
    at = [(float(x), float(y)) for x, y in scale * axes.transData.transform(points)]
    left, bottom, right, top = (scale * edge for edge in axes.bbox.extents)
    room = (left - frame[0], bottom - frame[1], right + frame[2], top + frame[3])
    spots = place(at, [(0.59 * fontsize * len(text), 1.18 * fontsize) for text in texts], room)
    size = scale * np.array(figure.bbox.size)
    for text, point, spot in zip(texts, at, spots, strict=True):
        if spot.end is not None:
            ends = np.array((point, spot.end)) / size
            axes.plot(*ends.T, color=line, linewidth=0.7, transform=figure.transFigure, zorder=1)
        figure.text(spot.x / size[0], spot.y / size[1], text, va="center", ha=spot.align, fontsize=fontsize)


@dataclass(frozen=True)
class Placed:
    """Where a label goes: its middle line y, and x with what is there, its left end, right end or centre.

    end: where a leader from the point would meet it, or None where the label is close enough without one.
    """

    x: float
    y: float
    align: Literal["left", "right", "center"]
    end: Point | None


def place(points: Sequence[Point], sizes: Sequence[tuple[float, float]], frame: Box) -> list[Placed]:
    """A place for each label (width, height) near its point, all together as little in each other's way as was found.

    Points are finite numbers. One label after the other takes what is best beside the others until none wants to move;
    where that ends depends on who was first, so several orders are tried.
    """
    if not points:
        return []
    around = list(itertools.product(_REACHES, _ANGLES))
    boxes = np.array([[_box(point, size, *at) for at in around] for point, size in zip(points, sizes, strict=True)])
    found = [
        [_placed(point, tuple(box), reach) for box, (reach, _) in zip(mine, around, strict=True)]
        for point, mine in zip(points, boxes, strict=True)
    ]
    alone, between = _costs(points, boxes, _leaders(points, found), frame)
    rng, count = np.random.default_rng(0), len(points)
    best, least = np.zeros(count, int), math.inf
    for _ in range(_STARTS):
        chosen = _settled(rng.permutation(count), alone, between)
        cost = _total(chosen, alone, between)
        if cost < least - 1e-9:
            best, least = chosen, cost
    return [found[i][choice] for i, choice in enumerate(best)]


def _settled(order: np.ndarray, alone: np.ndarray, between: np.ndarray) -> np.ndarray:
    """Every label's choice, (n,), when none of them is better off with another."""
    chosen = np.full(len(order), -1)
    for _ in range(len(order) + 2):  # each round lowers the sum, but rounding might go round in circles
        before = chosen.copy()
        for i in order:
            others = [j for j in order if j != i and chosen[j] >= 0]
            chosen[i] = (alone[i] + between[i][:, others, chosen[others]].sum(1)).argmin()
        if (chosen == before).all():
            break
    return chosen


def _total(chosen: np.ndarray, alone: np.ndarray, between: np.ndarray) -> float:
    every = np.arange(len(chosen))
    pairs = between[every[:, None], chosen[:, None], every, chosen]
    return float(alone[every, chosen].sum() + pairs.sum() / 2)


def _costs(
    points: Sequence[Point], boxes: np.ndarray, leaders: np.ndarray, frame: Box
) -> tuple[np.ndarray, np.ndarray]:
    """What choices cost: (n, c) alone, and (n, c, n, c) beside each other.

    boxes: (n, c, 4). leaders: (n, c, 2, 2) from the point to the label.
    """
    count, choices = boxes.shape[:2]
    at = np.array(points)
    dots = np.concatenate((at - _DOT, at + _DOT), 1)
    alone = np.zeros((count, choices))
    between = np.zeros((count, choices, count, choices))
    for i in range(count):
        # A line through a label or a point seems to belong to it, and so does a label on a line.
        beside = dots[(abs(at - at[i]) > _DOT).any(1)]  # a line must begin somewhere, though another point lies there
        alone[i] = _overlaps(boxes[i], np.delete(dots, i, 0)).sum(1)
        alone[i] += _CROSSING * _run_through(leaders[i], beside).sum(1)
        # So does a label without a line to the point that is nearest.
        apart = _apart(boxes[i], at)
        strange = (apart < apart[:, i : i + 1]).any(1) & np.isnan(leaders[i, :, 1, 0])
        alone[i] += _STRANGE * strange
        for j in range(i):
            crossed = _run_through(leaders[i], boxes[j]) + _run_through(leaders[j], boxes[i]).T
            crossed = crossed + _cross(leaders[i], leaders[j])
            covered = _overlaps(boxes[i], boxes[j])
            cost = covered + _TOUCHING * (covered > 0) + _CROSSING * crossed
            between[i, :, j], between[j, :, i] = cost, cost.T
    areas = np.prod(boxes[..., 2:] - boxes[..., :2], -1)
    alone += _OUTSIDE * (areas - _overlaps(boxes.reshape(-1, 4), np.array([frame])).reshape(areas.shape))
    reaches = np.repeat(_REACHES, len(_ANGLES)) - _NEAR
    return alone + 0.5 * reaches + 0.1 * np.tile(np.arange(len(_ANGLES)), len(_REACHES)), between


def _overlaps(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(a, b) the area that boxes (a, 4) and (b, 4) share."""
    low = np.maximum(some[:, None, :2], others[:, :2])
    high = np.minimum(some[:, None, 2:], others[:, 2:])
    area: np.ndarray = np.prod((high - low).clip(0), -1)
    return area


def _apart(boxes: np.ndarray, at: np.ndarray) -> np.ndarray:
    """(a, b) how far the middle lines of boxes (a, 4) are from points (b, 2)."""
    beyond = np.maximum(boxes[:, None, 0] - at[:, 0], at[:, 0] - boxes[:, None, 2]).clip(0)
    distance: np.ndarray = np.hypot(beyond, (boxes[:, None, 1] + boxes[:, None, 3]) / 2 - at[:, 1])
    return distance


def _run_through(lines: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(a, b) 1 where a line (a, 2, 2) runs through the inside of a box (b, 4)."""
    start, along = lines[:, None, 0], (lines[:, 1] - lines[:, 0])[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):  # along an axis it is always within, or never
        first, second = (boxes[:, :2] - start) / along, (boxes[:, 2:] - start) / along
    enters = np.minimum(first, second).max(-1).clip(min=0)
    leaves = np.maximum(first, second).min(-1).clip(max=1)
    through: np.ndarray = (enters < leaves).astype(float)
    return through


def _cross(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(a, b) 1 where lines (a, 2, 2) and (b, 2, 2) cross."""

    def sides(lines: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """(a, b, 2) on which side of the first lines the others' two ends lie."""
        along, to = (lines[:, 1] - lines[:, 0])[:, None, None], ends - lines[:, None, None, 0]
        side: np.ndarray = np.sign(along[..., 0] * to[..., 1] - along[..., 1] * to[..., 0])
        return side

    both: np.ndarray = (sides(some, others).prod(-1) < 0) & (sides(others, some).prod(-1).T < 0)
    return both.astype(float)


def _leaders(points: Sequence[Point], found: Sequence[Sequence[Placed]]) -> np.ndarray:
    """(n, c, 2, 2) from each point to where its label would be met; not a number where there is no leader."""
    nowhere = (math.nan, math.nan)
    return np.array(
        [[(point, one.end or nowhere) for one in mine] for point, mine in zip(points, found, strict=True)], float
    )


def _placed(point: Point, box: Box, reach: float) -> Placed:
    # Text is held at the end nearest to its point, so that a font of another width does not open a gap.
    middle, far = (box[1] + box[3]) / 2, reach > _NEAR
    if box[0] >= point[0]:
        return Placed(box[0], middle, "left", (box[0], middle) if far else None)
    if box[2] <= point[0]:
        return Placed(box[2], middle, "right", (box[2], middle) if far else None)
    edge = box[1] if middle > point[1] else box[3]
    return Placed((box[0] + box[2]) / 2, middle, "center", (point[0], edge) if far else None)


def _box(point: Point, size: tuple[float, float], reach: float, angle: float) -> Box:
    dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    width, height = size
    x = point[0] + reach * dx + width * ((dx > 0.1) - (dx < -0.1) - 1) / 2
    y = point[1] + reach * dy + height * (0.3 * dy - 0.5)
    return (x, y, x + width, y + height)
