"""`PhysicalDistance`: how far apart two action chunks are for the robot, the paper's d_phys.

Per step, squared differences add up over groups: translation over its scale s_p, the geodesic angle over s_R, the
gripper on [0, 1]; joints and other columns count like translation, each group with its own scale, and several arms
add up. A chunk's distance is the mean over its steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actionpiece import so3
from actionpiece.arrays import chunks_tensor
from actionpiece.errors import ActionPieceError
from actionpiece.space import ActionSpace, Group

# First-order size of a rotation angle per unit of change in the written form, for columns taken one by one:
# |d theta| = 2 |dq|, |dR|_F = sqrt(2) theta, and two of a matrix's three columns hold 2/3 of |dR|^2 on average.
_FORM_RATES = {
    "axis_angle": 1.0,
    "euler": 1.0,
    "quaternion": 2.0,
    "rotation_6d": math.sqrt(3 / 4),
    "matrix": math.sqrt(1 / 2),
}


@dataclass(frozen=True)
class Features:
    """Chunks prepared for distances.

    flat: (N, H * E), every Euclidean column over its scale and root weight, so that squared differences add up.
    turns: (N, H, R, 4), a unit quaternion for each of the R rotation groups.
    """

    flat: Tensor
    turns: Tensor

    def __getitem__(self, index: Any) -> Features:
        return Features(self.flat[index], self.turns[index])

    def __len__(self) -> int:
        return self.flat.shape[0]


@dataclass(frozen=True)
class PhysicalDistance:
    """The physical distance of one action space with fitted scales.

    space: what the columns mean; its groups carry the weights.
    scales: one per group, in order. Translation, joints and other: the root of the summed per-column variance, in
        physical units. Rotation: the root mean square angle (of a delta from no rotation, of a target from the mean
        target), in radians. Gripper: always 1.
    """

    space: ActionSpace
    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", tuple(float(s) for s in self.scales))
        if len(self.scales) != len(self.space.groups) or not all(s > 0 and math.isfinite(s) for s in self.scales):
            raise ActionPieceError("a physical distance needs one positive scale per group of its action space")

    @classmethod
    def fit(cls, space: ActionSpace, chunks: Any) -> PhysicalDistance:
        """Fit the scales on the steps of training chunks (N, H, D) of raw commands.

        A group that never changes in training gets scale 1: a metre, a radian, a raw unit.
        """
        x = chunks_tensor(chunks, space.dim, dtype=torch.float64).flatten(0, 1)
        scales = []
        for group in space.groups:
            if group.kind == "gripper":
                scale = 1.0
            elif group.kind == "rotation":
                scale = _root_mean_square_angle(turn(group, x), about_mean=not group.delta)
            else:
                scale = math.sqrt(float((physical(group, x)).var(0, correction=0).sum()))
            scales.append(scale if scale > 1e-12 else 1.0)
        return cls(space, tuple(scales))

    def features(self, chunks: Any, *, dtype: torch.dtype | None = torch.float64) -> Features:
        """Prepare raw chunks (N, H, D) for distances, in `dtype` (None: as they come) and on their device."""
        x = chunks_tensor(chunks, self.space.dim, dtype=dtype)
        flat, turns = [], []
        for group, scale in zip(self.space.groups, self.scales, strict=True):
            root = math.sqrt(group.weight)
            if group.kind == "rotation":
                turns.append(turn(group, x))
            else:
                flat.append(physical(group, x) * (root / scale))
        n, h = x.shape[:2]
        return Features(
            (torch.cat(flat, -1) if flat else x.new_zeros(n, h, 0)).flatten(1),
            torch.stack(turns, 2) if turns else x.new_zeros(n, h, 0, 4),
        )

    def between(self, a: Features, b: Features) -> Tensor:
        """Distances of features whose leading shapes broadcast: the exact formula, differences taken first."""
        h = a.turns.shape[-3]
        total = (a.flat - b.flat).square().sum(-1)
        if a.turns.shape[-2]:
            angles = so3.angle(a.turns, b.turns)
            total = total + self._turned(angles)
        return total / h

    def paired(self, a: Any, b: Any, *, dtype: torch.dtype | None = torch.float64) -> Tensor:
        """Distances (N,) between corresponding chunks of two sets (N, H, D)."""
        left, right = self.features(a, dtype=dtype), self.features(b, dtype=dtype)
        if left.turns.shape != right.turns.shape or left.flat.shape != right.flat.shape:
            raise ActionPieceError("the two sets of chunks must have the same number and length")
        return self.between(left, right)

    def pairwise(
        self, a: Any, b: Any = None, *, dtype: torch.dtype | None = torch.float64, block: int | None = None
    ) -> Tensor:
        """All distances (N, M) between two sets of chunks, or within one. `block` rows are worked on at a time.

        `a` and `b` may be raw chunks or `Features` made before.
        """
        left = a if isinstance(a, Features) else self.features(a, dtype=dtype)
        right = left if b is None else (b if isinstance(b, Features) else self.features(b, dtype=dtype))
        if left.turns.shape[1] != right.turns.shape[1]:
            raise ActionPieceError(
                f"the two sets have chunks of {left.turns.shape[1]} and {right.turns.shape[1]} steps; they must agree"
            )
        if block is None:  # about 256 MB of work space for the widest intermediate
            width = max(right.flat.shape[-1], 8 * math.prod(right.turns.shape[1:3]), 1)
            block = max(1, int(2**25 // (width * max(len(right), 1))))
        rows = [self._between_all(left[i : i + block], right) for i in range(0, len(left), block)]
        return torch.cat(rows)

    def _between_all(self, a: Features, b: Features) -> Tensor:
        # One matrix call for the Euclidean part: cdist without the expanded square, which would cancel digits away.
        total = torch.cdist(a.flat, b.flat, compute_mode="donot_use_mm_for_euclid_dist").square()
        if a.turns.shape[2]:
            angles = so3.angle(a.turns[:, None], b.turns[None])
            total = total + self._turned(angles)
        return total / a.turns.shape[1]

    @property
    def _rotation_factors(self) -> list[float]:
        pairs = zip(self.space.groups, self.scales, strict=True)
        return [group.weight / scale**2 for group, scale in pairs if group.kind == "rotation"]

    def _turned(self, angles: Tensor) -> Tensor:
        """The rotations' share of squared distances, from angles (..., H, R), summed over both.

        The factors stay Python numbers: a tensor made of them could not be recorded as part of a training step.
        """
        parts = zip(angles.unbind(-1), self._rotation_factors, strict=True)
        total: Tensor = torch.stack([angle.square().sum(-1) * factor for angle, factor in parts]).sum(0)
        return total

    def chord_features(self, features: Features) -> Tensor:
        """Vectors (N, F) whose squared Euclidean distance is a lower bound of the distance.

        The rotation matrices' chord, |R - R'|_F^2 / 2 = 4 sin^2(angle / 2), is at most the squared angle and close
        to it for near neighbours; with it a matrix product finds neighbours before any angle is computed.
        """
        h, r = features.turns.shape[1:3]
        matrices = so3.to_matrix(features.turns).flatten(-2)
        if r:
            matrices = matrices * (matrices.new_tensor(self._rotation_factors) / 2).sqrt()[:, None]
        return torch.cat((features.flat, matrices.flatten(1)), -1) / math.sqrt(h)

    def column_rates(self) -> Tensor:
        """To first order, how much a raw unit of each column (D,) moves the square root of a step's distance."""
        rates = torch.ones(self.space.dim, dtype=torch.float64)
        for group, scale in zip(self.space.groups, self.scales, strict=True):
            rate = _unit_of(group) * (_FORM_RATES[group.form] if group.form else 1.0)
            rates[list(group.columns)] = math.sqrt(group.weight) * rate / scale
        return rates

    def to_dict(self) -> dict[str, Any]:
        """The scales by group name; the space itself is stored by whoever stores this."""
        return {group.name: scale for group, scale in zip(self.space.groups, self.scales, strict=True)}

    @classmethod
    def from_dict(cls, space: ActionSpace, value: Any) -> PhysicalDistance:
        """The inverse of `to_dict`."""
        if not isinstance(value, dict) or set(value) != {group.name for group in space.groups}:
            raise ActionPieceError(f"the saved physical scales do not belong to the action space '{space.name}'")
        try:
            return cls(space, tuple(value[group.name] for group in space.groups))
        except ActionPieceError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise ActionPieceError(f"the saved physical scales do not fit: {error}") from None


