"""The shapes of things in the simulator, as boxes: how wide something is, and whether a hand has room.

LIBERO builds all that can be touched, but for the robot, of boxes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from actionpiece.sim.environment import Environment

_BOX = 6  # mujoco's number of the type
_CORNERS = np.array(list(product((-1.0, 1.0), repeat=3)))

# Of the Panda's open hand, in the frame of the point between its fingers: they open along x and point along z.
# Last: how far apart points are that stand for it; walls are thin where fingers go.
_HAND_PARTS = (
    ((-0.065, -0.010, -0.044), (-0.039, 0.010, 0.009), 0.005),  # a finger
    ((0.039, -0.010, -0.044), (0.065, 0.010, 0.009), 0.005),  # the other
    ((-0.104, -0.032, -0.123), (0.104, 0.032, -0.031), 0.016),  # the palm
)
OPENING = 0.076  # metres between the open fingers
TIP = 0.009  # how far they reach beyond the point between them
PALM = 0.031  # and from that point to the palm


@dataclass(frozen=True)
class Boxes:
    """n boxes: centres (n, 3), axes (n, 3, 3) as columns, half extents (n, 3)."""

    centres: np.ndarray
    axes: np.ndarray
    halves: np.ndarray

    def corners(self) -> np.ndarray:
        """All corners, (n, 8, 3)."""
        scaled = _CORNERS[None] * self.halves[:, None]
        corners: np.ndarray = self.centres[:, None] + np.einsum("nij,nkj->nki", self.axes, scaled)
        return corners

    def distances(self, points: np.ndarray) -> np.ndarray:
        """From each of the points (p, 3) to the nearest box, (p,); 0 inside of one."""
        local = np.einsum("npi,nij->npj", points[None] - self.centres[:, None], self.axes)
        outside = np.maximum(np.abs(local) - self.halves[:, None], 0.0)
        nearest: np.ndarray = np.linalg.norm(outside, axis=-1).min(axis=0)
        return nearest

    def nearest(self, point: np.ndarray) -> np.ndarray:
        """The point of each box that is nearest to a point (3,), seen from above, (n, 3)."""
        # Along the vertical line through the point, at the heights that the box has.
        heights = self.corners()[..., 2]
        line = np.broadcast_to(point, (len(heights), 5, 3)).copy()
        line[..., 2] = np.linspace(heights.min(axis=1), heights.max(axis=1), 5, axis=1)
        local = np.einsum("npi,nij->npj", line - self.centres[:, None], self.axes)
        clamped = np.clip(local, -self.halves[:, None], self.halves[:, None])
        best = np.linalg.norm(local - clamped, axis=-1).argmin(axis=1)
        chosen = clamped[np.arange(len(best)), best]
        points: np.ndarray = self.centres + np.einsum("nij,nj->ni", self.axes, chosen)
        return points

    def near(self, point: np.ndarray, most: float) -> Boxes:
        """Those that come nearer than so many metres to a point (3,), seen from above."""
        return self.kept(np.linalg.norm((self.nearest(point) - point)[:, :2], axis=1) < most)

    def kept(self, which: np.ndarray) -> Boxes:
        """Those for which the mask (n,) says so."""
        return Boxes(self.centres[which], self.axes[which], self.halves[which])


def boxes_of(env: Environment, bodies: Iterable[str]) -> Boxes:
    """What can be touched of these bodies, as it stands now."""
    model, data = env.raw.sim.model, env.raw.sim.data
    wanted = {model.body_name2id(name) for name in bodies}
    found = [
        g
        for g in range(model.ngeom)
        if model.geom_bodyid[g] in wanted and model.geom_group[g] == 0 and model.geom_type[g] == _BOX
    ]
    return Boxes(data.geom_xpos[found].copy(), data.geom_xmat[found].reshape(-1, 3, 3).copy(), model.geom_size[found])


def obstacles(env: Environment, without: str) -> Boxes:
    """What the hand must not touch on its way to the body `without`."""
    model = env.raw.sim.model
    names = [model.body_id2name(b) for b in range(model.nbody)]
    return boxes_of(env, [n for n in names if n != without and not n.startswith(("robot0", "gripper0", "mount0"))])


def width(boxes: Boxes, direction: np.ndarray, low: float, high: float) -> float:
    """How wide the boxes are along a direction (3,), counting those that reach into the heights from low to high."""
    along = boxes.kept(between(boxes, low, high)).corners() @ direction
    return float(np.ptp(along)) if along.size else 0.0


def between(boxes: Boxes, low: float, high: float) -> np.ndarray:
    """Which of the boxes reach into the heights from low to high, (n,) bool."""
    heights = boxes.corners()[..., 2]
    reached: np.ndarray = (heights.max(axis=1) > low) & (heights.min(axis=1) < high)
    return reached


def clearance(around: Boxes, position: np.ndarray, rotation: np.ndarray) -> float:
    """The distance from an open hand at this pose to what is around it, in metres."""
    return float(around.distances(position + _hand_points() @ rotation.T).min())


@cache
def _hand_points() -> np.ndarray:
    """Points (p, 3) all over the hand."""
    parts = []
    for low, high, step in _HAND_PARTS:
        axes = [np.linspace(a, b, 2 + int((b - a) / step)) for a, b in zip(low, high, strict=True)]
        parts.append(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3))
    return np.concatenate(parts)
