"""Tokenizers from elsewhere behind the contract: what their functions may answer, and what becomes of bad answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actionpiece
from actionpiece import ActionPieceError, ActionSpace, DecodeError, Normalizer
from actionpiece.compat import FastProcessor
from actionpiece.metrics.codes import valid_after_corruption
from actionpiece.metrics.latency import latency
from actionpiece.tokenizers import lengths, wrapped
from actionpiece.tokenizers.fast import FastConfig, FastTokenizer

SPACE = ActionSpace.preset("libero")
T, K = 56, 32


def bins(chunks: np.ndarray) -> np.ndarray:
    return ((chunks + 1) * (K / 2)).clip(0, K - 1).astype(np.int32).reshape(len(chunks), -1)


def centres(ids: Any) -> np.ndarray:
    return ((np.array(ids) + 0.5) * (2 / K) - 1).reshape(len(ids), 8, 7)


def fixed(encode: Any = bins, decode: Any = centres, **rest: Any) -> actionpiece.ActionTokenizer:
    given: dict[str, Any] = {"space": SPACE, "horizon": 8, "vocab_size": K, "tokens_per_chunk": T, "name": "theirs"}
    return actionpiece.wrap(encode, decode, **(given | rest))


def varying(encode: Any, decode: Any) -> actionpiece.ActionTokenizer:
    return fixed(encode, decode, tokens_per_chunk=None)


def trimmed(chunks: np.ndarray) -> list[list[int]]:
    """Ids of different lengths, column by column: the gripper's last ones are left out where they repeat."""
    rows = bins(chunks.transpose(0, 2, 1)).tolist()
    for row in rows:
        while len(row) > 1 and row[-1] == row[-2]:
            row.pop()
    return rows


def filled(rows: list[list[int]]) -> np.ndarray:
    assert all(isinstance(one, int) for row in rows for one in row)
    if any(len(row) > T for row in rows):
        raise ValueError("too long")
    return centres([row + [row[-1]] * (T - len(row)) for row in rows]).reshape(-1, 7, 8).transpose(0, 2, 1)


def test_a_fixed_length_round_trip_keeps_kinds_shapes_and_devices(libero_chunks: np.ndarray) -> None:
    tok = fixed()
    ids = tok.encode(libero_chunks)
    assert (ids.dtype, ids.shape) == (np.int64, (400, T))
    np.testing.assert_array_equal(ids, bins(libero_chunks))
    out = tok.decode(ids)
    assert out.dtype == np.float32
    assert np.abs(out - libero_chunks).max() <= 1 / K + 1e-6
    one = tok.decode(tok.encode(torch.from_numpy(libero_chunks[0])))
    assert isinstance(one, torch.Tensor)
    assert one.shape == (8, 7)
    assert tok.bits_per_chunk(T) == T * 5
    assert tok.encode(libero_chunks[:0]).shape == (0, T)
    assert bool(tok.allowed_next([0] * (T - 1)).all())
    assert not bool(tok.allowed_next([0] * T).any())


def test_a_varying_length_round_trip_gives_lists(libero_chunks: np.ndarray) -> None:
    tok = varying(trimmed, filled)
    ids = tok.encode(libero_chunks)
    assert tok.tokens_per_chunk is None
    assert {len(row) for row in ids} != {T}
    assert np.abs(tok.decode(ids) - libero_chunks).max() <= 1 / K + 1e-6
    with pytest.raises(ActionPieceError, match="known to its own code alone"):
        tok.allowed_next([1])


def test_with_a_normalizer_the_functions_see_normalised_chunks(libero_chunks: np.ndarray) -> None:
    seen = []

    def encode(chunks: np.ndarray) -> np.ndarray:
        seen.append(chunks)
        return bins(chunks)

    raw = 10 * libero_chunks + 3
    normalizer = Normalizer.fit("minmax", raw)
    tok = fixed(encode, normalizer=normalizer)
    out = tok.decode(tok.encode(raw))
    np.testing.assert_allclose(seen[0], normalizer.normalize(torch.from_numpy(raw)).numpy(), atol=1e-6)
    assert (np.abs(out - raw) <= normalizer.scale / K + 1e-4).all()
    fixed(encode).encode(raw)
    np.testing.assert_array_equal(seen[1], raw)  # without one they see raw commands


@pytest.mark.parametrize(
    ("decode", "reason"),
    [
        (lambda ids: (_ for _ in ()).throw(KeyError("no such merge")), "KeyError: 'no such merge'"),
        (lambda ids: np.zeros((len(ids), 8, 6)), r"shape \(1, 8, 6\), not \(1, 8, 7\)"),
        (lambda ids: np.full((len(ids), 8, 7), np.inf), "not finite"),
        (lambda ids: None, "shape|float"),
        (lambda ids: [["a"]], "ValueError"),
    ],
)
def test_what_their_decode_cannot_answer_is_not_decodable(decode: Any, reason: str, libero_chunks: np.ndarray) -> None:
    tok = fixed(decode=decode)
    ids = tok.encode(libero_chunks[:3])
    with pytest.raises(DecodeError, match=f"theirs has no chunk for it: .*{reason}") as caught:
        tok.decode(ids)
    assert caught.value.items == (0, 1, 2)
    out, valid = tok.decode(ids, errors="mask")
    assert not valid.any()
    assert np.isnan(out).all()


