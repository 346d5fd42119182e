"""Windows over episodes, against the plainest way to cut them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actionpiece.data import Chunks, Demos, open_demos
from actionpiece.data.card import Card
from actionpiece.data.demos import Member
from actionpiece.data.idle import idle_steps
from actionpiece.data.reader import Reader
from actionpiece.errors import ActionPieceError
from actionpiece.space import ActionSpace, Group


class Memory(Reader):
    """Episodes held in memory; each value says where it came from. Counts its reads."""

    path, name = None, "memory"

    def __init__(self, episodes):
        self.episodes, self.reads = episodes, 0
        self.lengths = np.array([len(episode) for episode in episodes], np.int64)
        self.dim = episodes[0].shape[1]

    def read(self, episode):
        self.reads += 1
        return self.episodes[episode]

    def mask(self, name):
        raise NotImplementedError

    def files(self):
        return []


def memory(lengths, dim=2):
    steps = [np.stack([np.full(n, e), np.arange(n)], 1) for e, n in enumerate(lengths)]
    return Demos(
        "memory", [Member.of(Memory([np.tile(s, dim // 2).astype(np.float32) for s in steps]), Card(), "memory")]
    )


def naive(demos, episodes, horizon, stride, tail):
    """Every window by hand: (episode, start, chunk)."""
    for e in episodes:
        actions = demos.episode(e)
        for start in range(0, len(actions), stride):
            if tail == "drop" and start + horizon > len(actions):
                break
            rows = [actions[min(start + h, len(actions) - 1)] for h in range(horizon)]
            yield e, start, np.stack(rows)


@settings(deadline=None, max_examples=200)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=8),
    horizon=st.integers(1, 6),
    stride=st.integers(1, 4),
    tail=st.sampled_from(["drop", "repeat"]),
    data=st.data(),
)
def test_chunks_are_the_windows_of_the_naive_loop(lengths, horizon, stride, tail, data):
    demos = memory(lengths)
    episodes = data.draw(st.permutations(range(len(lengths))))[: data.draw(st.integers(1, len(lengths)))]
    expected = list(naive(demos, episodes, horizon, stride, tail))
    if not expected:
        with pytest.raises(ActionPieceError, match=f"the longest has {max(lengths[e] for e in episodes)}"):
            Chunks(demos, episodes, horizon, stride, tail)
        return
    chunks = Chunks(demos, episodes, horizon, stride, tail)
    assert len(chunks) == len(expected)
    everything = np.arange(len(chunks))
    assert chunks.episode_of(everything).tolist() == [e for e, _, _ in expected]
    assert chunks.start_of(everything).tolist() == [s for _, s, _ in expected]
    stacked = np.stack([chunk for _, _, chunk in expected])
    np.testing.assert_array_equal(chunks.all(), stacked)
    picks = data.draw(st.lists(st.integers(-len(chunks), len(chunks) - 1), max_size=10))
    np.testing.assert_array_equal(chunks[picks], stacked[np.array(picks, int)])
    np.testing.assert_array_equal(np.concatenate(list(chunks.batches(3))), stacked)


def test_indexing_follows_numpy():
    chunks = Chunks(memory([10, 5]), [0, 1], horizon=3)
    every = chunks.all()
    assert every.dtype == np.float32
    np.testing.assert_array_equal(chunks[4], every[4])
    np.testing.assert_array_equal(chunks[-1], every[-1])
    np.testing.assert_array_equal(chunks[2:9:3], every[2:9:3])
    np.testing.assert_array_equal(chunks[every[:, 0, 1] > 3], every[every[:, 0, 1] > 3])
    np.testing.assert_array_equal(chunks[np.array([[0, 5], [7, 2]])], every[np.array([[0, 5], [7, 2]])])
    assert chunks[[]].shape == (0, 3, 2)
    assert len(list(chunks)) == len(chunks)
    for bad in (11, -12, [0, 11]):
        with pytest.raises(IndexError):
            chunks[bad]
    with pytest.raises(IndexError):
        chunks[[0.5]]


def test_the_draw_is_torchs_seeded_permutation():
    chunks = Chunks(memory([100, 50]), [1, 0], horizon=8)
    order = torch.randperm(len(chunks), generator=torch.Generator().manual_seed(3))
    assert chunks.draw(20, seed=3).tolist() == order[:20].tolist()
    assert sorted(chunks.draw(10_000)) == list(range(len(chunks)))
    np.testing.assert_array_equal(chunks.sample(20, seed=3), chunks.all()[order[:20].numpy()])


def test_making_chunks_reads_nothing_and_taking_them_reads_each_episode_once():
    demos = memory([30] * 50)
    reader = demos.members[0].reader
    chunks = Chunks(demos, np.arange(50)[::-1], horizon=8)
    assert (len(chunks), reader.reads) == (50 * 23, 0)
    picks = np.random.default_rng(0).choice(23 * 3, 40)  # within three episodes
    chunks[picks]
    assert reader.reads == 3


def test_a_hundred_million_windows_cost_no_memory_up_front():
    class Huge(Memory):
        def __init__(self):
            self.lengths, self.dim, self.reads = np.full(1000, 100_000, np.int64), 2, 0

        def read(self, episode):
            self.reads += 1
            return np.full((100_000, 2), episode, np.float32)

    demos = Demos("huge", [Member.of(Huge(), Card(), "huge")])
    chunks = Chunks(demos, np.arange(1000), horizon=8)
    assert len(chunks) == 1000 * 99_993
    assert chunks[[99_993 * 7, 99_993 * 8 - 1, 99_993 * 8]][:, 0, 0].tolist() == [7, 7, 8]
    assert sum(a.nbytes for a in (chunks.episodes, chunks._ends)) < 20_000


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"horizon": 0}, "at least 1"),
        ({"stride": 0}, "at least 1"),
        ({"tail": "wrap"}, "'drop' or 'repeat'"),
        ({"horizon": 11}, r"no episode is as long as the horizon of 11 steps \(the longest has 10\)"),
        ({"episodes": []}, "at least one episode"),
        ({"episodes": [2]}, "episodes 0 to 1"),
    ],
)
def test_settings_that_cannot_be_met_are_an_error(options, match):
    options = {"episodes": [0, 1]} | options
    with pytest.raises(ActionPieceError, match=match):
        Chunks(memory([10, 5]), **options)


def test_chunks_describe_themselves():
    facts = Chunks(memory([10, 5]), [0, 1], horizon=4, stride=2, tail="repeat").describe()
    assert json.loads(json.dumps(facts)) == {"horizon": 4, "stride": 2, "tail": "repeat", "episodes": 2, "chunks": 8}


class TestIdle:
    def test_a_step_is_idle_when_nothing_is_commanded_and_the_gripper_stays(self):
        actions = np.zeros((6, 7), np.float32)
        actions[:, 6] = [-1, -1, -1, 1, 1, 1]
        actions[1, 2] = 0.5
        actions[4, 5] = 0.0009
        idle = idle_steps(actions, ActionSpace.preset("libero"), 1e-3)
        assert idle.tolist() == [True, False, True, False, True, True]

    def test_a_target_is_idle_when_it_does_not_change(self):
        actions = np.array([[1, 1], [1, 1], [1, 1.5], [1, 1.5]], np.float32)
        assert idle_steps(actions, ActionSpace.of_joints(2), 0.0).tolist() == [False, True, False, True]

    @pytest.mark.parametrize(
        ("form", "order", "rest"),
        [
            ("quaternion", "wxyz", [1, 0, 0, 0]),
            ("quaternion", "xyzw", [0, 0, 0, -1]),
            ("rotation_6d", "columns", [1, 0, 0, 0, 1, 0]),
            ("matrix", "rows", np.eye(3).ravel()),
        ],
    )
    def test_rest_is_the_identity_rotation_not_zero(self, form, order, rest):
        group = Group("rotation", tuple(range(len(rest))), form=form, order=order, delta=True)
        actions = np.array([rest, np.zeros(len(rest))], np.float32)
        assert idle_steps(actions, ActionSpace("r", (group,)), 1e-6).tolist() == [True, False]

    @pytest.mark.parametrize(
        ("form", "order", "unit", "same", "other"),
        [
            ("quaternion", "wxyz", None, [[0.6, 0.8, 0, 0], [-0.6, -0.8, 0, 0]], [0.8, 0.6, 0, 0]),
            ("euler", "xyz", 0.5, [[2 * np.pi, 1, 0], [-2 * np.pi, 1, 4 * np.pi]], [2 * np.pi, 1.5, 0]),
        ],
    )
    def test_a_rotation_that_is_written_otherwise_has_not_moved(self, form, order, unit, same, other):
        group = Group("rotation", tuple(range(len(other))), form=form, order=order, unit=unit, delta=False)
        actions = np.array([same[0], same[1], same[1], other, same[0]], np.float32)
        idle = idle_steps(actions, ActionSpace("r", (group,)), 1e-4)
        assert idle.tolist() == [False, True, True, False, False]

    def test_idle_steps_are_left_out_when_asked(self, tmp_path):
        actions = np.random.default_rng(0).uniform(0.1, 1, (20, 7)).astype(np.float32)
        actions[:, 6] = -1
        actions[5:9, :6] = 0
        actions[10:, :6] = 0
        np.savez(tmp_path / "a.npz", actions=actions, ep_len=np.array([10, 10]))
        demos = open_demos(tmp_path / "a.npz", space="libero", drop_idle=1e-3)
        assert demos.lengths.tolist() == [6, 0]
        np.testing.assert_array_equal(demos.episode(0), actions[[0, 1, 2, 3, 4, 9]])
        assert len(Chunks(demos, [0, 1], horizon=2)) == 5
        assert len(Chunks(demos, [0, 1], horizon=2, tail="repeat")) == 6
        for options, match in (({}, "not known"), ({"space": "libero"}, "must not be negative")):
            with pytest.raises(ActionPieceError, match=match):
                open_demos(tmp_path / "a.npz", drop_idle=-1.0 if options else 0.1, **options)
