"""What the tokens look like: how much of the vocabulary is used, how stable tokens are, what corruption does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from actionpiece.tokenizers.base import ActionTokenizer


@dataclass(frozen=True)
class CodeUse:
    """How the ids of many chunks spread over the vocabulary.

    mean_tokens: per chunk. used: share of the vocabulary that occurs. perplexity: exp of the entropy of all ids
    together. position_perplexity: the mean over positions of each position's own (None for variable length).
    counts: (vocab_size,) how often each id occurs.
    """

    mean_tokens: float
    used: float
    perplexity: float
    position_perplexity: float | None
    counts: np.ndarray


def code_use(tokenizer: ActionTokenizer, ids: Any) -> CodeUse:
    """Codebook use of the ids that `tokenizer.encode` gave for many chunks."""
    rows = _rows(ids)
    flat = np.concatenate(rows)
    counts = np.bincount(flat, minlength=tokenizer.vocab_size)
    by_position = None
    if tokenizer.tokens_per_chunk is not None:
        table = np.stack(rows)
        by_position = float(np.mean([perplexity(np.bincount(column)) for column in table.T]))
    return CodeUse(
        mean_tokens=len(flat) / len(rows),
        used=float((counts > 0).mean()),
        perplexity=perplexity(counts),
        position_perplexity=by_position,
        counts=counts,
    )


def perplexity(counts: np.ndarray) -> float:
    """exp of the entropy of a distribution given by counts: how many codes it is worth."""
    p = counts[counts > 0] / counts.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def token_overlap(first: Any, second: Any) -> float:
    """ActionCodec's overlap rate: the share of tokens that stay the same from a chunk to the one a step later.

    Sequences are compared position by position; where their lengths differ, the longer one counts.
    """
    shares = []
    for a, b in zip(_rows(first), _rows(second), strict=True):
        common = min(len(a), len(b))
        shares.append(float((a[:common] == b[:common]).sum()) / max(len(a), len(b)))
    return float(np.mean(shares))


def valid_after_corruption(tokenizer: ActionTokenizer, ids: Any, *, seed: int = 0) -> dict[str, float]:
    """The share of sequences that still decode after one random token changed, and after the last one was lost.

    A changed token becomes another id of its position's range. What does not decode is reported by the tokenizer,
    never passed off as an action.
    """
    rng = np.random.default_rng(seed)
    changed, dropped = [], []
    for row in _rows(ids):
        at = int(rng.integers(len(row)))
        choices = tokenizer.vocab_at(at)
        other = choices.start + int(rng.integers(len(choices) - 1))
        other += other >= row[at]  # skip the id that is there
        altered = row.copy()
        altered[at] = other
        changed.append(altered)
        dropped.append(row[:-1])
    return {
        "changed": float(tokenizer.decode(changed, errors="mask")[1].mean()),
        "dropped": float(tokenizer.decode(dropped, errors="mask")[1].mean()),
    }


def _rows(ids: Any) -> Sequence[np.ndarray]:
    return [np.asarray(row) for row in ids]