def _unit_of(group: Group) -> float:
    if group.kind == "gripper":
        assert group.open is not None
        assert group.closed is not None
        return 1.0 / abs(group.closed - group.open)
    return group.unit if group.unit is not None else 1.0


def physical(group: Group, x: Tensor) -> Tensor:
    """A group's columns of raw actions (..., D) in metres, radians, raw units, or 0 open .. 1 closed."""
    # Stacked, not indexed by a list: an index from the CPU could not be recorded as part of a training step.
    columns = torch.stack([x[..., column] for column in group.columns], -1)
    if group.kind == "gripper":
        assert group.open is not None
        assert group.closed is not None
        return (columns - group.open) / (group.closed - group.open)
    return columns * _unit_of(group)


def turn(group: Group, x: Tensor) -> Tensor:
    """A rotation group's unit quaternions (..., 4)."""
    assert group.form is not None
    return so3.quaternion(physical(group, x), group.form, group.order)


def _root_mean_square_angle(turns: Tensor, *, about_mean: bool) -> float:
    if about_mean:  # the chordal mean: the leading eigenvector of the summed outer products
        centre = torch.linalg.eigh(turns.T @ turns / len(turns)).eigenvectors[:, -1]
    else:
        centre = turns.new_tensor([1.0, 0.0, 0.0, 0.0])
    return math.sqrt(float(so3.angle(turns, centre).square().mean()))
