"""Rotations: every form against scipy's Rotation and roma, and angles that stay right near 0 and near pi."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import roma
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from torch import Tensor

from actionpiece import so3
from actionpiece.errors import ActionPieceError

TAIT_BRYAN = ["".join(p) for p in itertools.permutations("xyz")]
PROPER = [a + b + a for a, b in itertools.permutations("xyz", 2)]
ORDERS = [order for lower in TAIT_BRYAN + PROPER for order in (lower, lower.upper())]
FORMS = [
    ("axis_angle", None),
    ("euler", "xyz"),
    ("euler", "ZYZ"),
    ("quaternion", "wxyz"),
    ("quaternion", "xyzw"),
    ("rotation_6d", "columns"),
    ("rotation_6d", "rows"),
    ("matrix", "rows"),
    ("matrix", "columns"),
]


def rotations(n: int = 200, seed: int = 0) -> Rotation:
    return Rotation.random(n, random_state=seed)


def quaternions(rotation: Rotation) -> Tensor:
    return torch.as_tensor(rotation.as_quat(scalar_first=True))


def scipy_form(rotation: Rotation, form: str, order: str | None) -> np.ndarray:
    """A rotation written in a form, by scipy."""
    matrix = rotation.as_matrix()
    if form == "axis_angle":
        return rotation.as_rotvec()
    if form == "euler":
        return rotation.as_euler(order)
    if form == "quaternion":
        return rotation.as_quat(scalar_first=order == "wxyz")
    if form == "rotation_6d":
        two = matrix[:, :2] if order == "rows" else matrix[:, :, :2].transpose(0, 2, 1)
        return two.reshape(-1, 6)
    return (matrix if order == "rows" else matrix.transpose(0, 2, 1)).reshape(-1, 9)


def apart(q: Tensor, rotation: Rotation) -> float:
    """The largest angle between quaternions and scipy's rotations, by scipy."""
    return float((Rotation.from_quat(q.numpy(), scalar_first=True).inv() * rotation).magnitude().max())


def assert_is_rotation(matrix: Tensor, tolerance: float = 1e-12) -> None:
    eye = torch.eye(3, dtype=matrix.dtype)
    assert float((matrix @ matrix.transpose(-1, -2) - eye).abs().max()) < tolerance
    assert float((torch.linalg.det(matrix) - 1).abs().max()) < tolerance


@pytest.mark.parametrize(("form", "order"), FORMS)
def test_every_form_reads_and_writes_like_scipy(form: str, order: str | None) -> None:
    rotation = rotations()
    q = so3.quaternion(torch.as_tensor(scipy_form(rotation, form, order)), form, order)
    assert apart(q, rotation) < 1e-14
    assert float((q.norm(dim=-1) - 1).abs().max()) < 1e-14
    written = so3.write(quaternions(rotation), form, order)
    if form == "quaternion":
        written = written * torch.sign((written * torch.as_tensor(scipy_form(rotation, form, order))).sum(-1, True))
    np.testing.assert_allclose(written.numpy(), scipy_form(rotation, form, order), atol=1e-12)


@pytest.mark.parametrize(("form", "order"), FORMS)
def test_float32_forms_lose_no_more_than_float32_must(form: str, order: str | None) -> None:
    rotation = rotations(seed=1)
    q = so3.quaternion(torch.as_tensor(scipy_form(rotation, form, order)).float(), form, order)
    assert q.dtype == torch.float32
    assert apart(q.double(), rotation) < 5e-6
    again = so3.quaternion(so3.write(q, form, order), form, order)
    assert float(so3.angle(q, again).max()) < 5e-6


