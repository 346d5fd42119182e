"""Scripted demonstrators for libero_object (into the basket) and libero_spatial (the bowl onto the plate).

The grasp is chosen among many around the object: those that fit between the fingers and leave the hand room. Bowls are
taken by the rim, boxes and bottles across a side that is narrow enough where the fingers are, cans from anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from actionpiece.errors import ActionPieceError
from actionpiece.sim.environment import Environment
from actionpiece.sim.libero_tasks import suite_of
from actionpiece.sim.motion import CLOSED, OPEN, UP, Phase, Plan, Pose, Style, facing_down, raise_hand, stay
from actionpiece.sim.shapes import OPENING, PALM, TIP, Boxes, between, boxes_of, clearance, obstacles, width
from actionpiece.sim.tasks import Task

_ROOM = 0.010  # metres that the hand should have around it
_TRIES = 36  # grasps that are looked at
_WALL = 0.004  # metres from a bowl's outer edge to the middle of its wall
_NEAR = 0.04  # metres of the way to a grasp that make it e times less likely


@dataclass(frozen=True)
class Grasp:
    """In the object's frame: where the hand goes and how it is turned; room: how much it has there, in metres.

    outward: how far the hand moves away from the object's axis while it closes.
    """

    position: np.ndarray
    rotation: np.ndarray
    room: float
    outward: float = 0.0


def plan_for(task: Task) -> Plan:
    """How to do a task of LIBERO."""
    plans = {"libero_object": _into_the_basket, "libero_spatial": _onto_the_plate}
    suite = suite_of(task)
    if suite not in plans:
        raise ActionPieceError(f"there is no demonstrator for this suite ({suite}); there are for {', '.join(plans)}")
    return plans[suite]


def _into_the_basket(env: Environment, style: Style, rng: np.random.Generator) -> list[Phase]:
    name, basket = (f"{one}_main" for one in env.raw.parsed_problem["obj_of_interest"])
    grasp = _choose(env, name, _sides(env, name, rng), style, rng)
    corners = boxes_of(env, [basket]).corners()
    floor, rim = float(corners[..., 2].min()), float(corners[..., 2].max())
    inside = env.site("basket_1_contain_region") + np.append(rng.uniform(-0.012, 0.012, size=2), 0.0)
    turned = facing_down(_hand_yaw_of(env, name, grasp) + rng.uniform(-0.3, 0.3))
    travel = rim + float(rng.uniform(0.03, 0.07))
    # As deep as the basket allows: the palm must not come down on its rim.
    below = float(rng.uniform(0.03, 0.05))

    def over(bottom: float) -> Callable[[], Pose]:
        """The object's lowest point at this height, its middle over the basket's."""

        def goal() -> Pose:
            at, held = env.hand[0], env.body(name)[0]
            lowest = float(boxes_of(env, [name]).corners()[..., 2].min())
            hand = inside + (at - held)
            hand[2] = max(bottom + at[2] - lowest, rim - 0.5 * PALM)
            return hand, turned

        return goal

    lowest = float(boxes_of(env, [name]).corners()[..., 2].min())
    return [
        *_take(env, style, name, grasp),
        raise_hand(env, travel - lowest, CLOSED),
        Phase(over(travel), CLOSED, close=0.025, turned=0.3, most=120, calm=0.6),
        Phase(over(floor + below), CLOSED, close=0.015, turned=0.3, most=40, calm=0.2, speed=0.8),
        stay(env, OPEN, style.patience),
        replace(raise_hand(env, 0.12, OPEN), hold=4),
    ]


def _onto_the_plate(env: Environment, style: Style, rng: np.random.Generator) -> list[Phase]:
    name, plate = (f"{one}_main" for one in env.raw.parsed_problem["obj_of_interest"])
    # A rim is thin: the fingers have far to go until they hold it.
    style = replace(style, tilt=0.3 * style.tilt, patience=14 + style.patience // 2)
    # Where it is narrow, as in a drawer, the hand comes down further inside and moves out to the rim as it closes.
    grasp = _first_roomy(
        replace(_choose(env, name, _rim(env, name, inside, rng), style, rng), outward=inside - _WALL)
        for inside in (_WALL, _WALL + 0.01, _WALL + 0.02)
    )
    offset = np.append(rng.uniform(-0.006, 0.006, size=2), 0.0)
    turned = facing_down(_hand_yaw_of(env, name, grasp) + rng.uniform(-0.2, 0.2))
    gap = float(rng.uniform(0.05, 0.08))
    rise = max(gap + 0.03, _height_around(env, name) + 0.04)

    def over(height: float) -> Callable[[], Pose]:
        """The bowl so high over the plate; from afar it keeps the height that it has, to clear a drawer's front."""

        def goal() -> Pose:
            held, below = env.body(name)[0], env.body(plate)[0] + offset
            far = float(np.linalg.norm((held - below)[:2]))
            height_now = min(float(held[2] - below[2]), height + max(far - 0.08, 0.0))
            return below + max(height, height_now) * UP + (env.hand[0] - held), turned

        return goal

    return [
        *_take(env, style, name, grasp),
        *_pull_out(env, name),
        raise_hand(env, rise, CLOSED),
        Phase(over(gap), CLOSED, close=0.02, turned=0.2, most=120, calm=0.5),
        Phase(over(0.012), CLOSED, close=0.006, turned=0.15, most=40, calm=0.1, speed=0.5),
        stay(env, OPEN, style.patience),
        replace(raise_hand(env, 0.1, OPEN), hold=4),
    ]


