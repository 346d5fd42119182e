"""The residual quantiser against plain loops, what it standardises, differentiable code selection."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from actionpiece.nn.kmeans import kmeans
from actionpiece.nn.quantize import Quantized, ResidualVQ, Standardize
from actionpiece.nn.selection import code_probabilities, cumulative_codewords

Sharing = Literal["shared", "per_slot"]
KINDS = list(itertools.product([1, 2, 3], ["shared", "per_slot"]))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def quantizer(
    levels: int = 1,
    sharing: Sharing = "shared",
    *,
    slots: int = 3,
    codes: int = 10,
    deviation: float = 0.0,
    decay: float = 0.99,
    dead_share: float = 0.03,
    seed: int = 0,
) -> ResidualVQ:
    torch.manual_seed(seed)
    return ResidualVQ(
        6,
        slots=slots,
        levels=levels,
        codes=codes,
        dim=4,
        sharing=sharing,
        deviation=deviation,
        decay=decay,
        dead_share=dead_share,
    ).double()


def features(n: int = 50, slots: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(n, slots, 6, generator=seeded(seed), dtype=torch.float64)


def book_of(vq: ResidualVQ, level: int, slot: int) -> np.ndarray:
    """The codebook (K, d) that a slot uses."""
    books = vq.codebook[level].numpy()
    return books[slot if len(books) > 1 else 0]


# --- Quantiser, forward and backward


@pytest.mark.parametrize(("levels", "sharing"), KINDS)
def test_codes_are_the_nearest_codewords_of_what_the_level_before_left(levels: int, sharing: Sharing) -> None:
    vq, x = quantizer(levels, sharing), features()
    result = vq(x)
    residual = x.numpy() @ vq.project_in.weight.detach().numpy().T + vq.project_in.bias.detach().numpy()
    for number, level in enumerate(result.levels):
        np.testing.assert_allclose(level.residual.detach().numpy(), residual, atol=1e-12)
        for slot in range(3):
            book = book_of(vq, number, slot)
            squared = ((residual[:, slot, None] - book) ** 2).sum(-1)
            np.testing.assert_allclose(level.distances[:, slot].detach().numpy(), squared, atol=1e-11)
            np.testing.assert_array_equal(level.codes[:, slot].numpy(), squared.argmin(1))
            np.testing.assert_array_equal(level.chosen[:, slot].numpy(), book[squared.argmin(1)])
        residual = residual - level.chosen.numpy()
    assert result.codes.shape == (50, 3, levels)
    assert result.codes.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("levels", "sharing"), KINDS)
def test_decode_of_the_codes_is_the_forward_output_to_the_bit(
    levels: int, sharing: Sharing, dtype: torch.dtype
) -> None:
    vq, x = quantizer(levels, sharing).to(dtype), features().to(dtype)
    result = vq(x)
    assert result.output.shape == (50, 3, 6)
    hard, output = vq.decode(result.codes)
    assert torch.equal(hard, result.hard)
    assert torch.equal(output, result.output)


@pytest.mark.parametrize("sharing", ["shared", "per_slot"])
def test_decode_of_the_first_levels_is_the_sum_of_their_codewords(sharing: Sharing) -> None:
    vq = quantizer(3, sharing)
    codes = torch.randint(10, (20, 3, 3), generator=seeded())
    for q in (1, 2, 3):
        summed = np.stack([sum(book_of(vq, r, s)[codes[:, s, r].numpy()] for r in range(q)) for s in range(3)], axis=1)
        expected = summed @ vq.project_out.weight.detach().numpy().T + vq.project_out.bias.detach().numpy()
        hard, output = vq.decode(codes[..., :q])
        np.testing.assert_allclose(hard.numpy(), summed, atol=1e-12)
        np.testing.assert_allclose(output.detach().numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(("levels", "sharing"), KINDS)
def test_the_output_is_straight_through_to_the_projected_features(levels: int, sharing: Sharing) -> None:
    vq, x = quantizer(levels, sharing), features().requires_grad_()
    probe = torch.randn(50, 3, 6, generator=seeded(2), dtype=torch.float64)
    ours = torch.autograd.grad((vq(x).output * probe).sum(), [x, vq.project_in.weight])
    plain = torch.autograd.grad((vq.project_out(vq.project_in(x)) * probe).sum(), [x, vq.project_in.weight])
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("levels", "sharing"), KINDS)
def test_no_gradient_reaches_the_codebook(levels: int, sharing: Sharing) -> None:
    vq = quantizer(levels, sharing)
    assert {name for name, _ in vq.named_parameters()} == {
        f"project_{side}.{part}" for side in ("in", "out") for part in ("weight", "bias")
    }
    result = vq(features().requires_grad_())
    assert not any(level.chosen.requires_grad or level.codebook.requires_grad for level in result.levels)
    result.output.sum().backward()
    assert vq.codebook.grad is None


def test_a_shift_is_added_in_codebook_space_before_anything_is_quantised() -> None:
    vq, x = quantizer(2, "per_slot"), features().requires_grad_()
    shift = torch.randn(50, 3, 4, generator=seeded(4), dtype=torch.float64).requires_grad_()
    result = vq(x, shift)
    u = vq.project_in(x) + shift
    torch.testing.assert_close(vq.project(x, shift), u, atol=0, rtol=0)
    torch.testing.assert_close(result.levels[0].residual, u, atol=0, rtol=0)
    assert not torch.equal(result.codes, vq(x).codes)
    probe = torch.randn(50, 3, 4, generator=seeded(5), dtype=torch.float64)
    (gradient,) = torch.autograd.grad((result.hard * probe).sum(), shift)
    torch.testing.assert_close(gradient, probe, atol=0, rtol=0)  # straight through


def test_quantising_is_after_standardising() -> None:
    plain, vq, x = quantizer(2), quantizer(2, deviation=0.3), features()
    assert vq.standardize is not None
    vq.standardize.mean.copy_(torch.randn(3, 4, generator=seeded(7), dtype=torch.float64))
    vq.standardize.variance.copy_(torch.rand(3, 4, generator=seeded(8), dtype=torch.float64) + 0.1)
    vq.eval()
    u = plain.project(x).detach().numpy()
    expected = 0.3 * (u - vq.standardize.mean.numpy()) / np.sqrt(vq.standardize.variance.numpy())
    np.testing.assert_allclose(vq.project(x).detach().numpy(), expected, atol=1e-6)
    assert torch.equal(vq(x).levels[0].residual, vq.project(x))


# --- Standardising slots


def slot_vectors(n: int, seed: int, spread: float = 3.0, centre: float = 5.0) -> Tensor:
    """Vectors (n, 3, 4) whose mean and deviation differ by slot and dimension."""
    rng = np.random.default_rng(11)
    mean, deviation = centre * rng.normal(size=(3, 4)), spread * rng.uniform(0.1, 1.0, (3, 4))
    return torch.from_numpy(mean + deviation * np.random.default_rng(seed).normal(size=(n, 3, 4)))


@settings(deadline=None, max_examples=15)
@given(deviation=st.floats(0.01, 10.0), spread=st.floats(0.1, 10.0), centre=st.floats(-10.0, 10.0))
def test_after_many_batches_every_slot_has_mean_0_and_the_deviation(
    deviation: float, spread: float, centre: float
) -> None:
    module = Standardize(3, 4, deviation=deviation, decay=0.9).double()
    for batch in slot_vectors(200 * 64, 0, spread, centre).split(64):
        module(batch)
    out = module.eval()(slot_vectors(2000, 1, spread, centre))
    assert float(out.mean(0).abs().max()) < 0.15 * deviation
    np.testing.assert_allclose(out.std(0).numpy(), deviation, rtol=0.15)


def test_what_is_followed_are_moving_averages_with_the_variance_about_the_moving_mean() -> None:
    module = Standardize(3, 4, deviation=0.2, decay=0.9).double()
    mean, variance = np.zeros((3, 4)), np.ones((3, 4))
    for seed in range(6):
        u = slot_vectors(20, seed)
        ours = module(u)
        mean = 0.9 * mean + 0.1 * u.numpy().mean(0)
        variance = 0.9 * variance + 0.1 * ((u.numpy() - mean) ** 2).mean(0)
        np.testing.assert_allclose(module.mean.numpy(), mean, atol=1e-6)
        np.testing.assert_allclose(module.variance.numpy(), variance, rtol=1e-6)
        np.testing.assert_allclose(ours.numpy(), 0.2 * (u.numpy() - mean) / np.sqrt(variance), atol=1e-6)


def test_a_batch_that_is_all_alike_does_not_make_the_variance_collapse() -> None:
    module = Standardize(3, 4, deviation=0.2, decay=0.5).double()
    for seed in range(30):
        module(slot_vectors(64, seed))
    settled = module.variance.clone()
    module(slot_vectors(1, 0).repeat(64, 1, 1) + 3 * settled.sqrt())
    assert bool((module.variance > 0.5 * settled).all())


@pytest.mark.parametrize("way", ["no_grad", "eval"])
def test_nothing_is_followed_without_gradients_or_in_evaluation(way: str) -> None:
    vq = quantizer(2, deviation=0.3)
    assert vq.standardize is not None
    before = {name: tensor.clone() for name, tensor in vq.standardize.state_dict().items()}
    assert before.keys() == {"mean", "variance"}
    if way == "eval":
        vq.eval()
        vq(features())
    else:
        with torch.no_grad():
            vq(features())
    assert all(torch.equal(tensor, before[name]) for name, tensor in vq.standardize.state_dict().items())
    vq.train()(features())  # as they would otherwise
    assert not any(torch.equal(tensor, before[name]) for name, tensor in vq.standardize.state_dict().items())


def test_no_gradient_moves_or_stretches_a_slot() -> None:
    """The gradient is that of the batch's own mean and deviation, of an affine map that is held."""
    module, u = Standardize(3, 4, deviation=0.2, decay=0.5).double(), slot_vectors(20, 0).requires_grad_()
    probe = torch.randn(20, 3, 4, generator=seeded(), dtype=torch.float64)
    out = module(u)
    (gradient,) = torch.autograd.grad((out * probe).sum(), u)
    at = u.detach().numpy()
    slope, place = out.detach().numpy().std(0), out.detach().numpy().mean(0)

    def held(v: np.ndarray) -> float:
        own = (v - v.mean(0)) / np.sqrt(v.var(0))
        return float(((own * slope + place) * probe.numpy()).sum())

    rng = np.random.default_rng(0)
    for direction in (*rng.normal(size=(20, *at.shape)), np.ones_like(at), at):
        difference = (held(at + 1e-5 * direction) - held(at - 1e-5 * direction)) / 2e-5
        assert float((gradient.numpy() * direction).sum()) == pytest.approx(difference, rel=1e-5, abs=1e-6)
    assert float(gradient.sum(0).abs().max()) < 1e-6
    assert float((gradient * u.detach()).sum(0).abs().max()) < 1e-6
    assert float(gradient.abs().max()) > 1e-3


