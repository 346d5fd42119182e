"""The contract, for every kind of tokenizer: what goes in and out, what is refused, and what survives a folder."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import actionpiece
from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError, DecodeError
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace
from actionpiece.tokenizers import (
    KINDS,
    ActionTokenizer,
    FixedLengthTokenizer,
    VariableLengthTokenizer,
    build_config,
    load,
    tokenizer_class,
)
from actionpiece.tokenizers.learned import LearnedTokenizer
from baselines import BASELINES
from conftest import aloha_like, libero_like, smooth

CONFIGS: dict[str, dict[str, Any]] = {
    "fast": {"vocab_size": 512},
    "pq": {"tokens": 8, "codes": 32},
    "actionpiece": {
        "slots": 4,
        "levels": 2,
        "codes": 16,
        "width": 16,
        "heads": 2,
        "code_dim": 4,
        "encoder_depth": 1,
        "decoder_depth": 1,
        "train": {"steps": 15, "batch": 32, "start_chunks": 100, "warmup": 0, "continuous": 5},
    },
    **BASELINES,
}
SPACE = ActionSpace.preset("libero")


def config(kind: str) -> Any:
    return build_config(tokenizer_class(kind).config_class, CONFIGS.get(kind, {}), kind)


@functools.cache
def fitted(kind: str) -> ActionTokenizer:
    return tokenizer_class(kind).fit(libero_like(400), SPACE, config(kind), seed=3)


@pytest.fixture(params=list(KINDS))
def tok(request: pytest.FixtureRequest) -> ActionTokenizer:
    return fitted(request.param)


def chunks(n: int = 6) -> np.ndarray:
    return libero_like(n, seed=7)


def same(a: Any, b: Any) -> bool:
    """Whether two answers of `encode` hold the same ids."""
    return len(a) == len(b) and all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in zip(a, b, strict=True))


# Encoding and decoding ------------------------------------------------------------------------------------------------


def test_kinds_are_classes_of_that_kind(tok: ActionTokenizer) -> None:
    assert tokenizer_class(tok.kind) is type(tok)
    assert isinstance(tok, FixedLengthTokenizer if tok.tokens_per_chunk else VariableLengthTokenizer)
    assert tok.token_order
    with pytest.raises(ActionPieceError, match="there is no tokenizer 'nope'; there are binning"):
        tokenizer_class("nope")


def test_ids_are_local_int64_and_actions_float32(tok: ActionTokenizer) -> None:
    x = chunks()
    ids = tok.encode(x)
    rows = list(ids)
    assert len(rows) == 6
    assert all(row.dtype == np.int64 and row.ndim == 1 for row in rows)
    assert all(row.min() >= 0 and row.max() < tok.vocab_size for row in rows)
    if tok.tokens_per_chunk is not None:
        assert isinstance(ids, np.ndarray)
        assert ids.shape == (6, tok.tokens_per_chunk)
    out = tok.decode(ids)
    assert isinstance(out, np.ndarray)
    assert (out.shape, out.dtype) == ((6, 8, 7), np.float32)
    scale = tok.normalizer.scale
    if not isinstance(tok, LearnedTokenizer):  # hardly trained here; their own tests judge what they learn
        assert (((out - x) / scale) ** 2).mean() < 0.02  # the units that went in


def test_a_single_chunk_is_one_of_a_batch(tok: ActionTokenizer) -> None:
    x = chunks()
    ids = tok.encode(x)
    out = tok.decode(ids)
    for i in range(3):
        one = tok.encode(x[i])
        assert one.ndim == 1
        assert np.array_equal(one, ids[i])
        np.testing.assert_allclose(tok.decode(one), out[i], atol=1e-6)
        assert tok.decode(one).shape == (8, 7)
        actions, valid = tok.decode(one, errors="mask")
        assert actions.shape == (8, 7)
        assert bool(valid)


def test_numpy_torch_and_lists_give_the_same_in_their_own_kind(tok: ActionTokenizer) -> None:
    x = chunks()
    ids, out = tok.encode(x), tok.decode(tok.encode(x))
    as_torch = tok.encode(torch.as_tensor(x))
    assert all(isinstance(row, torch.Tensor) and row.dtype == torch.int64 for row in as_torch)
    assert same(as_torch, ids)
    for given in (x.tolist(), x.astype(np.float64), np.asfortranarray(x), x.astype(">f4")):
        assert same(tok.encode(given), ids)
    assert same(tok.encode(torch.as_tensor(x).requires_grad_()), ids)
    back = tok.decode(as_torch)
    assert isinstance(back, torch.Tensor)
    assert back.dtype == torch.float32
    np.testing.assert_array_equal(back.numpy(), out)
    for given in (
        [list(map(int, row)) for row in ids],
        [tuple(map(int, row)) for row in ids],
        tuple(ids),
        [np.asarray(row, np.int32) for row in ids],
        [np.asarray(row, np.uint16) for row in ids],
    ):
        np.testing.assert_array_equal(tok.decode(given), out)
    np.testing.assert_array_equal(tok.decode([int(i) for i in ids[0]]), tok.decode(ids[0]))


def test_the_callers_arrays_are_left_alone(tok: ActionTokenizer) -> None:
    x = chunks()
    before = x.copy()
    ids = tok.encode(x)
    kept = [row.copy() for row in ids]
    tok.decode(ids)
    tok.encode(x, normalized=True)
    assert np.array_equal(x, before)
    assert same(ids, kept)


def test_an_empty_batch_is_an_empty_answer(tok: ActionTokenizer) -> None:
    for nothing in (np.zeros((0, 8, 7)), torch.zeros(0, 8, 7)):
        ids = tok.encode(nothing)
        assert len(ids) == 0
        assert tok.decode(ids).shape == (0, 8, 7)
    actions, valid = tok.decode([], errors="mask")
    assert (actions.shape, valid.shape) == ((0, 8, 7), (0,))


def test_normalized_skips_the_normaliser_both_ways(tok: ActionTokenizer) -> None:
    x = chunks()
    normal = tok.normalizer.normalize(torch.as_tensor(x, dtype=torch.float64)).numpy()
    ids = tok.encode(x)
    assert same(tok.encode(normal, normalized=True), ids)
    scaled = tok.decode(ids, normalized=True)
    np.testing.assert_allclose(scaled * tok.normalizer.scale + tok.normalizer.offset, tok.decode(ids), atol=1e-6)


def test_a_large_batch_is_the_same_as_its_parts(tok: ActionTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    x = chunks(50)
    ids, out = tok.encode(x), tok.decode(tok.encode(x))
    from actionpiece.tokenizers import base, lengths
    from actionpiece.training import trainable

    monkeypatch.setattr(base, "BLOCK", 7)
    monkeypatch.setattr(lengths, "BLOCK", 7)
    monkeypatch.setattr(trainable, "_SCORES", 1 << 17)  # a few chunks
    assert same(tok.encode(x), ids)
    np.testing.assert_allclose(tok.decode(ids), out, atol=1e-6)


@pytest.mark.parametrize("shape", [(7,), (8, 6), (7, 7), (2, 8, 6), (2, 7, 7), (1, 2, 8, 7), (0,)])
def test_chunks_of_another_shape_are_refused(tok: ActionTokenizer, shape: tuple[int, ...]) -> None:
    with pytest.raises(ActionPieceError, match=r"encodes chunks of shape \(8, 7\), not"):
        tok.encode(np.zeros(shape))


def test_actions_that_are_no_numbers_are_refused(tok: ActionTokenizer) -> None:
    x = chunks()
    x[1, 2, 3] = np.nan
    with pytest.raises(ActionPieceError, match="hold 1 values that are not finite"):
        tok.encode(x)
    with pytest.raises(ActionPieceError, match="must be numbers"):
        tok.encode([["a"]])
    with pytest.raises(ActionPieceError, match="rectangular"):
        tok.encode([[1.0], [1.0, 2.0]])
    for size in (1e300, tok.reach * 10):
        with pytest.raises(ActionPieceError, match="cannot encode actions that are more than"):
            tok.encode(np.full((8, 7), size), normalized=True)


def test_out_of_range_actions_get_valid_ids(tok: ActionTokenizer) -> None:
    for size in (3.0, 100.0):
        ids = tok.encode(chunks() * size)
        assert np.isfinite(tok.decode(ids)).all()


def test_ids_are_the_same_where_the_caller_computes_in_half_precision(tok: ActionTokenizer) -> None:
    x = chunks()
    ids = tok.encode(x)
    out = tok.decode(ids)
    with torch.autocast("cpu", torch.bfloat16):
        assert same(tok.encode(x), ids)
        np.testing.assert_array_equal(tok.decode(ids), out)
        back = tok.decode([torch.as_tensor(row) for row in ids])
        assert np.asarray(back).dtype == np.float32


# What is no sequence --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [
        [[1.5, 2.5]],
        [1.5, 2.5],
        [[1, 2.5]],
        [np.array([1.0, 2.0])],
        [torch.tensor([1.0, 2.0])],
        np.array([1.0, 2.0]),
        torch.tensor([[1.0]]),
        np.array([True, False]),
        [[True, False]],
        [[2**70]],
        [2**70, 1],
        [[2**63]],
        np.array([2**63], np.uint64),
        [["1", "2"]],
        ["12"],
        "12",
        None,
        5,
        {1: 2},
        [None],
        [[None]],
        [[[1, 2]]],
        [[[1], [1, 2]]],
        np.zeros((1, 1, 1), int),
        np.array(3),
        np.array([[1], [1, 2]], dtype=object),
        [1, [2]],
        [[1], 2],
    ],
)
def test_what_is_no_sequence_of_integers_is_refused_and_never_rounded(tok: ActionTokenizer, ids: Any) -> None:
    for errors in ("raise", "mask"):
        with pytest.raises(ActionPieceError) as caught:
            tok.decode(ids, errors=errors)  # type: ignore[arg-type]
        assert not isinstance(caught.value, DecodeError) or errors == "raise"


@pytest.mark.parametrize("wrong", [-1, 10**6, 2**62, -(2**63)])
def test_ids_out_of_range_are_named_with_their_sequence(tok: ActionTokenizer, wrong: int) -> None:
    rows = [row.copy() for row in tok.encode(chunks())]
    rows[1][2] = rows[4][0] = wrong
    with pytest.raises(
        DecodeError, match=f"sequence 1 cannot be decoded: id {wrong} at position 2 .*and 1 more"
    ) as caught:
        tok.decode(rows)
    assert caught.value.items == (1, 4)
    assert isinstance(caught.value, ActionPieceError)
    actions, valid = tok.decode(rows, errors="mask")
    assert valid.tolist() == [True, False, True, True, False, True]
    assert np.isnan(actions[[1, 4]]).all()
    np.testing.assert_array_equal(actions[valid], tok.decode([rows[i] for i in (0, 2, 3, 5)]))


def test_sequences_of_the_wrong_length_are_reported(tok: ActionTokenizer) -> None:
    ids = list(tok.encode(chunks()))
    rows = [ids[0], ids[1][:-1], np.concatenate((ids[2], ids[3])), ids[4], ids[5][:0]]
    with pytest.raises(DecodeError) as caught:
        tok.decode(rows)
    assert caught.value.items == (1, 2, 4)
    actions, valid = tok.decode(rows, errors="mask")
    assert valid.tolist() == [True, False, False, True, False]
    assert np.isnan(actions[[1, 2, 4]]).all()
    assert np.isfinite(actions[[0, 3]]).all()
    as_torch, mask = tok.decode([torch.as_tensor(row) for row in rows], errors="mask")
    assert isinstance(mask, torch.Tensor)
    np.testing.assert_array_equal(as_torch.numpy(), actions)
    with pytest.raises(DecodeError):
        tok.decode(ids[0][:-1])
    with pytest.raises(DecodeError):
        tok.decode([[]])
    with pytest.raises(DecodeError):
        tok.decode(np.zeros(0, np.int64))


def test_all_wrong_is_all_masked(tok: ActionTokenizer) -> None:
    actions, valid = tok.decode(np.full((3, 5), -1), errors="mask")
    assert not valid.any()
    assert np.isnan(actions).all()
    with pytest.raises(ActionPieceError, match="errors must be 'raise' or 'mask'"):
        tok.decode([[0]], errors="ignore")  # type: ignore[arg-type]


def test_prefixes_are_refused_where_there_is_no_order(tok: ActionTokenizer) -> None:
    if not tok.has_prefix:
        with pytest.raises(ActionPieceError, match="no coarse-to-fine order"):
            tok.decode(tok.encode(chunks()), prefix=True)


# Vocabulary -----------------------------------------------------------------------------------------------------------


def test_every_id_lies_in_the_range_of_its_position(tok: ActionTokenizer) -> None:
    for row in tok.encode(chunks()):
        assert all(int(token) in tok.vocab_at(position) for position, token in enumerate(row))
    assert tok.vocab_at(0).stop <= tok.vocab_size
    with pytest.raises(ActionPieceError):
        tok.vocab_at(-1)
    if tok.tokens_per_chunk is not None:
        with pytest.raises(ActionPieceError, match=f"not {tok.tokens_per_chunk}"):
            tok.vocab_at(tok.tokens_per_chunk)


def test_allowed_next_lets_a_sequence_through_and_then_stops_it(tok: ActionTokenizer) -> None:
    row = tok.encode(chunks()[0])
    for position, token in enumerate(row):
        mask = tok.allowed_next(row[:position])
        assert mask.shape == (tok.vocab_size,)
        assert mask.dtype == torch.bool
        assert bool(mask[token])
    assert not tok.allowed_next(row).any()
    assert not tok.allowed_next(torch.as_tensor(row)).any()
    assert tok.allowed_next([]).any()


def test_random_generation_under_the_mask_always_decodes(tok: ActionTokenizer) -> None:
    rng = np.random.default_rng(0)
    for _ in range(3):
        ids: list[int] = []
        while (mask := tok.allowed_next(ids)).any():
            ids.append(int(rng.choice(np.flatnonzero(mask.numpy()))))
        assert np.isfinite(tok.decode(ids)).all()


def test_bits_are_tokens_times_the_logarithm_of_the_vocabulary(tok: ActionTokenizer) -> None:
    mean = tok.tokens_per_chunk or 12.5
    choices = len(tok.vocab_at(0))  # residual levels have ids of their own, of which a position allows one level's
    assert tok.bits_per_chunk(mean) == pytest.approx(mean * np.log2(choices))


# Fitting --------------------------------------------------------------------------------------------------------------


def test_fitting_again_gives_the_same_tokenizer(tok: ActionTokenizer) -> None:
    again = type(tok).fit(torch.as_tensor(libero_like(400)), SPACE, config(tok.kind), seed=3)
    assert again.fingerprint() == tok.fingerprint()
    assert again.provenance["seed"] == 3
    assert again.horizon == 8


def test_a_ready_normaliser_and_distance_are_used_as_given(tok: ActionTokenizer) -> None:
    x = libero_like(100)
    normalizer = Normalizer.fit("minmax", np.concatenate((x, x * 2)))
    distance = PhysicalDistance(SPACE, (0.1, 0.2, 1.0))
    other = type(tok).fit(x, SPACE, config(tok.kind), normalizer=normalizer, distance=distance)
    assert other.normalizer is normalizer
    assert other.distance is distance
    with pytest.raises(ActionPieceError, match="do not belong together"):
        type(tok).fit(x, SPACE, config(tok.kind), normalizer=Normalizer.fit("minmax", x[..., :6]))
    with pytest.raises(ActionPieceError, match="do not belong together"):
        type(tok).fit(x, SPACE, config(tok.kind), distance=PhysicalDistance(ActionSpace.preset("robosuite"), (1, 1, 1)))


@pytest.mark.parametrize("method", ["minmax", "quantile", "meanstd", "identity"])
def test_every_normaliser_works_inside(tok: ActionTokenizer, method: Any, tmp_path: Path) -> None:
    x = libero_like(100)
    other = type(tok).fit(x, SPACE, config(tok.kind), normalizer=method)
    other.save_pretrained(tmp_path / "tok")
    out = other.decode(other.encode(x))
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(load(tmp_path / "tok").decode(other.encode(x)), out)


def test_two_arms_and_26_joints_fit(tok: ActionTokenizer, joint_chunks: np.ndarray) -> None:
    for x, space in ((aloha_like(200), ActionSpace.preset("aloha")), (joint_chunks, ActionSpace.of_joints(26))):
        other = type(tok).fit(x, space, config(tok.kind))
        out = other.decode(other.encode(x))
        assert out.shape == x.shape
        if not isinstance(tok, LearnedTokenizer):
            assert (((out - x) / other.normalizer.scale) ** 2).mean() < 0.03


@pytest.mark.parametrize("n", [1, 2])
def test_one_chunk_is_enough_to_fit(tok: ActionTokenizer, n: int) -> None:
    x = libero_like(n)
    other = type(tok).fit(x, SPACE, config(tok.kind))
    assert other.decode(other.encode(x)).shape == (n, 8, 7)


def test_constant_data_comes_back(tok: ActionTokenizer) -> None:
    x = np.full((20, 8, 7), 0.3, np.float32)
    other = type(tok).fit(x, SPACE, config(tok.kind))
    if not isinstance(tok, LearnedTokenizer):
        np.testing.assert_allclose(other.decode(other.encode(x)), x, atol=0.06)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (np.zeros((0, 8, 7)), "empty"),
        (np.zeros((5, 8, 6)), "6 columns"),
        (np.zeros((8, 7)), "must have shape"),
        (np.full((5, 8, 7), np.nan), "not finite"),
    ],
)
def test_bad_training_data_is_refused(tok: ActionTokenizer, wrong: np.ndarray, sentence: str) -> None:
    with pytest.raises(ActionPieceError, match=sentence):
        type(tok).fit(wrong, SPACE, config(tok.kind))


def test_another_kinds_configuration_is_refused(tok: ActionTokenizer) -> None:
    other = next(kind for kind in KINDS if kind != tok.kind)
    with pytest.raises(ActionPieceError, match=f"{tok.kind} needs a"):
        type(tok).fit(libero_like(10), SPACE, config(other))


def test_progress_ends_at_one(tok: ActionTokenizer) -> None:
    seen: list[float] = []
    type(tok).fit(libero_like(50), SPACE, config(tok.kind), progress=lambda fraction, what: seen.append(fraction))
    assert seen == sorted(seen)
    assert seen[0] >= 0
    assert seen[-1] <= 1


# Folders --------------------------------------------------------------------------------------------------------------


def test_a_saved_tokenizer_is_the_same_one(tok: ActionTokenizer, tmp_path: Path) -> None:
    folder = tok.save_pretrained(tmp_path / "deep" / "tok")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    x = chunks(40)
    for again in (load(folder), load(str(folder)), type(tok).from_pretrained(folder), actionpiece.load(folder)):
        assert type(again) is type(tok)
        assert again.fingerprint() == tok.fingerprint()
        assert (again.space, again.horizon, again.config) == (tok.space, tok.horizon, tok.config)
        assert again.distance == tok.distance
        assert again.provenance == tok.provenance
        assert same(again.encode(x), tok.encode(x))
        np.testing.assert_array_equal(again.decode(tok.encode(x)), tok.decode(tok.encode(x)))
    load(folder).save_pretrained(folder)  # over itself
    assert load(folder).fingerprint() == tok.fingerprint()


def test_another_kinds_folder_is_refused(tok: ActionTokenizer, tmp_path: Path) -> None:
    folder = tok.save_pretrained(tmp_path / "tok")
    other = next(kind for kind in KINDS if kind != tok.kind)
    with pytest.raises(ActionPieceError, match=f"holds a '{tok.kind}' tokenizer, not '{other}'"):
        tokenizer_class(other).from_pretrained(folder)


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A change to a folder's config.json."""

    def apply(folder: Path) -> None:
        description = json.loads((folder / "config.json").read_text())
        change(description)
        (folder / "config.json").write_text(json.dumps(description))

    return apply