def _sides(env: Environment, name: str, rng: np.random.Generator) -> Iterator[Pose]:
    """Hands across something that stands or lies, wherever it is narrow enough, in the world's frame."""
    shape = boxes_of(env, [name])
    corners = shape.corners().reshape(-1, 3)
    low, high = float(corners[:, 2].min()), float(corners[:, 2].max())
    # Near the top, so that the palm stays above it; but fingers end above the ground.
    height = max(high - float(rng.uniform(0.6, 0.85)) * PALM, low + TIP + 0.003)
    turns = np.arange(_TRIES) * np.pi / _TRIES + rng.uniform(0, np.pi / _TRIES)
    directions = np.stack((np.cos(turns), np.sin(turns), np.zeros(_TRIES)), axis=1)
    widths = np.array([width(shape, direction, height - TIP, height + TIP) for direction in directions])
    fits = widths < min(OPENING - 0.006, float(widths.min()) + 0.008)  # askew, a box turns between the fingers
    middle = np.append(_middle(shape, height), height)
    for turn, direction in zip(turns[fits], directions[fits], strict=True):
        along = np.cross(UP, direction)
        spare = max(width(shape, along, height - TIP, height + TIP) / 2 - 0.02, 0.0)
        for shift in (0.0,) if spare < 0.01 else (-spare, 0.0, spare):  # a long side leaves a choice
            yield middle + shift * along, facing_down(float(turn))


def _middle(shape: Boxes, height: float) -> np.ndarray:
    """The middle (2,) of a shape where it is cut at a height."""
    points = shape.kept(between(shape, height - TIP, height + TIP)).corners().reshape(-1, 3)[:, :2]
    middle: np.ndarray = (points.min(axis=0) + points.max(axis=0)) / 2
    return middle


def _rim(env: Environment, name: str, inside: float, rng: np.random.Generator) -> Iterator[Pose]:
    """Hands astride a bowl's rim, so far inside of it, all around, leaning with it, in the world's frame."""
    at, turned = env.body(name)
    corners = (boxes_of(env, [name]).corners().reshape(-1, 3) - at) @ turned  # in the bowl's frame, its axis along z
    top = float(corners[:, 2].max())
    radius = float(np.linalg.norm(corners[corners[:, 2] > top - 0.01, :2], axis=1).max()) - inside
    depth = float(rng.uniform(0.4, 0.6)) * PALM
    for turn in np.arange(_TRIES) * 2 * np.pi / _TRIES + rng.uniform(0, np.pi / _TRIES):
        on_rim = np.array([radius * np.cos(turn), radius * np.sin(turn), top - depth])
        yield at + turned @ on_rim, turned @ facing_down(float(turn))


