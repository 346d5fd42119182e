"""`binning` against OpenVLA's own formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actionpiece.errors import ActionPieceError
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace
from actionpiece.tokenizers.binning import BinningConfig, BinningTokenizer

D, H = 3, 4


def tokenizer(bins: int = 255) -> BinningTokenizer:
    x = np.zeros((2, H, D))
    return BinningTokenizer.fit(x, ActionSpace.of_joints(D), BinningConfig(bins), normalizer="identity")


def openvla(actions: np.ndarray, edges: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """OpenVLA's ActionTokenizer: which bin a value falls into, counted from 0, and what the bin decodes to."""
    bins = np.linspace(-1, 1, edges)
    centers = (bins[:-1] + bins[1:]) / 2
    ids = np.digitize(np.clip(actions, -1, 1), bins)
    ids = np.clip(ids - 1, 0, centers.shape[0] - 1)
    return ids, centers[ids]


def away_from_edges(x: np.ndarray, bins: int) -> np.ndarray:
    """Values moved off the edges, where float32 and float64 may disagree on the side."""
    place = (x.astype(np.float64) + 1) * bins / 2
    return np.where(np.abs(place - np.rint(place)) < 1e-3, x + np.float32(0.01 / bins), x).astype(np.float32)


@pytest.mark.parametrize("bins", [255, 256, 17])
def test_ids_and_centres_are_openvlas(bins: int) -> None:
    tok = tokenizer(bins)
    x = np.random.default_rng(0).uniform(-1.3, 1.3, (500, H, D)).astype(np.float32)
    x[:20] *= 10
    x = away_from_edges(x, bins)
    x[0], x[1], x[2] = -1.0, 1.0, 0.9999
    ids, centres = openvla(x, bins + 1)
    np.testing.assert_array_equal(tok.encode(x), ids.reshape(500, H * D))
    np.testing.assert_allclose(tok.decode(tok.encode(x)), centres, atol=1e-6)


def test_every_id_decodes_to_a_centre_that_encodes_to_it() -> None:
    tok = tokenizer()
    ids = np.resize(np.arange(255), (30, H * D))
    np.testing.assert_array_equal(tok.encode(tok.decode(ids)), ids)


@settings(deadline=None, max_examples=50)
@given(values=st.lists(st.floats(-1, 1, width=32), min_size=H * D, max_size=H * D))
def test_a_value_in_range_moves_by_half_a_bin_at_most(values: list[float]) -> None:
    x = np.array(values).reshape(H, D)
    tok = tokenizer()
    assert np.abs(tok.decode(tok.encode(x)) - x).max() <= 1 / 255 + 1e-6


def test_tokens_run_through_the_columns_of_one_step_after_the_other() -> None:
    x = np.full((H, D), -1.0)
    x[1, 2] = 1.0
    ids = tokenizer().encode(x)
    assert ids.tolist() == [0] * (D + 2) + [254] + [0] * (H * D - D - 3)


def test_sizes_follow_from_the_chunk() -> None:
    tok = tokenizer(64)
    assert (tok.vocab_size, tok.tokens_per_chunk, tok.bits_per_chunk(0)) == (64, H * D, 6 * H * D)
    with pytest.raises(ActionPieceError, match="at least 2 bins"):
        BinningConfig(1)


def test_normalised_training_extremes_fall_into_the_outermost_bins() -> None:
    x = np.random.default_rng(0).normal(5, 3, (100, H, D)).astype(np.float32)
    tok = BinningTokenizer.fit(x, ActionSpace.of_joints(D))
    ids = tok.encode(x)
    assert (ids.min(), ids.max()) == (0, 254)
    half_bin = tok.normalizer.scale / 255
    assert (np.abs(tok.decode(ids) - x) <= half_bin * 1.001).all()
    assert isinstance(tok.normalizer, Normalizer)
