"""How long encoding and decoding take: one chunk, as a robot waits for it, and many, as training data is made."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from actionpiece.tokenizers.base import ActionTokenizer


@dataclass(frozen=True)
class Latency:
    """encode_ms, decode_ms: the median time of one chunk. encode_per_s, decode_per_s: chunks a second in a
    batch, at best of a few tries."""

    encode_ms: float
    decode_ms: float
    encode_per_s: float
    decode_per_s: float


def latency(tokenizer: ActionTokenizer, chunks: np.ndarray, *, repeats: int = 50, batch: int = 4096) -> Latency:
    """Time a tokenizer on raw chunks (N, H, D), through the public contract and with its checks."""
    one, many = chunks[0], chunks[:batch]
    one_ids, many_ids = tokenizer.encode(one), tokenizer.encode(many)
    return Latency(
        encode_ms=1e3 * statistics.median(_times(lambda: tokenizer.encode(one), repeats)),
        decode_ms=1e3 * statistics.median(_times(lambda: tokenizer.decode(one_ids), repeats)),
        encode_per_s=len(many) / min(_times(lambda: tokenizer.encode(many), 7)),
        decode_per_s=len(many) / min(_times(lambda: tokenizer.decode(many_ids), 7)),
    )


def _times(call: Callable[[], object], repeats: int) -> list[float]:
    call()  # warm up
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times
