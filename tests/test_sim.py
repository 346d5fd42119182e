"""The simulator: the same seed is the same start, and the demonstrators do what they are asked to."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from actionpiece.errors import ActionPieceError
from actionpiece.sim.environment import Environment, axis_angle, rotation_about
from actionpiece.sim.tasks import TASKS, task


@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1e-3, 1e-8, np.pi, np.pi - 1e-7]))
def test_axis_angle_is_scipys(seed: int, angle: float) -> None:
    axis = np.random.default_rng(seed).normal(size=3)
    axis /= np.linalg.norm(axis)
    matrix = rotation_about(axis, angle)
    np.testing.assert_allclose(matrix, Rotation.from_rotvec(angle * axis).as_matrix(), atol=1e-12)
    found = axis_angle(matrix)
    # At half a turn an axis and its opposite are the same rotation.
    np.testing.assert_allclose(Rotation.from_rotvec(found).as_matrix(), matrix, atol=1e-7)
    assert np.linalg.norm(found) == pytest.approx(angle, abs=1e-6)


def test_no_turn_is_zero() -> None:
    np.testing.assert_array_equal(axis_angle(np.eye(3)), np.zeros(3))


def test_a_task_that_is_not_there_is_said_with_those_that_are() -> None:
    with pytest.raises(ActionPieceError, match=r"no task 'fly'; there are lift, stack"):
        task("fly")
    assert all(len(set(t.instructions)) >= 4 for t in TASKS.values())


def test_a_missing_simulator_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "robosuite", None)
    with pytest.raises(ActionPieceError, match=r"pip install -e .\.\[sim\]"):
        Environment(task("lift"))


@pytest.fixture(scope="module")
def lift() -> Environment:
    pytest.importorskip("robosuite")
    return Environment(task("lift"))


def play(env: Environment, seed: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Commands, states, and whether it ended well, of one demonstration."""
    from actionpiece.sim.demonstrator import demonstrate

    env.reset(seed)
    commands, states = [], []
    for move in demonstrate(env, np.random.default_rng(seed)):
        states.append(env.state)
        commands.append(move.command)
        env.step(move.command)
        if len(commands) >= env.task.max_steps:
            break
    return np.stack(commands), np.stack(states), env.success


@pytest.mark.slow
def test_demonstrations_succeed_differ_and_replay_to_the_bit(lift: Environment) -> None:
    first, second = play(lift, 1), play(lift, 2)
    assert first[2]
    assert second[2]
    assert first[0].shape[1:] == (7,)
    assert first[0].dtype == np.float32
    assert np.abs(first[0]).max() <= 1
    assert len(first[0]) != len(second[0]) or np.abs(first[0] - second[0]).max() > 0.1
    again = play(lift, 1)  # after others, in the same environment
    np.testing.assert_array_equal(again[0], first[0])
    np.testing.assert_array_equal(again[1], first[1])
    # Open loop: the recorded commands alone, without anybody looking.
    lift.reset(1)
    for command in first[0]:
        lift.step(command)
    assert lift.success


@pytest.mark.slow
def test_a_command_moves_the_hand_as_the_action_space_says(lift: Environment) -> None:
    """xyz in the world's axes; a turn about the vertical axis; the fingers close on +1."""
    lift.reset(0)
    for wrong in (np.full(7, np.nan), np.zeros(6)):
        with pytest.raises(ActionPieceError, match="a command is 7 finite numbers"):
            lift.step(wrong)
    for _ in range(5):
        lift.step(np.array([0, 0, 0, 0, 0, 0, -1.0]))
    start, turned = lift.hand
    for _ in range(10):
        lift.step(np.array([0.5, 0, 0, 0, 0, 0.2, -1.0]))
    moved, after = lift.hand
    assert moved[0] - start[0] > 0.05
    assert abs(moved[1] - start[1]) < 0.02
    turn = axis_angle(after @ turned.T)
    assert turn[2] > 0.2
    assert np.abs(turn[:2]).max() < 0.1
    open_fingers = lift.state[6:]
    for _ in range(15):
        lift.step(np.array([0, 0, 0, 0, 0, 0, 1.0]))
    assert np.abs(lift.state[6:]).sum() < 0.5 * np.abs(open_fingers).sum()


def test_resets_leave_the_callers_random_numbers_alone(lift: Environment) -> None:
    np.random.seed(3)
    expected = np.random.random()
    np.random.seed(3)
    lift.reset(0)
    assert np.random.random() == expected