def _choose(env: Environment, name: str, poses: Iterator[Pose], style: Style, rng: np.random.Generator) -> Grasp:
    """One of the grasps, of those with room enough for the hand (the roomiest if none has), rather a near one."""
    at, turned = env.body(name)
    around = obstacles(env, without=name).near(at, 0.3)
    grasps, ways = [], []
    for position, rotation in poses:
        fingers = rotation[:, 0]
        if fingers @ env.hand[1][:, 0] < 0:  # the hand is the same from behind
            rotation = rotation @ np.diag((-1.0, -1.0, 1.0))
        rotation = _leaning(style) @ rotation
        grasps.append(Grasp(turned.T @ (position - at), turned.T @ rotation, clearance(around, position, rotation)))
        ways.append(float(np.linalg.norm(position - env.hand[0])))
    if not grasps:
        raise ActionPieceError(f"no side of {name} fits between the fingers")
    room = np.array([grasp.room for grasp in grasps])
    roomy = room >= min(_ROOM, float(room.max()))
    weights = np.where(roomy, np.exp(-np.array(ways) / _NEAR), 0.0)
    return grasps[int(rng.choice(len(grasps), p=weights / weights.sum()))]


def _first_roomy(grasps: Iterator[Grasp]) -> Grasp:
    """The first with room enough, else the roomiest."""
    seen = []
    for grasp in grasps:
        if grasp.room >= _ROOM:
            return grasp
        seen.append(grasp)
    return max(seen, key=lambda grasp: grasp.room)


def _height_around(env: Environment, name: str) -> float:
    """How far the things beside an object stand above its lowest point, in metres."""
    near = obstacles(env, without=name).near(env.body(name)[0], 0.09).corners().reshape(-1, 3)
    return float(near[:, 2].max() - boxes_of(env, [name]).corners()[..., 2].min())


def _pull_out(env: Environment, name: str) -> list[Phase]:
    """Out from under what is above a bowl, if something is: of a drawer only a part is open."""
    at = env.body(name)[0]
    corners = boxes_of(env, [name]).corners().reshape(-1, 3)
    radius, top = float(np.linalg.norm((corners - at)[:, :2], axis=1).max()), float(corners[:, 2].max())
    around = obstacles(env, without=name).near(at, radius + 0.01)
    above = around.kept(around.corners()[..., 2].min(axis=1) > top - 0.005)
    if not len(above.centres):
        return []
    ways = (at - above.nearest(at)) * (1.0, 1.0, 0.0)
    apart = np.linalg.norm(ways, axis=1)
    way = ways[int(apart.argmin())] / max(float(apart.min()), 1e-9)
    shift = way * (radius + 0.012 - float(apart.min()))
    return [replace(_move(env, shift, CLOSED, most=25), close=0.005, calm=0.2, speed=0.4)]


def _leaning(style: Style) -> np.ndarray:
    """The turn (3, 3) by which the hand leans in this style."""
    leaning: np.ndarray = facing_down(0.0, style.tilt) @ facing_down(0.0).T
    return leaning


def _hand_yaw_of(env: Environment, name: str, grasp: Grasp) -> float:
    fingers = (env.body(name)[1] @ grasp.rotation)[:, 0]
    return float(np.arctan2(fingers[1], fingers[0]))


def _take(env: Environment, style: Style, name: str, grasp: Grasp) -> list[Phase]:
    """Above the grasp, down to it, close the fingers."""

    def there() -> Pose:
        at, turned = env.body(name)
        return at + turned @ grasp.position, turned @ grasp.rotation

    def above() -> Pose:
        position, rotation = there()
        return position + style.height * UP, rotation

    return [
        Phase(above, OPEN, close=0.03, turned=0.12),
        Phase(there, OPEN, close=0.005, turned=0.06, most=50, calm=0.15, speed=0.7),
        replace(_move(env, env.body(name)[1] @ _outward(grasp), CLOSED, style.patience), speed=0.3),
    ]


def _outward(grasp: Grasp) -> np.ndarray:
    flat: np.ndarray = grasp.position * (1.0, 1.0, 0.0)
    return flat * (grasp.outward / max(float(np.linalg.norm(flat)), 1e-9))


def _move(env: Environment, shift: np.ndarray, grip: float, most: int) -> Phase:
    """From where the hand is when the phase begins, by so much (3,)."""
    staying = stay(env, grip, most)

    def goal() -> Pose:
        position, rotation = staying.goal()
        return position + shift, rotation

    return replace(staying, goal=goal)