# --- Quantiser, following its data


def plain_update(vq: ResidualVQ, x: Tensor, state: dict[str, np.ndarray], decay: float) -> None:
    """One moving-average step by loops over levels, slots, chunks and codewords; changes `state`."""
    residual = (x @ vq.project_in.weight.T + vq.project_in.bias).detach().numpy()
    books, size = state["codebook"].shape[1:3]
    left = residual.copy()
    for level in range(len(state["codebook"])):
        count, total = np.zeros((books, size)), np.zeros_like(state["total"][level])
        for i, slot in itertools.product(range(len(left)), range(left.shape[1])):
            b = slot if books > 1 else 0
            vector = left[i, slot].copy()
            code = int(((vector - state["codebook"][level, b]) ** 2).sum(-1).argmin())
            count[b, code] += 1
            total[b, code] += vector
            left[i, slot] -= state["codebook"][level, b, code]
        state["count"][level] = decay * state["count"][level] + (1 - decay) * count
        state["total"][level] = decay * state["total"][level] + (1 - decay) * total
        state["next"][level] = state["total"][level] / state["count"][level][..., None]
    state["codebook"][:] = state["next"]


def state_of(vq: ResidualVQ) -> dict[str, np.ndarray]:
    state = {name: getattr(vq, name).clone().numpy() for name in ("codebook", "count", "total")}
    return {**state, "next": state["codebook"].copy()}


