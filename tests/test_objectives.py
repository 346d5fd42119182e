"""The training objectives: values and gradients against a plain numpy re-derivation from the paper's formulas."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from actionpiece import objectives
from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError
from actionpiece.nn.quantize import ResidualVQ
from actionpiece.nn.transformer import SlotEncoder, StepDecoder
from actionpiece.objectives import OBJECTIVES, Step, combine
from actionpiece.objectives.quantization_order import jensen_shannon
from actionpiece.objectives.sigreg import epps_pulley
from actionpiece.objectives.step import nearest_rank
from actionpiece.space import ActionSpace, Group
from conftest import libero_like

Sharing = Literal["shared", "per_slot"]
KINDS = list(itertools.product([1, 2], ["shared", "per_slot"]))
HORIZON, DIM, SLOTS, WIDTH = 5, 7, 3, 6

SPACE = ActionSpace(  # LIBERO's, with weights that are not 1
    "test",
    (
        Group("translation", (0, 1, 2), unit=0.05, delta=True, weight=2.0),
        Group("rotation", (3, 4, 5), unit=0.5, delta=True, form="axis_angle", weight=0.7),
        Group("gripper", (6,), open=-1.0, closed=1.0, weight=0.3),
    ),
)


def make_step(
    levels: int = 1,
    sharing: Sharing = "shared",
    *,
    batch: int = 40,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    chunks: np.ndarray | None = None,
) -> Step:
    """A batch halfway through an untrained codec; `features` and `decoded` are leaves of the graph."""
    torch.manual_seed(seed)
    raw = torch.from_numpy(libero_like(batch, HORIZON, seed) if chunks is None else chunks).to(torch.float64)
    scale = torch.linspace(0.5, 2.0, DIM, dtype=torch.float64)
    offset = torch.linspace(-0.2, 0.3, DIM, dtype=torch.float64)
    target = ((raw - offset) / scale).to(dtype)
    encoder = SlotEncoder(HORIZON, DIM, SLOTS, width=WIDTH, depth=1, heads=2).to(dtype)
    decoder = StepDecoder(HORIZON, DIM, SLOTS, width=WIDTH, depth=1, heads=2).to(dtype)
    quantizer = ResidualVQ(WIDTH, slots=SLOTS, levels=levels, codes=8, dim=4, sharing=sharing).to(dtype)
    # An untrained encoder's slots are alike in all chunks; a chunk's features are to differ here.
    features = (encoder(target) + 0.5 * torch.randn(len(raw), SLOTS, WIDTH, dtype=dtype)).detach().requires_grad_()
    quantized = quantizer(features)
    decoded = (target + 0.1 * decoder(quantized.output)).detach().requires_grad_()
    distance = PhysicalDistance.fit(SPACE, raw.numpy())
    return Step(
        target=target,
        decoded=decoded,
        features=features,
        quantized=quantized,
        quantizer=quantizer,
        distance=distance,
        physical=distance.features(raw),
        offset=offset.to(dtype),
        scale=scale.to(dtype),
    )


# --- The paper's formulas in numpy: no code of the package below this line


@dataclass
class Chosen:
    """One residual level in numpy: what it was given, Delta, codes, codewords, s, pi, the soft average."""

    residual: np.ndarray
    delta: np.ndarray
    codes: np.ndarray
    hard: np.ndarray
    deviation: np.ndarray
    pi: np.ndarray
    soft: np.ndarray


class Plain:
    """The constants of a step in numpy, and the objectives as functions of features or of the decoded chunks.

    With `held`, codes and deviations are those of another evaluation, and a codeword is its hard value there plus
    the change of the soft average since: what the straight-through gradient is the gradient of.
    """

    def __init__(self, step: Step) -> None:
        def array(x: Tensor) -> np.ndarray:
            return x.detach().numpy()

        vq = step.quantizer
        self.w_in, self.b_in = array(vq.project_in.weight), array(vq.project_in.bias)
        self.w_out, self.b_out = array(vq.project_out.weight), array(vq.project_out.bias)
        self.books = array(vq.codebook)
        self.target, self.scale, self.offset = array(step.target), array(step.scale), array(step.offset)
        self.s_p, self.s_r, _ = step.distance.scales
        self.features, self.decoded = array(step.features), array(step.decoded)

    def parts(self, normalised: np.ndarray) -> tuple[np.ndarray, Rotation, np.ndarray]:
        """Metres (B, H, 3), rotations (B * H), gripper (B, H) in [0, 1]."""
        raw = normalised * self.scale + self.offset
        return raw[..., :3] * 0.05, Rotation.from_rotvec((raw[..., 3:6] * 0.5).reshape(-1, 3)), (raw[..., 6] + 1) / 2

    def physical(self) -> np.ndarray:
        p, r, g = self.parts(self.target)
        n, h = g.shape
        matrices = r.as_matrix().reshape(n, h, 3, 3)
        out = np.zeros((n, n))
        for i in range(n):
            relative = matrices[i].transpose(0, 2, 1) @ matrices
            angle = np.linalg.norm(Rotation.from_matrix(relative.reshape(-1, 3, 3)).as_rotvec(), axis=-1).reshape(n, h)
            step = 2.0 * ((p[i] - p) ** 2).sum(-1) / self.s_p**2 + 0.7 * (angle / self.s_r) ** 2
            out[i] = (step + 0.3 * (g[i] - g) ** 2).mean(-1)
        return out

    def ranked(self, i: int) -> list[int]:
        """The others from near to far; equal distances by index."""
        row = self.physical_distances[i]
        return sorted((j for j in range(len(row)) if j != i), key=lambda j: (row[j], j))

    @property
    def physical_distances(self) -> np.ndarray:
        if not hasattr(self, "_physical"):
            self._physical = self.physical()
        return self._physical

    def pairs(self) -> list[tuple[int, int, int]]:
        others = len(self.target) - 1
        near, far = (max(math.ceil(Fraction(percent, 100) * others), 1) - 1 for percent in (5, 95))
        return [(i, self.ranked(i)[near], self.ranked(i)[far]) for i in range(others + 1)]

    def levels(self, features: np.ndarray, held: list[Chosen] | None = None) -> list[Chosen]:
        residual, out = features @ self.w_in.T + self.b_in, []
        for number, books in enumerate(self.books):
            book = np.broadcast_to(books, (SLOTS, *books.shape[1:]))
            delta = ((residual[:, :, None] - book) ** 2).sum(-1)
            codes = held[number].codes if held else delta.argmin(-1)
            hard = book[np.arange(SLOTS), codes]
            mean = delta.mean(-1, keepdims=True)
            spread = np.sqrt(((delta - mean) ** 2).mean(-1, keepdims=True))
            deviation = held[number].deviation if held else np.maximum(spread, 1e-6)
            weights = np.exp(-delta / deviation)
            pi = weights / weights.sum(-1, keepdims=True)
            soft = np.einsum("bsk,skd->bsd", pi, book)
            out.append(Chosen(residual, delta, codes, hard, deviation, pi, soft))
            residual = residual - hard
        return out

    def representation(self, features: np.ndarray, held: list[Chosen] | None = None) -> Callable[[int, int], float]:
        def on_sphere(x: np.ndarray) -> np.ndarray:
            x = x - x.mean(-1, keepdims=True)  # LayerNorm; its scale is lost in the unit norm
            return x / np.linalg.norm(x, axis=-1, keepdims=True)

        h, total, prefixes = on_sphere(features), np.zeros(1), []
        for number, level in enumerate(self.levels(features, held)):
            estimate = level.soft + (held[number].hard - held[number].soft) if held else level.hard
            total = total + estimate @ self.w_out.T
            prefixes.append(on_sphere(total + self.b_out))

        def squared(i: int, j: int) -> float:
            encoder = ((h[i] - h[j]) ** 2).sum(-1).mean()
            quantised = np.mean([((q[i] - q[j]) ** 2).sum(-1).mean() for q in prefixes])
            return float(0.25 * encoder + 0.75 * quantised)

        return squared

    def reconstruction(self, decoded: np.ndarray) -> float:
        return float(((self.target - decoded) ** 2).sum() / self.target.size)

    def commitment(self, features: np.ndarray, held: list[Chosen] | None = None) -> float:
        return float(np.mean([((c.residual - c.hard) ** 2).mean() for c in self.levels(features, held)]))

    def physical_rank(self, features: np.ndarray, held: list[Chosen] | None = None) -> float:
        squared = self.representation(features, held)
        gaps = [math.sqrt(squared(i, near)) - math.sqrt(squared(i, far)) + 0.1 for i, near, far in self.pairs()]
        return float(np.mean([math.log(1 + math.exp(gap)) for gap in gaps]))

    def quantization_order(self, features: np.ndarray, held: list[Chosen] | None = None) -> float:
        def kl(p: np.ndarray, q: np.ndarray) -> float:
            return float((p * np.log(p / q)).sum())

        def js(p: np.ndarray, q: np.ndarray) -> float:
            return kl(p, (p + q) / 2) / 2 + kl(q, (p + q) / 2) / 2

        levels = self.levels(features, held)

        def divergence(i: int, j: int) -> float:
            return float(np.mean([js(c.pi[i, s], c.pi[j, s]) for c in levels for s in range(SLOTS)]))

        gaps = [divergence(i, near) - divergence(i, far) + 0.1 for i, near, far in self.pairs()]
        return float(np.mean([math.log(1 + math.exp(gap)) for gap in gaps]))

    def neighborhood(self, features: np.ndarray, held: list[Chosen] | None = None) -> float:
        squared = self.representation(features, held)
        above = below = 0.0
        for i in range(len(features)):
            chosen = self.ranked(i)[:10]
            distances = self.physical_distances[i, chosen]
            for j, d in zip(chosen, distances, strict=True):
                weight = math.exp(-d / distances.mean())
                above += weight * squared(i, j)
                below += weight
        return above / below

    def temporal(self, decoded: np.ndarray) -> float:
        (p, r, g), (p2, r2, g2) = self.parts(self.target), self.parts(decoded)

        def changes(rotation: Rotation) -> np.ndarray:
            m = rotation.as_matrix().reshape(*g.shape, 3, 3)
            return m[:, :-1].transpose(0, 1, 3, 2) @ m[:, 1:]

        moved = ((np.diff(p2, axis=1) - np.diff(p, axis=1)) ** 2).sum(-1).mean()
        gripped = ((np.diff(g2, axis=1) - np.diff(g, axis=1)) ** 2).mean()
        between = (changes(r).transpose(0, 1, 3, 2) @ changes(r2)).reshape(-1, 3, 3)
        angle = Rotation.from_matrix(between).magnitude()
        turned = (8 * (1 - np.cos(angle / 2))).mean()
        return float(2.0 * moved / self.s_p**2 + 0.7 * turned / self.s_r**2 + 0.3 * gripped)

    def sigreg(self, features: np.ndarray, seed: int = 3) -> float:
        torch.manual_seed(seed)
        directions = torch.randn(WIDTH, 256, dtype=torch.float64).numpy()
        directions = directions / np.linalg.norm(directions, axis=0)
        t = np.linspace(-5, 5, 17)
        phase = t[:, None, None] * (features.reshape(-1, WIDTH) @ directions)  # (t, samples, directions)
        normal = np.exp(-(t**2) / 2)[:, None]
        integrand = np.abs(np.exp(1j * phase).mean(1) - normal) ** 2 * normal
        return float((0.5 * (integrand[1:] + integrand[:-1]) * np.diff(t)[:, None]).sum(0).mean())


OF_FEATURES = ("commitment", "physical_rank", "quantization_order", "neighborhood", "sigreg")
OF_DECODED = ("reconstruction", "temporal")


def value_of(name: str, step: Step) -> Tensor:
    torch.manual_seed(3)  # SIGReg's directions
    return OBJECTIVES[name](step)


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
    assert expected > 1e-3  # something to compare


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
    )
    directions = torch.randn(WIDTH, 256, dtype=torch.float64)  # the same in both
    monkeypatch.setattr(torch, "randn", lambda *_, dtype, **__: directions.to(dtype))
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
    step = make_step(batch=6)
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


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_smallest_batches_give_finite_values_and_gradients(name: str, batch: int) -> None:
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
    step = make_step()
    torch.manual_seed(0)
    a, b = (float(OBJECTIVES["sigreg"](step).detach()) for _ in range(2))
    assert a != b
    assert a == pytest.approx(b, rel=0.5)


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
