"""Pictures from the simulator: what draws them is chosen by drawing, and looking does not disturb what is looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from actionpiece.errors import ActionPieceError
from actionpiece.sim import rendering
from actionpiece.sim.environment import CAMERAS, Environment
from actionpiece.sim.tasks import TASKS, task

SIZE = 64


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As in a fresh process in which nobody has set anything."""
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.setenv("PYOPENGL_PLATFORM", "")
    monkeypatch.setattr(rendering.platform, "system", lambda: "Linux")
    rendering._first_that_draws.cache_clear()
    yield monkeypatch
    rendering._first_that_draws.cache_clear()


def test_what_the_user_set_is_taken(undecided: pytest.MonkeyPatch) -> None:
    undecided.setenv("MUJOCO_GL", "osmesa")
    undecided.setattr(rendering, "_try", lambda name: pytest.fail("nothing needs to be tried"))
    chosen = rendering.choose_backend()
    assert chosen.name == "osmesa"
    assert chosen.line == "Pictures are drawn with OSMesa, as MUJOCO_GL says."


def test_osmesa_draws_where_egl_does_not(undecided: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    undecided.setattr(rendering, "_try", lambda name: tried.append(name) or ("no device" if name == "egl" else None))
    assert rendering.choose_backend().name == "osmesa"
    assert os.environ["MUJOCO_GL"] == os.environ["PYOPENGL_PLATFORM"] == "osmesa"
    undecided.setenv("MUJOCO_GL", "")
    assert rendering.choose_backend().name == "osmesa"
    assert tried == ["egl", "osmesa"]  # once in a process


def test_where_nothing_draws_the_packages_are_named(undecided: pytest.MonkeyPatch) -> None:
    undecided.setattr(rendering, "_try", lambda name: "no library")
    with pytest.raises(
        ActionPieceError, match=r"EGL: no library; OSMesa: no library\); on Debian: apt install libegl1"
    ):
        rendering.choose_backend()


def test_a_backend_that_cannot_draw_says_why() -> None:
    assert rendering._try("glx-of-another-world")


def test_without_egl_the_simulator_can_still_be_imported(undecided: pytest.MonkeyPatch) -> None:
    undecided.delenv("MUJOCO_GL")
    undecided.setattr(rendering.ctypes.util, "find_library", lambda name: None)
    rendering.make_importable()
    assert os.environ["MUJOCO_GL"] == "glx"
    undecided.setattr(rendering, "_try", lambda name: "no library")
    with pytest.raises(ActionPieceError, match="no picture can be drawn on this machine"):
        rendering.choose_backend()  # it was not the user who set it


def test_rooms_of_the_simulator_do_without_torch() -> None:
    code = (
        "import sys, actionpiece.sim.recording, actionpiece.commands.simulating\n"
        "assert not {'torch', 'mujoco', 'robosuite'} & sys.modules.keys(), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.fixture(scope="module")
def lift() -> Iterator[Environment]:
    pytest.importorskip("robosuite")
    try:
        rendering.choose_backend()
    except ActionPieceError as error:
        pytest.skip(str(error))
    env = Environment(task("lift"), cameras=SIZE)
    yield env
    env.close()


def test_pictures_are_upright_colourful_and_repeatable(lift: Environment) -> None:
    lift.reset(0)
    agent, wrist = lift.picture("agent", SIZE), lift.picture("wrist", SIZE)
    for picture in (agent, wrist):
        assert picture.shape == (SIZE, SIZE, 3)
        assert picture.dtype == np.uint8
        assert picture.std() > 20
    # The robot stands behind the table: dark and grey above, the white table below; the cube is red.
    assert agent[: SIZE // 8].mean() < agent[-SIZE // 4 :].mean() - 50
    assert ((agent[..., 0] > 100) & (agent[..., 1] < 80)).sum() >= 4
    # The wrist camera looks past the fingers, which are at the lower edge of its picture.
    assert wrist[-SIZE // 8 :].mean() < wrist[: SIZE // 4].mean() - 50
    lift.reset(5)
    assert (lift.picture("agent", SIZE) != agent).any()
    lift.reset(0)
    np.testing.assert_array_equal(lift.picture("agent", SIZE), agent)
    np.testing.assert_array_equal(lift.picture("wrist", SIZE), wrist)
    assert lift.picture("agent", 32).shape == (32, 32, 3)


def test_looking_does_not_change_what_happens(lift: Environment) -> None:
    commands = np.random.default_rng(0).uniform(-1, 1, (15, 7))
    unseen = Environment(task("lift"))

    def run(env: Environment, look: bool) -> np.ndarray:
        env.reset(3)
        states = []
        for command in commands:
            if look:
                env.picture("agent", SIZE)
                env.picture("wrist", SIZE)
            env.step(command)
            states.append(np.concatenate((env.raw.sim.data.qpos, env.raw.sim.data.qvel)))
        return np.stack(states)

    np.testing.assert_array_equal(run(lift, True), run(unseen, False))
    assert unseen._renderer is None
    with pytest.raises(ActionPieceError, match="made with cameras=0"):
        unseen.picture("agent", SIZE)
    unseen.close()


def test_bad_requests_are_said(lift: Environment) -> None:
    with pytest.raises(ActionPieceError, match="no camera 'ceiling'; there are agent, wrist"):
        lift.picture("ceiling", SIZE)
    with pytest.raises(ActionPieceError, match="made with cameras=64"):
        lift.picture("agent", 65)
    assert lift._renderer is not None
    with pytest.raises(ActionPieceError, match="no camera 'sideview2' in the simulation"):
        lift._renderer.draw(lift.raw.sim.data._data, "sideview2", SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TASKS if name != "lift"])
def test_every_task_is_seen_by_both_cameras(lift: Environment, name: str) -> None:
    env = Environment(task(name), cameras=SIZE)  # beside another that draws
    env.reset(0)
    assert all(env.picture(camera, SIZE).std() > 10 for camera in CAMERAS)
    env.close()
    lift.picture("agent", SIZE)


def resident() -> float:
    """Megabytes of memory this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_five_hundred_resets_do_not_leak(lift: Environment) -> None:
    lift.reset(0)
    lift.picture("agent", 32)
    before = resident()
    for seed in range(500):
        lift.reset(seed)
        if seed % 10 == 0:
            lift.picture("wrist", 32)
    assert resident() - before < 200