@pytest.mark.parametrize(("levels", "sharing"), KINDS)
def test_several_updates_are_the_moving_averages_of_a_plain_loop(levels: int, sharing: Sharing) -> None:
    vq = quantizer(levels, sharing, decay=0.8, dead_share=0.0)
    state = state_of(vq)
    for seed in range(5):
        x = features(30, seed=seed)
        vq.update(vq(x))
        plain_update(vq, x, state, 0.8)
        for name in ("count", "total", "codebook"):
            np.testing.assert_allclose(getattr(vq, name).numpy(), state[name], atol=1e-10, err_msg=f"{name} {seed}")


def test_updates_pull_the_codebook_towards_its_data() -> None:
    vq, x = quantizer(2, decay=0.9), features(200)
    errors = []
    for _ in range(30):
        result = vq(x)
        last = result.levels[-1]
        errors.append(float((last.residual - last.chosen).detach().square().mean()))
        vq.update(result)
    assert errors[-1] < 0.5 * errors[0]


def test_a_per_slot_codebook_learns_only_from_its_own_slot() -> None:
    x, changed = features(40), features(40)
    changed[:, 1] = features(40, seed=9)[:, 1] + 1
    after = []
    for batch in (x, changed):
        vq = quantizer(2, "per_slot", dead_share=0.0)
        vq.update(vq(batch))
        after.append(vq)
    a, b = after
    for name in ("codebook", "count", "total"):
        left, right = getattr(a, name), getattr(b, name)
        assert torch.equal(left[:, [0, 2]], right[:, [0, 2]])
        assert not torch.equal(left[:, 1], right[:, 1])


