"""Idle steps: moments of a demonstration in which the robot is told to do nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from actionpiece.data.reader import Actions
from actionpiece.space import ActionSpace, Group


def idle_steps(actions: Actions, space: ActionSpace, threshold: float) -> npt.NDArray[np.bool_]:
    """Which of the steps (T, D) are idle, (T,) booleans.

    A step is idle if every delta column is within `threshold` (raw units) of no motion, every target column is
    within `threshold` of the step before, and no gripper moved by more than that since the step before. The first
    step has no step before it: it is idle only if delta columns alone say so.
    """
    idle = np.ones(len(actions), np.bool_)
    for group in space.groups:
        values = actions[:, group.columns]
        if group.delta:
            away = np.abs(_from_rest(group, values))
        else:
            # A gripper at rest says nothing about the arm; a target without a predecessor cannot be called unchanged.
            before = 0.0 if group.kind == "gripper" else np.inf
            away = np.abs(_moved(group, values))
            away = np.concatenate((np.full((min(1, len(values)), values.shape[1]), before), away))
        idle &= (away <= threshold).all(1)
    return idle


def _moved(group: Group, values: Actions) -> Actions:
    """How far targets are from those of the step before; a rotation that is written otherwise is the same."""
    moved: Actions = np.diff(values, axis=0)
    if group.form == "quaternion":
        other: Actions = values[1:] + values[:-1]  # from q to -q
        return np.where(np.abs(other).max(1, keepdims=True) < np.abs(moved).max(1, keepdims=True), other, moved)
    if group.form == "euler":
        assert group.unit is not None
        turn = np.float32(2 * np.pi / group.unit)
        return (moved - turn * np.round(moved / turn)).astype(np.float32)
    return moved


def _from_rest(group: Group, values: Actions) -> Actions:
    """How far delta commands are from the command that moves nothing, which is not zero for every rotation form."""
    if group.form == "quaternion":
        real = 0 if group.order == "wxyz" else 3
        turned = np.where(values[:, real : real + 1] < 0, -values, values)  # q and -q are one rotation
        quaternion: Actions = turned - np.eye(4, dtype=np.float32)[real]
        return quaternion
    if group.form in ("rotation_6d", "matrix"):
        # The first two columns, or rows, of the identity read the same, and so do its rows and columns.
        return values - np.eye(3, dtype=np.float32).reshape(-1)[: values.shape[1]]
    return values
