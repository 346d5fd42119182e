"""The training objectives: values and gradients against a plain numpy re-derivation from the paper's formulas."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from actionpiece import objectives
from actionpiece.errors import ActionPieceError
from actionpiece.objectives import OBJECTIVES, Step, combine
from actionpiece.objectives.step import nearest_rank
from conftest import libero_like
from steps import HORIZON, KINDS, OF_DECODED, OF_FEATURES, WIDTH, Plain, Sharing, make_step, value_of


def check_gradient(ours: Tensor, function: Callable[[np.ndarray], float], at: np.ndarray) -> None:
    """Against central differences by forty coordinates drawn at random, and along one direction through all."""
    step, rng = 1e-5, np.random.default_rng(0)

    def slope(direction: np.ndarray) -> float:
        return (function(at + step * direction) - function(at - step * direction)) / (2 * step)

    axes = [np.eye(at.size)[i].reshape(at.shape) for i in rng.choice(at.size, 40, replace=False)]
    for direction in (*axes, rng.normal(size=at.shape)):
        assert float((ours.numpy() * direction).sum()) == pytest.approx(slope(direction), rel=1e-5, abs=1e-8)
    assert float(ours.abs().max()) > 1e-4


# --- Values and gradients


@pytest.mark.parametrize(("levels", "sharing"), KINDS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_value_is_the_papers_formula(name: str, levels: int, sharing: Sharing) -> None:
    step = make_step(levels, sharing)
    plain = Plain(step)
    expected = getattr(plain, name)(plain.decoded if name in OF_DECODED else plain.features)
    assert float(value_of(name, step).detach()) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert expected > 1e-4  # something to compare


@pytest.mark.parametrize("name", OBJECTIVES)
def test_in_single_precision_the_value_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step(2)
    quantizer, features = copy.deepcopy(step.quantizer).float(), step.features.float()
    single = Step(
        target=step.target.float(),
        decoded=step.decoded.float(),
        features=features,
        quantized=quantizer(features),
        quantizer=quantizer,
        distance=step.distance,
        physical=step.physical,
        offset=step.offset.float(),
        scale=step.scale.float(),
        rates=step.rates.float(),
        emphasis=step.emphasis.float(),
        companions=step.companions,
    )
    directions = torch.randn(WIDTH, 256, dtype=torch.float64)  # the same in both
    monkeypatch.setattr(Tensor, "normal_", lambda self, **_: self.copy_(directions))
    a, b = OBJECTIVES[name](step), OBJECTIVES[name](single)
    assert b.dtype == torch.float32
    assert float(b.detach()) == pytest.approx(float(a.detach()), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "levels", "sharing"),
    [("sigreg", 1, "shared"), *((n, *kind) for n in OF_FEATURES if n != "sigreg" for kind in KINDS)],
)
def test_the_gradient_by_features_is_a_finite_difference_of_the_held_formula(
    name: str, levels: int, sharing: Sharing
) -> None:
    """With codes and deviations held; for the rank and neighbourhood terms, soft codewords around the hard ones."""
    step = make_step(levels, sharing, batch=12)
    plain = Plain(step)
    held = plain.levels(plain.features)
    for level in held:  # no code is about to switch
        gap = np.diff(np.sort(level.delta, -1)[..., :2], axis=-1)
        assert gap.min() > 1e-3
    formula = getattr(plain, name)
    function = formula if name == "sigreg" else lambda f: formula(f, held)
    (ours,) = torch.autograd.grad(value_of(name, step), step.features)
    check_gradient(ours, function, plain.features)


@pytest.mark.parametrize("name", OF_DECODED)
def test_the_gradient_by_the_decoded_chunks_is_a_finite_difference(name: str) -> None:
    step = make_step(batch=8)
    plain = Plain(step)
    (ours,) = torch.autograd.grad(value_of(name, step), step.decoded)
    check_gradient(ours, getattr(plain, name), plain.decoded)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("levels", [1, 2])
def test_identical_chunks_in_a_batch_give_finite_gradients(name: str, dtype: torch.dtype, levels: int) -> None:
    one = libero_like(1, HORIZON, 0)
    idle = np.zeros_like(one)
    for chunks in (np.repeat(one, 16, 0), np.repeat(idle, 16, 0), np.repeat(libero_like(4, HORIZON, 0), 5, 0)):
        step = make_step(levels, dtype=dtype, chunks=chunks)
        first = [0] * 16 if len(chunks) == 16 else [i // 5 for i in range(20)]
        features = step.features.detach()[first].requires_grad_()  # identical all the way
        decoded = step.target.clone().requires_grad_()
        step = dataclasses.replace(step, features=features, quantized=step.quantizer(features), decoded=decoded)
        value = value_of(name, step)
        assert math.isfinite(float(value.detach()))
        leaf = decoded if name in OF_DECODED else features
        (gradient,) = torch.autograd.grad(value, leaf)
        assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_smallest_batches_give_finite_values_and_gradients(name: str, batch: int) -> None:
    if name == "neighbor_order" and batch < 3:
        pytest.skip("it is made of an anchor and two companions at least")
    chunks = libero_like(40, HORIZON, 0)
    step = make_step(2, chunks=chunks)
    features, decoded = (x.detach()[:batch].requires_grad_() for x in (step.features, step.decoded))
    step = dataclasses.replace(
        step,
        target=step.target[:batch],
        decoded=decoded,
        features=features,
        quantized=step.quantizer(features),
        physical=step.physical[:batch],
        companions=2,
    )
    value = value_of(name, step)
    (gradient,) = torch.autograd.grad(value, decoded if name in OF_DECODED else features)
    assert math.isfinite(float(value.detach()))
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_objective_reaches_the_codebook_or_the_targets(name: str) -> None:
    step = make_step(2)
    value_of(name, step).backward()
    assert step.quantizer.codebook.grad is None
    assert not step.quantizer.codebook.requires_grad
    assert step.target.grad is None


# --- Which chunks are compared


def test_near_and_far_are_the_7th_and_the_121st_of_127_others() -> None:
    assert (nearest_rank(0.05, 127), nearest_rank(0.95, 127)) == (6, 120)


def test_ranks_are_exact_for_every_batch_size() -> None:
    for others in range(1, 3000):
        assert nearest_rank(0.05, others) == max(math.ceil(Fraction(1, 20) * others), 1) - 1
        assert nearest_rank(0.95, others) == math.ceil(Fraction(19, 20) * others) - 1


@pytest.mark.parametrize("ties", [False, True])
def test_near_and_far_are_brute_force_without_the_anchor(ties: bool) -> None:
    chunks = libero_like(128, HORIZON, 4)
    if ties:
        chunks = chunks[np.arange(128) % 30]  # every chunk four or five times
    step = make_step(chunks=chunks)
    near, far = step.near_and_far
    anchors = torch.arange(128)
    assert not bool(((near == anchors) | (far == anchors)).any())
    # Ties by the package's own distances, whose rounding decides which are equal; the values by the formula.
    measured = step.distance.pairwise(step.physical).numpy()
    np.testing.assert_allclose(measured, Plain(step).physical_distances, atol=1e-9)
    for i in range(128):
        order = sorted((j for j in range(128) if j != i), key=lambda j: (measured[i, j], j))
        assert (int(near[i]), int(far[i])) == (order[6], order[120])
    if ties:
        assert int(near[0]) != 0
        assert bool((step.distances[anchors, near] >= 0).all())


def test_a_tie_goes_to_the_lowest_index() -> None:
    step = make_step(chunks=np.repeat(libero_like(1, HORIZON, 0), 24, 0))
    near, far = step.near_and_far  # places 1 and 21 of 23 others, all at distance 0
    assert near.tolist() == [2, 2, *[1] * 22]
    assert far.tolist() == [*[22] * 22, 21, 21]


def test_the_representation_distance_weighs_encoder_and_codewords() -> None:
    step = make_step(2)
    squared = Plain(step).representation(step.features.detach().numpy())
    other = torch.randint(40, (40, 4), generator=torch.Generator().manual_seed(0))
    ours = step.representation_distance(other)
    assert ours.shape == (40, 4)
    expected = [[squared(i, int(j)) for j in other[i]] for i in range(40)]
    np.testing.assert_allclose(ours.detach().numpy(), expected, atol=1e-12)
    torch.testing.assert_close(step.representation_distance(other[:, 0]), ours[:, 0])
    assert float(step.representation_distance(torch.arange(40)).detach().abs().max()) == 0
    assert 0 < float(ours.detach().max()) <= 4  # unit vectors


# --- Together


def test_combine_is_the_weighted_sum_of_the_terms() -> None:
    step = make_step(2)
    weights = {"reconstruction": 1.0, "commitment": 0.25, "physical_rank": 6.25e-4, "quantization_order": 6.25e-4}
    total, terms = combine(step, weights)
    assert list(terms) == list(weights)
    for name, term in terms.items():
        assert float(term.detach()) == float(value_of(name, step).detach())
    expected = sum(weights[name] * float(terms[name].detach()) for name in weights)
    assert float(total.detach()) == pytest.approx(expected, rel=1e-12)
    (gradient,) = torch.autograd.grad(total, step.features, retain_graph=True)
    apart = [
        weight * torch.autograd.grad(value_of(name, step), step.features, retain_graph=True)[0]
        for name, weight in weights.items()
        if name != "reconstruction"
    ]
    torch.testing.assert_close(gradient, torch.stack(apart).sum(0))


def test_combine_does_not_compute_terms_of_weight_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(step: Step) -> Tensor:
        raise AssertionError("computed")

    monkeypatch.setitem(objectives.OBJECTIVES, "physical_rank", never)
    step = make_step()
    total, terms = combine(step, {"reconstruction": 2.0, "physical_rank": 0.0})
    assert set(terms) == {"reconstruction"}
    assert float(total.detach()) == pytest.approx(2 * float(terms["reconstruction"].detach()))
    assert "distances" not in vars(step)  # nor what only it needs
    total, terms = combine(step, {})
    assert (float(total), terms) == (0.0, {})


def test_combine_names_an_unknown_objective_and_the_known_ones() -> None:
    with pytest.raises(ActionPieceError, match=r"no objective 'magic'.*reconstruction, commitment.*neighborhood"):
        combine(make_step(), {"reconstruction": 1.0, "magic": 0.0})
