"""Scripted demonstrators: they see the simulator's state, follow waypoints, and no two do it the same way.

A demonstration is a list of phases; each has a goal for the hand that may follow an object, and ends when the hand is
there. Grasp, yaw, tilt, speed, height of approach and a slow wobble are drawn anew for every episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from actionpiece.sim.environment import Environment, axis_angle, rotation_about

OPEN, CLOSED = -1.0, 1.0
_METRES, _RADIANS = 0.05, 0.5  # what a command of 1 asks for in one step
_UP = np.array([0.0, 0.0, 1.0])

Pose = tuple[np.ndarray, np.ndarray]  # position (3,), rotation matrix (3, 3)


@dataclass(frozen=True)
class Style:
    """How this episode is done."""

    speed: float  # share of the fastest command
    gain: float  # share of the remaining way that one command asks for
    height: float  # of the approach above the object, in metres
    tilt: np.ndarray  # axis-angle by which the hand leans while it grasps
    wobble: float  # size of the noise, in commands
    patience: int  # steps to wait for the fingers

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Style:
        """A style at random."""
        direction = rng.uniform(0, 2 * np.pi)
        return cls(
            speed=rng.uniform(0.5, 1.0),
            gain=rng.uniform(0.5, 0.9),
            height=rng.uniform(0.07, 0.14),
            tilt=rng.uniform(0, 0.12) * np.array([np.cos(direction), np.sin(direction), 0.0]),
            wobble=rng.uniform(0.02, 0.12),
            patience=int(rng.integers(6, 12)),
        )


@dataclass(frozen=True)
class Phase:
    """Go to `goal()`; done when nearer than `close` (metres) and `turned` (radians), or after `most` steps.

    hold: steps to stay after arriving. calm: how much of the wobble is left, less where things touch.
    """

    goal: Callable[[], Pose]
    grip: float
    close: float = 0.012
    turned: float = 0.08
    most: int = 80
    hold: int = 0
    calm: float = 1.0
    speed: float = 1.0


def demonstrate(env: Environment, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The commands (7,) of one demonstration; the caller executes each before asking for the next."""
    style = Style.draw(rng)
    noise = np.zeros(6)
    for phase in PLANS[env.task.name](env, style, rng):
        held = 0
        for _ in range(phase.most):
            position, rotation = phase.goal()
            at, turned = env.hand
            move, turn = position - at, axis_angle(rotation @ turned.T)
            if np.linalg.norm(move) < phase.close and np.linalg.norm(turn) < phase.turned:
                if held >= phase.hold:
                    break
                held += 1
            # A wobble that takes about ten steps to change its mind, as a hand does.
            noise = 0.9 * noise + np.sqrt(1 - 0.9**2) * rng.normal(size=6) * style.wobble
            fastest = style.speed * phase.speed
            linear = _limited(style.gain * move / _METRES, fastest)
            angular = _limited(style.gain * turn / _RADIANS, fastest)
            command = np.concatenate((linear, angular)) + phase.calm * noise * np.repeat((1.0, 0.3), 3)
            yield np.clip(np.append(command, phase.grip), -1, 1).astype(np.float32)


def _limited(vector: np.ndarray, most: float) -> np.ndarray:
    size = np.linalg.norm(vector)
    return vector if size <= most else vector * (most / size)


def _facing_down(yaw: float, tilt: np.ndarray | None = None) -> np.ndarray:
    """A hand that points down, its fingers opening along the horizontal direction `yaw`."""
    fingers = np.array([np.cos(yaw), np.sin(yaw), 0.0])
    down = -_UP
    rotation = np.stack((fingers, np.cross(down, fingers), down), axis=1)
    if tilt is not None and (angle := float(np.linalg.norm(tilt))) > 0:
        rotation = rotation_about(tilt / angle, angle) @ rotation
    return rotation


def _yaw(direction: np.ndarray) -> float:
    return float(np.arctan2(direction[1], direction[0]))


def _nearest_turn(yaw: float, reference: float, period: float) -> float:
    """The angle nearest to `reference` that is `yaw` up to whole periods: symmetric grasps need no detour."""
    return yaw + period * round((reference - yaw) / period)


def _hand_yaw(env: Environment) -> float:
    return _yaw(env.hand[1][:, 0])


