"""FAST's own saved format, read and written; the `tokenizers` library says what FAST's processor would answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dct, idct
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from tokenizers.trainers import BpeTrainer

from actionpiece.errors import ActionPieceError, DecodeError
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace
from actionpiece.tokenizers import load
from actionpiece.tokenizers.coders import ESCAPES, IntegerCoder, token_bytes, utf8_tables
from actionpiece.tokenizers.fast import FastConfig, FastTokenizer
from actionpiece.tokenizers.grammar import Grammar

H, D = 6, 3
SPACE = ActionSpace.of_joints(D)
IDENTITY = Normalizer("identity", np.zeros(D), np.ones(D))
SCALE = 60.0  # wide enough that integers take one and two bytes


def chunks_like_training(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.normal(0, 0.15, (n, H, D)), 1).clip(-1, 1).astype(np.float64)


def integers_of(chunks: np.ndarray) -> np.ndarray:
    return np.around(dct(chunks, axis=1, norm="ortho") * SCALE).astype(int).reshape(len(chunks), -1)


@pytest.fixture(scope="module")
def fast_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder made in FAST's manner."""
    folder = tmp_path_factory.mktemp("fast")
    integers = integers_of(chunks_like_training(600, 0))
    low, high = int(integers.min()), int(integers.max())
    bpe = ByteLevelBPETokenizer()
    trainer = BpeTrainer(
        vocab_size=600,
        min_frequency=2,
        show_progress=False,
        special_tokens=[],
        initial_alphabet=[chr(i) for i in range(high - low + 1)],
        max_token_length=10000,
    )
    texts = ["".join(chr(i - low) for i in row) for row in integers]
    bpe._tokenizer.train_from_iterator(texts, trainer=trainer)
    bpe.save(str(folder / "tokenizer.json"))
    values = {"scale": SCALE, "vocab_size": 600, "min_token": low, "time_horizon": 99, "action_dim": 98}
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "UniversalActionProcessor", **values}))
    return folder


@pytest.fixture(scope="module")
def tok(fast_folder: Path) -> FastTokenizer:
    return FastTokenizer.from_fast(fast_folder, space=SPACE, normalizer=IDENTITY, horizon=H)


def as_fast_encodes(folder: Path, chunks: np.ndarray) -> list[list[int]]:
    low = json.loads((folder / "processor_config.json").read_text())["min_token"]
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [library.encode("".join(chr(max(i - low, 0)) for i in row)).ids for row in integers_of(chunks)]


def as_fast_decodes(folder: Path, ids: list[int]) -> np.ndarray:
    low = json.loads((folder / "processor_config.json").read_text())["min_token"]
    text = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(ids, skip_special_tokens=False)
    integers = np.array([ord(c) for c in text]) + low
    return np.asarray(idct(integers.reshape(-1, D) / SCALE, axis=0, norm="ortho"))


def representable(tok: FastTokenizer, chunks: np.ndarray) -> np.ndarray:
    """The chunks whose integers all have tokens; FAST itself drops the other integers without a word."""
    good = []
    for chunk in chunks:
        try:
            tok.encode(chunk)
            good.append(chunk)
        except ActionPieceError:
            continue
    return np.array(good)


def test_a_folder_of_fasts_encodes_and_decodes_as_fast_does(tok: FastTokenizer, fast_folder: Path) -> None:
    chunks = representable(tok, chunks_like_training(120, 1) * 0.8)
    assert len(chunks) > 60
    ids = tok.encode(chunks)
    assert [row.tolist() for row in ids] == as_fast_encodes(fast_folder, chunks)
    assert (
        max(integers_of(chunks).max(1)) - json.loads((fast_folder / "processor_config.json").read_text())["min_token"]
        > 127
    )
    expected = np.stack([as_fast_decodes(fast_folder, row.tolist()) for row in ids])
    np.testing.assert_allclose(tok.decode(ids), expected, atol=1e-6)


def test_the_shape_is_the_callers_and_not_the_last_one_fast_saw(tok: FastTokenizer, fast_folder: Path) -> None:
    assert (tok.horizon, tok.space.dim) == (H, D)
    again = FastTokenizer.from_fast(fast_folder, space=SPACE, normalizer=IDENTITY)
    assert again.horizon == 99


