"""Temporal: decoded chunks change from step to step as the demonstrations do (appendix)."""

from __future__ import annotations

import torch
from torch import Tensor

from actionpiece import so3
from actionpiece.distance import physical, turn
from actionpiece.objectives.step import Step


def temporal(step: Step) -> Tensor:
    """Squared differences of first differences, over the physical scales, averaged over steps.

    Rotations compare the relative quaternions of adjacent steps: 8 (1 - |w|), with w and v the parts of the quaternion
    between them, is the squared angle to first order, smooth, and the same for q and -q. It is written
    8 |v|^2 / (1 + |w|), since 1 - |w| has no digits left in float32 below a milliradian. One step has no changes: 0.
    """
    x = step.target * step.scale + step.offset
    y = step.decoded * step.scale + step.offset
    total = torch.zeros((), dtype=y.dtype, device=y.device)
    for group, scale in zip(step.distance.space.groups, step.distance.scales, strict=True):
        if group.kind == "rotation":
            between = so3.multiply(so3.conjugate(_relative(turn(group, x))), _relative(turn(group, y)))
            error = 8 * between[..., 1:].square().sum(-1) / (1 + between[..., 0].abs())
        else:
            error = (physical(group, y).diff(dim=1) - physical(group, x).diff(dim=1)).square().sum(-1)
        total = total + group.weight * error.sum() / (max(error.numel(), 1) * scale**2)
    return total


def _relative(turns: Tensor) -> Tensor:
    return so3.multiply(so3.conjugate(turns[:, :-1]), turns[:, 1:])
