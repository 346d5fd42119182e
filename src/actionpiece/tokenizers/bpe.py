"""Byte-pair encoding over integers, through the `tokenizers` library.

The library works on text, so symbol i is spelled as the character `first_code + i`. Only the merges are kept and
saved: the library's object is built from them when it is needed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer, decoders, models, trainers

from actionpiece.errors import ActionPieceError

#: Where symbols are spelled inside the library: above the surrogates, and far from control and white space characters.
FIRST_CODE = 0x10000
#: So many symbols have characters of their own from FIRST_CODE on.
MOST_SYMBOLS = 0x110000 - FIRST_CODE
_PARALLEL_FROM = 32  # texts; below it, the library's threads cost more than they save


class Runs:
    """What each token stands for: a run of values, looked up for many tokens at once."""

    def __init__(self, runs: Sequence[np.ndarray], dtype: type[np.generic]) -> None:
        self.lengths = np.array([len(run) for run in runs], np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._values = np.concatenate([np.zeros(0, dtype), *runs]).astype(dtype)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """The values of all tokens, end to end."""
        lengths = self.lengths[ids]
        before = np.cumsum(lengths) - lengths
        values: np.ndarray = self._values[np.arange(lengths.sum()) + np.repeat(self._starts[ids] - before, lengths)]
        return values


def train_merges(symbols: np.ndarray, alphabet: int, most: int) -> np.ndarray:
    """Learn at most `most` merges (M, 2) from sequences of symbols (n, length) in 0 .. alphabet - 1.

    Merge m makes token `alphabet + m` of two earlier ones. A pair is only merged if it was seen twice.
    """
    lengths = np.full(len(symbols), symbols.shape[1])
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=alphabet + most,
        min_frequency=2,
        show_progress=False,
        special_tokens=[],
        initial_alphabet=[chr(FIRST_CODE + symbol) for symbol in range(alphabet)],
    )
    tokenizer.train_from_iterator(spell(symbols.ravel() + FIRST_CODE, lengths), trainer=trainer)
    ids = {chr(FIRST_CODE + symbol): symbol for symbol in range(alphabet)}
    merges: list[tuple[int, int]] = []
    for left, right in json.loads(tokenizer.to_str())["model"]["merges"]:
        # The library may reach one token by two merges; one is enough, and keeps "merge m makes token m" true.
        if left + right not in ids:
            ids[left + right] = alphabet + len(merges)
            merges.append((ids[left], ids[right]))
    return np.array(merges, np.int64).reshape(-1, 2)


def merged_runs(alphabet: int, merges: np.ndarray, longest: int) -> list[np.ndarray]:
    """The symbols that each token stands for. Merges that could not have been learned are an error.

    longest: no token may stand for more symbols than this.
    """
    if merges.ndim != 2 or merges.shape[1] != 2:
        raise ActionPieceError(f"byte-pair merges must have shape (merges, 2), not {tuple(merges.shape)}")
    runs = [np.array([symbol], np.int64) for symbol in range(alphabet)]
    seen: set[bytes] = set()
    for at, (left, right) in enumerate(merges.tolist()):
        if not (0 <= left < len(runs) and 0 <= right < len(runs)):
            raise ActionPieceError(f"byte-pair merge {at} joins tokens {left} and {right}, which do not come before it")
        run = np.concatenate((runs[left], runs[right]))
        if len(run) > longest:
            raise ActionPieceError(f"byte-pair merge {at} stands for {len(run)} integers; a chunk has {longest}")
        if run.tobytes() in seen:
            raise ActionPieceError(f"byte-pair merge {at} makes a token that an earlier one made")
        seen.add(run.tobytes())
        runs.append(run)
    return runs


def bpe_tokenizer(runs: Sequence[np.ndarray], merges: np.ndarray, *, first_code: int, unmerged: int = 0) -> Tokenizer:
    """The library's tokenizer for symbols spelled from `first_code` on; token ids are positions in `runs`.

    unmerged: how many more symbols follow the merged tokens; no merge involves them.
    """
    lengths = np.array([len(run) for run in runs])
    names = spell(np.concatenate(runs) + first_code, lengths)
    names += [chr(first_code + len(names) + extra) for extra in range(unmerged)]
    pairs = [(names[left], names[right]) for left, right in merges.tolist()]
    tokenizer = Tokenizer(models.BPE(vocab={name: at for at, name in enumerate(names)}, merges=pairs))
    tokenizer.decoder = decoders.Fuse()  # join tokens as they are; the default puts spaces between them
    return tokenizer


def spell(codes: np.ndarray, lengths: np.ndarray) -> list[str]:
    """Texts of the given lengths from their characters' code points, laid end to end."""
    text = codes.astype("<u4").tobytes().decode("utf-32-le")
    stops = np.cumsum(lengths).tolist()
    return [text[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]


def encode_texts(tokenizer: Tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of texts laid end to end, and how many each text has."""
    if len(texts) < _PARALLEL_FROM:  # one by one also leaves the library's threads asleep, so that forking stays safe
        rows = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    else:
        rows = [found.ids for found in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    lengths = np.array([len(row) for row in rows], np.int64)
    return np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(lengths.sum())), lengths
