"""`fast`: round trips in and out of range, reported corruption, constrained generation, saving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy.fft import dct, idct

from actionpiece.errors import ActionPieceError, DecodeError
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace
from actionpiece.tokenizers import bpe, load
from actionpiece.tokenizers.coders import ESCAPES, IntegerCoder
from actionpiece.tokenizers.fast import FastConfig, FastTokenizer, cosine_matrix

H, D = 6, 3
SPACE = ActionSpace.of_joints(D)
quick = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def smooth_chunks(n: int, seed: int, *, h: int = H, d: int = D) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.normal(0, 0.15, (n, h, d)), 1).clip(-1, 1).astype(np.float32)


@pytest.fixture(scope="module")
def tok() -> FastTokenizer:
    return FastTokenizer.fit(smooth_chunks(800, 0), SPACE, FastConfig(vocab_size=200), normalizer="identity")


def escapes_from(tok: FastTokenizer) -> int:
    return tok.vocab_size - ESCAPES


def rounded(chunks: np.ndarray, scale: float = 10.0) -> tuple[np.ndarray, np.ndarray]:
    """Scipy's answer, and how far the closest coefficient is from a tie in rounding."""
    coefficients = dct(chunks.astype(np.float64), axis=-2, norm="ortho") * scale
    away = np.abs(np.abs(coefficients - np.floor(coefficients)) - 0.5).min()
    return idct(np.around(coefficients) / scale, axis=-2, norm="ortho"), away


@pytest.mark.parametrize("steps", [1, 2, 5, 8, 50])
def test_the_cosine_matrix_is_scipys_orthonormal_transform(steps: int) -> None:
    x = np.random.default_rng(steps).normal(size=(steps, 4))
    np.testing.assert_allclose(cosine_matrix(steps) @ x, dct(x, axis=0, norm="ortho"), atol=1e-12)
    np.testing.assert_allclose(cosine_matrix(steps) @ cosine_matrix(steps).T, np.eye(steps), atol=1e-12)


@quick
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([0.1, 1.0, 1.2, 10.0, 100.0]), n=st.integers(1, 40))
def test_any_chunk_comes_back_as_its_rounded_coefficients(tok: FastTokenizer, seed: int, size: float, n: int) -> None:
    chunks = np.random.default_rng(seed).uniform(-size, size, (n, H, D)).astype(np.float32)
    expected, away = rounded(chunks)
    ids = tok.encode(chunks)
    if away > 1e-9:
        np.testing.assert_allclose(tok.decode(ids), expected, atol=1e-6 * max(size, 1))
    assert all(np.array_equal(a, b) for a, b in zip(tok.encode(tok.decode(ids)), ids, strict=True))


def test_a_single_chunk_and_a_batch_get_the_same_ids(tok: FastTokenizer) -> None:
    chunks = smooth_chunks(100, 1) * np.linspace(0.5, 20, 100, dtype=np.float32)[:, None, None]
    batch = tok.encode(chunks)
    for chunk, ids in zip(chunks, batch, strict=True):
        one = tok.encode(chunk)
        assert one.dtype == np.int64
        np.testing.assert_array_equal(one, ids)
        np.testing.assert_array_equal(tok.decode(one), tok.decode([ids])[0])


def test_torch_in_gives_torch_out_and_numpy_numpy(tok: FastTokenizer) -> None:
    chunks = smooth_chunks(3, 2)
    ids, again = tok.encode(chunks), tok.encode(torch.from_numpy(chunks))
    assert isinstance(again, list)
    assert all(isinstance(row, torch.Tensor) and row.dtype == torch.int64 for row in again)
    assert [row.tolist() for row in again] == [row.tolist() for row in ids]
    assert isinstance(tok.decode(again), torch.Tensor)
    assert isinstance(tok.decode(ids), np.ndarray)
    assert tok.encode(chunks[:0]) == []
    assert tok.decode([row.tolist() for row in ids]).shape == (3, H, D)


def test_the_contract_says_how_many_ids_and_bits(tok: FastTokenizer) -> None:
    assert tok.tokens_per_chunk is None
    assert tok.vocab_size == 200
    assert tok.vocab_at(5) == range(200)
    assert tok.bits_per_chunk(10.0) == pytest.approx(10 * np.log2(200))
    with pytest.raises(ActionPieceError, match="prefix"):
        tok.decode(tok.encode(smooth_chunks(1, 0)), prefix=True)


def test_the_normaliser_is_applied_once_and_undone() -> None:
    chunks = smooth_chunks(300, 3) * 7 + 3
    tok = FastTokenizer.fit(chunks, SPACE, FastConfig(vocab_size=150), normalizer="quantile")
    normal = tok.normalizer.normalize(torch.from_numpy(chunks)).numpy()
    expected = tok.normalizer.denormalize(torch.from_numpy(rounded(normal)[0])).numpy()
    np.testing.assert_allclose(tok.decode(tok.encode(chunks)), expected, atol=1e-4)
    np.testing.assert_allclose(
        tok.decode(tok.encode(normal, normalized=True), normalized=True), rounded(normal)[0], atol=1e-5
    )