def cut(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) - max(1, len(whole) // 3)])


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "is not a tokenizer folder"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "is not readable JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "was not written by actionpiece"),
    "config of another project": (
        lambda f: (f / "config.json").write_text('{"model_type": "llama"}'),
        "was not written by actionpiece",
    ),
    "kind is no name": (edit(lambda d: d.update(kind=["pq"])), "was not written by actionpiece"),
    "unknown kind": (edit(lambda d: d.update(kind="vq")), "there is no tokenizer 'vq'"),
    "from the future": (edit(lambda d: d.update(format_version=99)), "format version 99; this actionpiece reads 1"),
    "unknown setting": (edit(lambda d: d["config"].update(colour=1)), "has no setting 'colour'"),
    "setting of the wrong type": (
        edit(lambda d: d["config"].update({next(iter(d["config"])): "much"})),
        "must be a (whole )?number, not 'much'",
    ),
    "config is no mapping": (edit(lambda d: d.update(config=3)), "must be a set of named values"),
    "no horizon": (edit(lambda d: d.pop("horizon")), "is missing or misuses 'horizon'"),
    "no space": (edit(lambda d: d.pop("space")), "is missing or misuses 'space'"),
    "no normaliser": (edit(lambda d: d.pop("normalizer")), "is missing or misuses 'normalizer'"),
    "no scales": (edit(lambda d: d.pop("physical_scales")), "is missing or misuses 'physical_scales'"),
    "horizon is text": (edit(lambda d: d.update(horizon="8")), "horizon must be a whole number"),
    "horizon is a fraction": (edit(lambda d: d.update(horizon=8.5)), "horizon must be a whole number"),
    "horizon is zero": (edit(lambda d: d.update(horizon=0)), "horizon must be a whole number"),
    "another space": (edit(lambda d: d.update(space=ActionSpace.preset("aloha").to_dict())), "physical scales"),
    "scales are text": (edit(lambda d: d["physical_scales"].update(rotation="x")), "physical scales do not fit"),
    "another width": (
        edit(lambda d: d["normalizer"].update(offset=[0.0] * 6, scale=[1.0] * 6)),
        "do not belong together",
    ),
    "normaliser is text": (edit(lambda d: d["normalizer"].update(offset=["a"] * 7)), "normaliser does not fit"),
    "no tensors": (lambda f: (f / "model.safetensors").unlink(), "does not exist"),
    "truncated tensors": (cut, "is not a whole safetensors file"),
    "empty tensors": (lambda f: (f / "model.safetensors").write_bytes(b""), "is not a whole safetensors file"),
    "tensors are text": (lambda f: (f / "model.safetensors").write_text("hello " * 100), "is not a whole safetensors"),
    "tensors of another model": (
        lambda f: save_file({"layers.0.weight": torch.ones(3, 3)}, f / "model.safetensors"),
        "tensor|holds",
    ),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_folder_that_does_not_fit_is_a_clear_error(tok: ActionTokenizer, name: str, tmp_path: Path) -> None:
    folder = tok.save_pretrained(tmp_path / "tok")
    break_it, sentence = BROKEN[name]
    break_it(folder)
    with pytest.raises(ActionPieceError, match=sentence):
        load(folder)


def test_missing_misshapen_and_infinite_tensors_are_refused(tok: ActionTokenizer, tmp_path: Path) -> None:
    folder = tok.save_pretrained(tmp_path / "tok")
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        rest = {other: value for other, value in tensors.items() if other != name}
        save_file(rest, folder / "model.safetensors")
        with pytest.raises(ActionPieceError, match=f"lacks tensor '{name}'|holds"):
            load(folder)
        save_file({**rest, name: torch.cat((tensor, tensor[:1]))}, folder / "model.safetensors")
        with pytest.raises(ActionPieceError):
            load(folder)
        if tensor.is_floating_point():
            bad = tensor.clone()
            bad.view(-1)[0] = torch.inf
            save_file({**rest, name: bad}, folder / "model.safetensors")
            with pytest.raises(ActionPieceError, match="not finite"):
                load(folder)
    save_file(tensors, folder / "model.safetensors")
    assert load(folder).fingerprint() == tok.fingerprint()


def test_saving_replaces_only_tokenizers(tok: ActionTokenizer, tmp_path: Path) -> None:
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "data.txt").write_text("precious")
    with pytest.raises(ActionPieceError, match=r"not empty and has no config\.json"):
        tok.save_pretrained(foreign)
    (foreign / "config.json").write_text('{"model_type": "llama"}')  # as every model's folder has
    with pytest.raises(ActionPieceError, match="was not written by actionpiece"):
        tok.save_pretrained(foreign)
    assert (foreign / "data.txt").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    tok.save_pretrained(tmp_path / "empty")
    assert load(tmp_path / "empty").kind == tok.kind