def test_integers_without_tokens_are_reported_and_not_clamped(tok: FastTokenizer) -> None:
    chunks = np.zeros((3, H, D))
    chunks[2] = -5.0
    with pytest.raises(ActionPieceError, match=r"chunk 2 cannot be encoded: .* no token for the integer -735"):
        tok.encode(chunks)
    chunks[2] = 500.0
    with pytest.raises(ActionPieceError, match="chunk 2 cannot be encoded"):
        tok.encode(chunks)  # a character that has bytes the tokenizer never saw
    chunks[2] = 380.0
    with pytest.raises(ActionPieceError, match="chunk 2 cannot be encoded"):
        tok.encode(chunks)  # a code point among the surrogates


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_random_walk_over_allowed_ids_decodes_as_fast_decodes_it(
    seed: int, tok: FastTokenizer, fast_folder: Path
) -> None:
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    while (allowed := tok.allowed_next(ids)).any():
        ids.append(int(rng.choice(np.flatnonzero(allowed.numpy()))))
    np.testing.assert_allclose(tok.decode(ids), as_fast_decodes(fast_folder, ids), atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_ids_decode_exactly_when_they_are_whole_text_of_the_right_length(
    seed: int, tok: FastTokenizer, fast_folder: Path
) -> None:
    rng = np.random.default_rng(seed)
    library = Tokenizer.from_file(str(fast_folder / "tokenizer.json"))
    rows = [rng.integers(0, tok.vocab_size, rng.integers(1, 2 * H * D)).tolist() for _ in range(200)]
    _, valid = tok.decode(rows, errors="mask")
    texts = [library.decode(row, skip_special_tokens=False) for row in rows]
    assert valid.tolist() == [len(text) == H * D and "�" not in text for text in texts]


def test_a_broken_character_is_reported(tok: FastTokenizer, fast_folder: Path) -> None:
    vocab = Tokenizer.from_file(str(fast_folder / "tokenizer.json")).get_vocab()
    lead, plain = vocab["Â"], vocab["A"]  # the first byte of a two-byte character; an ASCII letter
    with pytest.raises(DecodeError, match="ends inside a character"):
        tok.decode([*[plain] * (H * D - 1), lead])
    with pytest.raises(DecodeError, match=f"token {plain} at position 1 does not continue the character"):
        tok.decode([lead, *[plain] * (H * D)])
    allowed = tok.allowed_next([lead])
    assert not allowed[plain]
    assert not allowed[lead]
    assert allowed.any()


def test_it_saves_in_our_format_too(tok: FastTokenizer, tmp_path: Path) -> None:
    again = load(tok.save_pretrained(tmp_path / "ours"))
    chunks = representable(tok, chunks_like_training(30, 2) * 0.8)
    assert again.fingerprint() == tok.fingerprint()
    assert [row.tolist() for row in again.encode(chunks)] == [row.tolist() for row in tok.encode(chunks)]


def test_written_and_read_again_fasts_folder_is_unchanged(
    tok: FastTokenizer, fast_folder: Path, tmp_path: Path
) -> None:
    written = tok.save_fast(tmp_path / "again")
    assert (written / "tokenizer.json").read_text() == (fast_folder / "tokenizer.json").read_text()
    assert json.loads((written / "processor_config.json").read_text())["time_horizon"] == H


def test_our_own_tokenizer_written_for_fast_gives_the_same_ids_and_actions(tmp_path: Path) -> None:
    train = chunks_like_training(600, 3)
    ours = FastTokenizer.fit(train, SPACE, FastConfig(SCALE, 700), normalizer="identity")
    folder = ours.save_fast(tmp_path / "fast")
    assert json.loads((folder / "processor_config.json").read_text())["vocab_size"] == ours.vocab_size - ESCAPES
    chunks = train[:100]
    ids = [row.tolist() for row in ours.encode(chunks)]
    assert as_fast_encodes(folder, chunks) == ids
    for row, actions in zip(ids, ours.decode(ids), strict=True):
        np.testing.assert_allclose(as_fast_decodes(folder, row), actions, atol=1e-6)
    back = FastTokenizer.from_fast(folder, space=SPACE, normalizer=IDENTITY)
    assert [row.tolist() for row in back.encode(chunks)] == ids
    np.testing.assert_array_equal(back.decode(ids), ours.decode(ids))


def test_a_processor_saved_by_transformers_5_is_found_in_its_subfolder(fast_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bpe_tokenizer").mkdir()
    for name, place in (("processor_config.json", ""), ("tokenizer.json", "bpe_tokenizer")):
        (tmp_path / place / name).write_text((fast_folder / name).read_text())
    assert FastTokenizer.from_fast(tmp_path, space=SPACE, normalizer=IDENTITY, horizon=H).vocab_size > 0


def test_more_integers_than_there_are_characters_before_the_surrogates_are_refused() -> None:
    coder = IntegerCoder(0, 0xD800, np.zeros((0, 2), np.int64), longest=4)
    with pytest.raises(ActionPieceError, match="surrogates"):
        coder.fast_json()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("processor_config.json", None, "has no processor_config.json"),
        ("processor_config.json", "[]", "JSON object"),
        ("processor_config.json", "{", "not readable JSON"),
        ("processor_config.json", '{"scale": 0, "vocab_size": 9, "min_token": 0}', "scale must be a positive"),
        ("processor_config.json", '{"scale": 10, "vocab_size": 9}', "min_token must be a whole number"),
        ("processor_config.json", '{"scale": 10, "vocab_size": 0, "min_token": 0}', "vocab_size must be"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "{}", "not a tokenizer.json"),
        ("tokenizer.json", "[1]", "not a tokenizer.json"),
        ("tokenizer.json", "not json", "not a tokenizer.json"),
    ],
)
def test_a_folder_that_is_not_fasts_is_one_clear_error(
    fast_folder: Path, tmp_path: Path, name: str, text: str | None, reason: str
) -> None:
    for part in ("processor_config.json", "tokenizer.json"):
        (tmp_path / part).write_text((fast_folder / part).read_text())
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ActionPieceError, match=reason):
        FastTokenizer.from_fast(tmp_path, space=SPACE, normalizer=IDENTITY, horizon=H)


