"""`pq`: groups, nearest codewords, prefixes, coordinates."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from actionpiece.errors import ActionPieceError, DecodeError
from actionpiece.metrics.prc import prc
from actionpiece.space import ActionSpace, Group
from actionpiece.tokenizers.pq import GROUPINGS, PQConfig, PQTokenizer, balanced_groups, least_error_groups
from conftest import libero_like, smooth

LIBERO = ActionSpace.preset("libero")
SMALL = {"tokens": 8, "codes": 32}


@pytest.fixture(scope="module")
def tok() -> PQTokenizer:
    return PQTokenizer.fit(libero_like(600), LIBERO, PQConfig(**SMALL))


def normalised_mse(tok: PQTokenizer, x: np.ndarray, k: int | None = None) -> float:
    ids = tok.encode(x)
    out = tok.decode(ids) if k is None else tok.decode(ids[:, :k], prefix=True)
    return float((((out - x) / tok.normalizer.scale) ** 2).mean())


# Groups ---------------------------------------------------------------------------------------------------------------


def energies(n: int, seed: int = 0) -> list[float]:
    return np.sort(np.exp(np.random.default_rng(seed).normal(0, 3, n)))[::-1].tolist()


def water_filled(variances: list[float], codes: int) -> float:
    """The error of a codebook by reverse water-filling, found by bisection over the water level."""
    low, high = 1e-30, max(variances)
    for _ in range(200):
        level = math.sqrt(low * high)
        bits = sum(0.5 * math.log(v / level) for v in variances if v > level)
        low, high = (level, high) if bits > math.log(codes) else (low, level)
    return sum(min(v, high) for v in variances)


def naive_split(energy: list[float], count: int) -> list[list[int]]:
    return [part.tolist() for part in np.array_split(np.arange(len(energy)), count)]


@pytest.mark.parametrize("name", list(GROUPINGS))
@pytest.mark.parametrize(("n", "count"), [(56, 16), (5, 5), (7, 1), (20, 3)])
def test_groups_are_a_partition_by_falling_energy(name: str, n: int, count: int) -> None:
    for energy in (energies(n), [0.0] * n, [1.0] * n, [1.0] + [0.0] * (n - 1)):
        groups = GROUPINGS[name](energy, count, 512)
        assert len(groups) == count
        assert sorted(i for group in groups for i in group) == list(range(n))
        assert all(group and group == sorted(group) for group in groups)
        totals = [sum(energy[i] for i in group) for group in groups]
        assert totals == sorted(totals, reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_least_error_groups_beat_a_naive_split_on_their_own_cost(seed: int) -> None:
    energy = energies(56, seed)

    def cost(groups: list[list[int]]) -> float:
        return sum(water_filled([energy[i] for i in group], 512) for group in groups)

    ours = cost(least_error_groups(energy, 16, 512))
    round_robin = [list(range(g, 56, 16)) for g in range(16)]
    assert ours < cost(naive_split(energy, 16))
    assert ours <= cost(round_robin) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_balanced_groups_have_more_even_products_than_a_naive_split(seed: int) -> None:
    energy = energies(56, seed)

    def unevenness(groups: list[list[int]]) -> float:
        return float(np.std([sum(math.log(energy[i]) for i in group) for group in groups]))

    assert unevenness(balanced_groups(energy, 8, 512)) < 0.5 * unevenness(naive_split(energy, 8))


# Encoding -------------------------------------------------------------------------------------------------------------


def test_encoding_picks_the_nearest_codeword_of_every_group(tok: PQTokenizer) -> None:
    x = libero_like(100, seed=9)
    normal = tok.normalizer.normalize(torch.as_tensor(x).double())
    z = normal.flatten(1) * tok.weight - tok.mean
    ids = tok.encode(x)
    for group in range(8):
        distances = torch.cdist(z @ tok.basis[:, group].double(), tok.codebooks[group].double())
        picked = distances.gather(1, torch.as_tensor(ids[:, group : group + 1]))[:, 0]
        torch.testing.assert_close(picked, distances.amin(1), atol=1e-5, rtol=1e-5)


def test_the_basis_is_a_rotation_and_its_padding_empty(tok: PQTokenizer) -> None:
    columns = tok.basis.flatten(1)
    real = columns.abs().sum(0) > 0
    assert int(real.sum()) == 56
    torch.testing.assert_close(columns[:, real].T @ columns[:, real], torch.eye(56), atol=1e-4, rtol=0)
    padding = (tok.basis.abs().sum(0) == 0)[:, None].expand_as(tok.codebooks)
    assert float(tok.codebooks[padding].abs().sum()) == 0


def test_a_decoded_chunk_is_the_sum_of_its_codewords(tok: PQTokenizer) -> None:
    ids = tok.encode(libero_like(5, seed=9))
    z = tok.mean + sum(tok.codebooks[g][torch.as_tensor(ids[:, g])] @ tok.basis[:, g].T for g in range(8))
    expected = (z / tok.weight).reshape(5, 8, 7)
    np.testing.assert_allclose(tok.decode(ids, normalized=True), expected.numpy(), atol=1e-5)


def test_encoding_a_decoded_chunk_gives_its_ids_back(tok: PQTokenizer) -> None:
    ids = tok.encode(libero_like(100, seed=9))
    again = tok.encode(tok.decode(ids))
    assert (again == ids).mean() > 0.999


# Prefixes -------------------------------------------------------------------------------------------------------------


def test_the_error_falls_with_every_token_of_a_prefix(tok: PQTokenizer) -> None:
    x = libero_like(600)
    errors = [normalised_mse(tok, x, k) for k in range(1, 9)]
    assert all(b < a for a, b in itertools.pairwise(errors))
    ids = tok.encode(x)
    np.testing.assert_array_equal(tok.decode(ids, prefix=True), tok.decode(ids))
    mean = tok.mean.numpy().reshape(8, 7) / tok.weight.numpy().reshape(8, 7)
    spread = float(((tok.normalizer.normalize(torch.as_tensor(x)).numpy() - mean) ** 2).mean())
    assert errors[0] < spread


def test_prefixes_of_one_chunk_and_of_lists_work_and_bad_ones_are_reported(tok: PQTokenizer) -> None:
    ids = tok.encode(libero_like(4, seed=9))
    np.testing.assert_allclose(tok.decode(ids[0, :3], prefix=True), tok.decode(ids[:, :3], prefix=True)[0], atol=1e-6)
    assert tok.decode([row[:3].tolist() for row in ids], prefix=True).shape == (4, 8, 7)
    with pytest.raises(DecodeError, match="it has 3 tokens, not 8"):
        tok.decode(ids[:, :3])
    with pytest.raises(DecodeError, match="not 1 to 8, all alike") as caught:
        tok.decode([ids[0][:3], ids[1][:4], ids[2][:3]], prefix=True)
    assert caught.value.items == (1,)
    for wrong in (np.zeros((2, 0), int), np.zeros((2, 9), int)):
        with pytest.raises(DecodeError) as caught:
            tok.decode(wrong, prefix=True)
        assert caught.value.items == (0, 1)
    assert tok.decode(np.zeros((0, 3), int), prefix=True).shape == (0, 8, 7)


# Coordinates ----------------------------------------------------------------------------------------------------------


def test_blending_trades_squared_error_for_physical_order() -> None:
    x = libero_like(1500)
    x[..., 3:6] *= 0.1
    x[0, 0, 3:6] = 1.0  # one outlier widens the min-max range of rotation, so that normalised coordinates neglect it
    space = LIBERO
    plain, physical = (PQTokenizer.fit(x, space, PQConfig(**SMALL, blend=blend)) for blend in (0.0, 1.0))
    assert torch.equal(plain.weight, torch.ones(56))
    expected = physical.distance.column_rates().numpy() * physical.normalizer.scale
    np.testing.assert_allclose(physical.weight.numpy(), np.tile(expected, 8), rtol=1e-5)
    half = PQTokenizer.fit(x, space, PQConfig(**SMALL, blend=0.5))
    np.testing.assert_allclose(half.weight.numpy(), np.sqrt(physical.weight.numpy()), rtol=1e-5)
    assert normalised_mse(plain, x) < normalised_mse(physical, x)
    scores = [
        prc(x[:400], tok.decode(tok.encode(x[:400])), distance=plain.distance, k=16).value for tok in (plain, physical)
    ]
    assert scores[0] < scores[1]
    assert float(physical.distance.paired(x, physical.decode(physical.encode(x))).mean()) < float(
        plain.distance.paired(x, plain.decode(plain.encode(x))).mean()
    )


def test_a_group_of_weight_zero_still_comes_back() -> None:
    groups = (
        Group("translation", (0, 1, 2), unit=1.0, delta=True),
        Group("gripper", (3,), open=0, closed=1, weight=0.0),
    )
    x = smooth(300, 8, 4, 0)
    for blend in (0.0, 0.5, 1.0):
        tok = PQTokenizer.fit(x, ActionSpace("w", groups), PQConfig(**SMALL, blend=blend))
        out = tok.decode(tok.encode(x))
        assert np.isfinite(out).all()
        assert np.abs(out).max() < 2


def test_constant_columns_come_back() -> None:
    x = libero_like(300)
    x[..., 2], x[..., 6] = 0.25, -1.0
    for blend in (0.0, 1.0):
        tok = PQTokenizer.fit(x, LIBERO, PQConfig(**SMALL, blend=blend))
        out = tok.decode(tok.encode(x))
        np.testing.assert_allclose(out[..., 2], 0.25, atol=1e-4)
        np.testing.assert_allclose(out[..., 6], -1.0, atol=1e-4)


def test_fewer_rows_than_codes_come_back_nearly_exactly() -> None:
    x = libero_like(20)
    tok = PQTokenizer.fit(x, LIBERO, PQConfig(tokens=8, codes=64))
    assert tok.codebooks.shape[1] == 64
    np.testing.assert_allclose(tok.decode(tok.encode(x)), x, atol=1e-4)


def test_more_codes_and_more_tokens_lose_less() -> None:
    joint_chunks, space = smooth(300, 8, 6, 5), ActionSpace.of_joints(6)
    errors = [
        normalised_mse(PQTokenizer.fit(joint_chunks, space, PQConfig(tokens=t, codes=c)), joint_chunks)
        for t, c in ((4, 8), (4, 32), (16, 32))
    ]
    assert errors[0] > errors[1] > errors[2]


def test_the_seed_decides_the_codebooks() -> None:
    x = libero_like(500)
    a, b, c = (PQTokenizer.fit(x, LIBERO, PQConfig(**SMALL), seed=seed) for seed in (0, 0, 1))
    assert a.fingerprint() == b.fingerprint()
    assert a.fingerprint() != c.fingerprint()
    assert not np.array_equal(a.encode(x), c.encode(x))


def test_only_so_many_rows_are_clustered() -> None:
    x = libero_like(500)
    tok = PQTokenizer.fit(x, LIBERO, PQConfig(tokens=4, codes=16, rows=50))
    assert 0 < normalised_mse(tok, x) < 0.3


@pytest.mark.parametrize(
    "wrong", [{"tokens": 0}, {"codes": 1}, {"rows": 0}, {"iterations": 0}, {"blend": -0.1}, {"blend": 1.1}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ActionPieceError):
        PQConfig(**wrong)


def test_more_tokens_than_values_are_refused() -> None:
    with pytest.raises(ActionPieceError, match="4 values to share among tokens, so it cannot make 16"):
        PQTokenizer.fit(smooth(20, 2, 2, 0), ActionSpace.of_joints(2))
    tok = PQTokenizer.fit(smooth(20, 2, 2, 0), ActionSpace.of_joints(2), PQConfig(tokens=4, codes=8))
    assert (tok.tokens_per_chunk, tok.vocab_size, tok.bits_per_chunk(0)) == (4, 8, 12)