def test_a_chunk_beyond_every_escape_is_named(tok: FastTokenizer) -> None:
    chunks = smooth_chunks(20_000, 4)
    chunks[17_000] = 1e6
    with pytest.raises(ActionPieceError, match="chunk 17000 is too far out of range"):
        tok.encode(chunks)
    chunks[17_000] = 1e30
    with pytest.raises(ActionPieceError, match="chunk 17000 holds values too large"):
        tok.encode(chunks)


def test_a_dropped_last_token_is_reported(tok: FastTokenizer) -> None:
    ids = tok.encode(smooth_chunks(50, 5))
    actions, valid = tok.decode([row[:-1] for row in ids], errors="mask")
    assert not valid.any()
    assert np.isnan(actions).all()
    with pytest.raises(DecodeError, match=rf"stand for \d+ integers, not {H * D}") as caught:
        tok.decode([ids[0], ids[1][:-1], ids[2]])
    assert caught.value.items == (1,)


@pytest.mark.parametrize("size", [1.0, 10.0])
def test_a_changed_token_is_decoded_to_what_it_says_or_reported_never_zeros(tok: FastTokenizer, size: float) -> None:
    rng = np.random.default_rng(6)
    ids = tok.encode(smooth_chunks(2000, 6) * size + 0.3)
    for row in ids:
        row[rng.integers(len(row))] = rng.integers(tok.vocab_size)
    actions, valid = tok.decode(ids, errors="mask")
    assert 0 < valid.sum() < len(ids)
    assert np.isnan(actions[~valid]).all()
    assert np.abs(actions[valid]).sum((1, 2)).min() > 0
    # What was decoded stands for the same chunk when written canonically.
    np.testing.assert_array_equal(tok.decode(tok.encode(actions[valid])), actions[valid])


def test_each_kind_of_bad_sequence_has_its_reason(tok: FastTokenizer) -> None:
    good = tok.encode(smooth_chunks(1, 7))[0].tolist()
    plus, minus = escapes_from(tok), escapes_from(tok) + ESCAPES // 2
    cases = {
        "id -1 at position 0 is not in": [-1, *good],
        f"id {tok.vocab_size} at position 2": [*good[:2], tok.vocab_size, *good[2:]],
        "ends in an escape": [*good, plus],
        f"token {plus + 1} at position 1 is an escape out of order": [plus, plus + 1, *good],
        f"token {minus} at position 1 is an escape out of order": [plus + 1, minus, *good],
        f"token {plus} at position 1 is an escape out of order": [minus + 1, plus, *good],
        "stand for 0 integers": [],
        "no chunk takes more than": good * 500,
    }
    for reason, ids in cases.items():
        with pytest.raises(DecodeError, match=reason):
            tok.decode([good, ids])
        _, valid = tok.decode([good, ids], errors="mask")
        assert valid.tolist() == [True, False]


