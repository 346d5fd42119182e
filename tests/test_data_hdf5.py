"""robomimic, LIBERO and ALOHA files, written here the way their recorders write them."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from actionpiece.data import open_demos
from actionpiece.errors import ActionPieceError


def write_robomimic(path, lengths=tuple(range(3, 15)), dim=7, language=None, mask=None, key="actions"):
    rng = np.random.default_rng(0)
    episodes = [rng.uniform(-1, 1, (n, dim)) for n in lengths]
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(lengths)
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}})
        if language is not None:
            data.attrs["problem_info"] = json.dumps({"problem_name": "x", "language_instruction": language})
        for i, episode in enumerate(episodes):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = len(episode)
            demo.create_dataset(key, data=episode)
            demo.create_dataset("states", data=np.zeros((len(episode), 30)))
            demo.create_group("obs").create_dataset("agentview_image", data=np.zeros((len(episode), 8, 8, 3), np.uint8))
        for name, demos in (mask or {}).items():
            file.create_dataset(f"mask/{name}", data=np.array(demos, dtype="S"))
    return [episode.astype(np.float32) for episode in episodes]


def test_demo_10_comes_after_demo_9(tmp_path):
    episodes = write_robomimic(tmp_path / "lift.hdf5")
    demos = open_demos(tmp_path / "lift.hdf5", space="robosuite")
    assert (demos.name, demos.rate, demos.dim) == ("lift", 20.0, 7)
    assert demos.lengths.tolist() == list(range(3, 15))
    for i, episode in enumerate(episodes):
        np.testing.assert_array_equal(demos.episode(i), episode)


@pytest.mark.parametrize("language", ["put the bowl on the plate", list("put the bowl on the plate")])
def test_libero_instructions_are_read(tmp_path, language):
    write_robomimic(tmp_path / "a.hdf5", language=language)
    assert open_demos(tmp_path / "a.hdf5").tasks == ["put the bowl on the plate"] * 12


def test_a_card_keeps_the_demos_of_a_robomimic_filter(tmp_path):
    write_robomimic(tmp_path / "a.hdf5", mask={"better": ["demo_10", "demo_2"]})
    (tmp_path / "a.json").write_text(json.dumps({"keep": "better", "space": "libero"}))
    assert open_demos(tmp_path / "a.hdf5").lengths.tolist() == [5, 13]
    (tmp_path / "a.json").write_text(json.dumps({"keep": "worse"}))
    with pytest.raises(ActionPieceError, match=r"a\.hdf5 has no filter 'mask/worse'"):
        open_demos(tmp_path / "a.hdf5")


@pytest.mark.parametrize("key", ["action", "actions"])
def test_an_aloha_file_is_one_episode(tmp_path, key):
    actions = np.random.default_rng(0).normal(size=(20, 14)).astype(np.float32)
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file.attrs["sim"] = True
        file.create_dataset("observations/qpos", data=np.zeros((20, 14)))
        file.create_dataset(key, data=actions)
    demos = open_demos(tmp_path / "episode_0.hdf5", space="aloha")
    assert len(demos) == 1
    np.testing.assert_array_equal(demos.episode(0), actions)


def test_episodes_may_lie_at_the_root(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in (0, 1, 2, 10):
            file.create_dataset(f"traj_{i}/actions", data=np.full((i + 2, 8), i, np.float32))
        file.create_group("extras").attrs["who"] = "a stranger"
    demos = open_demos(tmp_path / "a.h5")
    assert demos.lengths.tolist() == [2, 3, 4, 12]


def test_another_dataset_can_be_the_action(tmp_path):
    write_robomimic(tmp_path / "a.hdf5", key="action_dict/rel_pos", dim=3)
    assert open_demos(tmp_path / "a.hdf5", action_key="action_dict/rel_pos").dim == 3


def test_opening_reads_no_actions_and_reading_reads_each_episode_once(tmp_path):
    write_robomimic(tmp_path / "a.hdf5")
    demos = open_demos(tmp_path / "a.hdf5")
    cache = demos.members[0].reader._cache
    assert (len(demos), cache.loads) == (12, 0)
    for _ in range(3):
        demos.episode(4)
        demos.episode(5)
    assert cache.loads == 2


class TestBadInput:
    def fails(self, match, path, **options):
        with pytest.raises(ActionPieceError, match=match) as caught:
            open_demos(path, **options).episode(0)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("part", [0.0, 0.2, 0.95])
    def test_a_truncated_file(self, tmp_path, part):
        write_robomimic(tmp_path / "a.hdf5")
        data = (tmp_path / "a.hdf5").read_bytes()
        (tmp_path / "a.hdf5").write_bytes(data[: int(part * len(data))])
        self.fails("not a whole HDF5", tmp_path / "a.hdf5")

    def test_text_with_the_wrong_name(self, tmp_path):
        (tmp_path / "a.hdf5").write_text("hello" * 100)
        self.fails("not a whole HDF5", tmp_path / "a.hdf5")

    def test_a_file_without_actions(self, tmp_path):
        write_robomimic(tmp_path / "a.hdf5", key="commands")
        self.fails("no dataset 'actions' for any episode; data/demo_0 has commands", tmp_path / "a.hdf5")
        self.fails("no dataset 'other'", tmp_path / "a.hdf5", action_key="other")

    def test_a_file_without_episodes(self, tmp_path):
        with h5py.File(tmp_path / "a.hdf5", "w") as file:
            file.create_group("data")
        self.fails("it holds no episodes", tmp_path / "a.hdf5")

    def test_a_demo_without_actions(self, tmp_path):
        write_robomimic(tmp_path / "a.hdf5")
        with h5py.File(tmp_path / "a.hdf5", "a") as file:
            del file["data/demo_7/actions"]
        self.fails("data/demo_7 has no 'actions'", tmp_path / "a.hdf5")

    def test_demos_of_different_widths(self, tmp_path):
        write_robomimic(tmp_path / "a.hdf5")
        with h5py.File(tmp_path / "a.hdf5", "a") as file:
            del file["data/demo_7/actions"]
            file["data/demo_7/actions"] = np.zeros((10, 6))
        self.fails(r"data/demo_7/actions has shape \(10, 6\)", tmp_path / "a.hdf5")

    def test_nan(self, tmp_path):
        write_robomimic(tmp_path / "a.hdf5")
        with h5py.File(tmp_path / "a.hdf5", "a") as file:
            file["data/demo_0/actions"][1, 2] = np.nan
        self.fails("not finite", tmp_path / "a.hdf5")

    @pytest.mark.parametrize("value", [3.0, "left", np.zeros(40), h5py.Empty("f")])
    def test_actions_that_are_no_table(self, tmp_path, value):
        with h5py.File(tmp_path / "a.hdf5", "w") as file:
            file["action"] = value
        self.fails(r"action has shape .*, but actions must be \(steps, columns\)", tmp_path / "a.hdf5")

    @pytest.mark.parametrize("value", [np.bytes_(b"\xff\xfe"), "[" * 100_000, "{"])
    def test_attributes_that_are_not_json_are_left_alone(self, tmp_path, value):
        write_robomimic(tmp_path / "a.hdf5")
        with h5py.File(tmp_path / "a.hdf5", "a") as file:
            file["data"].attrs["env_args"] = value if len(value) < 60_000 else value[:60_000]
        assert open_demos(tmp_path / "a.hdf5").rate is None

    def test_actions_that_are_text(self, tmp_path):
        with h5py.File(tmp_path / "a.hdf5", "w") as file:
            file["action"] = np.array([[b"left"], [b"right"]])
        self.fails("must be numbers", tmp_path / "a.hdf5")
