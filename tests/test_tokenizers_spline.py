"""`spline`: the basis against scipy's, least squares against numpy's, and quantisation within half a bin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.interpolate import BSpline

from actionpiece.errors import ActionPieceError
from actionpiece.space import ActionSpace
from actionpiece.tokenizers.spline import SplineConfig, SplineTokenizer, basis_matrix
from conftest import libero_like, smooth

SHAPES = [
    (8, 5, 4),
    (8, 5, 0),
    (8, 5, 3),
    (10, 5, 4),
    (50, 10, 4),
    (5, 5, 4),
    (8, 8, 0),
    (8, 1, 0),
    (16, 12, 2),
    (1, 1, 0),
]


@pytest.mark.parametrize(("steps", "bases", "degree"), SHAPES)
def test_the_basis_is_scipys_clamped_uniform_one(steps: int, bases: int, degree: int) -> None:
    knots = np.concatenate((np.zeros(degree), np.linspace(0, 1, bases - degree + 1), np.ones(degree)))
    times = np.linspace(0, 1, steps)
    expected = BSpline.design_matrix(times, knots, degree).toarray()
    ours = basis_matrix(steps, bases, degree)
    assert ours.shape == (steps, bases)
    np.testing.assert_allclose(ours, expected, atol=1e-12)
    np.testing.assert_allclose(ours.sum(1), 1, atol=1e-12)  # a partition of unity


def test_coefficients_are_the_least_squares_ones() -> None:
    x = libero_like(60)
    tok = SplineTokenizer.fit(x, ActionSpace.preset("libero"), normalizer="identity")
    found = tok._coefficients(torch.as_tensor(x)).numpy()  # (60, bases, 7)
    for column in range(7):
        basis = basis_matrix(8, 5, 0 if column == 6 else 4)
        expected = np.linalg.lstsq(basis, x[..., column].T.astype(np.float64), rcond=None)[0].T
        np.testing.assert_allclose(found[..., column], expected, atol=1e-4)
        residual = ((x[..., column] - found[..., column] @ basis.T) ** 2).sum(1)
        moved = found[..., column] + np.random.default_rng(0).normal(0, 0.01, found[..., column].shape)
        assert (((x[..., column] - moved @ basis.T) ** 2).sum(1) >= residual - 1e-6).all()


def test_training_chunks_lose_the_fit_and_half_a_bin_per_coefficient() -> None:
    x = smooth(100, 8, 3, 0)
    tok = SplineTokenizer.fit(x, ActionSpace.of_joints(3), SplineConfig(bins=64), normalizer="identity")
    basis = basis_matrix(8, 5, 4)
    projected = np.einsum("hk,kg,bgd->bhd", basis, np.linalg.pinv(basis), x)
    worst = np.einsum("hk,kd->hd", np.abs(basis), tok.width.numpy() / 2)
    assert (np.abs(tok.decode(tok.encode(x)) - projected) <= worst + 1e-4).all()
    fine = SplineTokenizer.fit(x, ActionSpace.of_joints(3), SplineConfig(bins=4096), normalizer="identity")
    np.testing.assert_allclose(fine.decode(fine.encode(x)), projected, atol=1e-3)


def test_grippers_are_piecewise_constant() -> None:
    x = libero_like(100)
    tok = SplineTokenizer.fit(x, ActionSpace.preset("libero"))
    gripper = tok.decode(tok.encode(x))[..., 6]
    span = np.argmax(basis_matrix(8, 5, 0), 1)
    for piece in range(5):
        assert np.ptp(gripper[:, span == piece], axis=1).max() < 1e-6
    moving = SplineTokenizer.fit(x, ActionSpace.preset("libero"), SplineConfig(gripper_degree=4))
    assert np.ptp(moving.decode(moving.encode(x))[..., 6][:, span == 0], axis=1).max() > 0.01


def test_a_constant_column_comes_back_whatever_the_token() -> None:
    x = smooth(50, 8, 2, 0)
    x[..., 1] = 0.7
    tok = SplineTokenizer.fit(x, ActionSpace.of_joints(2), normalizer="identity")
    out = tok.decode(tok.encode(x + 0.2))
    np.testing.assert_allclose(out[..., 1], 0.7, atol=1e-4)


def test_tokens_run_through_the_columns_of_one_basis_after_the_other() -> None:
    x = smooth(50, 8, 3, 0)
    tok = SplineTokenizer.fit(x, ActionSpace.of_joints(3))
    ids = tok.encode(x[0])
    changed = ids.copy()
    changed[4] = (changed[4] + 100) % 256  # the second coefficient of the second column
    moved = np.abs(tok.decode(changed) - tok.decode(ids)).max(0)
    assert moved[1] > 1e-3
    assert moved[[0, 2]].max() < 1e-6


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ActionPieceError, match="at least 2 bins"):
        SplineConfig(bins=1)
    for wrong in ({"degree": 5}, {"degree": -1}, {"gripper_degree": 5}, {"bases": 0}):
        with pytest.raises(ActionPieceError, match="a spline of degree"):
            SplineConfig(**wrong)
    with pytest.raises(ActionPieceError, match="cannot fit 5 bases to 4 steps"):
        SplineTokenizer.fit(smooth(5, 4, 2, 0), ActionSpace.of_joints(2))
    tok = SplineTokenizer.fit(smooth(5, 8, 2, 0), ActionSpace.of_joints(2), SplineConfig(bases=6, bins=32))
    assert (tok.tokens_per_chunk, tok.vocab_size, tok.bits_per_chunk(0)) == (12, 32, 60)
