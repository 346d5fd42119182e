"""`PhysicalDistance` against a plain re-derivation in numpy and scipy, and the properties the rest stands on."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError
from actionpiece.space import ActionSpace, Group
from conftest import aloha_like, libero_like, smooth


def rotation_space(form: str, order: str | None, *, delta: bool, weight: float = 1.0) -> ActionSpace:
    """A translation and a rotation in some form."""
    width = {"axis_angle": 3, "euler": 3, "quaternion": 4, "rotation_6d": 6, "matrix": 9}[form]
    unit = 0.7 if form in ("axis_angle", "euler") else None
    groups = (
        Group("translation", (0, 1, 2), unit=0.3, delta=delta),
        Group(
            "rotation",
            tuple(range(3, 3 + width)),
            unit=unit,
            delta=delta,
            form=form,  # type: ignore[arg-type]
            order=order,
            weight=weight,
        ),
    )
    return ActionSpace(f"{form}-{order}", groups)


FORMS: list[tuple[str, str | None]] = [
    ("axis_angle", None),
    ("euler", "zyx"),
    ("euler", "ZXZ"),
    ("quaternion", "wxyz"),
    ("quaternion", "xyzw"),
    ("rotation_6d", "rows"),
    ("rotation_6d", "columns"),
    ("matrix", "rows"),
    ("matrix", "columns"),
]


def written(turns: Rotation, form: str, order: str | None, unit: float) -> np.ndarray:
    matrix = turns.as_matrix()
    if form == "axis_angle":
        return turns.as_rotvec() / unit
    if form == "euler":
        return turns.as_euler(order) / unit
    if form == "quaternion":
        return turns.as_quat(scalar_first=order == "wxyz") * 1.3  # of any length
    if form == "rotation_6d":
        return (matrix[:, :2] if order == "rows" else matrix[:, :, :2].transpose(0, 2, 1)).reshape(-1, 6)
    return (matrix if order == "rows" else matrix.transpose(0, 2, 1)).reshape(-1, 9)


def some_rotations(form: str, order: str | None, n: int = 30, steps: int = 4, size: float = 1.2) -> np.ndarray:
    rng = np.random.default_rng(3)
    turns = Rotation.from_rotvec(rng.normal(0, size, (n * steps, 3)))
    columns = written(turns, form, order, 0.7).reshape(n, steps, -1)
    return np.concatenate((rng.normal(size=(n, steps, 3)), columns), -1)


def read(values: np.ndarray, group: Group) -> Rotation:
    """A rotation group's columns as scipy rotations."""
    if group.form == "axis_angle":
        return Rotation.from_rotvec(values * group.unit)
    if group.form == "euler":
        return Rotation.from_euler(group.order, values * group.unit)
    if group.form == "quaternion":
        return Rotation.from_quat(values, scalar_first=group.order == "wxyz")
    if group.form == "matrix":
        square = values.reshape(-1, 3, 3)
        return Rotation.from_matrix(square if group.order == "rows" else square.transpose(0, 2, 1))
    first, second = values[:, :3], values[:, 3:]
    rows = np.stack((first, second, np.cross(first, second)), 1)
    return Rotation.from_matrix(rows if group.order == "rows" else rows.transpose(0, 2, 1))


