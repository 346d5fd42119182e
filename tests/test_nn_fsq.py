"""Finite scalar quantisation: cells, codes, the gradient through rounding."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from actionpiece.nn.fsq import FSQ

LEVELS = st.lists(st.integers(2, 9), min_size=1, max_size=4).map(tuple)


@settings(deadline=None)
@given(LEVELS)
def test_codes_and_values_are_a_bijection(levels: tuple[int, ...]) -> None:
    fsq = FSQ(3, levels)
    codes = torch.arange(math.prod(levels))
    values = fsq.values(codes)
    assert fsq.size == len(codes)
    assert torch.equal(fsq.quantize(values).codes, codes)
    assert torch.equal(fsq.quantize(values).values, values)
    # Written down another way: all combinations of the centres of equal cells, the first number fastest.
    centres = [[-1 + (2 * cell + 1) / count for cell in range(count)] for count in reversed(levels)]
    expected = np.array(list(itertools.product(*centres)))[:, ::-1]
    np.testing.assert_allclose(values.numpy(), expected, atol=1e-6)


@settings(deadline=None)
@given(LEVELS, st.integers(0, 2**31))
def test_a_number_goes_to_the_nearest_centre(levels: tuple[int, ...], seed: int) -> None:
    fsq = FSQ(3, levels)
    bounded = torch.tanh(2 * torch.randn(50, len(levels), generator=torch.Generator().manual_seed(seed)))
    for number, count in enumerate(levels):
        centres = -1 + (2 * torch.arange(count) + 1) / count
        apart = (bounded[:, number, None] - centres).abs()
        chosen = (bounded[:, number] - fsq.quantize(bounded).values[:, number]).abs()
        torch.testing.assert_close(chosen, apart.min(1).values, atol=1e-6, rtol=0)


def test_every_code_is_reached_and_far_inputs_stay_within_the_codes() -> None:
    torch.manual_seed(0)
    fsq = FSQ(4, (8, 5, 5, 5))
    fsq.project_in.weight.data.copy_(torch.eye(4))
    fsq.project_in.bias.data.zero_()
    codes = fsq(1.5 * torch.randn(1, 200_000, 4)).codes
    assert len(torch.unique(codes)) == 1000
    assert fsq(torch.full((1, 1, 4), 1e30)).codes.item() == 999  # tanh is exactly 1 there
    assert fsq(torch.full((1, 1, 4), -1e30)).codes.item() == 0


def test_the_gradient_is_that_of_tanh_as_if_nothing_were_rounded() -> None:
    torch.manual_seed(0)
    fsq = FSQ(3, (4, 3)).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 5, 2, dtype=torch.float64)

    def smooth(at: Tensor) -> Tensor:
        return (torch.tanh(fsq.project_in(at)) * weight).sum()

    (ours,) = torch.autograd.grad((fsq(x).values * weight).sum(), x)
    step = 1e-6
    numeric = torch.zeros_like(x)
    for place in itertools.product(range(2), range(5), range(3)):
        shift = torch.zeros_like(x)
        shift[place] = step
        with torch.no_grad():
            numeric[place] = (smooth(x + shift) - smooth(x - shift)) / (2 * step)
    torch.testing.assert_close(ours, numeric, atol=1e-7, rtol=1e-5)
    assert float((fsq(x).values - torch.tanh(fsq.project_in(x))).detach().abs().max()) > 0.1  # though much was rounded


@pytest.mark.parametrize("levels", [(8, 5, 5, 5), (2,)])
def test_encoding_and_looking_up_give_the_same_bits(levels: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    fsq = FSQ(6, levels)
    found = fsq(torch.randn(7, 3, 6))
    assert torch.equal(fsq.values(found.codes), found.values)