def test_the_same_code_in_another_slot_of_a_per_slot_codebook_is_another_codeword() -> None:
    vq = quantizer(1, "per_slot")
    hard, _ = vq.decode(torch.full((1, 3, 1), 4))
    assert len(torch.unique(hard[0], dim=0)) == 3
    shared, _ = quantizer(1, "shared").decode(torch.full((1, 3, 1), 4))
    assert len(torch.unique(shared[0], dim=0)) == 1


@pytest.mark.parametrize("sharing", ["shared", "per_slot"])
def test_dead_codewords_become_vectors_of_the_batch_and_start_with_an_average_count(sharing: Sharing) -> None:
    vq = quantizer(2, sharing, decay=0.5, dead_share=0.2)
    with torch.no_grad():
        vq.codebook[:, :, 7:] = 1e3  # nobody will choose these
        vq.total.copy_(vq.codebook)
        vq.count[:, :, 7:] = 1e-3
        vq.total[:, :, 7:] = 1.0
    x = features(60)
    result = vq(x)
    before = vq.count.clone()
    vq.update(result)
    for number, level in enumerate(result.levels):
        batch = level.residual.detach()
        for book in range(vq.codebook.shape[1]):
            pool = batch.reshape(-1, 4) if sharing == "shared" else batch[:, book]
            used = torch.bincount(
                (level.codes if sharing == "shared" else level.codes[:, book]).flatten(), minlength=10
            )
            count = 0.5 * before[number, book] + 0.5 * used
            dead = count < 0.2 * count.mean()
            assert dead[7:].all()
            expected = torch.where(dead, count.mean(), count)
            torch.testing.assert_close(vq.count[number, book], expected)
            away = (vq.codebook[number, book][:, None] - pool).norm(dim=-1).amin(1)
            assert float(away[dead].max()) < 1e-9
            torch.testing.assert_close(vq.total[number, book], vq.codebook[number, book] * expected[:, None])