def test_a_decoder_that_puts_spaces_between_tokens_is_refused(fast_folder: Path, tmp_path: Path) -> None:
    parts = json.loads((fast_folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**parts, "decoder": None}))
    (tmp_path / "processor_config.json").write_text((fast_folder / "processor_config.json").read_text())
    with pytest.raises(ActionPieceError, match="ByteLevel or Fuse"):
        FastTokenizer.from_fast(tmp_path, space=SPACE, normalizer=IDENTITY, horizon=H)


def test_added_tokens_are_no_part_of_a_chunk(fast_folder: Path, tmp_path: Path) -> None:
    library = Tokenizer.from_file(str(fast_folder / "tokenizer.json"))
    library.add_special_tokens(["<pad>"])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "processor_config.json").write_text((fast_folder / "processor_config.json").read_text())
    tok = FastTokenizer.from_fast(tmp_path, space=SPACE, normalizer=IDENTITY, horizon=H)
    pad = library.token_to_id("<pad>")
    assert not tok.allowed_next([])[pad]
    with pytest.raises(DecodeError, match="stands for no text"):
        tok.decode([[pad]])


def test_token_bytes_agree_with_the_librarys_decoder() -> None:
    library = ByteLevelBPETokenizer(vocab={}, merges=[])
    for text in ("A", "Ā", "ÂĢ", "\x00", "\x00A", "Ġ"):
        expected = library._tokenizer.decoder.decode([text])
        assert token_bytes(text).decode(errors="replace") == expected


def test_the_grammar_of_utf8_is_pythons() -> None:
    next_state, makes = utf8_tables([bytes([byte]) for byte in range(256)])
    rng = np.random.default_rng(0)
    interesting = np.array(
        [0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5]
    )
    rows = [rng.choice(interesting, rng.integers(1, 6)) for _ in range(20_000)]
    lengths = np.array([len(row) for row in rows])
    reading = Grammar(next_state, makes, total=2, depth=4).read(np.concatenate(rows), lengths)
    for row, state, made in zip(rows, reading.state, reading.made, strict=True):
        try:
            text = bytes(row.tolist()).decode()
        except UnicodeDecodeError:
            assert state != 0
        else:
            assert (state, made) == (0, len(text))