def test_a_save_that_fails_leaves_the_old_tokenizer(
    tok: ActionTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tok.save_pretrained(tmp_path / "tok")

    def failing(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("actionpiece.tokenizers.saving.save_file", failing)
    with pytest.raises(OSError, match="no space"):
        tok.save_pretrained(folder)
    monkeypatch.undo()
    assert load(folder).fingerprint() == tok.fingerprint()
    assert [path.name for path in tmp_path.iterdir()] == ["tok"]


def test_a_path_that_is_no_tokenizer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "missing", "./missing", "missing", "/a/b", "~/tok", "a/b/c"):
        with pytest.raises(ActionPieceError, match="there is no tokenizer at"):
            load(path)
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(ActionPieceError, match="is not a tokenizer folder"):
            load(path)

    def offline(*_: Any, **__: Any) -> str:
        raise OSError("no network\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(
        ActionPieceError, match=r"no folder someone/tok here, .* hub did not give one of that name: no network$"
    ):
        load("someone/tok")


def test_a_hub_that_cannot_be_reached_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ActionPieceError, match=r"no folder someone/tok here, .* hub cannot be reached$"):
        load("someone/tok")


def test_a_hub_repository_is_loaded_from_what_was_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fitted("binning").save_pretrained(tmp_path / "snapshot")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(folder))
    assert load("someone/tok").fingerprint() == fitted("binning").fingerprint()