def test_dead_codewords_get_different_vectors_without_random_draws() -> None:
    books = []
    for seed in (0, 1):
        vq = quantizer(1, decay=0.5, dead_share=0.9)
        vq.codebook[0, 0, 2:] = 1e3
        vq.count[0, 0, 2:] = 0.0
        result = vq(features(60))
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        vq.update(result)
        assert torch.equal(torch.get_rng_state(), before)
        books.append(vq.codebook[0, 0].clone())
    assert torch.equal(books[0], books[1])
    assert len(torch.unique(books[0], dim=0)) == 10
    assert float(books[0].abs().max()) < 100


def test_more_codewords_than_vectors_may_die_at_once() -> None:
    vq, x = quantizer(1, "per_slot", codes=40, decay=0.5, dead_share=0.9), features(3)
    vq.count.zero_()
    vq.update(vq(x))
    vectors = vq.project(x).detach()
    away = (vq.codebook[0][:, :, None] - vectors.transpose(0, 1)[:, None]).norm(dim=-1).amin(-1)
    assert int((away < 1e-9).sum()) > 3 * 30


def test_codewords_in_use_are_left_alone_when_others_die() -> None:
    x = features(60)
    kept, replaced = (quantizer(1, decay=0.5, dead_share=share) for share in (0.0, 0.2))
    for vq in (kept, replaced):
        vq.codebook[0, 0, 7:] = 1e3
        vq.count[0, 0, 7:] = 1e-3
        vq.update(vq(x))
    alive = kept.count[0, 0] >= 0.2 * kept.count[0, 0].mean()
    assert 3 <= int(alive.sum()) <= 7
    assert torch.equal(kept.codebook[0, 0, alive], replaced.codebook[0, 0, alive])


def test_updating_in_half_precision_keeps_the_statistics_in_full() -> None:
    vq, x = quantizer(2).float(), features().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = vq(x)
        vq.update(result)
    assert vq.codebook.dtype == vq.count.dtype == vq.total.dtype == torch.float32
    assert bool(torch.isfinite(vq.codebook).all())


@pytest.mark.parametrize(("levels", "sharing"), KINDS)
def test_the_kmeans_start_lowers_the_error_and_uses_the_codes(levels: int, sharing: Sharing) -> None:
    vq, x = quantizer(levels, sharing, codes=16), features(300)

    def error(vq: ResidualVQ) -> tuple[float, Tensor]:
        result = vq(x)
        last = result.levels[-1]
        return float((last.residual - last.chosen).detach().square().mean()), result.codes

    before, _ = error(vq)
    vq.start(vq.project(x).detach(), seeded())
    after, codes = error(vq)
    assert after < 0.5 * before
    for level in range(levels):
        each = [codes[..., level]] if sharing == "shared" else list(codes[..., level].T)
        assert all(len(torch.unique(c)) >= 15 for c in each)
    assert bool((vq.count == 1).all())
    assert torch.equal(vq.total, vq.codebook)
    vq.update(vq(x))  # and the first update does not throw the start away
    assert error(vq)[0] < 1.05 * after


def test_deeper_levels_lower_the_error_of_the_kmeans_start() -> None:
    vq, x = quantizer(3, codes=16), features(300)
    vq.start(vq.project(x).detach(), seeded())
    errors = [float((level.residual - level.chosen).detach().square().mean()) for level in vq(x).levels]
    assert errors[2] < 0.8 * errors[1] < 0.8 * 0.8 * errors[0]