def plain_distance(space: ActionSpace, scales: dict[str, float], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The paper's distance of paired chunks, term by term."""
    total = np.zeros(a.shape[:2])
    for group in space.groups:
        x, y = (v[..., list(group.columns)].astype(np.float64) for v in (a, b))
        if group.kind == "rotation":
            x, y = (v.reshape(-1, v.shape[-1]) for v in (x, y))
            angle = (read(x, group).inv() * read(y, group)).magnitude().reshape(total.shape)
            total += group.weight * (angle / scales[group.name]) ** 2
        elif group.kind == "gripper":
            total += group.weight * (((x - y) / (group.closed - group.open)) ** 2).sum(-1)
        else:
            total += group.weight * (((x - y) * (group.unit or 1.0) / scales[group.name]) ** 2).sum(-1)
    return total.mean(1)


def cases() -> list[Any]:
    two_arms = ActionSpace(
        "two arms",
        tuple(
            group
            for side, first in (("left", 0), ("right", 7))
            for group in (
                Group("translation", tuple(range(first, first + 3)), f"{side}_p", unit=0.05, delta=True, weight=2.0),
                Group(
                    "rotation", tuple(range(first + 3, first + 6)), f"{side}_r", unit=0.5, delta=True, form="axis_angle"
                ),
                Group("gripper", (first + 6,), f"{side}_g", open=-1, closed=1, weight=0.3),
            )
        ),
    )
    bridge = libero_like(40) * (0.02, 0.02, 0.02, 2, 2, 2, 1)
    bridge[..., 6] = (bridge[..., 6] + 1) / 2
    found = [
        pytest.param(ActionSpace.preset("libero"), libero_like(40), id="libero"),
        pytest.param(ActionSpace.preset("bridge"), bridge, id="bridge"),
        pytest.param(ActionSpace.preset("aloha"), aloha_like(40), id="aloha"),
        pytest.param(two_arms, np.concatenate((libero_like(40), libero_like(40, seed=9)), -1), id="two arms"),
        pytest.param(ActionSpace.of_joints(26), smooth(40, 8, 26, 1), id="joints"),
        pytest.param(ActionSpace("other", (Group("other", (0, 1)),)), smooth(40, 8, 2, 1), id="other"),
    ]
    for (form, order), delta in itertools.product(FORMS, (True, False)):
        space = rotation_space(form, order, delta=delta)
        found.append(pytest.param(space, some_rotations(form, order), id=f"{space.name}-{delta}"))
    return found


@pytest.mark.parametrize(("space", "chunks"), cases())
def test_the_distance_is_the_papers_for_every_space(space: ActionSpace, chunks: np.ndarray) -> None:
    distance = PhysicalDistance.fit(space, chunks)
    a, b = chunks[:20], chunks[20:40] if len(chunks) >= 40 else chunks[10:30]
    expected = plain_distance(space, distance.to_dict(), a, b)
    np.testing.assert_allclose(distance.paired(a, b).numpy(), expected, rtol=1e-10)
    table = distance.pairwise(a, b).numpy()
    np.testing.assert_allclose(np.diagonal(table), expected, rtol=1e-10)
    np.testing.assert_allclose(table, distance.pairwise(b, a).numpy().T, rtol=1e-12)
    for i, j in ((0, 5), (7, 3), (19, 0)):
        assert table[i, j] == pytest.approx(
            float(plain_distance(space, distance.to_dict(), a[i : i + 1], b[j : j + 1])[0])
        )
    for block in (1, 3, 100):
        np.testing.assert_allclose(distance.pairwise(a, b, block=block).numpy(), table, rtol=1e-14)
    itself = distance.pairwise(a).numpy()
    assert np.abs(np.diagonal(itself)).max() == 0
    np.testing.assert_allclose(itself, itself.T, rtol=1e-12)
    np.testing.assert_allclose(itself, distance.pairwise(distance.features(a)).numpy(), rtol=0)


@pytest.mark.parametrize(("space", "chunks"), cases())
def test_float32_is_close_to_float64(space: ActionSpace, chunks: np.ndarray) -> None:
    distance = PhysicalDistance.fit(space, chunks)
    single = distance.pairwise(chunks, dtype=torch.float32)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), distance.pairwise(chunks).numpy(), rtol=1e-4, atol=1e-6)
    assert distance.paired(chunks.astype(np.float32), chunks.astype(np.float32), dtype=None).dtype == torch.float32


def test_scales_are_those_of_the_published_protocol(libero: ActionSpace, libero_chunks: np.ndarray) -> None:
    p, r, g = PhysicalDistance.fit(libero, libero_chunks).scales
    steps = libero_chunks.reshape(-1, 7).astype(np.float64)
    assert p == pytest.approx(math.sqrt((steps[:, :3] * 0.05).var(0).sum()), rel=1e-12)
    angles = Rotation.from_rotvec(steps[:, 3:6] * 0.5).magnitude()
    assert r == pytest.approx(math.sqrt((angles**2).mean()), rel=1e-12)
    assert g == 1


def test_the_scale_of_absolute_rotations_is_their_spread_about_the_mean() -> None:
    rng = np.random.default_rng(0)
    far = Rotation.from_rotvec([2.0, 1.0, -0.5])
    turns = far * Rotation.from_rotvec(rng.normal(0, 0.1, (2000, 3)))
    chunks = np.concatenate((np.zeros((500, 4, 3)), turns.as_quat(scalar_first=True).reshape(500, 4, 4)), -1)
    chunks[::2, :, 3:] *= -1  # the same rotations
    _, scale = PhysicalDistance.fit(rotation_space("quaternion", "wxyz", delta=False), chunks).scales
    expected = math.sqrt(((turns.mean().inv() * turns).magnitude() ** 2).mean())
    assert scale == pytest.approx(expected, rel=1e-9)
    _, from_none = PhysicalDistance.fit(rotation_space("quaternion", "wxyz", delta=True), chunks).scales
    assert from_none == pytest.approx(math.sqrt((turns.magnitude() ** 2).mean()), rel=1e-9)


