"""Fidelity in millimetres and degrees, jerk, code use, overlap and corruption, against computations by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from actionpiece.errors import ActionPieceError
from actionpiece.metrics.codes import code_use, perplexity, token_overlap, valid_after_corruption
from actionpiece.metrics.fidelity import fidelity, jerk_error
from actionpiece.metrics.latency import latency
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace, Group
from actionpiece.tokenizers.binning import BinningConfig, BinningTokenizer
from actionpiece.tokenizers.fast import FastConfig, FastTokenizer
from actionpiece.tokenizers.pq import PQConfig, PQTokenizer
from conftest import libero_like, smooth

LIBERO = ActionSpace.preset("libero")


def unit_normalizer(dim: int = 7) -> Normalizer:
    return Normalizer("identity", np.zeros(dim), np.ones(dim))


# Fidelity -------------------------------------------------------------------------------------------------------------


def test_errors_are_in_millimetres_degrees_and_opening() -> None:
    x = np.zeros((2, 4, 7))
    x[..., 6] = -1
    y = x.copy()
    y[0, 0, :3] = (0.03, 0, 0.04)  # 0.05 raw of 5 cm: 2.5 mm
    y[1, 2, 5] = 0.2  # 0.1 rad
    y[0, 1, 6] = 0.5  # three quarters closed: a flip
    y[1, 3, 6] = -0.5  # a quarter closed: none
    p, r, g = fidelity(x, y, space=LIBERO, normalizer=unit_normalizer()).groups
    assert (p.name, p.unit, r.unit, g.unit) == ("translation", "mm", "deg", "opening")
    assert p.worst == pytest.approx(2.5)
    assert p.rmse == pytest.approx(2.5 / math.sqrt(8))
    assert r.worst == pytest.approx(math.degrees(0.1))
    assert r.rmse == pytest.approx(math.degrees(0.1) / math.sqrt(8))
    assert g.worst == pytest.approx(0.75)
    assert g.rmse == pytest.approx(math.sqrt((0.75**2 + 0.25**2) / 8))
    assert (p.flips, r.flips, g.flips) == (None, None, 1 / 8)


def test_the_polarity_of_a_gripper_does_not_change_its_flips() -> None:
    for opened, closed in ((1.0, 0.0), (0.0, 1.0)):
        space = ActionSpace("g", (Group("gripper", (0,), open=opened, closed=closed),))
        x = np.array([0.1, 0.9, 0.2, 0.8]).reshape(1, 4, 1)
        y = np.array([0.2, 0.3, 0.6, 0.7]).reshape(1, 4, 1)
        assert fidelity(x, y, space=space, normalizer=unit_normalizer(1)).groups[0].flips == 0.5


def test_rotation_errors_are_geodesic_angles() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(0, 2, (2, 10, 4, 7))
    (_, r, _) = fidelity(x, y, space=LIBERO, normalizer=unit_normalizer()).groups
    a, b = (Rotation.from_rotvec(v[..., 3:6].reshape(-1, 3) * 0.5) for v in (x, y))
    angles = np.degrees((a.inv() * b).magnitude())
    assert r.rmse == pytest.approx(math.sqrt((angles**2).mean()), rel=1e-9)
    assert r.worst == pytest.approx(angles.max(), rel=1e-9)


def test_joints_are_in_degrees_and_other_columns_raw() -> None:
    space = ActionSpace("j", (Group("joints", (0, 1), unit=0.2, delta=True), Group("other", (2,))))
    x, y = np.zeros((2, 1, 1, 3))
    y[0, 0] = (3, 4, 7)
    joints, other = fidelity(x, y, space=space, normalizer=unit_normalizer(3)).groups
    assert (joints.unit, joints.worst) == ("deg", pytest.approx(math.degrees(1.0)))
    assert (other.unit, other.worst) == ("raw", 7)


def test_mse_and_l1_are_in_the_given_coordinates_and_clipping_hides_nothing() -> None:
    x = libero_like(50)
    y = x + np.random.default_rng(0).normal(0, 2, x.shape)
    normalizer = Normalizer.fit("minmax", x, "clip")
    found = fidelity(x, y, space=LIBERO, normalizer=normalizer)
    error = (y - x) / normalizer.scale
    assert found.mse == pytest.approx((error**2).mean(), rel=1e-9)
    assert found.l1 == pytest.approx(np.abs(error).mean(), rel=1e-9)
    np.testing.assert_allclose(found.per_chunk.numpy(), (error**2).mean((1, 2)), rtol=1e-9)
    assert normalizer.clipped == 0


def test_no_error_is_zero_everywhere() -> None:
    x = libero_like(20)
    found = fidelity(x, torch.as_tensor(x), space=LIBERO, normalizer=unit_normalizer())
    assert (found.mse, found.l1, found.jerk) == (0, 0, 0)
    assert all(group.rmse == group.worst == 0 and not group.flips for group in found.groups)


def test_chunks_of_different_shapes_are_not_compared() -> None:
    with pytest.raises(ActionPieceError, match="differ in shape"):
        fidelity(libero_like(5), libero_like(4), space=LIBERO, normalizer=unit_normalizer())


# Jerk -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("rate", [None, 20.0])
def test_jerk_is_the_third_derivative_of_the_motion(delta: bool, rate: float | None) -> None:
    space = ActionSpace("p", (Group("translation", (0,), unit=0.5, delta=delta),), rate)
    steps = np.arange(8.0)
    # a target of c t^3 has a jerk of 6 c; so does a change per step of 3 c t^2
    error = (3 * steps**2 if delta else steps**3) * 0.01
    found, unit = jerk_error(torch.zeros(1, 8, 1), torch.as_tensor(error).reshape(1, 8, 1), space)
    assert found == pytest.approx(6 * 0.01 * 0.5 * (rate or 1) ** 3)
    assert unit == ("m/s^3" if rate else "m/step^3")


def test_jerk_adds_up_over_arms_and_falls_back_to_joints() -> None:
    error = torch.as_tensor(np.random.default_rng(0).normal(size=(3, 8, 4)))
    arms = tuple(Group("joints", (2 * i, 2 * i + 1), f"arm{i}", unit=1.0, delta=False) for i in range(2))
    found, unit = jerk_error(torch.zeros_like(error), error, ActionSpace("j", arms, 10.0))
    third = np.diff(error.numpy(), n=3, axis=1)
    assert found == pytest.approx(math.sqrt((third**2).sum(-1).mean()) * 1000)
    assert unit == "rad/s^3"


def test_the_rate_of_the_data_comes_before_that_of_the_space(libero_chunks: np.ndarray, libero: ActionSpace) -> None:
    normalizer = Normalizer.fit("minmax", libero_chunks)
    decoded = np.round(libero_chunks, 1)
    at = {
        r: fidelity(libero_chunks, decoded, space=libero, normalizer=normalizer, rate=r).jerk
        for r in (None, 20.0, 10.0)
    }
    assert at[None] == at[20.0] == pytest.approx(8 * (at[10.0] or 0))


def test_a_chunk_too_short_for_a_jerk_has_none() -> None:
    for delta, steps in ((True, 2), (False, 3)):
        space = ActionSpace("p", (Group("translation", (0,), unit=1, delta=delta),))
        assert jerk_error(torch.zeros(1, steps, 1), torch.ones(1, steps, 1), space)[0] is None
        assert jerk_error(torch.zeros(1, steps + 1, 1), torch.ones(1, steps + 1, 1), space)[0] == 0
    gripper = ActionSpace("g", (Group("gripper", (0,), open=0, closed=1),))
    assert jerk_error(torch.zeros(1, 8, 1), torch.ones(1, 8, 1), gripper)[0] is None


# Codes ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def binning() -> BinningTokenizer:
    return BinningTokenizer.fit(smooth(20, 2, 2, 0), ActionSpace.of_joints(2), BinningConfig(bins=8))


@pytest.fixture(scope="module")
def fast() -> FastTokenizer:
    return FastTokenizer.fit(smooth(400, 8, 3, 0), ActionSpace.of_joints(3), FastConfig(vocab_size=256))


def test_perplexity_of_known_distributions() -> None:
    assert perplexity(np.array([0, 5, 0])) == pytest.approx(1)
    assert perplexity(np.array([3, 3, 3, 3, 0])) == pytest.approx(4)
    assert perplexity(np.array([1, 1, 2])) == pytest.approx(2**1.5)


def test_code_use_counts_ids(binning: BinningTokenizer) -> None:
    ids = np.array([[0, 1, 2, 3], [0, 1, 3, 2], [0, 2, 2, 3], [0, 2, 3, 2]])
    use = code_use(binning, ids)
    assert use.mean_tokens == 4
    assert use.used == 4 / 8
    assert use.counts.tolist() == [4, 2, 6, 4, 0, 0, 0, 0]
    p = np.array([4, 2, 6, 4]) / 16
    assert use.perplexity == pytest.approx(np.exp(-(p * np.log(p)).sum()))
    assert use.position_perplexity == pytest.approx((1 + 2 + 2 + 2) / 4)
    assert code_use(binning, torch.as_tensor(ids)).counts.tolist() == use.counts.tolist()


def test_code_use_of_variable_length_has_no_positions(fast: FastTokenizer) -> None:
    use = code_use(fast, [np.array([1, 2, 3]), np.array([1])])
    assert use.mean_tokens == 2
    assert use.position_perplexity is None
    assert use.used == 3 / fast.vocab_size


def test_overlap_compares_position_by_position_and_the_longer_one_counts() -> None:
    assert token_overlap([[1, 2, 3, 4]], [[1, 2, 4, 3]]) == 0.5
    assert token_overlap([[1, 2], [5, 5]], [[1, 2], [6, 6]]) == 0.5
    assert token_overlap([[1, 2, 3, 4]], [[1, 2]]) == 0.5
    assert token_overlap([[1]], [[2, 1]]) == 0
    assert token_overlap(np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3)) == 1


def test_fixed_length_survives_every_change_and_no_loss(binning: BinningTokenizer) -> None:
    ids = binning.encode(smooth(200, 2, 2, 1))
    assert valid_after_corruption(binning, ids) == {"changed": 1.0, "dropped": 0.0}
    pq = PQTokenizer.fit(smooth(50, 2, 2, 0), ActionSpace.of_joints(2), PQConfig(tokens=1, codes=2))
    assert valid_after_corruption(pq, pq.encode(smooth(50, 2, 2, 1))) == {"changed": 1.0, "dropped": 0.0}


def test_a_changed_token_is_another_one_of_its_range(
    binning: BinningTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = binning.encode(smooth(300, 2, 2, 1))
    seen = []

    def decode(altered: list[np.ndarray], errors: str) -> tuple[None, np.ndarray]:
        seen.append(altered)
        return None, np.ones(len(altered), bool)

    monkeypatch.setattr(binning, "decode", decode)
    valid_after_corruption(binning, ids, seed=3)
    changed, dropped = np.stack(seen[0]), np.stack(seen[1])
    assert ((changed != ids).sum(1) == 1).all()
    assert (changed.min(), changed.max()) == (0, 7)
    assert len(np.unique(np.nonzero(changed != ids)[1])) == 4
    np.testing.assert_array_equal(dropped, ids[:, :-1])


def test_corrupted_fast_sequences_are_sometimes_valid_and_the_same_for_a_seed(fast: FastTokenizer) -> None:
    ids = fast.encode(smooth(300, 8, 3, 1))
    first = valid_after_corruption(fast, ids, seed=1)
    assert 0 < first["changed"] < 1
    assert first["dropped"] == 0  # a sequence less its last token is too short
    assert valid_after_corruption(fast, ids, seed=1) == first
    by_hand = np.mean([bool(fast.decode([row[:-1]], errors="mask")[1][0]) for row in ids])
    assert first["dropped"] == by_hand


def test_latency_is_positive(binning: BinningTokenizer) -> None:
    found = latency(binning, smooth(20, 2, 2, 1), repeats=3)
    assert min(found.encode_ms, found.decode_ms, found.encode_per_s, found.decode_per_s) > 0
