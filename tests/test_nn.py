"""The codec's blocks: the Transformer, the residual quantiser against plain loops, differentiable code selection."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from actionpiece.nn.quantize import ResidualVQ
from actionpiece.nn.selection import code_probabilities, cumulative_codewords
from actionpiece.nn.transformer import Block, SlotEncoder, StepDecoder

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
    decay: float = 0.99,
    dead_share: float = 0.03,
    seed: int = 0,
) -> ResidualVQ:
    torch.manual_seed(seed)
    return ResidualVQ(
        6, slots=slots, levels=levels, codes=codes, dim=4, sharing=sharing, decay=decay, dead_share=dead_share
    ).double()


def features(n: int = 50, slots: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(n, slots, 6, generator=seeded(seed), dtype=torch.float64)


def book_of(vq: ResidualVQ, level: int, slot: int) -> np.ndarray:
    """The codebook (K, d) that a slot uses."""
    books = vq.codebook[level].numpy()
    return books[slot if len(books) > 1 else 0]


# --- Transformer


@pytest.mark.parametrize(("horizon", "dim", "slots"), [(1, 1, 1), (7, 3, 5), (8, 7, 16), (13, 26, 2)])
def test_any_horizon_columns_and_slots_give_the_promised_shapes(horizon: int, dim: int, slots: int) -> None:
    encoder = SlotEncoder(horizon, dim, slots, width=12, depth=2, heads=3)
    decoder = StepDecoder(horizon, dim, slots, width=12, depth=1, heads=2)
    h = encoder(torch.randn(5, horizon, dim))
    assert h.shape == (5, slots, 12)
    assert decoder(h).shape == (5, horizon, dim)


def test_permuting_the_batch_permutes_the_outputs() -> None:
    torch.manual_seed(0)
    encoder = SlotEncoder(7, 3, 5, width=12, depth=2, heads=3).double()
    decoder = StepDecoder(7, 3, 5, width=12, depth=2, heads=3).double()
    x, order = features(9, 7)[..., :3], torch.randperm(9, generator=seeded())
    h = encoder(x)
    torch.testing.assert_close(encoder(x[order]), h[order])
    torch.testing.assert_close(decoder(h[order]), decoder(h)[order])
    torch.testing.assert_close(encoder(x[:1]), h[:1])  # nor does a chunk depend on its company


@pytest.mark.parametrize("depth", [1, 3])
def test_every_output_depends_on_every_input_so_nothing_is_masked(depth: int) -> None:
    torch.manual_seed(0)
    encoder = SlotEncoder(6, 3, 4, width=8, depth=depth, heads=2).double()
    decoder = StepDecoder(6, 3, 4, width=8, depth=depth, heads=2).double()
    for module, given, wanted, columns in ((encoder, 6, 4, 3), (decoder, 4, 6, 8)):
        x = torch.randn(1, given, columns, generator=seeded(), dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(module, x)[0, :, :, 0]  # (wanted, out, given, in)
        strength = jacobian.abs().amax((1, 3))
        assert strength.shape == (wanted, given)
        assert float(strength.min()) > 1e-6


def test_the_order_of_steps_and_of_slots_matters() -> None:
    torch.manual_seed(0)
    encoder = SlotEncoder(6, 3, 4, width=8, depth=2, heads=2).double()
    decoder = StepDecoder(6, 3, 4, width=8, depth=2, heads=2).double()
    for module, x in ((encoder, features(2, 6)[..., :3]), (decoder, features(2, 8).transpose(1, 2)[:, :4])):
        assert float((module(x.flip(1)) - module(x)).detach().abs().max()) > 1e-4


def test_a_block_attends_in_both_directions_and_knows_no_order_of_its_own() -> None:
    torch.manual_seed(0)
    block = Block(8, 2).double()
    x, order = features(2, 5, seed=3).repeat(1, 1, 2)[..., :8], torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(block(x[:, order]), block(x)[:, order])


def test_a_block_is_the_textbook_pre_norm_block() -> None:
    torch.manual_seed(0)
    block, x = Block(8, 2).double(), torch.randn(1, 5, 8, generator=seeded(), dtype=torch.float64)

    def norm(v: np.ndarray) -> np.ndarray:
        return (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-5)

    def linear(layer: torch.nn.Linear, v: np.ndarray) -> np.ndarray:
        return v @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()

    v = x[0].numpy()
    q, k, values = np.split(linear(block.qkv, norm(v)), 3, -1)
    heads = []
    for head in (slice(0, 4), slice(4, 8)):
        scores = np.exp(q[:, head] @ k[:, head].T / 2.0)  # sqrt(4)
        heads.append(scores / scores.sum(-1, keepdims=True) @ values[:, head])
    v = v + linear(block.mix, np.concatenate(heads, -1))
    inner = torch.nn.functional.gelu(torch.from_numpy(linear(block.feed[0], norm(v)))).numpy()
    expected = v + linear(block.feed[2], inner)
    np.testing.assert_allclose(block(x)[0].detach().numpy(), expected, atol=1e-10)


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
    assert torch.equal(vq.decode(result.codes), result.output)


@pytest.mark.parametrize("sharing", ["shared", "per_slot"])
def test_decode_of_the_first_levels_is_the_sum_of_their_codewords(sharing: Sharing) -> None:
    vq = quantizer(3, sharing)
    codes = torch.randint(10, (20, 3, 3), generator=seeded())
    for q in (1, 2, 3):
        summed = np.stack([sum(book_of(vq, r, s)[codes[:, s, r].numpy()] for r in range(q)) for s in range(3)], axis=1)
        expected = summed @ vq.project_out.weight.detach().numpy().T + vq.project_out.bias.detach().numpy()
        np.testing.assert_allclose(vq.decode(codes[..., :q]).detach().numpy(), expected, atol=1e-12)


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
    decoded = vq.decode(torch.full((1, 3, 1), 4))
    assert len(torch.unique(decoded[0], dim=0)) == 3
    shared = quantizer(1, "shared").decode(torch.full((1, 3, 1), 4))
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
    vq.start(x, seeded())
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
    vq.start(x, seeded())
    errors = [float((level.residual - level.chosen).detach().square().mean()) for level in vq(x).levels]
    assert errors[2] < 0.8 * errors[1] < 0.8 * 0.8 * errors[0]


def test_the_start_is_decided_by_its_generator() -> None:
    books = []
    for seed in (0, 0, 1):
        vq = quantizer(2, codes=16)
        vq.start(features(300), seeded(seed))
        books.append(vq.codebook.clone())
    assert torch.equal(books[0], books[1])
    assert not torch.equal(books[0], books[2])


TOGETHER: list[tuple[Sharing, float]] = [("shared", 0.0), ("per_slot", 0.0), ("shared", 0.5)]


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for sharing, dead_share in TOGETHER:
        vq = quantizer(2, sharing, dead_share=dead_share, decay=0.7)
        torch.manual_seed(100 + rank)  # the ranks draw different replacements
        for step in range(3):
            vq.update(vq(features(40, seed=10 * step + rank)))
        torch.save(vq.state_dict(), f"{folder}/{rank}-{sharing}-{dead_share}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_keep_one_codebook_that_of_both_batches(tmp_path: Path) -> None:
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    for sharing, dead_share in TOGETHER:
        first, second = (
            torch.load(tmp_path / f"{rank}-{sharing}-{dead_share}.pt", weights_only=True) for rank in (0, 1)
        )
        for name in ("codebook", "count", "total"):
            assert torch.equal(first[name], second[name])
        alone = quantizer(2, sharing, dead_share=0.0, decay=0.7)
        for step in range(3):
            alone.update(alone(torch.cat([features(40, seed=10 * step + rank) for rank in (0, 1)])))
        if dead_share == 0:
            torch.testing.assert_close(first["codebook"], alone.codebook, atol=1e-10, rtol=0)
            torch.testing.assert_close(first["count"], alone.count, atol=1e-10, rtol=0)
        else:
            assert not torch.allclose(first["codebook"], alone.codebook)  # something did die


# --- Differentiable selection


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
    sums = cumulative_codewords(vq, result)
    assert len(sums) == levels
    for r, value in enumerate(sums, 1):
        assert torch.equal(value, vq.decode(result.codes[..., :r]))
    assert torch.equal(sums[-1], result.output)


@pytest.mark.parametrize(("levels", "sharing"), KINDS)
def test_the_selected_codewords_are_soft_backward(levels: int, sharing: Sharing) -> None:
    vq, x = quantizer(levels, sharing), features().requires_grad_()
    probe = torch.randn(50, 3, 6, generator=seeded(2), dtype=torch.float64)
    for r in range(1, levels + 1):
        value = cumulative_codewords(vq, vq(x))[r - 1]
        ours = torch.autograd.grad((value * probe).sum(), [x, vq.project_in.weight])
        soft = torch.autograd.grad((soft_surrogate(vq, x, r) * probe).sum(), [x, vq.project_in.weight])
        for a, b in zip(ours, soft, strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)
            assert float(a.abs().max()) > 1e-3


def test_the_output_projections_gradient_sees_the_hard_codewords() -> None:
    vq, x = quantizer(2), features()
    result = vq(x)
    probe = torch.randn(50, 3, 6, generator=seeded(2), dtype=torch.float64)
    (ours,) = torch.autograd.grad((cumulative_codewords(vq, result)[1] * probe).sum(), [vq.project_out.weight])
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
