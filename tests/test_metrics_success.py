"""Intervals and paired tests of success rates, against scipy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from actionpiece.metrics.success import Paired, rate, wilson


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys(share: tuple[int, int]) -> None:
    successes, episodes = share
    theirs = binomtest(successes, episodes).proportion_ci(method="wilson")
    assert wilson(successes, episodes) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    low, high = wilson(successes, episodes)
    assert 0 <= low <= successes / episodes <= high <= 1


@pytest.mark.parametrize("share", [(-1, 5), (6, 5), (0, 0)])
def test_what_is_no_share_is_an_error(share: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no share"):
        wilson(*share)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=300))
def test_the_paired_test_is_the_exact_binomial_one_on_the_starts_that_differ(pairs: list[tuple[bool, bool]]) -> None:
    first, second = zip(*pairs, strict=True)
    result = Paired.of(first, second)
    only_first = sum(a > b for a, b in pairs)
    only_second = sum(b > a for a, b in pairs)
    assert (result.starts, result.only_first, result.only_second) == (len(pairs), only_first, only_second)
    assert result.both == sum(a and b for a, b in pairs)
    expected = binomtest(only_first, only_first + only_second).pvalue if only_first + only_second else 1.0
    assert result.p == pytest.approx(expected, rel=1e-9)
    assert Paired.of(second, first).p == result.p


def test_many_starts_do_not_overflow() -> None:
    assert 0 < Paired.of([True] * 2000 + [False] * 1000, [False] * 2000 + [True] * 1000).p < 1e-70


def test_a_rate_is_plain_data() -> None:
    assert rate([True, False, True, True]) == {
        "successes": 3,
        "episodes": 4,
        "success": 0.75,
        "low": pytest.approx(binomtest(3, 4).proportion_ci(method="wilson").low),
        "high": pytest.approx(binomtest(3, 4).proportion_ci(method="wilson").high),
    }
