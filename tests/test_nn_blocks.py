"""What the baselines are built of: sequences that read themselves, the Perceiver, causal convolutions, fewer levels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from actionpiece.nn.attention import written_out
from actionpiece.nn.conv import CausalConv, TimeConv, TimeSpread, repeat_last
from actionpiece.nn.perceiver import Perceiver, fourier_times
from actionpiece.nn.quantize import ResidualVQ
from actionpiece.nn.transformer import SelfBlock, Stack


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def reads(module: torch.nn.Module, x: Tensor) -> Tensor:
    """(out, in) how much each output position depends on each input position."""
    jacobian = torch.autograd.functional.jacobian(module, x)  # (1, T, W, 1, M, V)
    return jacobian.abs().amax((0, 2, 3, 5))


@pytest.mark.parametrize("depth", [1, 3])
def test_a_stack_reads_exactly_what_its_mask_allows(depth: int) -> None:
    torch.manual_seed(0)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    mask[:3, :3] = True
    strength = reads(Stack(6, width=8, depth=depth, heads=2, mask=mask), noise(1, 6, 8))
    assert torch.equal(strength > 1e-6, mask)
    free = reads(Stack(6, width=8, depth=depth, heads=2), noise(1, 6, 8))
    assert float(free.min()) > 1e-6


@pytest.mark.parametrize("masked", [True, False])
def test_a_stack_of_which_less_is_wanted_is_the_end_of_the_whole_one(masked: bool) -> None:
    mask = torch.ones(6, 6, dtype=torch.bool).tril() if masked else None
    whole, part = (Stack(6, width=8, depth=2, heads=2, mask=mask, wanted=wanted) for wanted in (None, 2))
    weights = whole.state_dict()
    part.load_state_dict(weights | {"read_gains": weights["read_gains"][-2:]})
    x = noise(3, 6, 8)
    torch.testing.assert_close(part(x), whole(x)[:, -2:])


def test_a_self_block_is_attention_written_out() -> None:
    torch.manual_seed(0)
    block, x = SelfBlock(6, 2), noise(2, 5, 6)
    normed = torch.nn.functional.layer_norm(x, (6,))
    q, k, v = (normed @ block.query_key_value.weight.T + block.query_key_value.bias).split(6, -1)
    mixed = torch.zeros_like(x)
    for item in range(2):
        for head in (slice(0, 3), slice(3, 6)):
            scores = q[item, :, head] @ k[item, :, head].T / 3**0.5
            mixed[item, :, head] = torch.softmax(scores, -1) @ v[item, :, head]
    x = x + mixed @ block.mix.weight.T + block.mix.bias
    expected = x + block.feed(torch.nn.functional.layer_norm(x, (6,)))
    torch.testing.assert_close(block(noise(2, 5, 6)), expected)


def make_perceiver(**settings: int) -> Perceiver:
    torch.manual_seed(0)
    sizes = {"width": 8, "depth": 2, "heads": 2, "embodiments": 3, **settings}
    return Perceiver(6, 4, **sizes, given_times=fourier_times(6, 8))


def test_a_perceiver_tells_steps_and_embodiments_apart() -> None:
    perceiver, x = make_perceiver(), noise(3, 6, 8)
    perceiver.blocks.requires_grad_(False)
    for block in perceiver.blocks:
        block.scales.data.fill_(1.0)
    first = torch.zeros(3, dtype=torch.int64)
    out = perceiver(x, first)
    assert out.shape == (3, 4, 8)
    assert float((perceiver(x.flip(1), first) - out).detach().abs().max()) > 1e-2
    other = perceiver(x, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(other[0], out[0])
    assert float((other[1:] - out[1:]).detach().abs().amax((1, 2)).min()) > 1e-2


def test_a_perceiver_is_cross_attention_written_out() -> None:
    perceiver, x = make_perceiver().double(), noise(2, 6, 8).double()
    for parameter in perceiver.parameters():
        parameter.data += 0.3 * noise(*parameter.shape, seed=2)
    layer_norm = torch.nn.functional.layer_norm
    memory = perceiver.memory_norm(x * perceiver.gains + fourier_times(6, 8))
    # Rows of the one product: all keys, then all values; of each the blocks, heads of four columns within them.
    weight, bias = perceiver.key_value.weight.view(2, 2, 8, 8), perceiver.key_value.bias.view(2, 2, 8)
    read = perceiver.queries[1].expand(2, -1, -1)
    for number, block in enumerate(perceiver.blocks):
        q, mixed = block.query(block.attention_norm(read)), torch.zeros_like(read)
        keys, values = (memory @ weight[side, number].T + bias[side, number] for side in (0, 1))
        for head in (slice(0, 4), slice(4, 8)):
            k = layer_norm(keys[..., head], (4,)) * perceiver.key_gains[number].flatten()
            k = k + perceiver.key_offsets[number].flatten()
            scores = block.query_norm(q[..., head]) @ k.transpose(1, 2) / 2
            mixed[..., head] = torch.softmax(scores, -1) @ values[..., head]
        read = read + block.scales[0] * block.mix(mixed)
        read = read + block.scales[1] * block.feed(block.feed_norm(read))
    expected = perceiver.norm(read) * perceiver.read_gains
    torch.testing.assert_close(perceiver(x, torch.tensor([1, 1])), expected)


def test_layer_scale_starts_a_perceiver_near_its_queries() -> None:
    perceiver = make_perceiver(depth=1)
    (block,) = perceiver.blocks
    assert torch.equal(block.scales.data, torch.full((2, 8), 1e-2))
    x, keys, values = noise(2, 4, 8), noise(2, 2, 6, 4, seed=1), noise(2, 2, 6, 4, seed=2)
    near = (block(x, keys, values) - x).detach().abs().mean()
    block.scales.data.fill_(1.0)
    far = (block(x, keys, values) - x).detach().abs().mean()
    assert float(near) < 0.05 * float(far)


def test_query_and_key_sizes_do_not_sharpen_attention() -> None:
    perceiver, x, first = make_perceiver(), noise(3, 6, 8), torch.zeros(3, dtype=torch.int64)
    for block in perceiver.blocks:
        block.scales.data.fill_(1.0)
    before = perceiver(x, first)
    keys, values = perceiver.key_value.weight.data.chunk(2)
    of_keys, of_values = perceiver.key_value.bias.data.chunk(2)
    for size in (keys, of_keys, *(part.data for block in perceiver.blocks for part in block.query.parameters())):
        size *= 100
    torch.testing.assert_close(perceiver(x, first), before, atol=1e-3, rtol=1e-2)  # what LayerNorm adds to a variance
    values *= 2
    of_values *= 2
    assert float((perceiver(x, first) - before).detach().abs().max()) > 1e-2


@pytest.mark.parametrize(("steps", "width"), [(1, 4), (2, 3), (8, 16), (13, 7)])
def test_fourier_features_tell_every_two_steps_apart(steps: int, width: int) -> None:
    times = fourier_times(steps, width)
    assert times.shape == (steps, width)
    assert float(times.abs().max()) <= 1
    if steps > 1:
        assert float(torch.nn.functional.pdist(times).min()) > 0.1


@pytest.mark.parametrize(("kernel", "stride"), [(4, 2), (3, 1), (2, 2)])
def test_a_causal_convolution_sees_its_own_steps_and_none_after(kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    conv = CausalConv(1, 1, kernel, stride=stride)
    out = conv(noise(1, 8, 1))
    assert out.shape == (1, 8 // stride, 1)
    jacobian = torch.autograd.functional.jacobian(conv, noise(1, 8, 1))[0, :, 0, 0, :, 0]
    for at, row in enumerate(jacobian):
        last = (at + 1) * stride  # the step after its own
        seen = torch.nonzero(row).flatten().tolist()
        assert seen == list(range(max(0, last - kernel), last))


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (4, 4, 0), (4, 2, 0), (5, 3, 2)])
def test_a_convolution_as_a_product_is_a_convolution(kernel: int, stride: int, padding: int) -> None:
    torch.manual_seed(0)
    conv, x = TimeConv(3, 5, kernel, stride=stride, around=padding), noise(2, 9, 3)
    expected = F.conv1d(x.transpose(1, 2), conv.weight, conv.bias, stride, padding).transpose(1, 2)
    torch.testing.assert_close(conv(x), expected)


def test_patches_are_spread_as_a_transposed_convolution_would() -> None:
    torch.manual_seed(0)
    spread, x = TimeSpread(3, 5, 4), noise(2, 6, 3)
    expected = F.conv_transpose1d(x.transpose(1, 2), spread.weight, spread.bias, stride=4).transpose(1, 2)
    torch.testing.assert_close(spread(x), expected)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_written_out_is_attention(masked: bool) -> None:
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2) if masked else None
    found = []
    for attention in (written_out, F.scaled_dot_product_attention):
        q, k, v = (noise(2, 3, steps, 8, seed=seed).requires_grad_() for seed, steps in enumerate((5, 7, 7)))
        out = attention(q, k, v, mask)
        found.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_steps_that_do_not_divide_repeat_the_last_command() -> None:
    x = noise(2, 6, 3)
    longer = repeat_last(x, 4)
    assert longer.shape == (2, 8, 3)
    assert torch.equal(longer[:, :6], x)
    assert torch.equal(longer[:, 6:], x[:, -1:].expand(-1, 2, -1))
    assert torch.equal(repeat_last(x, 3), x)


def test_a_quantiser_may_use_its_first_levels_only_or_leave_levels_out_by_chunk() -> None:
    torch.manual_seed(0)
    vq, u = ResidualVQ(5, slots=2, levels=3, codes=8, dim=4), noise(4, 2, 4)
    full, first = vq.quantize(u), vq.quantize(u, levels=1)
    assert len(first.levels) == 1
    assert torch.equal(first.hard, full.levels[0].chosen)
    keep = torch.tensor([[1.0, 1, 1, 1], [1, 0, 1, 1], [1, 0, 0, 1]])
    kept = vq.quantize(u, keep)
    assert torch.equal(kept.codes, full.codes)
    for chunk, count in enumerate((3, 1, 2, 3)):
        expected = sum(level.chosen[chunk] for level in full.levels[:count])
        torch.testing.assert_close(kept.hard[chunk], expected)