def test_the_folder_can_be_moved_and_read_as_plain_json(tok: ActionTokenizer, tmp_path: Path) -> None:
    tok.save_pretrained(tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    description = json.loads((tmp_path / "b" / "config.json").read_text())
    assert description["kind"] == tok.kind
    assert description["fingerprint"] == load(tmp_path / "b").fingerprint()
    assert ActionSpace.from_dict(description["space"]) == tok.space


def test_settings_are_checked_by_name_and_type() -> None:
    binning, pq = (tokenizer_class(kind).config_class for kind in ("binning", "pq"))
    assert build_config(pq, {"blend": 1}, "pq").blend == 1
    for cls, values, sentence in (
        (binning, {"bin": 3}, "has no setting 'bin'; it has bins"),
        (binning, {"bins": 2.5}, "bins must be a whole number, not 2.5"),
        (binning, {"bins": True}, "bins must be a whole number"),
        (binning, {"bins": None}, "bins must be a whole number"),
        (pq, {"blend": "1"}, "blend must be a number"),
        (pq, {"blend": float("nan")}, "blend runs from 0"),
        (binning, 3, "must be a set of named values"),
    ):
        with pytest.raises(ActionPieceError, match=sentence):
            build_config(cls, values, "it")


def test_smooth_chunks_of_other_lengths_work(tok: ActionTokenizer) -> None:
    x = smooth(100, 16, 3, 0)
    other = type(tok).fit(x, ActionSpace.of_joints(3), config(tok.kind))
    assert other.horizon == 16
    assert other.decode(other.encode(x)).shape == (100, 16, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_nearly_the_same(tok: ActionTokenizer, tmp_path: Path) -> None:
    there = load(tok.save_pretrained(tmp_path / "tok")).to("cuda")
    x = torch.as_tensor(chunks(), device="cuda")
    ids = there.encode(x)
    assert all(row.is_cuda for row in ids)
    assert there.decode(ids).is_cuda
    np.testing.assert_allclose(there.decode(ids).cpu().numpy(), tok.decode(tok.encode(chunks())), atol=1e-3)
