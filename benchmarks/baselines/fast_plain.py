"""FAST the plain way: one chunk at a time, integers as characters of a byte-level text tokenizer.

The manner of FAST's own processor, written for comparison: scipy's cosine transform, `chr` and `join`, a
`ByteLevelBPETokenizer`. It leaves out the overhead of transformers, so it is faster than the real one.
"""

from __future__ import annotations

import numpy as np
from scipy.fft import dct, idct
from tokenizers import ByteLevelBPETokenizer
from tokenizers.trainers import BpeTrainer


class PlainFast:
    """Normalised chunks (H, D) to token ids and back."""

    def __init__(self, chunks: np.ndarray, *, scale: float = 10.0, vocab_size: int = 1024) -> None:
        self.scale = scale
        self.horizon, self.dim = chunks.shape[1:]
        integers = np.around(dct(chunks, axis=1, norm="ortho") * scale).astype(int)
        self.min_token = int(integers.min())
        self.bpe = ByteLevelBPETokenizer()
        trainer = BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            show_progress=False,
            special_tokens=[],
            initial_alphabet=[chr(i) for i in range(int(integers.max()) - self.min_token + 1)],
            max_token_length=10000,
        )
        self.bpe._tokenizer.train_from_iterator((self._text(row) for row in integers), trainer=trainer)

    def _text(self, integers: np.ndarray) -> str:
        return "".join(map(chr, np.maximum(integers.ravel() - self.min_token, 0)))

    def encode(self, chunk: np.ndarray) -> list[int]:
        """The ids of one chunk (H, D)."""
        integers = np.around(dct(chunk, axis=0, norm="ortho") * self.scale).astype(int)
        ids: list[int] = self.bpe.encode(self._text(integers)).ids
        return ids

    def decode(self, ids: list[int]) -> np.ndarray:
        """The chunk (H, D) of a sequence that stands for one."""
        text = self.bpe.decode(ids)
        integers = np.array(list(map(ord, text))) + self.min_token
        chunk: np.ndarray = idct(integers.reshape(self.horizon, self.dim) / self.scale, axis=0, norm="ortho")
        return chunk