@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 4)])
def test_forms_keep_the_leading_shape(shape: tuple[int, ...]) -> None:
    q = so3.normalise(torch.randn(*shape, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    for form, order in FORMS:
        assert so3.quaternion(so3.write(q, form, order), form, order).shape == (*shape, 4)


def test_an_unknown_form_is_an_error() -> None:
    with pytest.raises(ActionPieceError, match="unknown rotation form"):
        so3.quaternion(torch.zeros(3), "rpy")
    with pytest.raises(ActionPieceError, match="unknown rotation form"):
        so3.write(torch.zeros(4), "rpy")


def test_conversions_agree_with_roma() -> None:
    v = torch.randn(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q = so3.from_axis_angle(v)
    theirs = roma.quat_xyzw_to_wxyz(roma.rotvec_to_unitquat(v))
    assert float(so3.angle(q, theirs).max()) < 1e-14
    torch.testing.assert_close(so3.to_matrix(q), roma.rotvec_to_rotmat(v), atol=1e-14, rtol=0)
    six = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gram_schmidt = roma.special_gramschmidt(torch.stack((six[:, :3], six[:, 3:]), -1))
    torch.testing.assert_close(so3.matrix_from_6d(six).transpose(-1, -2), gram_schmidt, atol=1e-12, rtol=0)
    any_matrix = torch.randn(50, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(so3.nearest_rotation(any_matrix), roma.special_procrustes(any_matrix), atol=1e-9, rtol=0)


def test_the_product_turns_by_the_second_first() -> None:
    a, b = rotations(50, 1), rotations(50, 2)
    assert apart(so3.multiply(quaternions(a), quaternions(b)), a * b) < 1e-14
    assert apart(so3.conjugate(quaternions(a)), a.inv()) < 1e-14


# Euler angles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_all_24_euler_orders_are_scipys(order: str) -> None:
    angles = np.random.default_rng(0).uniform(-4, 4, (200, 3))
    assert apart(so3.from_euler(torch.as_tensor(angles), order), Rotation.from_euler(order, angles)) < 1e-14
    rotation = rotations(300)
    np.testing.assert_allclose(so3.to_euler(quaternions(rotation), order).numpy(), rotation.as_euler(order), atol=1e-11)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("beside", [0.0, 1e-12, 1e-9, 1e-7, 1e-5])
def test_euler_angles_come_back_as_the_same_rotation_at_gimbal_lock(order: str, beside: float) -> None:
    locks = (0.0, math.pi) if order[0] == order[2] else (math.pi / 2, -math.pi / 2)
    rng = np.random.default_rng(0)
    for lock in locks:
        angles = rng.uniform(-3, 3, (50, 3))
        angles[:, 1] = lock + beside
        rotation = Rotation.from_euler(order, angles)
        for q in (quaternions(rotation), -quaternions(rotation)):
            euler = so3.to_euler(q, order)
            assert bool(torch.isfinite(euler).all())
            assert apart(so3.from_euler(euler, order), rotation) < 2e-7


@pytest.mark.parametrize("order", [order for order in ORDERS if order.isupper()])
def test_at_gimbal_lock_the_third_angle_of_moving_axes_is_zero(order: str) -> None:
    lock = 0.0 if order[0] == order[2] else math.pi / 2
    angles = torch.tensor([[0.3, lock, 0.4]], dtype=torch.float64)
    assert float(so3.to_euler(so3.from_euler(angles, order), order)[0, 2]) == pytest.approx(0, abs=1e-15)


# Angles ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-12, 1e-9, 1e-6, 1e-3, 0.1, 1.0, 3.0])
def test_the_angle_of_a_small_turn_keeps_its_digits(size: float) -> None:
    axis = np.random.default_rng(0).normal(size=(100, 3))
    v = size * axis / np.linalg.norm(axis, axis=1, keepdims=True)
    identity = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    found = so3.angle(so3.from_axis_angle(torch.as_tensor(v)), identity).numpy()
    np.testing.assert_allclose(found, Rotation.from_rotvec(v).magnitude(), rtol=1e-13)
    np.testing.assert_allclose(found, size, rtol=1e-13)


@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e-3, 1.0])
def test_the_angle_between_two_far_rotations_that_are_close_is_right(size: float) -> None:
    base = rotations(100)
    axis = np.random.default_rng(0).normal(size=(100, 3))
    other = base * Rotation.from_rotvec(size * axis / np.linalg.norm(axis, axis=1, keepdims=True))
    found = so3.angle(quaternions(base), quaternions(other)).numpy()
    np.testing.assert_allclose(
        found, size, rtol=1e-12, atol=1e-15
    )  # quaternions hold 1e-16, whatever is done with them


@pytest.mark.parametrize("short", [0.0, 1e-12, 1e-9, 1e-6, 1e-3])
def test_the_angle_near_pi_is_right_from_both_sides(short: float) -> None:
    axis = np.random.default_rng(0).normal(size=(100, 3))
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    identity = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    for sign in (-1, 1):
        v = (math.pi + sign * short) * axis
        found = so3.angle(so3.from_axis_angle(torch.as_tensor(v)), identity).numpy()
        np.testing.assert_allclose(found, math.pi - short, atol=1e-15 + 1e-15)
        np.testing.assert_allclose(found, Rotation.from_rotvec(v).magnitude(), atol=2e-15)
        assert found.max() <= math.pi


def test_float32_angles_of_a_milliradian_are_right_where_acos_is_not() -> None:
    axis = np.random.default_rng(0).normal(size=(1000, 3))
    v = torch.as_tensor(1e-3 * axis / np.linalg.norm(axis, axis=1, keepdims=True)).float()
    q, identity = so3.from_axis_angle(v), torch.tensor([1.0, 0, 0, 0])
    ours = so3.angle(q, identity)
    acos = 2 * torch.acos(q[:, 0].clamp(-1, 1))
    assert float((ours / 1e-3 - 1).abs().max()) < 1e-6
    assert float((acos / 1e-3 - 1).abs().max()) > 0.02
    # between two arbitrary orientations, float32 quaternions still hold the angle to a few parts in ten thousand
    base = quaternions(rotations(1000)).float()
    between = so3.angle(base, so3.normalise(so3.multiply(base, q)))
    by_acos = 2 * torch.acos((base * so3.multiply(base, q)).sum(-1).abs().clamp(max=1))
    assert float((between / 1e-3 - 1).abs().max()) < 5e-4
    assert float((by_acos / 1e-3 - 1).abs().max()) > 0.1


def test_the_angle_is_symmetric_blind_to_sign_and_zero_on_itself() -> None:
    a, b = quaternions(rotations(100, 1)), quaternions(rotations(100, 2))
    torch.testing.assert_close(so3.angle(a, b), so3.angle(b, a), atol=1e-15, rtol=0)
    torch.testing.assert_close(so3.angle(-a, b), so3.angle(a, b), atol=1e-15, rtol=0)
    assert float(so3.angle(a, a).max()) == 0
    assert float(so3.angle(a, -a).max()) == 0
    torch.testing.assert_close(so3.angle(a, b), roma.utils.unitquat_geodesic_distance(a, b), atol=1e-7, rtol=0)


# Hard inputs ----------------------------------------------------------------------------------------------------------


def test_axis_angle_beyond_pi_wraps() -> None:
    v = np.random.default_rng(0).uniform(-20, 20, (200, 3))
    q = so3.from_axis_angle(torch.as_tensor(v))
    assert apart(q, Rotation.from_rotvec(v)) < 1e-13
    written = so3.to_axis_angle(q)
    assert float(written.norm(dim=-1).max()) <= math.pi + 1e-12
    np.testing.assert_allclose(written.numpy(), Rotation.from_rotvec(v).as_rotvec(), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-12, 1e10, 1e30])
def test_axis_angle_of_any_size_is_a_unit_quaternion(dtype: torch.dtype, size: float) -> None:
    v = torch.tensor([[1.0, 2.0, -3.0], [0.0, 0.0, 1.0]], dtype=dtype) * size
    q = so3.from_axis_angle(v)
    assert float((q.norm(dim=-1) - 1).abs().max()) < 4 * torch.finfo(dtype).eps
    if 0 < size < 1:
        torch.testing.assert_close(so3.to_axis_angle(q), v, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quaternions_of_any_length_count_as_their_direction(dtype: torch.dtype) -> None:
    unit = quaternions(rotations(50)).to(dtype)
    largest = 1e37 if dtype == torch.float32 else 1e300
    for size in (1 / largest, 1e-20, 0.5, -3.0, 1e20, largest):
        q = so3.quaternion(unit * size, "quaternion", "wxyz")
        assert float((q.norm(dim=-1) - 1).abs().max()) < 4 * torch.finfo(dtype).eps
        assert float(so3.angle(q, so3.normalise(unit)).max()) < 8 * torch.finfo(dtype).eps


def test_the_zero_quaternion_counts_as_no_rotation() -> None:
    q = so3.quaternion(torch.zeros(2, 4), "quaternion", "xyzw")
    assert q.tolist() == [[1, 0, 0, 0]] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "six",
    [
        [0, 0, 0, 0, 0, 0],
        [1, 2, 3, 0, 0, 0],
        [0, 0, 0, 1, 2, 3],
        [1, 2, 3, 2, 4, 6],
        [1, 2, 3, -1, -2, -3],
        [0, 1, 0, 0, 1, 0],
        [1, 0, 0, 1, 1e-7, 0],
        [1, 0, 0, 1, 1e-12, 1e-13],
        [1e-30, 0, 0, 0, 0, 1e-30],
        [1e30, 0, 0, 0, 0, 1e30],
        [1, 1, 1, 1, 1, 1 + 1e-6],
    ],
)
@pytest.mark.parametrize("order", ["rows", "columns"])
def test_near_singular_6d_values_are_still_rotations(six: list[float], dtype: torch.dtype, order: str) -> None:
    values = torch.tensor([six], dtype=dtype)
    q = so3.quaternion(values, "rotation_6d", order)
    assert float((q.norm(dim=-1) - 1).abs().max()) < 1e-6
    assert_is_rotation(so3.matrix_from_6d(values), 1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30])
