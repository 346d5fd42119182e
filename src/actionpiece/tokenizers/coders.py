"""How FAST's integers become tokens and come back: over the integers themselves, or over text as FAST writes it."""

from __future__ import annotations

import abc
import json
from typing import ClassVar, NoReturn

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.tokenizers import bpe

LEVELS = 8  # escapes reach 2^8 - 1 spans beyond the alphabet on either side
ESCAPES = 2 * LEVELS


class Coder(abc.ABC):
    """Integers (B, N) to token ids and back.

    vocab_size: ids run from 0 to vocab_size - 1.
    next_state, makes: the tables of its `Grammar`.
    depth: how many tokens one integer takes at most.
    unlawful, unfinished: what a token that may not stand where it does, or a sequence that breaks off, has done.
    """

    depth: ClassVar[int]
    unlawful: ClassVar[str]
    unfinished: ClassVar[str]
    vocab_size: int
    next_state: np.ndarray
    makes: np.ndarray

    @abc.abstractmethod
    def encode(self, integers: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all rows end to end, and how many each has; an integer without tokens is an error.

        first: the number of the first row in the caller's batch, for the error's sake.
        """

    @abc.abstractmethod
    def decode(self, ids: np.ndarray) -> np.ndarray:
        """The integers of sequences that the grammar found complete, all end to end."""

    @abc.abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What is saved."""

    @abc.abstractmethod
    def fast_json(self) -> tuple[str, int, int]:
        """For FAST's own processor: the text of tokenizer.json, its vocabulary size, and min_token."""


class IntegerCoder(Coder):
    """Byte-pair encoding over the integers lo .. hi, with escapes for those beyond.

    Ids: lo .. hi first, then one per merge, then the escapes. Escape k of a sign adds `sign * span * 2^k`
    (span = hi - lo + 1) to the next integer. Before one integer they stand in falling order of k and with one sign,
    so an integer is escaped in one way only. They are never merged with anything.
    """

    depth = LEVELS + 1
    unlawful = "is an escape out of order"
    unfinished = "it ends in an escape that no integer follows"

    def __init__(self, lo: int, hi: int, merges: np.ndarray, *, longest: int) -> None:
        if not 0 <= hi - lo < bpe.MOST_SYMBOLS - ESCAPES - merges.size:
            raise ActionPieceError(f"an alphabet of integers cannot run from {lo} to {hi}")
        self.lo, self.hi, self.span = lo, hi, hi - lo + 1
        self.merges = merges
        self._symbol_runs = bpe.merged_runs(self.span, merges, longest)
        self._escapes_from = len(self._symbol_runs)
        self.vocab_size = self._escapes_from + ESCAPES
        self._tokenizer = bpe.bpe_tokenizer(
            self._symbol_runs, merges, first_code=bpe.FIRST_CODE, unmerged=ESCAPES
        )  # fmt: skip
        self._runs = bpe.Runs([*self._symbol_runs, *[np.zeros(0, np.int64)] * ESCAPES], np.int64)
        self._steps = np.zeros(self.vocab_size, np.int64)  # what an escape adds
        sizes = self.span << np.arange(LEVELS)
        self._steps[self._escapes_from :] = np.concatenate((sizes, -sizes))
        self.next_state, self.makes = self._tables()

    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        # State 1 + e: escape e was read last, and an integer must follow.
        next_state = np.full((1 + ESCAPES, self.vocab_size), -1)
        next_state[:, : self._escapes_from] = 0
        for escape in range(ESCAPES):
            next_state[0, self._escapes_from + escape] = 1 + escape
            for lower in range(escape - escape % LEVELS, escape):
                next_state[1 + escape, self._escapes_from + lower] = 1 + lower
        return next_state, np.broadcast_to(self._runs.lengths, next_state.shape)

    def encode(self, integers: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        spans, symbols = np.divmod(integers - self.lo, self.span)
        beyond = np.abs(spans) >= 1 << LEVELS
        if beyond.any():
            row = int(np.argmax(beyond.any(1)))
            reach = ((1 << LEVELS) - 1) * self.span
            raise ActionPieceError(
                f"chunk {first + row} is too far out of range: it needs the integer {integers[row][beyond[row]][0]}, "
                f"and this tokenizer reaches {self.lo - reach} to {self.hi + reach}"
            )
        lengths = np.full(len(integers), integers.shape[1])
        codes = symbols.ravel()
        if spans.any():
            codes, lengths = self._escape(spans, symbols)
        return bpe.encode_texts(self._tokenizer, bpe.spell(codes + bpe.FIRST_CODE, lengths))

    def _escape(self, spans: np.ndarray, symbols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Symbols with the escapes put before them, and how many each row has now."""
        size = np.abs(spans).ravel()
        bits = (size[:, None] >> np.arange(LEVELS - 1, -1, -1)) & 1  # the highest first
        taken = bits.sum(1) + 1
        stops = np.cumsum(taken)
        codes = np.empty(stops[-1], np.int64)
        codes[stops - 1] = symbols.ravel()
        where, column = np.nonzero(bits)
        places = (stops - taken)[where] + np.cumsum(bits, 1)[where, column] - 1
        negative = LEVELS * (spans.ravel() < 0)
        codes[places] = self._escapes_from + negative[where] + LEVELS - 1 - column
        return codes, taken.reshape(symbols.shape).sum(1)

    def decode(self, ids: np.ndarray) -> np.ndarray:
        integers = self._runs.of(ids) + self.lo
        is_escape = ids >= self._escapes_from
        if is_escape.any():
            # What the escapes add since the previous token that is none belongs to this token's first integer.
            sums = np.cumsum(self._steps[ids])[~is_escape]
            lengths = self._runs.lengths[ids[~is_escape]]
            integers[np.cumsum(lengths) - lengths] += np.diff(sums, prepend=0)
        return integers

    def tensors(self) -> dict[str, Tensor]:
        return {"bounds": torch.tensor([self.lo, self.hi]), "merges": torch.from_numpy(self.merges.copy())}

    def fast_json(self) -> tuple[str, int, int]:
        if self.span > 0xD800:
            raise ActionPieceError(
                f"FAST spells integers as characters, and {self.span} of them run into the surrogates"
            )
        tokenizer = bpe.bpe_tokenizer(self._symbol_runs, self.merges, first_code=0)
        return tokenizer.to_str(), self._escapes_from, self.lo


class TextCoder(Coder):
    """A tokenizer of FAST's own format: integer i is the character `i - min_token`, and text is tokenized.

    FAST's text tokenizers work on UTF-8 bytes, so a token may hold a part of a character; the grammar's states are
    those of a UTF-8 reader. There are no escapes: an integer that has no tokens cannot be encoded, and is reported.
    """

    depth = 4
    unlawful = "does not continue the character begun before it, or stands for no text"
    unfinished = "it ends inside a character"

    def __init__(self, tokenizer_json: str, min_token: int) -> None:
        self.tokenizer_json, self.min_token = tokenizer_json, min_token
        try:
            parts = json.loads(tokenizer_json)
            decoder, added = (parts["decoder"] or {}).get("type"), [token["id"] for token in parts["added_tokens"]]
            self._tokenizer = Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the library raises bare Exceptions
            raise ActionPieceError(f"not a tokenizer.json that the tokenizers library reads: {error}") from error
        if decoder not in ("ByteLevel", "Fuse"):
            raise ActionPieceError(f"FAST's tokenizers decode by ByteLevel or Fuse, not by {decoder}")
        vocab = self._tokenizer.get_vocab()
        self.vocab_size = max(vocab.values(), default=-1) + 1
        if not 0 < self.vocab_size <= bpe.MOST_SYMBOLS:
            raise ActionPieceError(f"a tokenizer.json with {self.vocab_size} ids cannot be used")
        texts = [b""] * self.vocab_size
        for text, at in vocab.items():
            texts[at] = token_bytes(text) if decoder == "ByteLevel" else text.encode()
        for at in added:  # pad and the like: no part of any chunk
            texts[at] = b""
        self._runs = bpe.Runs([np.frombuffer(text, np.uint8) for text in texts], np.uint8)
        self.next_state, self.makes = utf8_tables(texts)

    def encode(self, integers: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        codes = integers - self.min_token
        wrong = (codes < 0) | ((codes >= 0xD800) & (codes < 0xE000)) | (codes >= 0x110000)
        if wrong.any():
            row = int(np.argmax(wrong.any(1)))
            self._cannot(first + row, int(integers[row][wrong[row]][0]))
        texts = bpe.spell(codes.ravel(), np.full(len(codes), codes.shape[1]))
        ids, lengths = bpe.encode_texts(self._tokenizer, texts)
        # Such a tokenizer drops what it has no token for without a word, so the bytes are compared.
        if self._runs.of(ids).tobytes() != "".join(texts).encode():
            for row, text in enumerate(texts):
                for character in text:
                    alone, _ = bpe.encode_texts(self._tokenizer, [character])
                    if self._runs.of(alone).tobytes() != character.encode():
                        self._cannot(first + row, ord(character) + self.min_token)
            raise ActionPieceError("this FAST tokenizer changes the text it encodes, so it cannot be used")
        return ids, lengths

    def _cannot(self, chunk: int, integer: int) -> NoReturn:
        raise ActionPieceError(
            f"chunk {chunk} cannot be encoded: this FAST tokenizer has no token for the integer {integer} "
            f"(its integers start at {self.min_token})"
        )

    def decode(self, ids: np.ndarray) -> np.ndarray:
        text = self._runs.of(ids).tobytes().decode()
        return np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64) + self.min_token

    def tensors(self) -> dict[str, Tensor]:
        text = np.frombuffer(self.tokenizer_json.encode(), np.uint8).copy()
        return {"tokenizer_json": torch.from_numpy(text), "min_token": torch.tensor([self.min_token])}

    def fast_json(self) -> tuple[str, int, int]:
        return self.tokenizer_json, self.vocab_size, self.min_token


def coder_from_tensors(tensors: dict[str, Tensor], *, longest: int, vocab_size: int) -> Coder:
    """The coder that `tensors()` described; anything else is an error.

    longest: integers in a chunk. vocab_size: the configured one, which an integer coder does not exceed.
    """
    names = set(tensors)
    if any(tensor.is_floating_point() or tensor.dtype == torch.bool for tensor in tensors.values()):
        raise ActionPieceError("a FAST tokenizer's tensors are integers, and these are not")
    if names == {"bounds", "merges"} and tensors["bounds"].shape == (2,) and tensors["merges"].ndim == 2:
        lo, hi = tensors["bounds"].tolist()
        if hi - lo + 1 + len(tensors["merges"]) + ESCAPES > vocab_size:
            raise ActionPieceError(f"integers {lo} to {hi} and their merges do not fit in a vocabulary of {vocab_size}")
        return IntegerCoder(lo, hi, tensors["merges"].numpy().astype(np.int64), longest=longest)
    if names == {"tokenizer_json", "min_token"} and tensors["min_token"].shape == (1,):
        try:
            text = tensors["tokenizer_json"].to(torch.uint8).numpy().tobytes().decode()
        except UnicodeDecodeError as error:
            raise ActionPieceError(f"the saved tokenizer.json is not text: {error}") from None
        return TextCoder(text, int(tensors["min_token"]))
    raise ActionPieceError(
        f"a FAST tokenizer holds bounds and merges, or tokenizer_json and min_token; not {sorted(names)}"
    )


def _byte_characters() -> dict[str, int]:
    # GPT-2's spelling of bytes: printable ones stand for themselves, the others for characters from 256 on.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _byte_characters()


def token_bytes(text: str) -> bytes:
    """The bytes of a byte-level token; a token with a character outside GPT-2's table stands for its own text."""
    if all(character in _BYTES for character in text):
        return bytes(_BYTES[character] for character in text)
    return text.encode()


def utf8_tables(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The grammar of tokens that hold UTF-8 bytes: next state and characters completed, (8, V) each.

    Empty tokens may not stand anywhere: they would make sequences longer and nothing else.
    """
    step = [[-1] * 256 for _ in range(8)]
    # state: bytes that may come next, and the state they lead to (the well-formed sequences of the Unicode standard)
    for state, low, high, then in (
        (0, 0x00, 0x7F, 0), (0, 0xC2, 0xDF, 1), (0, 0xE0, 0xE0, 3), (0, 0xE1, 0xEC, 2), (0, 0xED, 0xED, 4),
        (0, 0xEE, 0xEF, 2), (0, 0xF0, 0xF0, 5), (0, 0xF1, 0xF3, 6), (0, 0xF4, 0xF4, 7), (1, 0x80, 0xBF, 0),
        (2, 0x80, 0xBF, 1), (3, 0xA0, 0xBF, 1), (4, 0x80, 0x9F, 1), (5, 0x90, 0xBF, 2), (6, 0x80, 0xBF, 2),
        (7, 0x80, 0x8F, 2),
    ):  # fmt: skip
        step[state][low : high + 1] = [then] * (high - low + 1)
    next_state = np.full((8, len(texts)), -1)
    makes = np.zeros((8, len(texts)), np.int64)
    for first in range(8):
        for at, text in enumerate(texts):
            state, made = first, 0
            for byte in text:
                state = step[state][byte]
                if state < 0:
                    break
                made += state == 0
            if text and state >= 0:
                next_state[first, at], makes[first, at] = state, made
    return next_state, makes
