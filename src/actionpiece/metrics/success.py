"""Shares of episodes that succeeded: how sure they are, and whether two of them differ on the same starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Z = 1.959963984540054  # a normal value lies within this many deviations with a probability of 95 %


def wilson(successes: int, episodes: int, z: float = Z) -> tuple[float, float]:
    """Wilson's score interval of a share: of use near 0 and 1 and for few episodes, where the plain one is not."""
    if not 0 <= successes <= episodes or episodes < 1:
        raise ValueError(f"{successes} of {episodes} is no share")
    share = successes / episodes
    wide = 1 + z**2 / episodes
    middle = (share + z**2 / (2 * episodes)) / wide
    half = z / wide * math.sqrt(share * (1 - share) / episodes + z**2 / (4 * episodes**2))
    # By rounding the bounds may pass the share itself, which at 0 and at 1 they touch.
    return min(middle - half, share) if successes else 0.0, max(middle + half, share) if successes < episodes else 1.0


@dataclass(frozen=True)
class Paired:
    """Two ways on the same starts. only_first: starts where the first alone succeeded. p: of no difference at all.

    p is that of McNemar's test in its exact, two-sided form: only starts where the two differ count, and under no
    difference each is a fair coin.
    """

    starts: int
    both: int
    only_first: int
    only_second: int
    p: float

    @classmethod
    def of(cls, first: Sequence[bool], second: Sequence[bool]) -> Paired:
        """Compare the outcomes on the same starts, in the same order."""
        pairs = list(zip(first, second, strict=True))
        only_first = sum(a and not b for a, b in pairs)
        only_second = sum(b and not a for a, b in pairs)
        return cls(len(pairs), sum(a and b for a, b in pairs), only_first, only_second, _coin(only_first, only_second))


def _coin(heads: int, tails: int) -> float:
    """The probability that a fair coin splits as unevenly as this, or more so."""
    tosses, fewer = heads + tails, min(heads, tails)
    ways = sum(math.comb(tosses, count) for count in range(fewer + 1))
    return min(1.0, 2 * float(Fraction(ways, 1 << tosses)))  # the two numbers alone may be too large for a float


def rate(outcomes: Sequence[bool]) -> dict[str, Any]:
    """A share with its interval, as plain data."""
    low, high = wilson(sum(outcomes), len(outcomes))
    return {
        "successes": sum(outcomes),
        "episodes": len(outcomes),
        "success": sum(outcomes) / len(outcomes),
        "low": low,
        "high": high,
    }