@pytest.mark.parametrize("sharing", ["shared", "per_slot"])
def test_a_first_codebook_that_is_known_is_kept_and_the_next_levels_code_what_it_leaves(sharing: Sharing) -> None:
    vq, u = quantizer(2, sharing, codes=16), slot_vectors(300, 0)
    books = 1 if sharing == "shared" else 3
    first = torch.randn(books, 16, 4, generator=seeded(3), dtype=torch.float64)
    vq.start(u, seeded(), first)
    assert torch.equal(vq.codebook[0], first)
    assert torch.equal(vq.total[0], first)
    left = u.numpy().copy()
    for slot in range(3):
        book = book_of(vq, 0, slot)
        left[:, slot] -= book[((left[:, slot, None] - book) ** 2).sum(-1).argmin(1)]
    pools = [left.reshape(-1, 4)] if sharing == "shared" else [left[:, slot] for slot in range(3)]
    generator = seeded()
    for book, pool in zip(vq.codebook[1], pools, strict=True):
        torch.testing.assert_close(book, kmeans(torch.from_numpy(pool.copy()), 16, generator=generator))


def test_the_start_is_decided_by_its_generator() -> None:
    books = []
    for seed in (0, 0, 1):
        vq = quantizer(2, codes=16)
        vq.start(vq.project(features(300)).detach(), seeded(seed))
        books.append(vq.codebook.clone())
    assert torch.equal(books[0], books[1])
    assert not torch.equal(books[0], books[2])


