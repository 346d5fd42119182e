"""What `info` finds suspicious."""

from __future__ import annotations

import json

import numpy as np
import pytest

from actionpiece.data import info, open_demos


def look(tmp_path, actions, lengths, **options):
    np.savez(tmp_path / "a.npz", actions=np.asarray(actions, np.float32), ep_len=np.array(lengths))
    facts = info(open_demos(tmp_path / "a.npz", **options))
    return json.loads(json.dumps(facts, allow_nan=False))


def plain(n=400, seed=0):
    actions = np.random.default_rng(seed).normal(0, 0.2, (n, 7))
    actions[:, 6] = np.where(np.arange(n) % 100 < 50, -1, 1)
    return actions


def test_clean_data_raises_no_suspicion(tmp_path):
    actions = plain()
    facts = look(tmp_path, actions, [100] * 4, space="libero")
    assert facts["suspicious"] == []
    assert (facts["episodes"], facts["steps"], facts["dim"], facts["rate"]) == (4, 400, 7, 20.0)
    assert facts["length"] == {"min": 100, "median": 100.0, "max": 100}
    assert facts["columns"][6]["flags"] == ["binary"]
    x = actions.astype(np.float32).astype(np.float64)
    for c, row in enumerate(facts["columns"]):
        assert row["label"] == open_demos(tmp_path / "a.npz", space="libero").space.labels[c]
        figures = [row[k] for k in ("min", "max", "mean", "std", "q01", "q99")]
        expected = [x[:, c].min(), x[:, c].max(), x[:, c].mean(), x[:, c].std(), *np.quantile(x[:, c], (0.01, 0.99))]
        np.testing.assert_allclose(figures, expected, rtol=1e-5, atol=1e-7)


def test_columns_without_a_space_are_numbered(tmp_path):
    facts = look(tmp_path, plain(), [400])
    assert facts["space"] is None
    assert [row["label"] for row in facts["columns"]] == list("0123456")


def test_constant_clipped_and_binary_columns_are_told_apart(tmp_path):
    actions = plain()
    actions[:, 1] = 0.25
    actions[:, 2] = actions[:, 2].clip(-0.3, 0.3)
    facts = look(tmp_path, actions, [100] * 4, space="libero")
    assert [row["flags"] for row in facts["columns"]] == [[], ["constant"], ["clipped"], [], [], [], ["binary"]]
    assert any("translation.y is constant at 0.25" in s for s in facts["suspicious"])
    assert any("translation.z looks clipped" in s for s in facts["suspicious"])


def test_extremes_are_counted_across_episodes(tmp_path):
    # 1 % of the values at the overall maximum, but never two of them in one episode
    actions = plain()
    actions[::80, 0] = 5.0
    facts = look(tmp_path, actions, [80] * 5, space="libero")
    assert facts["columns"][0]["flags"] == ["clipped"]


def test_nan_and_infinity_are_counted_and_left_out_of_the_ranges(tmp_path):
    actions = plain()
    actions[3, 0] = np.nan
    actions[4:6, 1] = [np.inf, -np.inf]
    actions[:, 2] = np.nan
    facts = look(tmp_path, actions, [100] * 4, space="libero")
    assert facts["non_finite"] == 403
    assert [row["non_finite"] for row in facts["columns"]] == [1, 2, 400, 0, 0, 0, 0]
    assert facts["columns"][1]["max"] < 2
    assert facts["columns"][2]["mean"] is None


def test_an_inverted_gripper_is_noticed(tmp_path):
    actions = plain()
    actions[:, 6] *= -1
    facts = look(tmp_path, actions, [100] * 4, space="libero")
    assert any("4 of 4 episodes start closed" in s for s in facts["suspicious"])


def test_a_gripper_out_of_range_is_noticed(tmp_path):
    facts = look(tmp_path, plain(), [100] * 4, space="bridge")
    assert any("200 steps lie outside 1 (open) .. 0 (closed)" in s for s in facts["suspicious"])


@pytest.mark.parametrize("space", ["libero", None])
def test_idle_steps_and_copies_are_counted(tmp_path, space):
    actions = plain()
    actions[20:40] = 0
    actions[120:140] = 0
    actions[200:300] = actions[:100]
    facts = look(tmp_path, actions, [100] * 4, **({"space": space} if space else {}))
    # with a space, the gripper's move to 0 at the start of each stretch is not idle
    assert facts["idle_share"] == pytest.approx((57 if space else 60) / 400)
    assert facts["duplicate_episodes"] == 1
    assert any("exact copies" in s for s in facts["suspicious"])


def test_much_data_is_sampled_for_quantiles_only(tmp_path):
    actions = np.random.default_rng(0).normal(size=(300_000, 7))
    actions[17, 0] = 100
    facts = look(tmp_path, actions, [100_000] * 3)
    assert facts["columns"][0]["max"] == 100
    assert facts["columns"][3]["q99"] == pytest.approx(2.326, abs=0.03)


def test_the_split_is_told_and_what_gives_no_chunks(tmp_path):
    actions = plain(95)
    facts = look(tmp_path, actions, [5, 20, 30, 40], space="libero")
    assert facts["split"] == {"seeds": [0], "train": 2, "validation": 1, "test": 1, "by_card": False}
    assert "1 of 4 episodes are shorter than a chunk of 8 steps and give none" in facts["suspicious"]
    card = tmp_path / "a.json"
    card.write_text('{"split": {"seed": 3, "test": 2, "validation": 1}}')
    split = look(tmp_path, actions, [5, 20, 30, 40], space="libero")["split"]
    assert (split["by_card"], split["seeds"], split["train"]) == (True, [3], 1)
    card.unlink()
    facts = look(tmp_path, actions, [45, 50], space="libero")
    assert any("too few for training, validation and test" in sentence for sentence in facts["suspicious"])
