"""The generated demonstrations: deterministic, in range, and never passed off as recorded."""

from __future__ import annotations

import numpy as np
import pytest

from actionpiece.data import Chunks, generate, info, open_demos
from actionpiece.errors import ActionPieceError


def test_they_are_called_generated_everywhere(demos):
    assert demos.name == "generated"
    assert demos.generated
    assert "generated" in demos.note
    assert demos.paths == ()
    facts = demos.describe()
    assert facts["generated"]
    assert facts["files"][0]["name"] == "generated"
    assert info(demos)["generated"]


def test_they_are_libero_actions_of_realistic_length(demos):
    assert (demos.space.name, demos.dim, demos.rate) == ("libero", 7, 20.0)
    assert len(demos) == 240
    assert demos.lengths.min() >= 80
    assert demos.lengths.max() <= 160
    assert len(set(demos.tasks)) >= 6
    actions = np.concatenate([demos.episode(i) for i in range(len(demos))])
    assert np.abs(actions).max() <= 1
    assert set(np.unique(actions[:, 6])) == {-1.0, 1.0}
    spread = actions[:, :6].std(0)
    assert (spread[:3] > 0.05).all()
    assert (spread[3:] > 0.01).all()


def test_the_gripper_closes_once_and_opens_once(demos):
    for i in range(len(demos)):
        turns = np.diff(demos.episode(i)[:, 6])
        assert turns[turns != 0].tolist() == [2.0, -2.0]


def test_motion_is_smooth_and_rotation_goes_with_it(demos):
    episodes = [demos.episode(i)[:, :6] for i in range(len(demos))]
    step = np.concatenate([np.diff(e, axis=0) for e in episodes]).std(0)
    assert (step < 0.5 * np.concatenate(episodes).std(0)).all()
    speed = np.concatenate([np.linalg.norm(e[:, :3], axis=1) for e in episodes])
    turning = np.concatenate([np.linalg.norm(e[:, 3:], axis=1) for e in episodes])
    assert np.corrcoef(speed, turning)[0, 1] > 0.4


def test_a_seed_fixes_every_number():
    first, texts = generate(seed=5, episodes=6)
    again, _ = generate(seed=5, episodes=12)
    assert len(texts) == 6
    for a, b in zip(first, again[:6], strict=True):
        np.testing.assert_array_equal(a, b)
    other, _ = generate(seed=6, episodes=6)
    assert any(a.shape != b.shape or (a != b).any() for a, b in zip(first, other, strict=True))
    with pytest.raises(ActionPieceError, match="at least one episode"):
        generate(episodes=0)


def test_no_two_episodes_are_alike(demos):
    assert info(demos)["duplicate_episodes"] == 0
    assert info(demos)["suspicious"] == []


def test_fingerprint_and_split_are_stable(demos):
    assert demos.fingerprint() == open_demos("generated").fingerprint()
    assert demos.split().counts() == {"train": 192, "validation": 24, "test": 24}
    assert len(Chunks(demos, demos.split().test)) > 2000
