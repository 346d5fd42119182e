"""Do tokenizers that score better lead to policies that succeed more often? Ranks within groups, correlated over all.

A group is one experiment: several tokenizers on the same benchmark under the same training, whose successes can be
compared. Successes of different groups cannot, so every column is replaced by its ranks within the group, scaled to
[0, 1]: 0 is the lowest of the group, 1 the highest, ties get the mean of their ranks. The ranks of all groups are
pooled and correlated by Spearman's rho, as the paper does for its 55 evaluations.

How sure that is, a bootstrap over whole groups says: tokenizers of one group share a benchmark and are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST = 3  # tokenizers of a group: two can only agree or disagree


@dataclass(frozen=True)
class Group:
    """One experiment: per tokenizer its mean squared error, PRC and success, in the same order."""

    name: str
    tokenizers: tuple[str, ...]
    mse: np.ndarray
    prc: np.ndarray
    success: np.ndarray

    @property
    def unusable(self) -> str | None:
        """Why the group says nothing about an order, or None."""
        if len(self.tokenizers) < LEAST:
            return f"fewer than {LEAST} tokenizers"
        for what in ("mse", "prc", "success"):
            if np.ptp(getattr(self, what)) == 0:
                return f"all have the same {what}"
        return None


@dataclass(frozen=True)
class Estimate:
    """A correlation: `value`, and the middle 95 % of its bootstrap, None where there is one group only."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Correlation:
    """fidelity, prc: how lower error, and higher PRC, go with success. difference: PRC's minus fidelity's.

    groups: those that count. left_out: {group: why it says nothing}.
    within: {group: (rho of fidelity, rho of PRC)} in each group alone.
    resamples, seed: of the bootstrap.
    """

    fidelity: Estimate
    prc: Estimate
    difference: Estimate
    groups: tuple[Group, ...]
    left_out: dict[str, str]
    within: dict[str, tuple[float, float]]
    resamples: int
    seed: int

    @property
    def evaluations(self) -> int:
        """Tokenizers counted once for every group they are in."""
        return sum(len(group.tokenizers) for group in self.groups)


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 on, lowest first; equal values share the mean of their ranks."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: np.ndarray = (ends - (counts - 1) / 2)[where]
    return ranks


def normalized_ranks(values: np.ndarray) -> np.ndarray:
    """Average ranks scaled to [0, 1]; of at least two values."""
    return (average_ranks(values) - 1) / (len(values) - 1)


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rho: Pearson's correlation of average ranks. Neither may be constant."""
    a, b = (average_ranks(values) - (len(values) + 1) / 2 for values in (x, y))
    return float((a @ b) / np.sqrt((a @ a) * (b @ b)))


def correlate(groups: Sequence[Group], *, resamples: int = 10_000, seed: int = 0) -> Correlation:
    """Pool the ranks of all groups that have an order, and correlate error and PRC with success.

    The interval: `resamples` times, as many groups as there are, are drawn with replacement, and the pooled correlation
    is computed anew. The same draws serve all three estimates, so that the difference is a paired one.
    """
    left_out = {group.name: why for group in groups if (why := group.unusable) is not None}
    used = tuple(group for group in groups if group.unusable is None)
    if not used:
        raise ValueError("no group has an order")
    ranks = [
        np.stack([normalized_ranks(column) for column in (-group.mse, group.prc, group.success)]) for group in used
    ]
    value = _pooled(ranks)
    draws = np.empty((0, 2))
    if len(used) > 1:
        # Groups are drawn in an order of their own, so that the order in which they are given changes nothing.
        ordered = [ranks[i] for i in sorted(range(len(used)), key=lambda i: (used[i].name, ranks[i].tolist()))]
        rng = np.random.default_rng(seed)
        picks = rng.integers(len(used), size=(resamples, len(used)))
        draws = np.array([_pooled([ordered[i] for i in pick]) for pick in picks])
    return Correlation(
        fidelity=_estimate(value[0], draws[:, 0]),
        prc=_estimate(value[1], draws[:, 1]),
        difference=_estimate(value[1] - value[0], draws[:, 1] - draws[:, 0]),
        groups=used,
        left_out=left_out,
        within={g.name: (spearman(-g.mse, g.success), spearman(g.prc, g.success)) for g in used},
        resamples=len(draws),
        seed=seed,
    )


def _pooled(ranks: Sequence[np.ndarray]) -> tuple[float, float]:
    """Spearman's rho of the first two rows with the third, over all groups' normalised ranks (3, n) together."""
    fidelity, prc, success = np.concatenate(ranks, axis=1)
    return spearman(fidelity, success), spearman(prc, success)


def _estimate(value: float, draws: np.ndarray) -> Estimate:
    if not len(draws):
        return Estimate(value, None, None)
    low, high = np.quantile(draws, (0.025, 0.975))
    return Estimate(value, float(low), float(high))