def test_the_longest_possible_sequence_decodes_and_one_token_more_does_not(tok: FastTokenizer) -> None:
    farthest = [*range(escapes_from(tok) + ESCAPES // 2 - 1, escapes_from(tok) - 1, -1), 0] * (H * D)
    actions = tok.decode(farthest)
    assert actions[0].min() > 100
    with pytest.raises(DecodeError, match="no chunk takes more than"):
        tok.decode([*farthest, 0])
    with pytest.raises(DecodeError, match="no chunk takes more than"):
        tok.allowed_next([*farthest, 0])


@quick
@given(seed=st.integers(0, 2**32 - 1))
def test_a_random_walk_over_allowed_ids_ends_in_a_chunk(tok: FastTokenizer, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    while (allowed := tok.allowed_next(ids)).any():
        ids.append(int(rng.choice(np.flatnonzero(allowed.numpy()))))
    assert np.isfinite(tok.decode(ids)).all()


@quick
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([0.5, 1.2, 10.0]))
def test_whatever_decodes_was_allowed_at_every_step(tok: FastTokenizer, seed: int, size: float) -> None:
    chunk = np.random.default_rng(seed).uniform(-size, size, (H, D)).astype(np.float32)
    ids = tok.encode(chunk)
    for position, found in enumerate(ids.tolist()):
        allowed = tok.allowed_next(ids[:position])
        assert allowed[found]
        # And what is not allowed cannot be completed: the sequence up to there is refused.
        refused = np.flatnonzero(~allowed.numpy())
        if len(refused):
            with pytest.raises(DecodeError):
                tok.allowed_next([*ids[:position].tolist(), int(refused[position % len(refused)])])
    assert not tok.allowed_next(torch.from_numpy(ids)).any()


def test_an_impossible_prefix_is_an_error(tok: FastTokenizer) -> None:
    with pytest.raises(DecodeError, match="not in range"):
        tok.allowed_next([tok.vocab_size])
    with pytest.raises(DecodeError, match="stand for"):
        tok.allowed_next([*tok.encode(smooth_chunks(1, 8))[0].tolist(), 0])
    with pytest.raises(ActionPieceError, match="one flat sequence"):
        tok.allowed_next([0.5])  # type: ignore[list-item]


def test_the_alphabet_must_fit_in_the_vocabulary() -> None:
    with pytest.raises(ActionPieceError, match="lower scale, or raise vocab_size"):
        FastTokenizer.fit(smooth_chunks(50, 0), SPACE, FastConfig(scale=1000.0))


def test_constant_data_still_makes_a_tokenizer() -> None:
    tok = FastTokenizer.fit(np.zeros((5, H, D)), SPACE, normalizer="identity")
    assert tok.vocab_size <= 1024
    np.testing.assert_array_equal(tok.decode(tok.encode(np.zeros((H, D)))), np.zeros((H, D)))
    chunk = smooth_chunks(1, 0)[0]
    np.testing.assert_allclose(tok.decode(tok.encode(chunk)), rounded(chunk)[0], atol=1e-6)


def test_fitting_draws_by_the_seed() -> None:
    chunks, config = smooth_chunks(400, 9), FastConfig(vocab_size=120, fit_chunks=100)
    prints = [FastTokenizer.fit(chunks, SPACE, config, seed=seed).fingerprint() for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("setting", [{"scale": 0.0}, {"scale": float("nan")}, {"vocab_size": 0}, {"fit_chunks": 0}])
def test_settings_that_make_no_sense_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ActionPieceError):
        FastConfig(**setting)  # type: ignore[arg-type]


def test_saved_and_loaded_it_is_the_same(tok: FastTokenizer, tmp_path: Path) -> None:
    tok.save_pretrained(tmp_path / "fast")
    assert sorted(p.name for p in (tmp_path / "fast").iterdir()) == ["config.json", "model.safetensors"]
    again = load(tmp_path / "fast")
    assert isinstance(again, FastTokenizer)
    assert again.fingerprint() == tok.fingerprint()
    chunks = smooth_chunks(40, 10) * 3
    assert [row.tolist() for row in again.encode(chunks)] == [row.tolist() for row in tok.encode(chunks)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("merges", torch.tensor([[0, 10_000]])),
        ("merges", torch.tensor([[-1, 0]])),
        ("merges", torch.tensor([[0, 1], [0, 1]])),
        ("merges", torch.tensor([0, 1])),
        ("merges", torch.tensor([[0.0, 1.0]])),
        ("bounds", torch.tensor([5, -5])),
        ("bounds", torch.tensor([-(2**40), 2**40])),
        ("bounds", torch.tensor([0])),
        ("extra", torch.tensor([0])),
    ],
)
def test_corrupt_tensors_are_refused(tok: FastTokenizer, tmp_path: Path, name: str, value: torch.Tensor) -> None:
    folder = tok.save_pretrained(tmp_path / "fast")
    save_file({**load_file(folder / "model.safetensors"), name: value}, folder / "model.safetensors")
    with pytest.raises(ActionPieceError):
        load(folder)


def test_merges_that_double_without_end_are_refused() -> None:
    doubling = np.array([[0, 0], *[[2 + at, 2 + at] for at in range(60)]])
    with pytest.raises(ActionPieceError, match="a chunk has 18"):
        IntegerCoder(0, 1, doubling, longest=18)


def test_an_unfitted_tokenizer_says_so(tok: FastTokenizer) -> None:
    bare = FastTokenizer(FastConfig(), space=SPACE, normalizer=tok.normalizer, distance=tok.distance, horizon=H)
    with pytest.raises(ActionPieceError, match="not been fitted"):
        bare.encode(smooth_chunks(1, 0))
    with pytest.raises(ActionPieceError, match="not been fitted"):
        bare.decode([[0]])


def test_one_step_chunks_and_a_clipping_normaliser_work() -> None:
    chunks = smooth_chunks(200, 11, h=1, d=5)
    space = ActionSpace.of_joints(5)
    tok = FastTokenizer.fit(chunks, space, normalizer=Normalizer.fit("minmax", chunks, "clip"))
    assert np.abs(tok.decode(tok.encode(chunks * 2), normalized=True)).max() <= 1.0


def test_every_learned_token_is_its_own_run_of_integers() -> None:
    symbols = np.random.default_rng(0).integers(0, 3, (500, 12))
    merges = bpe.train_merges(symbols, 3, 200)
    runs = [tuple(run.tolist()) for run in bpe.merged_runs(3, merges, 12)]
    assert len(set(runs)) == len(runs) == 3 + len(merges)
