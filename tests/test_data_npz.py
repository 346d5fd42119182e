"""The npz layout, its card, and what `Demos` makes of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from actionpiece.data import Chunks, open_demos, steps
from actionpiece.errors import ActionPieceError
from actionpiece.space import ActionSpace


def write(path: Path, lengths=(5, 9, 3, 12), dim=7, card=None, seed=0, **more) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    episodes = [rng.uniform(-1, 1, (n, dim)).astype(np.float32) for n in lengths]
    arrays = {"actions": np.concatenate(episodes), "ep_len": np.array(lengths, np.int32)} | more
    np.savez_compressed(path, **{k: v for k, v in arrays.items() if v is not None})
    if card is not None:
        path.with_suffix(".json").write_text(json.dumps(card))
    return episodes


def test_episodes_come_back_as_written(tmp_path):
    episodes = write(tmp_path / "a.npz", task=np.array(["p", "q", "p", "r"]), meta=np.array('{"hz": 15}'))
    demos = open_demos(tmp_path / "a.npz", space="libero")
    assert (demos.name, len(demos), demos.dim, demos.rate) == ("a", 4, 7, 15.0)
    assert demos.lengths.tolist() == [5, 9, 3, 12]
    assert demos.lengths.dtype == np.int64
    assert demos.tasks == ["p", "q", "p", "r"]
    assert demos.paths == (tmp_path / "a.npz",)
    assert not demos.generated
    for i, episode in enumerate(episodes):
        assert demos.episode(i).dtype == np.float32
        np.testing.assert_array_equal(demos.episode(i), episode)
    np.testing.assert_array_equal(
        np.concatenate(list(steps(demos, [2, 0]))), np.concatenate((episodes[2], episodes[0]))
    )


def test_writing_to_an_episode_leaves_the_data_alone(tmp_path):
    write(tmp_path / "a.npz")
    demos = open_demos(tmp_path / "a.npz")
    before = demos.episode(1)
    demos.episode(1)[:] = 7
    np.testing.assert_array_equal(demos.episode(1), before)


def test_integers_and_doubles_become_float32(tmp_path):
    write(tmp_path / "a.npz", actions=np.arange(6).reshape(3, 2), ep_len=np.array([1, 2]))
    write(tmp_path / "b.npz", actions=np.ones((3, 2)), ep_len=np.array([1, 2]))
    for name in "ab":
        assert open_demos(tmp_path / f"{name}.npz").episode(1).dtype == np.float32


def test_texts_may_be_bytes(tmp_path):
    meta = np.array(b'{"hz": 5, "licence": null}')
    write(tmp_path / "a.npz", task=np.array([b"pick", b"place", b"x", b"y"]), meta=meta)
    demos = open_demos(tmp_path / "a.npz")
    assert demos.tasks == ["pick", "place", "x", "y"]
    assert (demos.rate, demos.licence) == (5.0, "")
    write(tmp_path / "b.npz", task=np.arange(4))
    with pytest.raises(ActionPieceError, match="task must hold texts, not int64"):
        open_demos(tmp_path / "b.npz")


def test_the_card_says_what_to_keep_and_where_to_clip(tmp_path):
    card = {"space": "libero", "keep": "ok", "clip": [0.5] * 6 + [None], "rate": 10, "licence": "CC0", "note": "n"}
    episodes = write(tmp_path / "a.npz", card=card, ok=np.array([True, False, True, True]))
    demos = open_demos(tmp_path / "a.npz")
    assert demos.lengths.tolist() == [5, 3, 12]
    assert (demos.space.name, demos.rate, demos.licence, demos.note) == ("libero", 10.0, "CC0", "n")
    expected = episodes[2].copy()
    expected[:, :6] = expected[:, :6].clip(-0.5, 0.5)
    np.testing.assert_array_equal(demos.episode(1), expected)
    np.testing.assert_array_equal(demos.raw(1), episodes[2])


def test_the_published_split_is_numpys_permutation_in_drawn_order(tmp_path):
    card = {"split": {"seed": 3, "test": 4, "validation": 2}}
    write(tmp_path / "a.npz", lengths=[4] * 20, card=card)
    split = open_demos(tmp_path / "a.npz").split(seed=99)
    order = np.random.default_rng(3).permutation(20)
    assert split.test.tolist() == order[:4].tolist()
    assert split.validation.tolist() == order[4:6].tolist()
    assert split.train.tolist() == order[6:].tolist()


@pytest.mark.parametrize(("episodes", "tenth"), [(3, 1), (14, 1), (16, 2), (40, 4)])
def test_without_a_card_a_tenth_is_test_and_a_tenth_validation(tmp_path, episodes, tenth):
    write(tmp_path / "a.npz", lengths=[2] * episodes)
    demos = open_demos(tmp_path / "a.npz")
    split = demos.split()
    assert split.counts() == {"train": episodes - 2 * tenth, "validation": tenth, "test": tenth}
    assert sorted(np.concatenate((split.train, split.validation, split.test))) == list(range(episodes))
    assert split.test.tolist() == demos.split(seed=0).test.tolist()


def test_a_space_that_nobody_named_is_an_error_only_when_needed(tmp_path):
    write(tmp_path / "a.npz")
    demos = open_demos(tmp_path / "a.npz")
    assert len(Chunks(demos, [0, 1], horizon=4)) == 8
    with pytest.raises(ActionPieceError, match=r"--space \(libero.*card"):
        _ = demos.space


def test_the_space_argument_overrides_the_card(tmp_path):
    write(tmp_path / "a.npz", card={"space": "libero"})
    assert open_demos(tmp_path / "a.npz", space="bridge").space.name == "bridge"
    assert open_demos(tmp_path / "a.npz", space=ActionSpace.of_joints(7)).space.name == "joints:7"


def test_a_card_may_write_its_space_out_or_point_to_a_file_beside_it(tmp_path):
    space = ActionSpace.of_joints(7, rate=30)
    (tmp_path / "arm.json").write_text(space.to_json())
    write(tmp_path / "a.npz", card={"space": "arm.json"})
    write(tmp_path / "b.npz", card={"space": space.to_dict()})
    assert open_demos(tmp_path / "a.npz").space == open_demos(tmp_path / "b.npz").space == space


def test_the_fingerprint_sees_the_data_and_the_card(tmp_path):
    write(tmp_path / "a.npz", card={"note": "one"})
    first = open_demos(tmp_path / "a.npz").fingerprint()
    assert first == open_demos(tmp_path / "a.npz").fingerprint()
    (tmp_path / "a.json").write_text(json.dumps({"note": "two"}))
    second = open_demos(tmp_path / "a.npz").fingerprint()
    write(tmp_path / "a.npz", card={"note": "two"}, seed=1)
    assert len({first, second, open_demos(tmp_path / "a.npz").fingerprint()}) == 3


def test_the_fingerprint_sees_what_was_asked_for_beyond_the_card(tmp_path):
    write(tmp_path / "a.npz", card={"space": "libero"})
    plain, same, idle, joints, named = (
        open_demos(tmp_path / "a.npz", **asked).fingerprint()
        for asked in ({}, {"space": "libero"}, {"drop_idle": 0.05}, {"space": "joints:7"}, {"action_key": "actions"})
    )
    assert plain == same
    assert len({plain, idle, joints, named}) == 4


def test_describe_is_plain_json_without_machine_paths(tmp_path):
    card = {"space": "libero", "clip": [1, 1, 1, 1, 1, 1, None], "split": {"seed": 5, "test": 1, "validation": 1}}
    write(tmp_path / "a.npz", card=card)
    demos = open_demos(tmp_path / "a.npz", drop_idle=0.01)
    text = json.dumps(demos.describe())
    assert str(tmp_path) not in text
    facts = json.loads(text)
    assert facts["split"] == {"seeds": [5], "train": 2, "validation": 1, "test": 1}
    assert facts["files"][0]["clip"] == [1, 1, 1, 1, 1, 1, None]
    assert (facts["tail"], facts["fingerprint"]) == ("drop", demos.fingerprint())
    assert "0.01" in facts["idle"]


def test_the_room_does_not_import_torch(tmp_path):
    write(tmp_path / "a.npz")
    code = (
        "import sys; from actionpiece.data import open_demos, Chunks; "
        f"Chunks(open_demos({str(tmp_path / 'a.npz')!r}), [0, 1], 2).all(); "
        "assert not {'torch', 'pyarrow', 'h5py'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class TestBadInput:
    def fails(self, match, path, **options):
        with pytest.raises(ActionPieceError, match=match) as caught:
            open_demos(path, **options).episode(0)
        assert "\n" not in str(caught.value)
        assert str(path.stem) in str(caught.value)

    def test_a_missing_file(self, tmp_path):
        self.fails("does not exist", tmp_path / "a.npz")

    def test_no_path_at_all(self):
        with pytest.raises(ActionPieceError, match="no demonstrations were named"):
            open_demos()

    def test_an_unknown_kind_of_file(self, tmp_path):
        (tmp_path / "a.csv").write_text("1,2")
        self.fails("not a known kind", tmp_path / "a.csv")

    @pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
    def test_a_truncated_file(self, tmp_path, part):
        write(tmp_path / "a.npz")
        data = (tmp_path / "a.npz").read_bytes()
        (tmp_path / "a.npz").write_bytes(data[: int(part * len(data))])
        self.fails("not a whole npz", tmp_path / "a.npz")

    def test_damaged_contents(self, tmp_path):
        write(tmp_path / "a.npz")
        data = bytearray((tmp_path / "a.npz").read_bytes())
        data[200:240] = bytes(40)
        (tmp_path / "a.npz").write_bytes(data)
        self.fails("not a whole npz", tmp_path / "a.npz")

    def test_a_git_lfs_pointer(self, tmp_path):
        (tmp_path / "a.npz").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        self.fails("git lfs pull", tmp_path / "a.npz")

    def test_a_member_that_is_no_array(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
            file.writestr("actions", b"hello")
        self.fails("actions is no array", tmp_path / "a.npz")

    def test_a_header_that_is_no_header_or_lies(self, tmp_path):
        for header in (
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (",
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000, 7)}",
        ):
            data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
            with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
                file.writestr("actions.npy", data)
            self.fails("not a whole npz", tmp_path / "a.npz")

    def test_a_bare_array(self, tmp_path):
        with (tmp_path / "a.npz").open("wb") as handle:
            np.save(handle, np.ones((3, 7)))
        self.fails("single array", tmp_path / "a.npz")

    def test_another_file_by_that_name(self, tmp_path):
        (tmp_path / "a.npz").write_text("step,x,y\n0,1,2\n")
        self.fails("a.npz is no npz file$", tmp_path / "a.npz")

    def test_pickled_objects(self, tmp_path):
        write(tmp_path / "a.npz", actions=np.array([{"evil": 1}], object))
        self.fails("actions is an array of Python objects, which is not read", tmp_path / "a.npz")

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_values_that_are_not_finite(self, tmp_path, value):
        actions = np.zeros((6, 7), np.float32)
        actions[2, 4] = value
        write(tmp_path / "a.npz", actions=actions, ep_len=np.array([6]))
        self.fails("episode 0 holds 1 values that are not finite.*step 2, column 4", tmp_path / "a.npz")

    def test_doubles_too_large_for_float32(self, tmp_path):
        write(tmp_path / "a.npz", actions=np.full((6, 7), 1e300), ep_len=np.array([6]))
        self.fails("not finite", tmp_path / "a.npz")

    @pytest.mark.parametrize(
        ("arrays", "match"),
        [
            ({"actions": None}, "no array 'actions'; it has ep_len"),
            ({"ep_len": None}, "no array 'ep_len'"),
            ({"ep_len": np.array([5, 9])}, "ep_len adds up to 14 steps, but actions has 29 rows"),
            ({"ep_len": np.array([30, -1])}, "ep_len must be"),
            ({"ep_len": np.array([2**63], np.uint64)}, "ep_len has 9223372036854775808 steps, but actions has 29"),
            ({"ep_len": np.array([2**62] * 4 + [29])}, "ep_len has 4611686018427387904 steps"),
            ({"ep_len": np.array([14.5, 14.5])}, "ep_len must be"),
            ({"actions": np.zeros((0, 7)), "ep_len": np.zeros(0, int)}, "holds no episodes"),
            ({"actions": np.zeros(29)}, "must have shape"),
            ({"actions": np.full((29, 7), "x")}, "must be numbers"),
            ({"task": np.array(["one"])}, "one text per episode"),
            ({"meta": np.array("{")}, "meta is not valid JSON"),
            ({"meta": np.array("[" * 100_000)}, "meta is not valid JSON"),
        ],
    )
    def test_arrays_that_do_not_fit(self, tmp_path, arrays, match):
        write(tmp_path / "a.npz", **arrays)
        self.fails(match, tmp_path / "a.npz")

    @pytest.mark.parametrize(
        ("card", "match"),
        [
            ({"keep": "ok"}, "no array 'ok', which its card names"),
            ({"keep": "ep_len"}, "one true or false per episode"),
            ({"keep": "none"}, "leaves no episode"),
            ({"clip": [1, 2]}, "clip has 2 bounds, but actions have 7"),
            ({"clip": [-1] * 7}, "positive bound"),
            ({"split": {"seed": 0, "test": 3, "validation": 1}}, "leaves none of 4 for training"),
            ({"split": {"seed": 0, "test": 1}}, "split must give"),
            ({"split": {"seed": 0, "test": True, "validation": 1}}, "split must give"),
            ({"splits": {}}, "is it meant to be 'split'"),
            ({"SPLIT": {}}, "is it meant to be 'split'"),
            ({"rate": 10**400}, "rate must be"),
            ({"clip": [10**400] * 7}, "positive bound"),
            ({"space": "robot"}, "'robot' is no action space"),
            ({"space": "aloha"}, "7 columns, but the action space 'aloha' has 14"),
            ({"space": 3}, "space must be"),
            ({"rate": 0}, "rate must be"),
            ({"keep": 3}, "must be text"),
        ],
    )
    def test_cards_that_do_not_fit(self, tmp_path, card, match):
        write(tmp_path / "a.npz", card=card, none=np.zeros(4, bool))
        self.fails(match, tmp_path / "a.npz")

    def test_a_card_that_is_not_json(self, tmp_path):
        write(tmp_path / "a.npz")
        (tmp_path / "a.json").write_text("{")
        self.fails("not readable JSON", tmp_path / "a.npz")

    def test_the_wrong_width_for_the_space_asked_for(self, tmp_path):
        write(tmp_path / "a.npz", dim=6)
        self.fails("6 columns, but the action space 'libero' has 7", tmp_path / "a.npz", space="libero")

    def test_too_few_episodes_to_split(self, tmp_path):
        write(tmp_path / "a.npz", lengths=(5, 9))
        with pytest.raises(ActionPieceError, match=r"a has 2 episodes.*add episodes"):
            open_demos(tmp_path / "a.npz").split()
        assert "2 episodes" in open_demos(tmp_path / "a.npz").describe()["split"]["problem"]
