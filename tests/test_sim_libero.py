"""LIBERO: names and sentences without it; with it, starts, demonstrations and pictures."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actionpiece.errors import ActionPieceError
from actionpiece.sim import libero_files, libero_tasks
from actionpiece.sim.demonstrator import demonstrate
from actionpiece.sim.make import make, picture_note, task, task_names
from actionpiece.sim.shapes import Boxes, width


def _missing() -> str:
    try:
        libero_files.package_folder()
        libero_files.assets_folder()
    except ActionPieceError as error:
        return str(error)
    return ""


needs_libero = pytest.mark.skipif(
    bool(_missing()),
    reason=f"needs hf-libero (`make libero`) and its assets (${libero_files.ASSETS}): {_missing()}",
)


def test_tasks_go_by_number_and_by_their_own_name() -> None:
    third = task("libero_object/3")
    assert third == task("pick_up_the_bbq_sauce_and_place_it_in_the_basket")
    assert third.instructions == ("pick up the bbq sauce and place it in the basket",)
    assert task("libero_10/8").instructions == ("put both moka pots on the stove",)
    assert task("libero_10/6").instructions[0].startswith("put the white mug on the plate and put the chocolate")
    assert [suite[0].max_steps for suite in libero_tasks.suites().values()] == [220, 280, 300, 520]
    assert len({t.environment for suite in libero_tasks.suites().values() for t in suite}) == 40


def test_both_simulators_tasks_stand_side_by_side() -> None:
    assert {"lift", "libero_spatial/0", "libero_10/9"} <= set(task_names())
    assert all(task(name).name == name for name in task_names())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("libero_object/10", r"no LIBERO task 'libero_object/10'; libero_object has the tasks 0 to 9"),
        ("libero_90/3", r"the suites are libero_spatial, libero_object, libero_goal, libero_10"),
        ("fly", r"no task 'fly'; there are lift"),
    ],
)
def test_a_task_that_is_not_there_is_said_with_those_that_are(name: str, sentence: str) -> None:
    with pytest.raises(ActionPieceError, match=sentence):
        make(name)


def test_without_libero_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ActionPieceError, match="LIBERO is not installed; `make libero`"):
        libero_files.package_folder()


def test_without_assets_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libero_files, "package_folder", lambda: tmp_path)
    monkeypatch.setattr(libero_files, "_HUB_FOLDER", tmp_path / "hub")
    monkeypatch.delenv(libero_files.ASSETS, raising=False)
    with pytest.raises(ActionPieceError, match=r"set \$ACTIONPIECE_LIBERO_ASSETS .* or run `hf download"):
        libero_files.assets_folder()
    monkeypatch.setenv(libero_files.ASSETS, str(tmp_path))
    with pytest.raises(ActionPieceError, match=r"ACTIONPIECE_LIBERO_ASSETS is .* no folder 'articulated_objects'"):
        libero_files.assets_folder()


def test_the_configuration_is_private_and_a_users_own_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    libero_files._write_config(tmp_path / "root", tmp_path / "assets")
    made = Path(os.environ["LIBERO_CONFIG_PATH"])
    assert made.is_relative_to(tmp_path / "cache")
    assert json.loads((made / "config.yaml").read_text())["bddl_files"] == str(tmp_path / "root" / "bddl_files")
    libero_files._write_config(tmp_path / "other", tmp_path / "assets")
    assert Path(os.environ["LIBERO_CONFIG_PATH"]) == made
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path / "none"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ActionPieceError, match=r"cannot be written .* set LIBERO_CONFIG_PATH"):
        libero_files._write_config(tmp_path / "root", tmp_path / "assets")


def _saved(path: Path, content: object) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))
    return path


def test_initial_states_are_arrays_and_run_nothing(tmp_path: Path) -> None:
    states = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(libero_files.read_states(_saved(tmp_path / "good", states)), states)
    with pytest.raises(ActionPieceError, match=r"cannot be read .*it names posix.getcwd"):
        libero_files.read_states(_saved(tmp_path / "bad", os.getcwd))
    with pytest.raises(ActionPieceError, match="does not hold an array"):
        libero_files.read_states(_saved(tmp_path / "list", [1.0]))
    (tmp_path / "torn").write_bytes((tmp_path / "good").read_bytes()[:80])
    with pytest.raises(ActionPieceError, match="'torn' cannot be read"):
        libero_files.read_states(tmp_path / "torn")


@pytest.mark.parametrize("suite", ["libero_goal", "libero_10"])
def test_a_suite_without_demonstrator_says_so(suite: str) -> None:
    from actionpiece.sim.libero_demonstrator import plan_for

    with pytest.raises(ActionPieceError, match=rf"no demonstrator for this suite \({suite}\)"):
        plan_for(task(f"{suite}/0"))


def test_boxes_know_their_width_and_their_distance() -> None:
    turn = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    boxes = Boxes(np.array([[0.0, 0.0, 0.1]]), turn[None], np.array([[0.03, 0.01, 0.1]]))
    assert width(boxes, np.array([1.0, 0.0, 0.0]), 0.0, 0.2) == pytest.approx(0.02)
    assert width(boxes, np.array([0.0, 1.0, 0.0]), 0.0, 0.2) == pytest.approx(0.06)
    assert width(boxes, np.array([0.0, 1.0, 0.0]), 0.3, 0.4) == 0
    points = np.array([[0.0, 0.02, 0.1], [0.05, 0.0, 0.1], [0.04, 0.07, 0.1]])
    np.testing.assert_allclose(boxes.distances(points), [0.0, 0.04, 0.05], atol=1e-12)


_PLAY = """
import hashlib, sys
import numpy as np
from actionpiece.sim.make import make
env = make("libero_object/6")
env.reset(3)
for k in range(6):
    env.step(np.sin(np.arange(7) + k))