def test_the_size_of_6d_values_does_not_matter_even_in_float32(size: float) -> None:
    values = torch.tensor([[1.0, 2.0, 3.0, -1.0, 0.5, 2.0]])
    expected = so3.matrix_from_6d(values)
    torch.testing.assert_close(so3.matrix_from_6d(values * size), expected, atol=1e-6, rtol=0)
    mixed = torch.cat((values[:, :3], values[:, 3:] * size), -1)
    torch.testing.assert_close(so3.matrix_from_6d(mixed), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("order", ["rows", "columns"])
def test_noisy_matrices_map_to_scipys_nearest_rotation(order: str) -> None:
    noisy = rotations(100).as_matrix() * 1.7 + np.random.default_rng(0).normal(0, 0.1, (100, 3, 3))
    flat = (noisy if order == "rows" else noisy.transpose(0, 2, 1)).reshape(-1, 9)
    assert apart(so3.quaternion(torch.as_tensor(flat), "matrix", order), Rotation.from_matrix(noisy)) < 1e-12


def test_any_matrix_maps_to_a_rotation_and_none_is_nearer() -> None:
    rng = np.random.default_rng(0)
    m = rng.normal(size=(60, 3, 3))
    m[:10] = rotations(10).as_matrix() * -1  # reflections
    m[10:20, 2] = m[10:20, 1]  # singular
    m[20:25] = rng.normal(size=(5, 3, 1)) * rng.normal(size=(5, 1, 3))  # of rank one
    m[25] = 0
    matrix = torch.as_tensor(m)
    nearest = so3.nearest_rotation(matrix)
    assert_is_rotation(nearest)
    best = (nearest - matrix).square().sum((-1, -2))
    for trial in (rotations(400, 3).as_matrix(), Rotation.from_rotvec(rng.normal(0, 0.05, (200, 3))).as_matrix()):
        others = torch.as_tensor(trial)
        anywhere = (others[:, None] - matrix).square().sum((-1, -2))
        around = (others[:, None] @ nearest - matrix).square().sum((-1, -2))
        assert bool((torch.minimum(anywhere, around) >= best - 1e-12).all())
    torch.testing.assert_close(so3.to_matrix(so3.from_matrix(nearest)), nearest, atol=1e-12, rtol=0)


def test_matrices_of_half_turns_lose_no_digits() -> None:
    axes = np.random.default_rng(0).normal(size=(200, 3))
    axes[:3] = np.eye(3)
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    rotation = Rotation.from_rotvec(math.pi * axes)
    assert apart(so3.from_matrix(torch.as_tensor(rotation.as_matrix())), rotation) < 1e-14


numbers = st.floats(-1e6, 1e6, allow_nan=False, width=32)


@settings(deadline=None, max_examples=60)
@given(values=st.lists(numbers, min_size=9, max_size=9))
def test_any_numbers_are_some_rotation_in_every_form(values: list[float]) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        x = torch.tensor(values, dtype=dtype)
        for form, order in FORMS:
            width = {"axis_angle": 3, "euler": 3, "quaternion": 4, "rotation_6d": 6, "matrix": 9}[form]
            q = so3.quaternion(x[:width], form, order)
            assert abs(float(q.norm()) - 1) < tolerance
            again = so3.quaternion(so3.write(q, form, order), form, order)
            assert float(so3.angle(q, again)) < (1e-5 if dtype == torch.float32 else 2e-7)
