"""How a scripted hand moves: phases with goals, approached in a style of its own, and the pieces of plans.

A demonstration is a list of phases; each has a goal for the hand that may follow an object, and ends when the hand is
there. Grasp, yaw, tilt, speed, height of approach and a slow wobble are drawn anew for every episode. A demonstrator
may also make mistakes, and then shows how they are mended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from actionpiece.sim.environment import Environment, axis_angle, rotation_about

OPEN, CLOSED = -1.0, 1.0
_METRES, _RADIANS = 0.05, 0.5  # what a command of 1 asks for in one step
_TOUCHING = 0.4  # phases as calm as this are those in which a mistake matters
_TWISTED = 0.7  # radians by which a mistaken hand is turned at most; a cube looks the same after a quarter
UP = np.array([0.0, 0.0, 1.0])

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
    sure: bool = False  # beside its goal the same work would be done, so it is never a mistake
    astray: bool = False  # it is a mistake


@dataclass(frozen=True)
class Move:
    """A command (7,), and whether it belongs to a mistake, which nobody should learn to make."""

    command: np.ndarray
    astray: bool


Plan = Callable[[Environment, Style, np.random.Generator], Iterable[Phase]]


def follow(
    env: Environment, plan: Plan, rng: np.random.Generator, mistakes: float = 0.0, spare: int = 0
) -> Iterator[Move]:
    """The moves of one demonstration; the caller executes each before asking for the next.

    mistakes: the share of the delicate phases that first go to a wrong place, after `spare` steps.
    """
    style = Style.draw(rng)
    noise = np.zeros(6)
    steps = 0
    phases = _with_mistakes(env, plan(env, style, rng), style, rng, lambda: mistakes if steps >= spare else 0.0)
    for phase in phases:
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
            steps += 1
            yield Move(np.clip(np.append(command, phase.grip), -1, 1).astype(np.float32), phase.astray)


def _with_mistakes(
    env: Environment, phases: Iterable[Phase], style: Style, rng: np.random.Generator, share: Callable[[], float]
) -> Iterator[Phase]:
    for phase in phases:
        delicate = phase.close > 0 and phase.calm <= _TOUCHING and not phase.sure
        if delicate and share() and rng.random() < share():
            yield from _mistake(env, phase, style, rng)
        yield phase


def _mistake(env: Environment, phase: Phase, style: Style, rng: np.random.Generator) -> Iterator[Phase]:
    """Go beside the goal, turned the wrong way; an empty hand may close there too, and opens again above."""
    direction, aside = rng.uniform(0, 2 * np.pi), rng.uniform(0.0, 0.04)
    shift = np.array([aside * np.cos(direction), aside * np.sin(direction), rng.uniform(0.005, 0.03)])
    wrong = rotation_about(UP, rng.uniform(-_TWISTED, _TWISTED))

    def beside(higher: float = 0.0) -> Callable[[], Pose]:
        def goal() -> Pose:
            position, rotation = phase.goal()
            return position + shift + higher * UP, wrong @ rotation

        return goal

    yield replace(phase, goal=beside(), close=0.012, turned=0.15, most=30, hold=0, astray=True)
    if phase.grip == OPEN and rng.random() < 0.5:
        yield replace(stay(env, CLOSED, style.patience), astray=True)
        if rng.random() < 0.5:
            yield replace(raise_hand(env, rng.uniform(0.04, 0.1), CLOSED), most=30, astray=True)
        yield Phase(beside(rng.uniform(0.03, 0.06)), OPEN, close=0.02, turned=0.15, most=30)


def _limited(vector: np.ndarray, most: float) -> np.ndarray:
    size = np.linalg.norm(vector)
    return vector if size <= most else vector * (most / size)


def facing_down(yaw: float, tilt: np.ndarray | None = None) -> np.ndarray:
    """A hand that points down, its fingers opening along the horizontal direction `yaw`."""
    fingers = np.array([np.cos(yaw), np.sin(yaw), 0.0])
    down = -UP
    rotation = np.stack((fingers, np.cross(down, fingers), down), axis=1)
    if tilt is not None and (angle := float(np.linalg.norm(tilt))) > 0:
        rotation = rotation_about(tilt / angle, angle) @ rotation
    return rotation


def yaw_of(direction: np.ndarray) -> float:
    """The angle about the vertical of a direction (3,)."""
    return float(np.arctan2(direction[1], direction[0]))


def nearest_turn(yaw: float, reference: float, period: float) -> float:
    """The angle nearest to `reference` that is `yaw` up to whole periods: symmetric grasps need no detour."""
    return yaw + period * round((reference - yaw) / period)


def hand_yaw(env: Environment) -> float:
    """The direction in which the fingers open now."""
    return yaw_of(env.hand[1][:, 0])


def grasp(env: Environment, style: Style, target: Callable[[], np.ndarray], yaw: float) -> list[Phase]:
    """Above the target, down to it, close the fingers."""
    rotation = facing_down(yaw, style.tilt)

    def above() -> Pose:
        return target() + style.height * UP, rotation

    def there() -> Pose:
        return target(), rotation

    return [
        Phase(above, OPEN, close=0.025, turned=0.12),
        Phase(there, OPEN, close=0.006, turned=0.06, most=60, calm=0.2, speed=0.7),
        stay(env, CLOSED, style.patience),
    ]


def stay(env: Environment, grip: float, steps: int) -> Phase:
    """Keep the hand where it is when the phase begins, and move only the fingers."""
    kept: list[Pose] = []

    def here() -> Pose:
        if not kept:
            kept.append(env.hand)
        return kept[0]

    return Phase(here, grip, close=-1.0, most=steps, calm=0.1)


def raise_hand(env: Environment, height: float, grip: float) -> Phase:
    """Straight up by so much, from where the phase begins."""
    kept: list[Pose] = []

    def goal() -> Pose:
        if not kept:
            position, rotation = env.hand
            kept.append((position + height * UP, rotation))
        return kept[0]

    return Phase(goal, grip, close=0.02, turned=0.2, calm=0.5)


def carry(env: Environment, body: str, goal: Callable[[], Pose]) -> Callable[[], Pose]:
    """Where the hand must be for the body in it to be at `goal`, given how it is held now."""

    def hand() -> Pose:
        at, turned = env.hand
        held_at, held_turned = env.body(body)
        position, rotation = goal()
        turn = rotation @ held_turned.T
        return position + turn @ (at - held_at), turn @ turned

    return hand