TOGETHER: list[tuple[Sharing, float, float]] = [
    ("shared", 0.0, 0.0),
    ("per_slot", 0.0, 0.0),
    ("shared", 0.5, 0.0),
    ("shared", 0.0, 0.2),
]


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for number, (sharing, dead_share, deviation) in enumerate(TOGETHER):
        vq = quantizer(2, sharing, dead_share=dead_share, deviation=deviation, decay=0.7)
        for step in range(3):
            vq.update(vq(features(40, seed=10 * step + rank)))
        torch.save(vq.state_dict(), f"{folder}/{rank}-{number}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_keep_one_codebook_that_of_both_batches(tmp_path: Path) -> None:
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    for number, (sharing, dead_share, deviation) in enumerate(TOGETHER):
        first, second = (torch.load(tmp_path / f"{rank}-{number}.pt", weights_only=True) for rank in (0, 1))
        assert all(torch.equal(first[name], second[name]) for name in first)
        alone = quantizer(2, sharing, dead_share=0.0, deviation=deviation, decay=0.7)
        for step in range(3):
            alone.update(alone(torch.cat([features(40, seed=10 * step + rank) for rank in (0, 1)])))
        if dead_share == 0:
            for name, tensor in alone.state_dict().items():
                torch.testing.assert_close(first[name], tensor, atol=1e-10, rtol=0)
        else:
            assert not torch.allclose(first["codebook"], alone.codebook)  # something did die


# --- Differentiable selection


def selected(vq: ResidualVQ, result: Quantized) -> list[Tensor]:
    return cumulative_codewords(vq, result, [code_probabilities(level.distances) for level in result.levels])


def soft_surrogate(vq: ResidualVQ, x: Tensor, levels: int) -> Tensor:
    """The projected sum of soft codebook averages of the first levels, written out slot by slot."""
    residual = vq.project_in(x)
    total = torch.zeros_like(residual)
    for level in range(levels):
        averages, chosen = [], []
        for slot in range(x.shape[1]):
            book = vq.codebook[level, slot if vq.codebook.shape[1] > 1 else 0]
            delta = (residual[:, slot, None] - book).square().sum(-1)
            deviation = (delta - delta.mean(1, keepdim=True)).square().mean(1, keepdim=True).sqrt().detach()
            logits = -delta / deviation.clamp_min(1e-6)
            weights = logits.exp() / logits.exp().sum(1, keepdim=True)
            averages.append(weights @ book)
            chosen.append(book[delta.argmin(1)])
        total = total + torch.stack(averages, 1)
        residual = residual - torch.stack(chosen, 1)
    return total @ vq.project_out.weight.T + vq.project_out.bias


@pytest.mark.parametrize(("levels", "sharing"), KINDS)
def test_the_selected_codewords_are_hard_forward_to_the_bit(levels: int, sharing: Sharing) -> None:
    vq, x = quantizer(levels, sharing), features()
    result = vq(x)
    sums = selected(vq, result)
    assert len(sums) == levels
    for r, value in enumerate(sums, 1):
        assert torch.equal(value, vq.decode(result.codes[..., :r])[1])
    assert torch.equal(sums[-1], result.output)


@pytest.mark.parametrize(("levels", "sharing"), KINDS)
def test_the_selected_codewords_are_soft_backward(levels: int, sharing: Sharing) -> None:
    vq, x = quantizer(levels, sharing), features().requires_grad_()
    probe = torch.randn(50, 3, 6, generator=seeded(2), dtype=torch.float64)
    for r in range(1, levels + 1):
        value = selected(vq, vq(x))[r - 1]
        ours = torch.autograd.grad((value * probe).sum(), [x, vq.project_in.weight])
        soft = torch.autograd.grad((soft_surrogate(vq, x, r) * probe).sum(), [x, vq.project_in.weight])
        for a, b in zip(ours, soft, strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)
            assert float(a.abs().max()) > 1e-3


def test_the_output_projections_gradient_sees_the_hard_codewords() -> None:
    vq, x = quantizer(2), features()
    result = vq(x)
    probe = torch.randn(50, 3, 6, generator=seeded(2), dtype=torch.float64)
    (ours,) = torch.autograd.grad((selected(vq, result)[1] * probe).sum(), [vq.project_out.weight])
    hard = result.levels[0].chosen + result.levels[1].chosen
    torch.testing.assert_close(ours, torch.einsum("bsw,bsd->wd", probe, hard))


def test_probabilities_are_a_softmax_of_distances_over_their_population_deviation() -> None:
    delta = np.random.default_rng(0).exponential(size=(5, 3, 7))
    logits = -delta / delta.std(-1, ddof=0, keepdims=True)
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(code_probabilities(torch.from_numpy(delta)).numpy(), expected, atol=1e-14)
    sharp = code_probabilities(torch.from_numpy(delta), temperature=0.5).numpy()
    np.testing.assert_allclose(sharp, expected**2 / (expected**2).sum(-1, keepdims=True), atol=1e-14)


def test_probabilities_do_not_see_the_scale_of_space_and_survive_equal_distances() -> None:
    delta = torch.rand(4, 2, 6, generator=seeded(), dtype=torch.float64)
    torch.testing.assert_close(code_probabilities(100 * delta), code_probabilities(delta))
    equal = torch.ones(4, 2, 6, dtype=torch.float64, requires_grad=True)
    pi = code_probabilities(equal)
    torch.testing.assert_close(pi, torch.full_like(pi, 1 / 6))
    pi[..., 0].sum().backward()
    assert equal.grad is not None
    assert bool(torch.isfinite(equal.grad).all())


def test_the_deviation_is_a_constant_for_the_gradient() -> None:
    delta = torch.rand(4, 2, 6, generator=seeded(), dtype=torch.float64).requires_grad_()
    deviation = delta.detach().std(-1, correction=0, keepdim=True)
    probe = torch.randn(4, 2, 6, generator=seeded(1), dtype=torch.float64)
    (ours,) = torch.autograd.grad((code_probabilities(delta) * probe).sum(), delta)
    (held,) = torch.autograd.grad((torch.softmax(-delta / deviation, -1) * probe).sum(), delta)
    torch.testing.assert_close(ours, held)
