"""`Environment`: one robosuite task behind the few things the rest of the house needs of it.

Commands are 7-D in [-1, 1] at 20 Hz (robosuite's OSC_POSE): translation x0.05 m, axis-angle x0.5 rad, both in the
world's axes, gripper -1 open, +1 closed: the action space `libero`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from actionpiece.errors import ActionPieceError, not_installed
from actionpiece.sim.rendering import Renderer, choose_backend, make_importable
from actionpiece.sim.tasks import Task

RATE = 20.0
CAMERAS = {"agent": "agentview", "wrist": "robot0_eye_in_hand"}  # ours: robosuite's
_GRIP_SITE = "gripper0_grip_site"
_SEEN = 1  # the group of geoms that robosuite means to be looked at


def load_robosuite() -> Any:
    """robosuite, quiet and on one core; an error that names the extra where it is not installed."""
    for threads in ("OMP_NUM_THREADS", "LP_NUM_THREADS"):  # the second is Mesa's software renderer
        os.environ.setdefault(threads, "1")  # one environment is one core's work
    logging.getLogger("robosuite_logs").setLevel(logging.ERROR)  # a missing private macro file is no news
    make_importable()
    try:
        import robosuite
    except ImportError as error:
        raise not_installed(f"the simulator is not installed ({error})", "sim") from None
    return robosuite


@contextlib.contextmanager
def drawing_from(seed: int | list[int]) -> Iterator[None]:
    """robosuite and LIBERO draw from numpy's global generator: seed it for a while, and give the caller's back."""
    kept = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(kept)


class Environment:
    """A task in the simulator. The same seed gives the same start, in this environment and in any other of the task.

    cameras: side of the largest square picture, in pixels; 0: no renderer is made.
    """

    _cameras = 0
    _renderer: Renderer | None = None

    def __init__(self, task: Task, *, cameras: int = 0) -> None:
        if cameras:
            choose_backend()  # before mujoco is imported
        robosuite = load_robosuite()
        self.task = task
        self._cameras = cameras
        with drawing_from(0):  # robosuite draws the sizes of objects when it builds a model
            self._env: Any = robosuite.make(
                task.environment,
                robots="Panda",
                controller_configs=robosuite.load_controller_config(default_controller="OSC_POSE"),
                has_renderer=False,
                has_offscreen_renderer=False,  # ours is faster, and reads only
                use_camera_obs=False,
                control_freq=RATE,
                horizon=task.max_steps,
                ignore_done=True,
                hard_reset=False,
                **task.settings,
            )
        self._grip = self._env.sim.model.site_name2id(_GRIP_SITE)
        if cameras:
            self._ready_renderer()  # what cannot draw says so now

    @property
    def raw(self) -> Any:
        """robosuite's own environment, for demonstrators that look at its state."""
        return self._env

    @property
    def cameras(self) -> int:
        """Side of the largest picture that can be drawn, in pixels; 0 where none can."""
        return self._cameras

    def reset(self, seed: int) -> None:
        """A fresh start, decided by the seed alone."""
        with drawing_from(seed):
            self._env.reset()
        # robosuite keeps how far the fingers were told to close; the next episode must not feel the last one.
        self._env.robots[0].gripper.current_action[:] = 0.0

    def step(self, action: np.ndarray) -> None:
        """Execute one command (7,); what lies outside [-1, 1] is clipped, as the controller does."""
        command = np.asarray(action, dtype=np.float64)
        if command.shape != (7,) or not np.isfinite(command).all():
            raise ActionPieceError(f"a command is 7 finite numbers, not {command}")
        self._env.step(np.clip(command, -1.0, 1.0))

    @property
    def success(self) -> bool:
        """Whether the task is done at this moment."""
        return bool(self._env._check_success())

    @property
    def hand(self) -> tuple[np.ndarray, np.ndarray]:
        """Position (3,) and rotation (3, 3) of the point between the fingers, which open along its first axis."""
        data = self._env.sim.data
        return data.site_xpos[self._grip].copy(), data.site_xmat[self._grip].reshape(3, 3).copy()

    @property
    def state(self) -> np.ndarray:
        """What a robot knows of itself, (8,): position, axis-angle, two finger joints."""
        position, rotation = self.hand
        fingers = self._env.sim.data.qpos[self._env.robots[0]._ref_gripper_joint_pos_indexes]
        return np.concatenate((position, axis_angle(rotation), fingers)).astype(np.float32)

    def body(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Position (3,) and rotation matrix (3, 3) of a body of the simulation."""
        index = self._env.sim.model.body_name2id(name)
        data = self._env.sim.data
        return data.body_xpos[index].copy(), data.body_xmat[index].reshape(3, 3).copy()

    def site(self, name: str) -> np.ndarray:
        """Position (3,) of a site of the simulation."""
        position: np.ndarray = self._env.sim.data.site_xpos[self._env.sim.model.site_name2id(name)].copy()
        return position

    def picture(self, camera: str, size: int) -> np.ndarray:
        """What the `agent` (facing the robot) or the `wrist` camera sees now: upright, uint8 (size, size, 3)."""
        if camera not in CAMERAS:
            raise ActionPieceError(f"there is no camera '{camera}'; there are {', '.join(CAMERAS)}")
        if not 0 < size <= self._cameras:
            raise ActionPieceError(
                f"a picture of {size} pixels was asked for, but this environment was made with cameras={self._cameras}"
            )
        return self._ready_renderer().draw(self._env.sim.data._data, CAMERAS[camera], size)

    def _ready_renderer(self) -> Renderer:
        model = self._env.sim.model._model
        if self._renderer is None or self._renderer.model is not model:  # a hard reset makes a new model
            if self._renderer is not None:
                self._renderer.close()
            self._renderer = Renderer(model, self._cameras)
            self._renderer.show_only(_SEEN)
        return self._renderer

    def close(self) -> None:
        """Give back what the simulator and the graphics driver hold."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._env.close()


def axis_angle(rotation: np.ndarray) -> np.ndarray:
    """The axis-angle vector (3,) of a rotation matrix (3, 3), of at most half a turn."""
    # From the quaternion, whose largest part is found first: exact near no turn and near half a turn alike.
    m = rotation
    squares = np.array([m.trace(), m[0, 0], m[1, 1], m[2, 2]])
    largest = int(squares.argmax())
    if largest == 0:
        q = np.array([1 + m.trace(), m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]])
    else:
        i = largest - 1
        j, k = (i + 1) % 3, (i + 2) % 3
        q = np.empty(4)
        q[0] = m[k, j] - m[j, k]
        q[1 + i] = 1 + m[i, i] - m[j, j] - m[k, k]
        q[1 + j] = m[j, i] + m[i, j]
        q[1 + k] = m[k, i] + m[i, k]
    q /= np.linalg.norm(q)
    if q[0] < 0:
        q = -q
    length = np.linalg.norm(q[1:])
    if length < 1e-12:
        return np.zeros(3)
    vector: np.ndarray = q[1:] / length * (2 * np.arctan2(length, q[0]))
    return vector


def rotation_about(axis: np.ndarray, angle: float) -> np.ndarray:
    """The rotation matrix (3, 3) of a turn about a unit axis (Rodrigues' formula)."""
    x, y, z = axis
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    matrix: np.ndarray = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    return matrix
