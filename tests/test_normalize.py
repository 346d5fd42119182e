"""Normalisers: exact inverses, columns without a range, values out of range, saving."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from actionpiece.errors import ActionPieceError
from actionpiece.normalize import Method, Normalizer, Way, parse_way

METHODS: list[Any] = list(get_args(Method))
tables = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=st.floats(-1e6, 1e6, allow_subnormal=False)
)


def sample() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(500, 5)) * (1e-4, 1, 50, 1e3, 1) + (0, 1, -20, 1e3, 0)


def test_minmax_maps_the_training_range_to_minus_one_and_one() -> None:
    x = sample()
    y = Normalizer.fit("minmax", x).normalize(torch.as_tensor(x)).numpy()
    np.testing.assert_allclose(y.min(0), -1, atol=1e-12)
    np.testing.assert_allclose(y.max(0), 1, atol=1e-12)


def test_quantile_maps_the_first_and_last_percentile_there() -> None:
    x = sample()
    y = Normalizer.fit("quantile", x).normalize(torch.as_tensor(x)).numpy()
    np.testing.assert_allclose(np.quantile(y, (0.01, 0.99), axis=0), [[-1] * 5, [1] * 5], atol=1e-9)


def test_meanstd_gives_zero_mean_and_unit_deviation_and_identity_changes_nothing() -> None:
    x = torch.as_tensor(sample())
    y = Normalizer.fit("meanstd", x).normalize(x)
    torch.testing.assert_close(y.mean(0), torch.zeros(5, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(y.std(0, correction=0), torch.ones(5, dtype=torch.float64))
    assert torch.equal(Normalizer.fit("identity", x).normalize(x), x)


def test_fitting_on_chunks_is_fitting_on_their_steps() -> None:
    x = sample()
    assert Normalizer.fit("minmax", x.reshape(50, 10, 5)).to_dict() == Normalizer.fit("minmax", x).to_dict()


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=60)
@given(x=tables)
def test_denormalising_undoes_normalising(method: Any, x: np.ndarray) -> None:
    normalizer = Normalizer.fit(method, x)
    t = torch.as_tensor(x)
    y = normalizer.normalize(t)
    assert bool(torch.isfinite(y).all())
    size = np.abs(x).max(0) + normalizer.scale
    assert (np.abs(normalizer.denormalize(y).numpy() - x) <= 1e-12 * size).all()
    if method in ("minmax", "quantile"):
        assert Normalizer.fit(method, x, "clip").dim == x.shape[1]
    if method == "minmax":
        assert float(y.abs().max()) <= 1 + 1e-9
        assert normalizer.count_outside(x) == 0


@pytest.mark.parametrize("method", METHODS)
def test_the_round_trip_in_float32_is_as_good_as_float32(method: Any) -> None:
    x = torch.as_tensor(sample()).float()
    normalizer = Normalizer.fit(method, x)
    y = normalizer.normalize(x)
    assert y.dtype == torch.float32
    error = (normalizer.denormalize(y) - x).abs() / (x.abs() + torch.as_tensor(normalizer.scale).float())
    assert float(error.max()) < 5e-7


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6, 1e-20, 123456.789])
@pytest.mark.parametrize("method", ["minmax", "quantile", "meanstd"])
def test_a_constant_column_normalises_to_zero_and_comes_back_exactly(method: Any, value: float) -> None:
    x = np.full((333, 1), value)
    normalizer = Normalizer.fit(method, x)
    y = normalizer.normalize(torch.as_tensor(x))
    assert normalizer.scale.tolist() == [1.0]
    assert float(y.abs().max()) == 0
    assert np.array_equal(normalizer.denormalize(y).numpy(), x)


def test_equal_percentiles_fall_back_to_the_range() -> None:
    x = np.zeros((1000, 2))
    x[:3, 0], x[:, 1] = (-2, 4, 1), np.linspace(0, 1, 1000)
    normalizer = Normalizer.fit("quantile", x)
    assert (normalizer.offset[0], normalizer.scale[0]) == (1.0, 3.0)
    assert normalizer.scale[1] == pytest.approx(0.49)
    assert float(normalizer.normalize(torch.as_tensor(x))[:, 0].abs().max()) == 1


def test_passing_leaves_values_beyond_the_range_and_clipping_counts_them() -> None:
    x = np.linspace(-1, 1, 21)[:, None]
    passing, clipping = Normalizer.fit("minmax", x), Normalizer.fit("minmax", x, "clip")
    values = torch.tensor([[-3.0], [-1.0], [0.5], [1.0], [1.0 + 1e-9], [7.0]], dtype=torch.float64)
    torch.testing.assert_close(passing.normalize(values), values)
    assert passing.clipped == 0
    torch.testing.assert_close(clipping.normalize(values), values.clamp(-1, 1))
    assert clipping.clipped == 2
    clipping.normalize(values)
    assert clipping.clipped == 4
    assert passing.count_outside(values) == clipping.count_outside(values) == 2
    for method in ("meanstd", "identity"):
        assert Normalizer.fit(method, x).count_outside(values) is None  # there is no range to be outside of


@pytest.mark.parametrize("method", ["meanstd", "identity"])
def test_methods_without_a_range_refuse_to_clip(method: Any) -> None:
    with pytest.raises(ActionPieceError, match="no range to clip to"):
        Normalizer.fit(method, sample(), "clip")


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=30)
@given(x=tables)
def test_a_normaliser_comes_back_from_json_to_the_last_bit(method: Any, x: np.ndarray) -> None:
    normalizer = Normalizer.fit(method, x)
    again = Normalizer.from_dict(json.loads(json.dumps(normalizer.to_dict())))
    assert np.array_equal(again.offset, normalizer.offset)
    assert np.array_equal(again.scale, normalizer.scale)
    assert (again.method, again.out_of_range) == (method, "pass")


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        {},
        {"method": "minmax", "offset": [0.0]},
        {"method": "minmax", "offset": [0.0], "scale": [1.0], "more": 1},
        {"method": "minmax", "offset": ["a"], "scale": [1.0]},
        {"method": "minmax", "offset": [[0.0], [0.0, 1.0]], "scale": [1.0]},
        {"method": "minmax", "offset": [0.0, 1.0], "scale": [1.0]},
        {"method": "minmax", "offset": [[0.0]], "scale": [[1.0]]},
        {"method": "minmax", "offset": [0.0], "scale": [0.0]},
        {"method": "minmax", "offset": [0.0], "scale": [-1.0]},
        {"method": "minmax", "offset": [0.0], "scale": [float("nan")]},
        {"method": "minmax", "offset": [float("inf")], "scale": [1.0]},
        {"method": "tanh", "offset": [0.0], "scale": [1.0]},
        {"method": "minmax", "offset": [0.0], "scale": [1.0], "out_of_range": "wrap"},
    ],
)
def test_a_saved_normaliser_that_does_not_fit_is_a_clear_error(value: Any) -> None:
    with pytest.raises(ActionPieceError):
        Normalizer.from_dict(value)


@pytest.mark.parametrize("actions", [[], np.zeros((0, 7)), np.zeros((3, 0)), [[float("nan")]], ["a"], [[1], [1, 2]]])
def test_a_normaliser_is_not_fitted_on_nothing_or_on_nonsense(actions: Any) -> None:
    with pytest.raises(ActionPieceError):
        Normalizer.fit("minmax", actions)


def test_the_wrong_number_of_columns_is_an_error() -> None:
    normalizer = Normalizer.fit("minmax", sample())
    for call in (normalizer.normalize, normalizer.denormalize, normalizer.count_outside):
        with pytest.raises(ActionPieceError, match="actions have 4 columns, but the normaliser was fitted on 5"):
            call(torch.zeros(3, 4))


def test_symmetric_divides_by_the_larger_percentile_and_leaves_zero_alone() -> None:
    x = np.random.default_rng(0).normal((1.0, -2.0), (0.5, 3.0), (5000, 2))
    normalizer = Normalizer.fit("symmetric", x)
    q01, q99 = np.quantile(x, (0.01, 0.99), axis=0)
    np.testing.assert_allclose(normalizer.scale, np.maximum(np.abs(q01), np.abs(q99)))
    np.testing.assert_array_equal(normalizer.offset, [0, 0])
    clipped = Normalizer.fit("symmetric", x, "clip")
    assert clipped.way == "symmetric+clip"
    assert clipped.normalize(torch.from_numpy(x)).abs().max() == 1
    constant = Normalizer.fit("symmetric", np.array([[3.0, 0.0]] * 9))
    np.testing.assert_array_equal(constant.offset, [3, 0])
    np.testing.assert_array_equal(constant.scale, [1, 1])


@pytest.mark.parametrize("way", get_args(Way))
def test_every_way_is_written_as_it_is_read(way: str) -> None:
    method, out_of_range = parse_way(way)
    assert Normalizer.fit(method, np.arange(6.0).reshape(3, 2), out_of_range).way == way


@pytest.mark.parametrize("way", ["none", "meanstd+clip", "quantile+", "minmax+pass", ""])
def test_other_ways_are_an_error(way: str) -> None:
    with pytest.raises(ActionPieceError, match="no way to normalise; there are minmax, quantile, symmetric"):
        parse_way(way)