def test_a_group_that_never_moves_gets_scale_one(libero: ActionSpace) -> None:
    assert PhysicalDistance.fit(libero, np.zeros((5, 8, 7))).scales == (1.0, 1.0, 1.0)
    assert PhysicalDistance.fit(libero, np.full((5, 8, 7), 0.1)).scales[0] == 1.0


def test_the_distance_does_not_see_how_a_rotation_is_written() -> None:
    tables = []
    for form, order in FORMS:
        chunks = some_rotations(form, order)
        tables.append(PhysicalDistance.fit(rotation_space(form, order, delta=True), chunks).pairwise(chunks))
    for table in tables[1:]:
        torch.testing.assert_close(table, tables[0], rtol=1e-9, atol=1e-12)


def test_a_turn_and_the_same_turn_written_beyond_pi_are_no_distance_apart(libero: ActionSpace) -> None:
    v = np.random.default_rng(0).normal(size=(20, 2, 3))
    size = np.linalg.norm(v, axis=-1, keepdims=True)
    a, b = np.zeros((2, 20, 2, 7))
    a[..., 3:6], b[..., 3:6] = v / 0.5, v * (1 - 2 * math.pi / size) / 0.5
    assert float(PhysicalDistance(libero, (1, 1, 1)).paired(a, b).max()) < 1e-24


def test_several_arms_add_up(libero: ActionSpace) -> None:
    a, b = libero_like(20, seed=1), libero_like(20, seed=2)
    groups = []
    for side, first in (("left", 0), ("right", 7)):
        for group in libero.groups:
            data = {**libero.to_dict()["groups"][libero.groups.index(group)], "name": f"{side}_{group.name}"}
            groups.append(Group(**{**data, "columns": tuple(c + first for c in group.columns)}))
    both = PhysicalDistance(ActionSpace("both", tuple(groups)), (0.1, 0.2, 1, 0.3, 0.4, 1))
    left, right = PhysicalDistance(libero, (0.1, 0.2, 1)), PhysicalDistance(libero, (0.3, 0.4, 1))
    whole = both.pairwise(np.concatenate((a, b), -1))
    torch.testing.assert_close(whole, left.pairwise(a) + right.pairwise(b), rtol=1e-12, atol=0)


def test_weights_scale_their_groups_term_and_zero_takes_it_out() -> None:
    chunks = some_rotations("axis_angle", None)
    parts = {}
    for weight in (0.0, 1.0, 2.5):
        space = rotation_space("axis_angle", None, delta=True, weight=weight)
        parts[weight] = PhysicalDistance(space, (0.5, 0.8)).pairwise(chunks)
    torch.testing.assert_close(parts[2.5] - parts[0.0], 2.5 * (parts[1.0] - parts[0.0]), rtol=1e-9, atol=1e-12)
    moved = chunks.copy()
    moved[..., 3:] += 0.3
    silent = PhysicalDistance(rotation_space("axis_angle", None, delta=True, weight=0.0), (0.5, 0.8))
    assert float(silent.paired(chunks, moved).max()) == 0


@pytest.mark.parametrize(("space", "chunks"), cases())
def test_chords_are_a_lower_bound_and_close_for_near_chunks(space: ActionSpace, chunks: np.ndarray) -> None:
    distance = PhysicalDistance.fit(space, chunks)
    features = distance.features(chunks)
    chord = distance.chord_features(features)
    bound = torch.cdist(chord, chord, compute_mode="donot_use_mm_for_euclid_dist").square()
    exact = distance.pairwise(features)
    assert bool((bound <= exact * (1 + 1e-12) + 1e-12).all())
    near = chunks * (1 + 1e-4)
    there = distance.chord_features(distance.features(near))
    torch.testing.assert_close((chord - there).square().sum(1), distance.paired(chunks, near), rtol=1e-6, atol=1e-18)


@settings(deadline=None, max_examples=60)
@given(
    angles=st.lists(st.floats(-10, 10), min_size=6, max_size=6),
    places=st.lists(st.floats(-100, 100), min_size=8, max_size=8),
)
def test_chords_never_exceed_the_distance(angles: list[float], places: list[float]) -> None:
    libero = ActionSpace.preset("libero")
    a = np.array([*places[:3], *angles[:3], places[3]]).reshape(1, 1, 7)
    b = np.array([*places[4:7], *angles[3:], places[7]]).reshape(1, 1, 7)
    distance = PhysicalDistance(libero, (0.02, 0.1, 1))
    exact = float(distance.paired(a, b)[0])
    left, right = (distance.chord_features(distance.features(x)) for x in (a, b))
    bound = float((left - right).square().sum())
    assert 0 <= bound <= exact * (1 + 1e-9) + 1e-9
    assert bound >= exact * 4 / math.pi**2 - 1e-9  # the chord is never shorter than 2/pi of the arc


