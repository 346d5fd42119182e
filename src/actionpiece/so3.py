"""Rotations: every form to and from unit quaternions (w, x, y, z), and the geodesic angle between them.

All functions work on the last axis, on any device, in the dtype they are given. Angles come from
atan2(|v|, |w|) of the relative quaternion and never from acos, which loses half the digits near 0 and near pi.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from actionpiece.errors import ActionPieceError


def quaternion(values: Tensor, form: str, order: str | None = None) -> Tensor:
    """Unit quaternions (..., 4) of rotations written in `form` (..., width); any input maps to a valid rotation.

    Axis-angle and Euler angles are in radians. Quaternions may have any length; the zero quaternion counts as no
    rotation. 6D and matrix values are projected: Gram-Schmidt for 6D, the nearest rotation for a matrix.
    """
    if form == "axis_angle":
        return from_axis_angle(values)
    if form == "euler":
        return from_euler(values, order or "xyz")
    if form == "quaternion":
        return normalise(values if order == "wxyz" else values[..., [3, 0, 1, 2]])
    if form == "rotation_6d":
        rows = matrix_from_6d(values)  # the two given vectors and their cross product, as rows
        return from_matrix(rows.transpose(-1, -2) if order == "columns" else rows)
    if form == "matrix":
        square = values.unflatten(-1, (3, 3))
        return from_matrix(nearest_rotation(square.transpose(-1, -2) if order == "columns" else square))
    raise ActionPieceError(f"unknown rotation form '{form}'")


def write(q: Tensor, form: str, order: str | None = None) -> Tensor:
    """The inverse of `quaternion`: unit quaternions (..., 4) written in `form` (..., width)."""
    if form == "axis_angle":
        return to_axis_angle(q)
    if form == "euler":
        return to_euler(q, order or "xyz")
    if form == "quaternion":
        return q if order == "wxyz" else q[..., [1, 2, 3, 0]]
    square = to_matrix(q)
    if form == "rotation_6d":
        return (square.transpose(-1, -2) if order == "columns" else square)[..., :2, :].flatten(-2)
    if form == "matrix":
        return (square.transpose(-1, -2) if order == "columns" else square).flatten(-2)
    raise ActionPieceError(f"unknown rotation form '{form}'")


def normalise(q: Tensor) -> Tensor:
    """Quaternions scaled to length one; a (nearly) zero one becomes the identity."""
    # Dividing by the largest component first keeps the norm from under- or overflowing.
    largest = q.abs().amax(-1, keepdim=True)
    tiny = largest < torch.finfo(q.dtype).tiny
    scaled = q / torch.where(tiny, torch.ones_like(largest), largest)
    unit = scaled / torch.where(tiny, torch.ones_like(largest), scaled.norm(dim=-1, keepdim=True))
    identity = torch.zeros_like(q)
    identity[..., 0] = 1
    return torch.where(tiny, identity, unit)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """The Hamilton product a b: first turn by b, then by a."""
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack(
        (
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ),
        -1,
    )


def conjugate(q: Tensor) -> Tensor:
    """The inverse rotation of a unit quaternion."""
    return torch.cat((q[..., :1], -q[..., 1:]), -1)


def angle(a: Tensor, b: Tensor) -> Tensor:
    """The geodesic angle between unit quaternions, in [0, pi]."""
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    x = aw * bx - ax * bw - (ay * bz - az * by)
    y = aw * by - ay * bw - (az * bx - ax * bz)
    z = aw * bz - az * bw - (ax * by - ay * bx)
    w = aw * bw + ax * bx + ay * by + az * bz
    return 2 * torch.atan2((x * x + y * y + z * z).sqrt(), w.abs())


def from_axis_angle(v: Tensor) -> Tensor:
    """Quaternions of rotation vectors (..., 3); angles beyond pi wrap by themselves."""
    # Scaled by the largest component first: squares of huge values would overflow.
    largest = v.abs().amax(-1, keepdim=True).clamp_min(1)
    half = (v / largest).norm(dim=-1, keepdim=True) * (largest / 2)
    one = torch.ones_like(half)
    ratio = torch.where(half > 0, half.sin() / torch.where(half > 0, half, one), one)  # sin(t) / t, 1 at 0
    return torch.cat((half.cos(), v * (ratio / 2)), -1)


def to_axis_angle(q: Tensor) -> Tensor:
    """Rotation vectors (..., 3) with angle in [0, pi]."""
    q = torch.where(q[..., :1] < 0, -q, q)
    sine = q[..., 1:].norm(dim=-1, keepdim=True)
    turn = 2 * torch.atan2(sine, q[..., :1])
    small = sine < 1e-7  # there turn / sine is 2 up to rounding
    return q[..., 1:] * torch.where(
        small, torch.full_like(sine, 2.0), turn / torch.where(small, torch.ones_like(sine), sine)
    )


def from_euler(angles: Tensor, order: str) -> Tensor:
    """Quaternions of Euler angles; lower-case orders turn about fixed axes, upper-case about moving ones."""
    result = torch.zeros((*angles.shape[:-1], 4), dtype=angles.dtype, device=angles.device)
    result[..., 0] = 1
    for letter, turn in zip(order, angles.unbind(-1), strict=True):
        step = torch.zeros_like(result)
        step[..., 0] = (turn / 2).cos()
        step[..., 1 + "xyz".index(letter.lower())] = (turn / 2).sin()
        result = multiply(step, result) if order.islower() else multiply(result, step)
    return result


def to_euler(q: Tensor, order: str) -> Tensor:
    """Euler angles (..., 3) of quaternions; at gimbal lock the third angle of a moving-axes order is zero.

    Follows Bernardes and Viollet (2022): one formula for proper Euler and Tait-Bryan orders.
    """
    fixed = order.islower()
    i, j, k = ("xyz".index(letter) for letter in (order.lower() if fixed else order.lower()[::-1]))
    proper = i == k
    if proper:
        k = 3 - i - j
    sign = (i - j) * (j - k) * (k - i) / 2
    w, p, r, s = q[..., 0], q[..., 1 + i], q[..., 1 + j], q[..., 1 + k] * sign
    a, b, c, d = (w, p, r, s) if proper else (w - r, p + s, r + w, s - p)
    second = 2 * torch.atan2(torch.hypot(c, d), torch.hypot(a, b))
    plus, minus = torch.atan2(b, a), torch.atan2(d, c)
    eps = 1e-7
    low, high = second.abs() < eps, (second - math.pi).abs() < eps
    zero = torch.zeros_like(second)
    first = torch.where(low, 2 * plus, torch.where(high, -2 * minus, plus - minus))
    third = torch.where(low | high, zero, plus + minus)
    if not proper:
        third = third * sign
        second = second - math.pi / 2
    if not fixed:
        first, third = third, first
        # At gimbal lock the free angle sits in the slot that comes first for moving axes.
        locked = torch.where(low, 2 * plus, 2 * minus) * (1.0 if proper else sign)
        first = torch.where(low | high, locked, first)
        third = torch.where(low | high, zero, third)
    wrap = torch.stack((first, second, third), -1)
    return torch.remainder(wrap + math.pi, 2 * math.pi) - math.pi


def matrix_from_6d(values: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3) whose first two rows are the two given vectors, made orthonormal.

    Vectors that are zero or parallel do not name a plane; a fixed axis stands in, so that the result is a rotation.
    """
    first = _unit(values[..., :3], fallback=0)
    raw = _unit(values[..., 3:], fallback=1)
    second = raw - (first * raw).sum(-1, keepdim=True) * first
    # Parallel to within rounding: what is left has no direction of its own.
    lost = second.norm(dim=-1, keepdim=True) <= 64 * torch.finfo(values.dtype).eps
    axis = torch.nn.functional.one_hot(first.abs().argmin(-1), 3).to(values.dtype)
    second = torch.where(lost, axis, second)
    second = _unit(second - (first * second).sum(-1, keepdim=True) * first, fallback=1)
    # Once more: the first pass leaves a residue of relative size eps / sin(angle between the two).
    second = _unit(second - (first * second).sum(-1, keepdim=True) * first, fallback=1)
    return torch.stack((first, second, torch.linalg.cross(first, second)), -2)