def test_one_bad_sequence_does_not_take_the_others_along(libero_chunks: np.ndarray) -> None:
    tok = varying(trimmed, filled)
    rows = [row.tolist() for row in tok.encode(libero_chunks[:4])]
    rows[1] = [0] * (T + 1)  # their decode raises for the whole batch
    rows[2] = [0, K]  # beyond the vocabulary: never shown to it
    out, valid = tok.decode(rows, errors="mask")
    assert valid.tolist() == [True, False, False, True]
    np.testing.assert_array_equal(out[[0, 3]], tok.decode([rows[0], rows[3]]))
    assert np.isnan(out[1:3]).all()
    with pytest.raises(DecodeError, match=r"sequence 1 cannot be decoded: .*too long \(and 1 more\)"):
        tok.decode(rows)
    short, valid = fixed().decode([[0] * T, [0] * 5], errors="mask")
    assert valid.tolist() == [True, False]
    assert np.isfinite(short[0]).all()


@pytest.mark.parametrize(
    ("encode", "reason"),
    [
        (lambda x: bins(x)[:-1], "asked to encode 3 chunks and answered with 2 sequences"),
        (lambda x: None, "answered with NoneType"),
        (lambda x: bins(x)[:, :-1], "chunk 0 as 55 tokens, not 56"),
        (lambda x: bins(x) + 0.5, "not as integers"),
        (lambda x: np.full((len(x), T), K), f"chunk 0 the id {K}, not one below {K}"),
        (lambda x: np.full((len(x), T), -1), "the id -1"),
        (lambda x: [[] for _ in x], "no token at all"),
        (lambda x: 1 / 0, "cannot encode chunks 0 to 2: ZeroDivisionError"),
    ],
)
def test_what_their_encode_may_not_answer_is_said(encode: Any, reason: str, libero_chunks: np.ndarray) -> None:
    with pytest.raises(ActionPieceError, match=f"theirs .*{reason}"):
        fixed(encode).encode(libero_chunks[:3])


@pytest.mark.parametrize("make", [fixed, lambda: varying(trimmed, filled)])
def test_large_batches_are_shown_in_blocks_and_chunks_keep_their_numbers(
    make: Any, libero_chunks: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make().encode(libero_chunks)
    out = make().decode(whole)
    for module in (wrapped, lengths):
        monkeypatch.setattr(module, "BLOCK", 150)
    for a, b in zip(make().encode(libero_chunks), whole, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(make().decode(whole), out)
    damaged = [row.tolist() for row in whole]
    damaged[390] = [0] * (T + 1)
    with pytest.raises(DecodeError, match="sequence 390 cannot be decoded"):
        make().decode(damaged)
    late = fixed(lambda x: np.full((len(x), T), K if len(x) == 100 else 0))
    with pytest.raises(ActionPieceError, match="theirs gave chunk 300 the id 32"):
        late.encode(libero_chunks)


def test_it_cannot_be_saved_fitted_or_named_by_a_hash(tmp_path: Path, libero_chunks: np.ndarray) -> None:
    tok = fixed()
    with pytest.raises(ActionPieceError, match="theirs is wrapped around code from elsewhere and cannot be saved"):
        tok.save_pretrained(tmp_path / "x")
    with pytest.raises(ActionPieceError, match="cannot be saved"):
        tok.push_to_hub("me/mine")
    assert not list(tmp_path.iterdir())
    assert tok.fingerprint() == "not known"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vocab_size": 1}, "vocab_size must be a whole number from 2 on"),
        ({"tokens_per_chunk": 0}, "tokens_per_chunk"),
        ({"name": b"x"}, "name must be a text, not b'x'"),
        ({"encode": 3}, "encode must be a function"),
        ({"horizon": 0}, "horizon"),
        ({"space": "nowhere"}, "'nowhere' is no action space: give a preset"),
        ({"space": 7}, "theirs: space must be an action space or the name of one, not 7"),
    ],
)
def test_settings_that_cannot_be_are_said(changes: dict, reason: str) -> None:
    with pytest.raises(ActionPieceError, match=reason):
        fixed(**changes)


def test_a_space_may_be_named() -> None:
    assert fixed(space="libero").space == SPACE
    assert fixed(space="joints:7").space.groups == ActionSpace.of_joints(7).groups


def test_sizes_may_be_numpys_and_are_written_as_numbers() -> None:
    tok = fixed(vocab_size=np.int64(64))
    assert json.loads(json.dumps(tok.settings))["vocab_size"] == 64


def test_a_wrapped_tokenizer_answers_like_the_one_inside(libero_chunks: np.ndarray) -> None:
    inside = FastTokenizer.fit(libero_chunks, SPACE, FastConfig(vocab_size=200))
    tok = actionpiece.wrap(
        inside.encode, inside.decode, space=SPACE, horizon=8, vocab_size=inside.vocab_size, name="fast inside"
    )
    ids = tok.encode(libero_chunks)
    assert [row.tolist() for row in ids] == [row.tolist() for row in inside.encode(libero_chunks)]
    np.testing.assert_array_equal(tok.decode(ids), inside.decode(ids))
    assert valid_after_corruption(tok, ids[:60]) == valid_after_corruption(inside, ids[:60])
    speed = latency(tok, libero_chunks, repeats=3)
    assert min(speed.encode_ms, speed.decode_ms, speed.encode_per_s, speed.decode_per_s) > 0


def test_fasts_own_interface_can_be_wrapped_as_it_is(libero_chunks: np.ndarray) -> None:
    inside = FastTokenizer.fit(libero_chunks, SPACE, FastConfig(vocab_size=200), normalizer="quantile")
    processor = FastProcessor(inside)  # normalised chunks in, lists of ids out, as FAST's processor has it
    tok = actionpiece.wrap(
        processor, processor.decode, space=SPACE, horizon=8, vocab_size=200, normalizer=inside.normalizer
    )
    ids = tok.encode(libero_chunks)
    assert [row.tolist() for row in ids] == [row.tolist() for row in inside.encode(libero_chunks)]
    np.testing.assert_array_equal(tok.decode(ids), inside.decode(ids))