@pytest.mark.parametrize(("form", "order"), FORMS)
@pytest.mark.parametrize("size", [0.0, 0.05])
def test_column_rates_are_the_first_order_size_of_a_step(form: str, order: str | None, size: float) -> None:
    """For small turns, on average over their axes."""
    space = rotation_space(form, order, delta=True, weight=1.7)
    if form == "euler" and order == "ZXZ":
        pytest.skip("proper Euler angles are at gimbal lock near no rotation")
    chunks = some_rotations(form, order, n=4000, steps=1, size=size)
    if form == "quaternion":
        chunks[..., 3:] /= 1.3
    distance = PhysicalDistance(space, (0.4, 0.6))
    rates = distance.column_rates().numpy()
    rng = np.random.default_rng(0)
    for columns in (slice(0, 3), slice(3, space.dim)):
        moved = chunks.copy()
        turns = Rotation.from_rotvec(rng.normal(0, 1e-5, (4000, 3)))
        if columns.start == 0:
            moved[..., :3] += rng.normal(0, 1e-5, (4000, 1, 3))
        else:  # a step that stays on the rotations: the only kind that data makes
            rotated = turns * read(chunks[:, 0, 3:], space.groups[1])
            moved[:, 0, 3:] = written(rotated, form, order, 0.7)
            if form == "quaternion":
                moved[..., 3:] /= 1.3
                moved[..., 3:] *= np.sign((moved[..., 3:] * chunks[..., 3:]).sum(-1, keepdims=True))
        exact = distance.paired(chunks, moved).numpy()
        first_order = ((((moved - chunks) * rates)[:, 0, columns]) ** 2).sum(-1)
        assert first_order.mean() == pytest.approx(exact.mean(), rel=0.03)


def test_column_rates_of_joints_and_grippers_are_exact(aloha: ActionSpace, aloha_chunks: np.ndarray) -> None:
    distance = PhysicalDistance.fit(aloha, aloha_chunks)
    for column, rate in enumerate(distance.column_rates().tolist()):
        moved = aloha_chunks.astype(np.float64)
        moved[..., column] += 0.01
        assert distance.paired(aloha_chunks, moved).numpy() == pytest.approx((0.01 * rate) ** 2, rel=1e-6)


def test_the_distance_comes_back_from_plain_data_and_refuses_what_does_not_fit(libero: ActionSpace) -> None:
    distance = PhysicalDistance(libero, (0.1, 0.25, 1))
    assert PhysicalDistance.from_dict(libero, distance.to_dict()) == distance
    good = distance.to_dict()
    wrongs: list[Any] = [
        None,
        {},
        {**good, "more": 1.0},
        {**good, "rotation": 0.0},
        {**good, "rotation": float("nan")},
        {**good, "rotation": "much"},
        {**good, "rotation": None},
    ]
    for wrong in wrongs:
        with pytest.raises(ActionPieceError):
            PhysicalDistance.from_dict(libero, wrong)
    for scales in ((1, 1), (1, 1, -1), (1, 1, float("inf"))):
        with pytest.raises(ActionPieceError, match="one positive scale per group"):
            PhysicalDistance(libero, scales)


def test_chunks_that_do_not_fit_are_an_error(libero: ActionSpace) -> None:
    distance = PhysicalDistance(libero, (1, 1, 1))
    chunk = np.zeros((3, 8, 7))
    with pytest.raises(ActionPieceError, match="same number and length"):
        distance.paired(chunk, chunk[:2])
    with pytest.raises(ActionPieceError, match="8 and 4 steps"):
        distance.pairwise(chunk, chunk[:, :4])
    with pytest.raises(ActionPieceError, match="6 columns"):
        distance.pairwise(chunk[..., :6])
    with pytest.raises(ActionPieceError, match="not finite"):
        distance.pairwise(np.full((3, 8, 7), np.nan))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_distances(libero: ActionSpace, libero_chunks: np.ndarray) -> None:
    distance = PhysicalDistance.fit(libero, libero_chunks)
    there = distance.pairwise(torch.as_tensor(libero_chunks, device="cuda"))
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), distance.pairwise(libero_chunks), rtol=1e-10, atol=1e-14)
