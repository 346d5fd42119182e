"""Properties of single objectives: what each of them sees, and what it does not."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from torch import Tensor

from actionpiece.distance import PhysicalDistance
from actionpiece.objectives import OBJECTIVES
from actionpiece.objectives.quantization_order import jensen_shannon
from actionpiece.objectives.sigreg import epps_pulley
from actionpiece.space import ActionSpace, Group
from steps import COMPANIONS, HORIZON, SLOTS, WIDTH, Plain, make_step, value_of

# --- Reconstruction and physical error


def test_reconstruction_without_emphasis_is_the_plain_mean_squared_error() -> None:
    step = make_step()
    plain = dataclasses.replace(step, emphasis=torch.ones_like(step.emphasis))
    expected = float(((step.decoded - step.target).detach().numpy() ** 2).mean())
    assert float(value_of("reconstruction", plain).detach()) == pytest.approx(expected, rel=1e-6)
    assert float(value_of("reconstruction", step).detach()) != pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("name", ["reconstruction", "physical_error"])
def test_a_column_counts_as_its_factor_says(name: str) -> None:
    step = make_step()
    factors = step.rates if name == "physical_error" else step.emphasis
    shares = []
    for column in range(7):
        decoded = step.target.clone()
        decoded[..., column] += 0.1
        shares.append(float(value_of(name, dataclasses.replace(step, decoded=decoded))))
    np.testing.assert_allclose(np.array(shares) / shares[0], (factors / factors[0]).square().numpy(), rtol=1e-6)


def test_physical_error_with_all_of_the_emphasis_is_reconstruction_times_the_columns() -> None:
    step = make_step()
    whole = dataclasses.replace(step, emphasis=step.rates)
    ratio = value_of("physical_error", step) / value_of("reconstruction", whole)
    assert float(ratio.detach()) == pytest.approx(7, rel=1e-12)


@pytest.mark.parametrize("size", [0.0, 1e-4])
def test_physical_error_is_the_mean_physical_distance_of_small_errors(size: float) -> None:
    """Exactly so without rotations; with them, to first order about no rotation."""
    step = make_step()
    generator = torch.Generator().manual_seed(0)
    error = torch.randn(step.target.shape, generator=generator, dtype=torch.float64)
    target = step.target.clone()
    if size:
        target[..., 3:6] = -step.offset[3:6] / step.scale[3:6]
        error[...] *= size
    else:
        error[..., 3:6] = 0
    decoded = target + error
    commands = (x * step.scale + step.offset for x in (target, decoded))
    expected = float(step.distance.paired(*commands).mean())
    ours = float(value_of("physical_error", dataclasses.replace(step, target=target, decoded=decoded)))
    assert ours == pytest.approx(expected, rel=1e-6)


# --- Neighbour order


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbor_order_of_a_perfect_decode_is_zero_at_a_stationary_point(dtype: torch.dtype) -> None:
    step = make_step(dtype=dtype)
    decoded = step.target.clone().requires_grad_()
    value = value_of("neighbor_order", dataclasses.replace(step, decoded=decoded))
    assert abs(float(value.detach())) < 1e-5
    (gradient,) = torch.autograd.grad(value, decoded)
    assert float(gradient.abs().max()) < 1e-3


@settings(deadline=None, max_examples=30)
@given(exponent=st.floats(-4.0, 1.0), seed=st.integers(0, 1000))
def test_neighbor_order_of_a_perfect_decode_is_zero_however_near_the_neighbours_are(exponent: float, seed: int) -> None:
    step = make_step(batch=8, seed=seed)
    anchors = torch.arange(0, 8, COMPANIONS + 1).repeat_interleave(COMPANIONS + 1)
    target = step.target[anchors] + 10**exponent * (step.target - step.target[anchors])
    value = value_of("neighbor_order", dataclasses.replace(step, target=target, decoded=target.clone()))
    assert abs(float(value)) < 1e-5


@settings(deadline=None, max_examples=30)
@given(factor=st.floats(0.05, 20.0), shift=st.floats(-10.0, 10.0), seed=st.integers(0, 1000))
def test_neighbor_order_does_not_see_shift_or_size_of_what_is_decoded(factor: float, shift: float, seed: int) -> None:
    step = make_step(batch=8, seed=seed)
    base = float(value_of("neighbor_order", step).detach())
    moved = dataclasses.replace(step, decoded=factor * step.decoded + shift)
    assert float(value_of("neighbor_order", moved).detach()) == pytest.approx(base, abs=1e-6)
    assert -1e-12 <= base <= 2 + 1e-12


def test_neighbor_order_is_two_where_near_becomes_far() -> None:
    """Companions at 1, 2 and 3 units of one column decoded to 3, 2 and 1."""
    step = make_step(batch=4)
    target, decoded = (step.target[:1].repeat(4, 1, 1) for _ in range(2))
    target[:, :, 0] += torch.tensor([0.0, 1.0, 2.0, 3.0])[:, None]
    decoded[:, :, 0] += torch.tensor([0.0, 3.0, 2.0, 1.0])[:, None]
    assert float(
        value_of("neighbor_order", dataclasses.replace(step, target=target, decoded=decoded))
    ) == pytest.approx(2, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_neighbourhood_of_identical_chunks_is_left_out_of_neighbor_order(dtype: torch.dtype) -> None:
    step = make_step(batch=8, dtype=dtype)
    target = torch.cat((step.target[:4], step.target[4:5].repeat(4, 1, 1)))
    for decoded in (step.decoded.detach(), torch.cat((step.decoded.detach()[:4], target[4:]))):
        leaf = decoded.clone().requires_grad_()
        value = value_of("neighbor_order", dataclasses.replace(step, target=target, decoded=leaf))
        (gradient,) = torch.autograd.grad(value, leaf)
        one = dataclasses.replace(step, target=target[:4], decoded=decoded[:4])
        assert float(value.detach()) == pytest.approx(float(value_of("neighbor_order", one)), rel=1e-6)
        assert bool(torch.isfinite(gradient).all())
        assert not bool(gradient[4:].any())
        assert bool(gradient[:4].any())
    alike = dataclasses.replace(step, target=target[4:], decoded=step.decoded[4:])
    assert float(value_of("neighbor_order", alike).detach()) == 0


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), exponent=st.floats(-3.0, 1.0))
def test_companions_at_one_distance_have_no_order_that_rounding_could_give_them(seed: int, exponent: float) -> None:
    step = make_step(batch=4, seed=seed, dtype=torch.float32)
    target = step.target[:1] + 10**exponent * (step.target[[0, 1, 1, 1]] - step.target[:1])
    assert float(value_of("neighbor_order", dataclasses.replace(step, target=target)).detach()) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("anchor", [True, False], ids=["with the anchor", "without it"])
def test_companions_that_decode_to_one_chunk_have_no_order_left_and_gradients_of_usual_size(
    dtype: torch.dtype, anchor: bool
) -> None:
    """Near chunks often share their codes; what they add must not drown the rest of a clipped gradient."""
    step = make_step(batch=8, dtype=dtype)
    decoded = step.decoded.detach().clone()
    decoded[4 if anchor else 5 :] = decoded[5]
    leaf = decoded.requires_grad_()
    value = value_of("neighbor_order", dataclasses.replace(step, decoded=leaf))
    one = dataclasses.replace(step, target=step.target[:4], decoded=decoded.detach()[:4])
    assert float(value.detach()) == pytest.approx((1 + float(value_of("neighbor_order", one))) / 2, abs=1e-3)
    (gradient,) = torch.autograd.grad(value, leaf)
    assert bool(torch.isfinite(gradient).all())
    assert float(gradient.norm()) < 1e4


# --- Neighbourhood, rank and order


def test_neighborhood_uses_the_ten_nearest_and_no_others() -> None:
    step = make_step()
    (gradient,) = torch.autograd.grad(value_of("neighborhood", step), step.features)
    assert bool((gradient.abs().amax((1, 2)) > 0).all())
    used: list[Tensor] = []
    spied = make_step()
    original = spied.representation_distance

    def spy(other: Tensor) -> Tensor:
        used.append(other)
        return original(other)

    spied.representation_distance = spy  # type: ignore[method-assign]
    value_of("neighborhood", spied)
    plain = Plain(step)
    assert used[0].shape == (40, 10)
    for i in range(40):
        assert set(used[0][i].tolist()) == set(plain.ranked(i)[:10])


@pytest.mark.parametrize("batch", [2, 7, 11])
def test_neighborhood_takes_all_others_of_a_small_batch(batch: int) -> None:
    step = make_step(batch=batch)
    plain = Plain(step)
    assert len(plain.ranked(0)[:10]) == batch - 1
    assert float(value_of("neighborhood", step).detach()) == pytest.approx(plain.neighborhood(plain.features), rel=1e-9)


def test_neighborhood_is_heavier_for_nearer_neighbours() -> None:
    step = make_step()
    places = torch.eye(10, dtype=torch.float64)
    shares = []
    for place in range(10):  # with a distance of 1 for one place and 0 for the others, the value is that place's share
        step.representation_distance = lambda other, p=place: places[p].expand(len(other), 10)  # type: ignore
        shares.append(float(value_of("neighborhood", step)))
    nearest = np.sort(Plain(step).physical_distances, axis=1)[:, 1:11]
    weights = np.exp(-nearest / nearest.mean(1, keepdims=True))
    np.testing.assert_allclose(shares, weights.sum(0) / weights.sum(), rtol=1e-9)
    assert (np.diff(shares) < 0).all()


def test_rank_and_order_fall_when_representations_follow_the_motions() -> None:
    step = make_step(batch=60)
    raw = step.target.flatten(1)
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(raw.shape[1], SLOTS * WIDTH, generator=generator, dtype=torch.float64)
    faithful = (raw @ mix).unflatten(1, (SLOTS, WIDTH)) / 3
    for name in ("physical_rank", "quantization_order"):
        values = []
        for features in (faithful, faithful[torch.randperm(60, generator=generator)]):
            changed = dataclasses.replace(step, features=features, quantized=step.quantizer(features))
            values.append(float(value_of(name, changed).detach()))
        assert values[0] < values[1]


# --- Each on its own ground


def test_jensen_shannon_of_equal_is_0_of_disjoint_is_ln_2_and_is_symmetric() -> None:
    rng = np.random.default_rng(0)
    p, q = (torch.from_numpy(rng.dirichlet(np.ones(9), 50)) for _ in range(2))
    assert float(jensen_shannon(p, p).abs().max()) == 0
    torch.testing.assert_close(jensen_shannon(p, q), jensen_shannon(q, p), atol=1e-15, rtol=0)
    assert bool((jensen_shannon(p, q) > 0).all())
    assert bool((jensen_shannon(p, q) < math.log(2)).all())
    left, right = torch.tensor([0.3, 0.7, 0.0, 0.0]).double(), torch.tensor([0.0, 0.0, 0.5, 0.5]).double()
    assert float(jensen_shannon(left, right)) == pytest.approx(math.log(2), abs=1e-15)


def test_jensen_shannon_has_a_finite_gradient_where_a_probability_underflows() -> None:
    logits = torch.tensor([[0.0, -500.0, -3.0], [-400.0, 0.0, -500.0]], requires_grad=True)
    p = logits.softmax(-1)
    assert float(p.detach().min()) == 0
    (gradient,) = torch.autograd.grad(jensen_shannon(p[0], p[1]), logits)
    assert bool(torch.isfinite(gradient).all())


def test_temporal_is_zero_for_a_perfect_decode() -> None:
    for dtype in (torch.float32, torch.float64):
        step = make_step(dtype=dtype)
        step = dataclasses.replace(step, decoded=step.target.clone().requires_grad_())
        value = value_of("temporal", step)
        assert 0 <= float(value.detach()) < 1e-9
        (gradient,) = torch.autograd.grad(value, step.decoded)
        assert float(gradient.abs().max()) < 1e-4


def test_temporal_does_not_see_a_constant_added_to_translation_or_gripper() -> None:
    step = make_step()
    shift = torch.tensor([0.3, -0.2, 0.1, 0.0, 0.0, 0.0, 0.4], dtype=torch.float64)
    moved = dataclasses.replace(step, decoded=step.decoded + shift)
    assert float(value_of("temporal", moved).detach()) == pytest.approx(
        float(value_of("temporal", step).detach()), rel=1e-12
    )


def test_temporal_sees_the_direction_of_a_change() -> None:
    """Backwards motion is punished though its steps are as large."""
    step = make_step()
    for backward in (step.target.flip(1), 2 * step.target):
        assert float(value_of("temporal", dataclasses.replace(step, decoded=backward))) > 0.1


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 1e-4), (torch.float32, 1e-3), (torch.float32, 1e-4)])
def test_temporal_is_the_squared_relative_angle_over_the_scale_for_small_rotation_errors(
    dtype: torch.dtype, size: float
) -> None:
    """Also where float32 has no digits of 1 - cos left."""
    step = make_step(dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    error = torch.zeros(step.target.shape, dtype=dtype)
    error[..., 3:6] = size * torch.randn(*error.shape[:2], 3, generator=generator, dtype=torch.float64).to(dtype)
    decoded = step.target + error
    ours = float(value_of("temporal", dataclasses.replace(step, decoded=decoded)))
    plain = Plain(dataclasses.replace(step, target=step.target.double(), scale=step.scale.double()))
    changes = []
    for chunk in (step.target, decoded):
        m = plain.parts(chunk.double().numpy())[1].as_matrix().reshape(40, HORIZON, 3, 3)
        changes.append(Rotation.from_matrix((m[:, :-1].transpose(0, 1, 3, 2) @ m[:, 1:]).reshape(-1, 3, 3)))
    angle = (changes[0].inv() * changes[1]).magnitude()
    assert ours == pytest.approx(
        0.7 * float((angle**2).mean()) / plain.s_r**2, rel=1e-5 if dtype.itemsize == 8 else 1e-2
    )


def test_temporal_of_a_single_step_is_zero() -> None:
    step = make_step()
    short = dataclasses.replace(step, target=step.target[:, :1], decoded=step.decoded[:, :1])
    assert float(value_of("temporal", short).detach()) == 0


FORMS: list[dict[str, Any]] = [
    {"form": "axis_angle", "unit": 0.5, "width": 3},
    {"form": "euler", "order": "xyz", "unit": 0.5, "width": 3},
    {"form": "quaternion", "order": "wxyz", "width": 4},
    {"form": "rotation_6d", "order": "rows", "width": 6},
    {"form": "matrix", "order": "rows", "width": 9},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
def test_temporal_and_its_gradient_exist_for_every_rotation_form_and_for_joints(form: dict[str, Any]) -> None:
    width = form["width"]
    group = Group("rotation", tuple(range(width)), delta=True, **{k: v for k, v in form.items() if k != "width"})
    joints = Group("joints", (width, width + 1), unit=1.0, delta=False)
    space = ActionSpace("form", (group, joints))
    rng = np.random.default_rng(0)
    chunks = torch.from_numpy(rng.normal(size=(20, HORIZON, width + 2)))
    decoded = (chunks + 0.01 * torch.from_numpy(rng.normal(size=chunks.shape))).requires_grad_()
    distance = PhysicalDistance.fit(space, chunks.numpy())
    ones = torch.ones(width + 2, dtype=torch.float64)
    step = dataclasses.replace(
        make_step(), target=chunks, decoded=decoded, distance=distance, scale=ones, offset=0 * ones
    )
    value = value_of("temporal", step)
    (gradient,) = torch.autograd.grad(value, decoded)
    assert 0 < float(value.detach()) < 10
    assert bool(torch.isfinite(gradient).all())
    direction = torch.from_numpy(rng.normal(size=chunks.shape))
    high, low = (
        float(value_of("temporal", dataclasses.replace(step, decoded=decoded.detach() + sign * 1e-6 * direction)))
        for sign in (1, -1)
    )
    assert (high - low) / 2e-6 == pytest.approx(float((gradient * direction).sum()), rel=1e-4)


def test_sigreg_is_small_for_gaussian_and_large_for_collapsed_features() -> None:
    step = make_step()
    gaussian = torch.randn(300, 4, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def value(features: Tensor) -> float:
        return float(value_of("sigreg", dataclasses.replace(step, features=features)))

    base = value(gaussian)
    assert base < 0.005
    collapsed = torch.zeros_like(gaussian)
    line = gaussian * torch.eye(WIDTH, dtype=torch.float64)[0]
    for bad in (collapsed, line, gaussian + 2, 3 * gaussian, 0.3 * gaussian):
        assert value(bad) > 10 * base


def test_epps_pulley_of_many_normal_samples_is_near_zero_and_of_a_point_is_known() -> None:
    x = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(epps_pulley(x).max()) < 1e-3
    # A point at zero has characteristic function 1: the integral of (1 - n)^2 n with n = exp(-t^2 / 2).
    exact = math.sqrt(2 * math.pi) * (1 - 2 / math.sqrt(2) + 1 / math.sqrt(3))
    assert float(epps_pulley(torch.zeros(5, 1, dtype=torch.float64))[0]) == pytest.approx(exact, rel=1e-3)


def test_sigreg_draws_new_directions_every_time() -> None:
    step = dataclasses.replace(make_step(), generator=torch.Generator().manual_seed(0))
    untouched = torch.get_rng_state()
    a, b = (float(OBJECTIVES["sigreg"](step).detach()) for _ in range(2))
    assert a != b
    assert a == pytest.approx(b, rel=0.5)
    assert torch.equal(torch.get_rng_state(), untouched)  # by its own generator
