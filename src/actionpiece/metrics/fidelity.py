"""How far decoded commands are from the originals, in normalised coordinates and in units a person can picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actionpiece import so3
from actionpiece.arrays import chunks_tensor
from actionpiece.distance import physical, turn
from actionpiece.errors import ActionPieceError
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace, Group


@dataclass(frozen=True)
class GroupError:
    """The error of one group of columns over all steps.

    unit: mm for translation, degrees for rotation and joints, opening (0 to 1) for grippers, raw for other columns.
    rmse: root mean square over steps of the error's length (translation, joints, other) or angle (rotation).
    worst: the largest error of any step.
    flips: for grippers, the share of steps whose command crossed from open to closed or back; otherwise None.
    """

    name: str
    kind: str
    unit: str
    rmse: float
    worst: float
    flips: float | None = None


@dataclass(frozen=True)
class Fidelity:
    """mse, l1: over all values, in normalised coordinates. per_chunk: (N,) mean squared error of each chunk.

    groups: errors in physical units. jerk: root mean square error of the third derivative of the motion, see `jerk`.
    """

    mse: float
    l1: float
    per_chunk: Tensor
    groups: tuple[GroupError, ...]
    jerk: float | None
    jerk_unit: str


def fidelity(
    original: Any, decoded: Any, *, space: ActionSpace, normalizer: Normalizer, rate: float | None = None
) -> Fidelity:
    """Compare decoded chunks (N, H, D) with the originals.

    rate: control rate of the data in Hz, where it is not the action space's.
    normalizer: the coordinates of `mse` and `l1`; for tokenizers to be comparable it must be the same for all,
        whatever each of them uses inside.
    """
    x = chunks_tensor(original, space.dim, dtype=torch.float64, what="original chunks")
    y = chunks_tensor(decoded, space.dim, dtype=torch.float64, what="decoded chunks").to(x.device)
    if x.shape != y.shape:
        raise ActionPieceError(f"original {tuple(x.shape)} and decoded {tuple(y.shape)} chunks differ in shape")
    scale = torch.as_tensor(normalizer.scale, device=x.device)
    error = (y - x) / scale  # offsets cancel, and a clipping normaliser must not hide an error
    error_jerk, unit = jerk_error(x, y, space, rate)
    return Fidelity(
        mse=float(error.square().mean()),
        l1=float(error.abs().mean()),
        per_chunk=error.square().mean((1, 2)),
        groups=tuple(_group_error(group, x, y) for group in space.groups),
        jerk=error_jerk,
        jerk_unit=unit,
    )


def _group_error(group: Group, x: Tensor, y: Tensor) -> GroupError:
    flips = None
    if group.kind == "rotation":
        error, unit, factor = so3.angle(turn(group, x), turn(group, y)), "deg", 180 / math.pi
    else:
        error = (physical(group, y) - physical(group, x)).norm(dim=-1)
        unit, factor = {"translation": ("mm", 1e3), "joints": ("deg", 180 / math.pi), "gripper": ("opening", 1.0)}.get(
            group.kind, ("raw", 1.0)
        )
    if group.kind == "gripper":
        flips = float(((physical(group, x) > 0.5) != (physical(group, y) > 0.5)).double().mean())
    return GroupError(
        name=group.name,
        kind=group.kind,
        unit=unit,
        rmse=factor * float(error.square().mean().sqrt()),
        worst=factor * float(error.max()),
        flips=flips,
    )


def jerk_error(x: Tensor, y: Tensor, space: ActionSpace, rate: float | None = None) -> tuple[float | None, str]:
    """Root mean square error of the jerk of the commanded motion, and its unit.

    The motion is that of the translation groups, or of the joints where there are none. A delta command is a
    velocity, so its second difference is a jerk; a target needs the third. With a known rate the unit is m/s^3 (or
    rad/s^3), otherwise m (or rad) per step^3. None when a chunk is too short or nothing moves.
    """
    rate = rate or space.rate
    kind = "translation" if space.of_kind("translation") else "joints"
    length = {"translation": "m", "joints": "rad"}[kind]
    unit = f"{length}/s^3" if rate else f"{length}/step^3"
    errors = []
    for group in space.groups:
        if group.kind != kind:
            continue
        order = 2 if group.delta else 3
        if x.shape[1] <= order:
            return None, unit
        errors.append(torch.diff(physical(group, y) - physical(group, x), n=order, dim=1).square().sum(-1).mean())
    if not errors:
        return None, unit
    return math.sqrt(float(sum(errors))) * (rate or 1.0) ** 3, unit
