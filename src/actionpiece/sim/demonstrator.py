"""Scripted demonstrators: they see the simulator's state, follow waypoints, and no two do it the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from actionpiece.sim import door, libero_tasks
from actionpiece.sim.environment import Environment, rotation_about
from actionpiece.sim.motion import (
    CLOSED,
    OPEN,
    UP,
    Move,
    Phase,
    Plan,
    Pose,
    Style,
    carry,
    facing_down,
    follow,
    grasp,
    hand_yaw,
    nearest_turn,
    raise_hand,
    stay,
    yaw_of,
)

_WRIST = 2.6  # radians that the Panda's last joint is asked to turn at most; it stops at 2.9


def demonstrate(env: Environment, rng: np.random.Generator, mistakes: float = 0.0, spare: int = 0) -> Iterator[Move]:
    """The moves of one demonstration; the caller executes each before asking for the next.

    mistakes: the share of the delicate movements that first go astray and are mended, after `spare` steps.
    """
    name = env.task.name
    if libero_tasks.is_libero(name):
        from actionpiece.sim.libero_demonstrator import plan_for  # of use only where LIBERO is

        return follow(env, plan_for(env.task), rng, mistakes, spare)
    return follow(env, PLANS[name], rng, mistakes, spare)


def _lift(env: Environment, style: Style, rng: np.random.Generator) -> list[Phase]:
    yaw = nearest_turn(yaw_of(env.body("cube_main")[1][:, 0]), hand_yaw(env), np.pi / 2)
    phases = grasp(env, style, lambda: env.body("cube_main")[0], yaw)
    return [*phases, replace(raise_hand(env, rng.uniform(0.08, 0.16), CLOSED), hold=4)]


def _stack(env: Environment, style: Style, rng: np.random.Generator) -> list[Phase]:
    level = replace(style, tilt=0.3 * style.tilt)  # a cube that leans does not stay on another
    yaw = nearest_turn(yaw_of(env.body("cubeA_main")[1][:, 0]), hand_yaw(env), np.pi / 2)
    apart = env.body("cubeB_main")[0] - env.body("cubeA_main")[0]
    if np.linalg.norm(apart) < 0.1:  # a finger needs room beside the cube: take it across the way to the other one
        ways = [way for way in (yaw, yaw + np.pi / 2, yaw - np.pi / 2) if way - hand_yaw(env) > -1.6]  # wrist's limit
        yaw = min(ways, key=lambda way: abs(np.cos(way - yaw_of(apart))))
    turn = nearest_turn(yaw_of(env.body("cubeB_main")[1][:, 0]), yaw, np.pi / 2) if rng.random() < 0.5 else yaw
    gap = float(rng.uniform(0.05, 0.1))

    def over(height: float) -> Callable[[], Pose]:
        def goal() -> Pose:
            below = env.body("cubeB_main")[0]
            held = env.body("cubeA_main")[0]
            at = env.hand[0]
            # 0.045 m: half of both cubes' edges.
            return below + (0.045 + height) * UP + (at - held), facing_down(turn)

        return goal

    return [
        *grasp(env, level, lambda: env.body("cubeA_main")[0], yaw),
        raise_hand(env, 0.08 + gap, CLOSED),
        Phase(over(gap), CLOSED, close=0.008, turned=0.06, calm=0.4),
        Phase(over(0.002), CLOSED, close=0.005, turned=0.06, most=50, calm=0.1, speed=0.5),
        stay(env, OPEN, style.patience),
        replace(raise_hand(env, 0.1, OPEN), hold=4),
    ]


def _pick_place(body: str, number: int, *, symmetric: bool, lower: float) -> Callable[..., list[Phase]]:
    """Into the bin with this number. `lower`: from the object's middle to where the fingers take it, in metres."""

    def plan(env: Environment, style: Style, rng: np.random.Generator) -> list[Phase]:
        if symmetric:
            yaw = hand_yaw(env) + rng.uniform(-0.8, 0.8)
        else:  # across the narrow side of a box
            yaw = nearest_turn(yaw_of(_narrow_side(env, body)), hand_yaw(env), np.pi)

        def target() -> np.ndarray:
            grip: np.ndarray = env.body(body)[0] + lower * UP
            return grip

        place = env.raw.target_bin_placements[number] + np.append(rng.uniform(-0.02, 0.02, size=2), 0.0)
        height = float(rng.uniform(0.28, 0.36))
        turned = facing_down(yaw + rng.uniform(-0.3, 0.3))

        def over(z: float) -> Callable[[], Pose]:
            def goal() -> Pose:
                at, held = env.hand[0], env.body(body)[0]
                return np.array([place[0], place[1], place[2] + z]) + (at - held) * (1, 1, 0), turned

            return goal

        return [
            *grasp(env, style, target, yaw),
            raise_hand(env, height - 0.02, CLOSED),
            Phase(over(height), CLOSED, close=0.03, turned=0.3, most=120, calm=0.7),
            Phase(over(0.16), CLOSED, close=0.025, turned=0.3, most=40, calm=0.3, speed=0.8),
            stay(env, OPEN, style.patience),
            replace(raise_hand(env, 0.15, OPEN), hold=6),
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
        gap = float(rng.uniform(0.02, 0.05))
        top = env.body(peg)[0]
        peg_yaw, nut_yaw = yaw_of(env.body(peg)[1][:, 0]), yaw_of(env.body(body)[1][:, 0])
        base, hand, facing = env.body("robot0_base")[0], env.hand[0], hand_yaw(env)
        wrist = float(env.raw.sim.data.qpos[env.raw.robots[0]._ref_joint_pos_indexes[-1]])

        def cost(yaw: float, turn: float) -> float:
            """How far out the hand would be, with something on top for turning, and much for what the wrist cannot."""
            there = top + rotation_about(UP, turn) @ handle
            about_base = yaw_of(there - base) - yaw_of(hand - base)
            last_joint = wrist - (yaw + turn - facing) + about_base
            far = float(np.linalg.norm((there - base)[:2]))
            return far + 0.02 * (abs(turn) + abs(yaw - facing)) + 10 * max(abs(last_joint) - _WRIST, 0.0)

        # The hole fits in several ways and the handle can be taken in two; with the handle on the far side the arm may
        # be too short, and the last joint turns only so far.
        first = nearest_turn(yaw_of(handle) + np.pi / 2, facing, np.pi)
        turns = [nearest_turn(peg_yaw, nut_yaw, period) - nut_yaw + k * period for k in range(-4, 5)]
        ways = [(first + k * np.pi, turn) for k in (-1, 0, 1) for turn in turns if abs(turn) < 1.9]
        yaw, turn = min((way for way in ways if abs(way[0] - facing) < 2.5), key=lambda way: cost(*way))
        flat = rotation_about(UP, nut_yaw + turn)

        def over(z: float) -> Callable[[], Pose]:
            return carry(env, body, lambda: (np.array([top[0], top[1], z]), flat))

        surface = float(env.raw.table_offset[2])
        return [
            *grasp(env, level, lambda: env.site(f"{name}_handle_site"), yaw),
            raise_hand(env, 0.2 + gap, CLOSED),
            Phase(over(surface + 0.19 + gap), CLOSED, close=0.006, turned=0.04, most=140, calm=0.3),
            Phase(over(surface + 0.05), CLOSED, close=0.012, turned=0.1, most=50, calm=0.05, speed=0.5),
            stay(env, OPEN, style.patience),
            replace(raise_hand(env, 0.1, OPEN), hold=6),
        ]

    return plan


PLANS: dict[str, Plan] = {
    "lift": _lift,
    "stack": _stack,
    "can": _pick_place("Can_main", 3, symmetric=True, lower=0.01),
    "milk": _pick_place("Milk_main", 0, symmetric=False, lower=0.03),
    "cereal": _pick_place("Cereal_main", 2, symmetric=False, lower=0.05),
    "square_nut": _nut("SquareNut", "peg1", np.pi / 2),
    "round_nut": _nut("RoundNut", "peg2", np.pi / 4),
    "door": door.plan,
}
