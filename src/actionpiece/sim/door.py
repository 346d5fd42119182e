"""The door's demonstration: take the lever from above, press it down, pull the door open along its arc and hold it."""

from __future__ import annotations

import numpy as np

from actionpiece.sim.environment import Environment, rotation_about
from actionpiece.sim.motion import (
    CLOSED,
    OPEN,
    UP,
    Phase,
    Pose,
    Style,
    facing_down,
    hand_yaw,
    nearest_turn,
    stay,
    yaw_of,
)

_HINGE = np.array([0.255, 0.0, 0.0])  # of the door, in its own frame
_LEVER = -0.118  # from the door's middle to the hand; the lever is at -0.1, but there the palm would touch the door
_UNLATCHED = 1.3  # radians of the lever; the latch leaves its frame at about 1.2, the lever stops at 1.57
_OPEN = 0.34  # radians of the door; it counts as open at 0.3 and stops at 0.4


def plan(env: Environment, style: Style, rng: np.random.Generator) -> list[Phase]:
    """See `motion.Plan`."""
    data = env.raw.sim.data
    reach = float(rng.uniform(0.10, 0.125))  # from the lever's axis to where it is taken
    lead = float(rng.uniform(0.25, 0.45))  # how far ahead of the lever the hand aims, in radians
    pull = float(rng.uniform(0.10, 0.16))  # the same for the door
    lever, normal, _ = env.body("Door_latch")[1].T
    down = 1.0 if np.cross(normal, lever)[2] < 0 else -1.0
    across = nearest_turn(yaw_of(normal), hand_yaw(env), np.pi)

    def pose(opening: float) -> np.ndarray:
        """How the hand is turned when the door is open by so much; upright, as leaning fingers slip off the lever."""
        return facing_down(across + opening)

    def grip() -> np.ndarray:
        """The point of the lever that is taken, wherever the lever is."""
        at, turned = env.body("Door_latch")
        point: np.ndarray = at + turned @ np.array([reach, _LEVER, 0.0])
        return point

    def above() -> Pose:
        return grip() + style.height * UP, pose(0.0)

    def there() -> Pose:
        return grip(), pose(0.0)

    def press() -> Pose:
        if down * float(data.qpos[env.raw.handle_qpos_addr]) >= _UNLATCHED:
            return env.hand
        at = env.body("Door_latch")[0]
        return at + rotation_about(normal, down * lead) @ (grip() - at), pose(0.0)

    def draw() -> Pose:
        opening = float(data.qpos[env.raw.hinge_qpos_addr])
        if opening >= _OPEN:
            return env.hand
        at, turned = env.body("Door_door")
        hinge = at + turned @ _HINGE
        return hinge + rotation_about(UP, pull) @ (env.hand[0] - hinge), pose(opening + pull)

    return [
        Phase(above, OPEN, close=0.025, turned=0.12),
        Phase(there, OPEN, close=0.006, turned=0.06, most=60, calm=0.2, speed=0.7),
        stay(env, CLOSED, style.patience),
        Phase(press, CLOSED, close=0.001, turned=4.0, most=80, calm=0.2, speed=0.8, sure=True),
        Phase(draw, CLOSED, close=0.001, turned=4.0, most=80, calm=0.2, sure=True),
        stay(env, CLOSED, style.patience),  # fingers that open would push the door back
    ]