def _grasp(env: Environment, style: Style, target: Callable[[], np.ndarray], yaw: float) -> list[Phase]:
    """Above the target, down to it, close the fingers."""
    rotation = _facing_down(yaw, style.tilt)

    def above() -> Pose:
        return target() + style.height * _UP, rotation

    def there() -> Pose:
        return target(), rotation

    return [
        Phase(above, OPEN, close=0.025, turned=0.12),
        Phase(there, OPEN, close=0.006, turned=0.06, most=60, calm=0.2, speed=0.7),
        _stay(env, CLOSED, style.patience),
    ]


def _stay(env: Environment, grip: float, steps: int) -> Phase:
    """Keep the hand where it is when the phase begins, and move only the fingers."""
    kept: list[Pose] = []

    def here() -> Pose:
        if not kept:
            kept.append(env.hand)
        return kept[0]

    return Phase(here, grip, close=-1.0, most=steps, calm=0.1)


def _raise(env: Environment, height: float, grip: float) -> Phase:
    """Straight up by so much, from where the phase begins."""
    kept: list[Pose] = []

    def goal() -> Pose:
        if not kept:
            position, rotation = env.hand
            kept.append((position + height * _UP, rotation))
        return kept[0]

    return Phase(goal, grip, close=0.02, turned=0.2, calm=0.5)


def _carry(env: Environment, body: str, goal: Callable[[], Pose]) -> Callable[[], Pose]:
    """Where the hand must be for the body in it to be at `goal`, given how it is held now."""

    def hand() -> Pose:
        at, turned = env.hand
        held_at, held_turned = env.body(body)
        position, rotation = goal()
        turn = rotation @ held_turned.T
        return position + turn @ (at - held_at), turn @ turned

    return hand


def _lift(env: Environment, style: Style, rng: np.random.Generator) -> list[Phase]:
    yaw = _nearest_turn(_yaw(env.body("cube_main")[1][:, 0]), _hand_yaw(env), np.pi / 2)
    phases = _grasp(env, style, lambda: env.body("cube_main")[0], yaw)
    return [*phases, replace(_raise(env, rng.uniform(0.08, 0.16), CLOSED), hold=4)]


def _stack(env: Environment, style: Style, rng: np.random.Generator) -> list[Phase]:
    level = replace(style, tilt=0.3 * style.tilt)  # a cube that leans does not stay on another
    yaw = _nearest_turn(_yaw(env.body("cubeA_main")[1][:, 0]), _hand_yaw(env), np.pi / 2)
    turn = _nearest_turn(_yaw(env.body("cubeB_main")[1][:, 0]), yaw, np.pi / 2) if rng.random() < 0.5 else yaw
    gap = float(rng.uniform(0.05, 0.1))

    def over(height: float) -> Callable[[], Pose]:
        def goal() -> Pose:
            below = env.body("cubeB_main")[0]
            held = env.body("cubeA_main")[0]
            at = env.hand[0]
            # 0.045 m: half of both cubes' edges.
            return below + (0.045 + height) * _UP + (at - held), _facing_down(turn)

        return goal

    return [
        *_grasp(env, level, lambda: env.body("cubeA_main")[0], yaw),
        _raise(env, 0.08 + gap, CLOSED),
        Phase(over(gap), CLOSED, close=0.008, turned=0.06, calm=0.4),
        Phase(over(0.002), CLOSED, close=0.005, turned=0.06, most=50, calm=0.1, speed=0.5),
        _stay(env, OPEN, style.patience),
        replace(_raise(env, 0.1, OPEN), hold=4),
    ]


def _pick_place(body: str, number: int, *, symmetric: bool, lower: float) -> Callable[..., list[Phase]]:
    """Into the bin with this number. `lower`: from the object's middle to where the fingers take it, in metres."""

    def plan(env: Environment, style: Style, rng: np.random.Generator) -> list[Phase]:
        if symmetric:
            yaw = _hand_yaw(env) + rng.uniform(-0.8, 0.8)
        else:  # across the narrow side of a box
            yaw = _nearest_turn(_yaw(_narrow_side(env, body)), _hand_yaw(env), np.pi)

        def target() -> np.ndarray:
            grip: np.ndarray = env.body(body)[0] + lower * _UP
            return grip

        place = env.raw.target_bin_placements[number] + np.append(rng.uniform(-0.02, 0.02, size=2), 0.0)
        height = float(rng.uniform(0.28, 0.36))
        turned = _facing_down(yaw + rng.uniform(-0.3, 0.3))

        def over(z: float) -> Callable[[], Pose]:
            def goal() -> Pose:
                at, held = env.hand[0], env.body(body)[0]
                return np.array([place[0], place[1], place[2] + z]) + (at - held) * (1, 1, 0), turned

            return goal

        return [
            *_grasp(env, style, target, yaw),
            _raise(env, height - 0.02, CLOSED),
            Phase(over(height), CLOSED, close=0.03, turned=0.3, most=120, calm=0.7),
            Phase(over(0.16), CLOSED, close=0.025, turned=0.3, most=40, calm=0.3, speed=0.8),
            _stay(env, OPEN, style.patience),
            replace(_raise(env, 0.15, OPEN), hold=6),
        ]

    return plan


