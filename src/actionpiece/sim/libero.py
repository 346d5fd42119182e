"""`LiberoEnvironment`: a task of LIBERO behind the same few things as robosuite's own.

Starts are LIBERO's official initial states. Assets may be a trimmed set, in which stand-ins take the place of LIBERO's
largest visual meshes and textures (`libero_files.stand_ins` tells): physics is then the same, pictures are not, and
neither figures made of them nor policies that look at them are comparable with published LIBERO results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from actionpiece.errors import ActionPieceError
from actionpiece.sim.environment import RATE, Environment, drawing_from, load_robosuite
from actionpiece.sim.libero_files import initial_states, libero, problem_file
from actionpiece.sim.libero_tasks import PROTOCOL
from actionpiece.sim.rendering import choose_backend
from actionpiece.sim.tasks import Task

PICTURE_NOTE = (
    "Rendered with stand-ins for LIBERO's largest visual meshes and textures: physics is LIBERO's, pictures are not, "
    "and are not comparable with published LIBERO results."
)
_GRIP_SITE = "gripper0_grip_site"
_ATTEMPTS = 100  # placements that do not fit are drawn again, as LIBERO does, but not for ever


class LiberoEnvironment(Environment):
    """A LIBERO task. The same seed gives the same start: official initial state number seed % (how many there are).

    cameras: side of the largest square picture, in pixels; 0: no renderer is made.
    """

    def __init__(self, task: Task, *, cameras: int = 0) -> None:
        if cameras:
            choose_backend()  # before mujoco is imported
        robosuite = load_robosuite()
        package = libero()
        problem = str(problem_file(task))
        kind = package.parser.get_problem_info(problem)["problem_name"]
        self.task = task
        self._cameras = cameras
        with drawing_from(PROTOCOL.seed):
            self._env: Any = package.problems[kind](
                problem,
                robots=["Panda"],
                controller_configs=robosuite.load_controller_config(default_controller="OSC_POSE"),
                initialization_noise=None,
                has_renderer=False,
                has_offscreen_renderer=False,
                use_camera_obs=False,
                control_freq=RATE,
                ignore_done=True,
                hard_reset=False,  # building the model again takes seconds, and its samplers pile up
            )
        self._grip = self._env.sim.model.site_name2id(_GRIP_SITE)
        self._starts = initial_states(task.environment)
        size = 1 + self._env.sim.model.nq + self._env.sim.model.nv
        if self._starts.shape[1] != size:
            raise ActionPieceError(
                f"the initial states of {task.name} have {self._starts.shape[1]} numbers, its model {size}; "
                "assets and package are of different LIBERO versions"
            )
        if cameras:
            self._ready_renderer()  # what cannot draw says so now

    def reset(self, seed: int) -> None:
        """An official initial state, after the published idle steps; decided by the seed alone."""
        from robosuite.utils.errors import RandomizationError

        env = self._env
        # Initial states hold what can move. Where stove and cabinet stand (within 2 cm) is drawn anew; published code
        # seeds that once and lets it run on, which would make a start depend on those before it.
        with drawing_from([PROTOCOL.seed, seed]):
            for attempt in range(_ATTEMPTS):
                try:
                    env.reset()
                    break
                except RandomizationError:
                    if attempt == _ATTEMPTS - 1:
                        raise
        env.robots[0].gripper.current_action[:] = 0.0  # kept by robosuite from the episode before
        env.sim.set_state_from_flattened(self._starts[seed % len(self._starts)])
        env.sim.data.qacc_warmstart[:] = 0.0  # of the placement that was drawn and is not used
        env.sim.forward()
        env._post_process()
        for _ in range(PROTOCOL.idle_steps):
            self.step(np.array(PROTOCOL.idle))

    @property
    def starts(self) -> int:
        """How many official initial states the task has."""
        return len(self._starts)

    def published_picture(self, camera: str) -> np.ndarray:
        """What a published LIBERO policy sees, uint8 (224, 224, 3).

        OpenGL's picture rotated by half a turn: upright, with left and right exchanged. Ours has no shadows.
        """
        from PIL import Image

        mirrored = self.picture(camera, PROTOCOL.render)[:, ::-1]
        resized = Image.fromarray(np.ascontiguousarray(mirrored)).resize(
            (PROTOCOL.resize, PROTOCOL.resize), Image.Resampling.LANCZOS
        )
        return np.asarray(resized)