print(hashlib.sha256(env.raw.sim.get_state().flatten().tobytes()).hexdigest(), "torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def butter() -> Iterator[Any]:
    env = make("libero_object/6", cameras=256)
    yield env
    env.close()


@needs_libero
def test_the_names_are_liberos() -> None:
    path = libero_files.package_folder() / "benchmark" / "libero_suite_task_map.py"
    spec = importlib.util.spec_from_file_location("libero_names", path)
    assert spec is not None
    assert spec.loader is not None
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    for suite, tasks in libero_tasks.suites().items():
        assert [t.environment for t in tasks] == [f"{suite}/{name}" for name in theirs.libero_task_map[suite]]
        assert all(libero_files.problem_file(t).is_file() for t in tasks)
        assert all(len(libero_files.initial_states(t.environment)) == libero_tasks.PROTOCOL.trials for t in tasks)


@needs_libero
@pytest.mark.slow
def test_the_same_seed_and_commands_give_the_same_states_to_the_bit_in_any_process(butter: Any) -> None:
    def play(seed: int) -> np.ndarray:
        butter.reset(seed)
        states = [butter.raw.sim.get_state().flatten()]
        for k in range(6):
            butter.step(np.sin(np.arange(7) + k))
            states.append(butter.raw.sim.get_state().flatten())
        return np.stack(states)

    first, other = play(3), play(4)
    assert np.abs(first - other).max() > 0.01
    np.testing.assert_array_equal(play(3), first)  # after others, in the same environment
    np.testing.assert_array_equal(play(53), first)  # 50 official starts, and nothing else to draw in this suite
    child = subprocess.run([sys.executable, "-c", _PLAY], capture_output=True, text=True, check=False, timeout=120)
    digest = hashlib.sha256(first[-1].tobytes()).hexdigest()
    assert child.stdout.split() == [digest, "False"], child.stderr  # and without torch


@needs_libero
@pytest.mark.slow
def test_starts_are_official_and_fixtures_follow_the_seed() -> None:
    stove = make("libero_spatial/7")
    places = []
    for seed in (0, 50, 0):
        stove.reset(seed)
        start = libero_files.initial_states(stove.task.environment)[0]
        qpos = stove.raw.sim.data.qpos
        plate = stove.raw.sim.model.get_joint_qpos_addr("plate_1_joint0")
        # The idle steps let things come to rest, which is not far.
        np.testing.assert_allclose(qpos[plate[0] : plate[0] + 2], start[1 + plate[0] : 3 + plate[0]], atol=0.005)
        places.append(stove.body("flat_stove_1_main")[0])
    stove.close()
    assert 0 < np.abs(places[0] - places[1]).max() < 0.03
    np.testing.assert_array_equal(places[0], places[2])


@needs_libero
@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [("libero_object/6", 1), ("libero_spatial/3", 1)])
def test_demonstrations_succeed_and_replay(name: str, seed: int, butter: Any) -> None:
    env = butter if name == butter.task.name else make(name)
    env.reset(seed)
    commands = []
    for move in demonstrate(env, np.random.default_rng(seed)):
        env.step(move.command)
        commands.append(move.command)
    assert env.success
    assert len(commands) <= env.task.max_steps
    ended = env.raw.sim.get_state().flatten()
    env.reset(seed)
    assert not env.success
    for command in commands:
        env.step(command)
    np.testing.assert_array_equal(env.raw.sim.get_state().flatten(), ended)
    if env is not butter:
        env.close()


@needs_libero
@pytest.mark.slow
def test_pictures_are_upright_and_published_ones_mirrored(butter: Any) -> None:
    butter.reset(0)
    pictures = {camera: butter.picture(camera, 128) for camera in ("agent", "wrist")}
    for picture in pictures.values():
        assert picture.shape == (128, 128, 3)
        assert picture.dtype == np.uint8
        assert picture.std() > 10
        assert picture.mean() > 20
    published = butter.published_picture("agent")
    assert published.shape == (224, 224, 3)

    def brown(picture: np.ndarray) -> float:
        """How far right the basket is, from 0 to 1: the one large thing that is much redder than blue."""
        red, blue = picture[..., 0].astype(float), picture[..., 2].astype(float)
        return float(np.nonzero((red > 1.5 * blue) & (red > 60))[1].mean() / picture.shape[1])

    # The agent's camera faces the robot, so that +y, where the basket stands, is on its right.
    assert brown(pictures["agent"]) > 0.55
    assert brown(published) < 0.45
    assert picture_note("lift") is None
    assert (picture_note("libero_object/6") is not None) == libero_files.stand_ins()


@needs_libero
@pytest.mark.slow
def test_a_policy_is_shown_what_published_ones_see(tmp_path: Path) -> None:
    from actionpiece.evaluation.rollout import Rollout
    from actionpiece.evaluation.rollout import run as run_one

    (tmp_path / "still.py").write_text(
        "import numpy as np\n"
        "class Still:\n"
        "    def act(self, observation):\n"
        "        assert observation['observation/image'].shape == (224, 224, 3)\n"
        "        assert observation['prompt'] == 'pick up the butter and place it in the basket'\n"
        "        return np.zeros((140, 7), np.float32)\n"
    )
    job = Rollout(f"{tmp_path}/still.py:Still", "libero_object/6", 0, 0, execute=140, size=0, published=True)
    line = run_one(job)
    assert (job.facts["category"], line["success"], line["steps"], line["calls"]) == ("libero_object", False, 280, 2)
