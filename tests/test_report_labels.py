"""Labels beside points: none covers another, none seems to belong to another point."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from actionpiece.report.labels import Placed, _cross, _overlaps, _run_through, name_points, place

FRAME = (0.0, 0.0, 400.0, 300.0)
SIZE = (60.0, 13.0)


def box_of(spot: Placed, size: tuple[float, float] = SIZE) -> tuple[float, float, float, float]:
    left = spot.x - {"left": 0.0, "center": 0.5, "right": 1.0}[spot.align] * size[0]
    return (left, spot.y - size[1] / 2, left + size[0], spot.y + size[1] / 2)


def shared(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def test_a_single_label_stands_right_of_its_point_without_a_leader() -> None:
    (spot,) = place([(100, 100)], [SIZE], FRAME)
    assert (spot.x, spot.y, spot.align, spot.end) == (109, 100, "left", None)
    assert place([], [], FRAME) == []


def test_a_label_at_the_right_end_of_the_frame_stands_left_of_its_point() -> None:
    (spot,) = place([(390, 100)], [SIZE], FRAME)
    assert spot.align == "right"
    assert box_of(spot)[2] < 390


@pytest.mark.parametrize("gap", [3, 6, 10, 20])
def test_a_column_of_points_has_labels_of_its_own(gap: int) -> None:
    points = [(200.0, 100.0 + gap * i) for i in range(4)]
    spots = place(points, [SIZE] * 4, FRAME)
    boxes = list(map(box_of, spots))
    assert all(shared(a, b) == 0 for a, b in itertools.combinations(boxes, 2))
    assert all(shared(box, FRAME) == pytest.approx(SIZE[0] * SIZE[1]) for box in boxes)
    for own, spot, box in zip(points, spots, boxes, strict=True):
        if spot.end is None:  # nothing but nearness tells whose it is
            apart = [math.hypot(max(box[0] - x, x - box[2], 0), spot.y - y) for x, y in points]
            assert apart[points.index(own)] == min(apart)
        else:  # the leader ends at the label, not in it
            assert box[0] - 1e-9 <= spot.end[0] <= box[2] + 1e-9
            assert spot.end[0] in (box[0], box[2]) or spot.end[1] in (box[1], box[3])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_labels_of_one_and_the_same_point_stay_near_it(count: int) -> None:
    spots = place([(200.0, 150.0)] * count, [SIZE] * count, FRAME)
    assert all(shared(a, b) == 0 for a, b in itertools.combinations(map(box_of, spots), 2))
    assert all(math.dist(spot.end or (200, 150), (200, 150)) < 30 for spot in spots)


def test_names_stand_as_far_from_their_points_whatever_the_resolution() -> None:
    gaps = []
    for dpi in (72, 100, 300):
        figure = Figure(figsize=(4, 3), dpi=dpi)
        axes = figure.add_subplot()
        axes.set(xlim=(0, 1), ylim=(0, 1))
        name_points(figure, axes, np.array([(0.5, 0.5)]), ["a"], fontsize=10, line="k")
        (text,) = figure.texts
        at = axes.transData.transform((0.5, 0.5)) / figure.bbox.size
        gaps.append((text.get_position()[0] - at[0]) * 4 * 72)
    assert gaps == pytest.approx([9, 9, 9])


def test_labels_of_close_points_do_not_cover_each_other() -> None:
    points = [(100.0 + 2 * i, 100.0 + i % 3) for i in range(8)]
    boxes = map(box_of, place(points, [SIZE] * 8, FRAME))
    assert all(shared(a, b) == 0 for a, b in itertools.combinations(boxes, 2))


def test_fifteen_labels_on_a_crowded_diagonal_keep_clear_of_each_other() -> None:
    rng, size = np.random.default_rng(3), (120.0, 13.0)
    points = [(60 + 24 * i + rng.uniform(-9, 9), 60 + 24 * i + rng.uniform(-9, 9)) for i in range(15)]
    boxes = [box_of(spot, size) for spot in place(points, [size] * 15, (54, 48, 432, 446))]
    assert all(shared(a, b) == 0 for a, b in itertools.combinations(boxes, 2))


def test_a_crowd_is_legible() -> None:
    """Twelve points as a comparison has them, most of them in one corner."""
    rng = np.random.default_rng(1)
    points = [*map(tuple, rng.uniform((120, 60), (190, 130), (9, 2))), (20.0, 280.0), (300.0, 40.0), (350.0, 90.0)]
    spots = place(points, [SIZE] * len(points), FRAME)
    boxes = list(map(box_of, spots))
    assert sum(shared(a, b) for a, b in itertools.combinations(boxes, 2)) < 40  # a corner at most
    lines = np.array([(p, s.end or (math.nan, math.nan)) for p, s in zip(points, spots, strict=True)])
    crossed = _run_through(lines, np.array(boxes))
    np.fill_diagonal(crossed, 0)
    assert not crossed.any()
    assert not _cross(lines, lines).any()
    assert spots == place(points, [SIZE] * len(points), FRAME)  # and the same every time


numbers = st.integers(0, 40).map(float)
corner = st.tuples(numbers, numbers)
box = st.tuples(corner, corner).map(lambda c: (*c[0], c[0][0] + c[1][0] + 1, c[0][1] + c[1][1] + 1))
line = st.tuples(corner, corner)


@settings(max_examples=100)
@given(st.lists(box, min_size=1, max_size=4), st.lists(box, min_size=1, max_size=4))
def test_shared_areas_are_those_of_each_pair(some: list[tuple[float, ...]], others: list[tuple[float, ...]]) -> None:
    assert _overlaps(np.array(some), np.array(others)).tolist() == [[shared(a, b) for b in others] for a in some]


@settings(max_examples=200)
@given(line, line)
def test_lines_cross_where_both_share_a_point_within(a: tuple, b: tuple) -> None:
    """Against the solution of the two linear equations; where they only touch or are parallel, nothing crosses."""
    (p, q), (r, s) = np.array(a), np.array(b)
    crosses = bool(_cross(np.array([a]), np.array([b]))[0, 0])
    matrix = np.column_stack((q - p, r - s))
    if abs(np.linalg.det(matrix)) < 1e-9:
        assert not crosses
        return
    along = np.linalg.solve(matrix, r - p)
    if np.abs(along * (1 - along)).min() > 1e-9:  # no end lies on the other line
        assert crosses == bool(((along > 0) & (along < 1)).all())


@settings(max_examples=200)
@given(line, box)
def test_a_line_runs_through_a_box_where_one_of_its_points_lies_within(a: tuple, b: tuple) -> None:
    """Against many points of the line; a line that is within for less than their distance may fall between them."""
    steps = np.linspace(0, 1, 2001)[:, None]
    along = np.array(a[0]) + steps * (np.array(a[1]) - np.array(a[0]))
    inside = ((along > b[:2]) & (along < b[2:])).all(1)
    if a[0] == a[1]:
        return  # no line at all
    through = bool(_run_through(np.array([a]), np.array([b]))[0, 0])
    assert through or not inside.any()
    wider = ((along > np.add(b[:2], -0.05)) & (along < np.add(b[2:], 0.05))).all(1)
    assert wider.any() or not through


def test_no_line_runs_through_nothing() -> None:
    boxes = np.array([(10.0, 10.0, 30.0, 20.0), (100.0, 100.0, 110.0, 110.0)])
    lines = np.array([((0.0, 0.0), (40.0, 30.0)), ((0.0, 0.0), (math.nan, math.nan)), ((15.0, 0.0), (15.0, 30.0))])
    assert _run_through(lines, boxes).tolist() == [[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