def _unit(v: Tensor, fallback: int) -> Tensor:
    largest = v.abs().amax(-1, keepdim=True)
    tiny = largest < torch.finfo(v.dtype).tiny
    scaled = v / torch.where(tiny, torch.ones_like(largest), largest)
    axis = torch.zeros_like(v)
    axis[..., fallback] = 1
    return torch.where(
        tiny, axis, scaled / torch.where(tiny, torch.ones_like(largest), scaled.norm(dim=-1, keepdim=True))
    )


def nearest_rotation(matrix: Tensor) -> Tensor:
    """The rotation closest to each 3x3 matrix in Frobenius norm (orthogonal Procrustes with determinant +1)."""
    u, _, vh = torch.linalg.svd(matrix)
    flip = torch.ones_like(matrix[..., 0])
    flip[..., 2] = torch.linalg.det(u @ vh)
    nearest: Tensor = (u * flip.unsqueeze(-2)) @ vh
    return nearest


def from_matrix(m: Tensor) -> Tensor:
    """Quaternions of rotation matrices, by the best-conditioned of the four formulas for each matrix."""
    d = m.diagonal(dim1=-2, dim2=-1)
    x, y, z = d.unbind(-1)
    squares = torch.stack((1 + x + y + z, 1 + x - y - z, 1 - x + y - z, 1 - x - y + z), -1)
    a = m[..., 2, 1] - m[..., 1, 2]
    b = m[..., 0, 2] - m[..., 2, 0]
    c = m[..., 1, 0] - m[..., 0, 1]
    e = m[..., 1, 0] + m[..., 0, 1]
    f = m[..., 0, 2] + m[..., 2, 0]
    g = m[..., 2, 1] + m[..., 1, 2]
    w2, x2, y2, z2 = squares.unbind(-1)
    # Row r is 4 q_r (w, x, y, z): any row works, the one with the largest q_r loses no digits.
    rows = torch.stack((w2, a, b, c, a, x2, e, f, b, e, y2, g, c, f, g, z2), -1).unflatten(-1, (4, 4))
    best = squares.argmax(-1)[..., None, None].expand(*squares.shape[:-1], 1, 4)
    return normalise(rows.gather(-2, best).squeeze(-2))


def to_matrix(q: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3) of unit quaternions."""
    w, x, y, z = q.unbind(-1)
    flat = torch.stack(
        (
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
        ),
        -1,
    )  # fmt: skip
    square: Tensor = flat.unflatten(-1, (3, 3))
    return square