def _narrow_side(env: Environment, body: str) -> np.ndarray:
    """The horizontal direction (3,) in which a body is narrowest, by the extents of what can be touched of it."""
    model, data = env.raw.sim.model, env.raw.sim.data
    index = model.body_name2id(body)
    touched = [g for g in range(model.ngeom) if model.geom_bodyid[g] == index and model.geom_group[g] == 0]
    largest = max(touched, key=lambda g: float(np.prod(model.geom_size[g])))
    axes = data.geom_xmat[largest].reshape(3, 3).T  # a mesh has a frame of its own within its body
    flat = [(size, axis) for size, axis in zip(model.geom_size[largest], axes, strict=True) if abs(axis[2]) < 0.5]
    narrowest: np.ndarray = min(flat, key=lambda pair: float(pair[0]))[1]
    return narrowest


def _nut(name: str, peg: str, period: float) -> Callable[..., list[Phase]]:
    """Take the nut by its handle and put it over its peg; `period`: the symmetry of the hole."""
    body = f"{name}_main"

    def plan(env: Environment, style: Style, rng: np.random.Generator) -> list[Phase]:
        level = replace(style, tilt=np.zeros(3))
        handle = env.site(f"{name}_handle_site") - env.body(body)[0]
        yaw = _nearest_turn(_yaw(handle) + np.pi / 2, _hand_yaw(env), np.pi)
        gap = float(rng.uniform(0.02, 0.05))
        top = env.body(peg)[0]
        peg_yaw, nut_yaw = _yaw(env.body(peg)[1][:, 0]), _yaw(env.body(body)[1][:, 0])
        base = env.body("robot0_base")[0]

        def reach(turn: float) -> float:
            """How far out the hand would be, with something on top for turning the wrist."""
            hand = top + rotation_about(_UP, turn) @ handle
            return float(np.linalg.norm((hand - base)[:2])) + 0.02 * abs(turn)

        # The hole fits in several ways, and with the handle on the far side the arm may be too short.
        turns = [_nearest_turn(peg_yaw, nut_yaw, period) - nut_yaw + k * period for k in range(-4, 5)]
        turn = min((turn for turn in turns if abs(turn) < 1.9), key=reach)
        flat = rotation_about(_UP, nut_yaw + turn)

        def over(z: float) -> Callable[[], Pose]:
            return _carry(env, body, lambda: (np.array([top[0], top[1], z]), flat))

        surface = float(env.raw.table_offset[2])
        return [
            *_grasp(env, level, lambda: env.site(f"{name}_handle_site"), yaw),
            _raise(env, 0.2 + gap, CLOSED),
            Phase(over(surface + 0.19 + gap), CLOSED, close=0.006, turned=0.04, most=140, calm=0.3),
            Phase(over(surface + 0.05), CLOSED, close=0.012, turned=0.1, most=50, calm=0.05, speed=0.5),
            _stay(env, OPEN, style.patience),
            replace(_raise(env, 0.1, OPEN), hold=6),
        ]

    return plan


PLANS: dict[str, Callable[[Environment, Style, np.random.Generator], list[Phase]]] = {
    "lift": _lift,
    "stack": _stack,
    "can": _pick_place("Can_main", 3, symmetric=True, lower=0.01),
    "milk": _pick_place("Milk_main", 0, symmetric=False, lower=0.03),
    "cereal": _pick_place("Cereal_main", 2, symmetric=False, lower=0.05),
    "square_nut": _nut("SquareNut", "peg1", np.pi / 2),
    "round_nut": _nut("RoundNut", "peg2", np.pi / 4),
}
