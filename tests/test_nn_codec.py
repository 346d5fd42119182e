"""The Transformers that read and write chunks, and the codec they make with a quantiser between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actionpiece.nn.codec import Codec
from actionpiece.nn.transformer import Block, Reader, SlotEncoder, StepDecoder


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pair(horizon: int = 6, dim: int = 3, slots: int = 4, *, depth: int = 2) -> tuple[SlotEncoder, StepDecoder]:
    torch.manual_seed(0)
    sizes = {"width": 8, "depth": depth, "heads": 2}
    return SlotEncoder(horizon, dim, slots, **sizes), StepDecoder(horizon, dim, slots, **sizes)


def make_codec(**settings: Any) -> Codec:
    torch.manual_seed(0)
    defaults = {
        "slots": 4,
        "levels": 2,
        "codes": 8,
        "code_dim": 5,
        "codebook": "per_slot",
        "width": 8,
        "encoder_depth": 1,
        "decoder_depth": 1,
        "heads": 2,
        "deviation": 0.0,
        "decay": 0.99,
        "dead_share": 0.03,
    }
    return Codec(6, 3, **{**defaults, **settings})


# --- Transformer


@pytest.mark.parametrize(("horizon", "dim", "slots"), [(1, 1, 1), (7, 3, 5), (8, 7, 16), (13, 26, 2)])
def test_any_horizon_columns_and_slots_give_the_promised_shapes(horizon: int, dim: int, slots: int) -> None:
    encoder = SlotEncoder(horizon, dim, slots, width=12, depth=2, heads=3)
    decoder = StepDecoder(horizon, dim, slots, width=12, depth=1, heads=2)
    h = encoder(torch.randn(5, horizon, dim))
    assert h.shape == (5, slots, 12)
    assert decoder(h).shape == (5, horizon, dim)


def test_permuting_the_batch_permutes_the_outputs() -> None:
    encoder, decoder = pair(7, 3, 5)
    x, order = noise(9, 7, 3), torch.randperm(9, generator=torch.Generator().manual_seed(0))
    h = encoder(x)
    torch.testing.assert_close(encoder(x[order]), h[order])
    torch.testing.assert_close(decoder(h[order]), decoder(h)[order])
    torch.testing.assert_close(encoder(x[:1]), h[:1])  # nor does a chunk depend on its company


@pytest.mark.parametrize("depth", [1, 3])
def test_every_output_depends_on_every_input_so_nothing_is_masked(depth: int) -> None:
    encoder, decoder = pair(depth=depth)
    for module, given, wanted, columns in ((encoder, 6, 4, 3), (decoder, 4, 6, 8)):
        jacobian = torch.autograd.functional.jacobian(module, noise(1, given, columns))[0, :, :, 0]
        strength = jacobian.abs().amax((1, 3))  # of (wanted, out, given, in)
        assert strength.shape == (wanted, given)
        assert float(strength.min()) > 1e-4


def test_the_order_of_steps_and_of_slots_matters() -> None:
    for module, x in zip(pair(), (noise(2, 6, 3), noise(2, 4, 8)), strict=True):
        assert float((module(x.flip(1)) - module(x)).detach().abs().max()) > 1e-3


def test_gains_start_as_random_signs() -> None:
    torch.manual_seed(0)
    reader = Reader(50, 40, width=12, depth=1, heads=2)
    for gains, count in ((reader.gains, 50), (reader.read_gains, 40)):
        assert gains.shape == (count, 12)
        assert set(gains.unique().tolist()) == {-1.0, 1.0}
        assert abs(float(gains.detach().mean())) < 0.2
        assert len(torch.unique(gains.detach(), dim=0)) > 30  # differently signed


def test_signs_tell_chunks_of_one_mean_over_time_apart_before_any_training() -> None:
    encoder, _ = pair(8, 3, 4)
    x = noise(20, 8, 3)
    x = x - x.mean(1, keepdim=True)

    def nearest_pair() -> float:
        return float(torch.nn.functional.pdist(encoder(x).detach().flatten(1)).min())

    signed = nearest_pair()
    encoder.reader.gains.data.fill_(1.0)  # offsets alone
    assert signed > 1.5 * nearest_pair()


def test_a_block_knows_no_order_of_what_it_reads_nor_of_who_reads() -> None:
    torch.manual_seed(0)
    block, x, keys, values = Block(8, 2), noise(2, 5, 8), noise(2, 2, 7, 4, seed=1), noise(2, 2, 7, 4, seed=2)
    order, readers = torch.tensor([3, 0, 6, 5, 4, 1, 2]), torch.tensor([3, 0, 4, 1, 2])
    out = block(x, keys, values)
    torch.testing.assert_close(block(x, keys[:, :, order], values[:, :, order]), out)
    torch.testing.assert_close(block(x[:, readers], keys, values), out[:, readers])
    assert not torch.allclose(block(x, keys[:, :, order], values), out)


# --- The same in numpy


def array(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy()


def norm(v: np.ndarray) -> np.ndarray:
    return (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-5)


def linear(layer: torch.nn.Linear, v: np.ndarray) -> np.ndarray:
    return v @ array(layer.weight).T + array(layer.bias)


def plain_block(block: Block, v: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A pre-norm block of two heads of width 4 for readers (T, 8), keys and values (2, M, 4)."""
    q, heads = linear(block.query, norm(v)), []
    for head, part in enumerate((slice(0, 4), slice(4, 8))):
        scores = np.exp(q[:, part] @ keys[head].T / 2.0)  # sqrt(4)
        heads.append(scores / scores.sum(-1, keepdims=True) @ values[head])
    v = v + linear(block.mix, np.concatenate(heads, -1))
    inner = torch.nn.functional.gelu(torch.from_numpy(linear(block.feed[0], norm(v)))).numpy()
    return v + linear(block.feed[2], inner)


def test_a_block_is_the_textbook_pre_norm_block() -> None:
    torch.manual_seed(0)
    block = Block(8, 2).double()
    x, keys, values = (t.double() for t in (noise(1, 5, 8), noise(1, 2, 7, 4, seed=1), noise(1, 2, 7, 4, seed=2)))
    expected = plain_block(block, array(x[0]), array(keys[0]), array(values[0]))
    np.testing.assert_allclose(array(block(x, keys, values)[0]), expected, atol=1e-10)


def test_a_reader_is_queries_that_read_keys_and_values_of_the_placed_sequence() -> None:
    """Every block has keys and values of its own, all of the same sequence, and what is read is signed by place."""
    torch.manual_seed(0)
    reader, x = Reader(6, 5, width=8, depth=3, heads=2), noise(1, 6, 8)
    with torch.no_grad():
        reader.gains.copy_(noise(6, 8, seed=1))
        reader.read_gains.copy_(noise(5, 8, seed=2))
        reader.queries.copy_(noise(5, 8, seed=3))
    both = linear(reader.key_value, norm(array(reader.positions) + array(x[0]) * array(reader.gains)))  # (6, 2 * 3 * 8)
    read = array(reader.queries)
    for number, block in enumerate(reader.blocks):
        assert isinstance(block, Block)
        keys, values = (
            both[:, (2 * number + kind) * 8 :][:, :8].reshape(6, 2, 4).transpose(1, 0, 2) for kind in (0, 1)
        )
        read = plain_block(block, read, keys, values)
    expected = norm(read) * array(reader.read_gains)
    np.testing.assert_allclose(array(reader(x)[0]), expected, atol=1e-5)


# --- Codec

KINDS: list[dict[str, Any]] = [
    {},
    {"codebook": "shared", "deviation": 0.2},
    {"linear": True},
    {"linear": True, "encoder_depth": 0},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_decode_of_encode_is_the_forward_pass_to_the_bit(kind: dict[str, Any]) -> None:
    codec, x = make_codec(**kind).eval(), noise(20, 6, 3)
    decoded, features, quantized = codec(x)
    codes = codec.encode(x)
    assert torch.equal(codes, quantized.codes)
    assert (codes.shape, features.shape, decoded.shape) == ((20, 4, 2), (20, 4, 8), (20, 6, 3))
    assert torch.equal(codec.decode(codes), decoded)
    assert torch.equal(codec.project(x), quantized.levels[0].residual)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_without_a_quantiser_what_is_projected_is_written(kind: dict[str, Any]) -> None:
    """The limit of ever finer codebooks: a codebook that holds a chunk's own vectors gives the same chunk."""
    codec, x = make_codec(levels=1, **kind).eval(), noise(2, 6, 3)
    u = codec.project(x).detach()  # (2, 4, 5): eight codewords are enough for both chunks, even shared
    books = u.reshape(1, -1, 5) if codec.quantizer.codebook.shape[1] == 1 else u.transpose(0, 1).repeat(1, 4, 1)
    codec.quantizer.codebook[0] = books
    torch.testing.assert_close(codec.continuous(x), codec.decode(codec.encode(x)))
    assert not torch.allclose(codec.continuous(x)[0], codec.continuous(x)[1])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_decoding_parameters_are_those_that_codes_do_not_depend_on(kind: dict[str, Any]) -> None:
    codec, x = make_codec(**kind).eval(), noise(20, 6, 3)
    decoding = {id(parameter) for parameter in codec.decoding_parameters()}
    codes, sensitive = codec.encode(x), set()
    for name, parameter in codec.named_parameters():
        kept = parameter.detach().clone()
        (gradient,) = torch.autograd.grad(codec.project(x).square().sum(), parameter, allow_unused=True)
        if gradient is not None:
            sensitive.add(name)
        with torch.no_grad():
            parameter += 1.0
            if id(parameter) in decoding:
                assert torch.equal(codec.encode(x), codes), name
            parameter.copy_(kept)
    assert sensitive == {name for name, parameter in codec.named_parameters() if id(parameter) not in decoding}


def test_a_linear_start_is_a_linear_quantiser_whatever_the_transformers_hold() -> None:
    codec, x = make_codec(levels=1, linear=True), noise(30, 6, 3)
    basis = torch.linalg.qr(noise(20, 20, seed=5)).Q[:18]  # (18, 20): as many components as values, two to spare
    mean = noise(18, seed=6)
    codec.start_linear(analysis=(basis.T, -basis.T @ mean), synthesis=(basis, mean))
    z = (array(x).reshape(30, 18) - array(mean)) @ array(basis)
    np.testing.assert_allclose(array(codec.project(x)).reshape(30, 20), z, atol=1e-5)
    np.testing.assert_allclose(array(codec.continuous(x)), array(x), atol=1e-5)  # rows of the basis are orthonormal
    hard = np.stack(
        [
            book[((part[:, None] - book) ** 2).sum(-1).argmin(1)]
            for part, book in zip(
                z.reshape(30, 4, 5).transpose(1, 0, 2), array(codec.quantizer.codebook[0]), strict=True
            )
        ],
        1,
    )
    expected = (hard.reshape(30, 20) @ array(basis).T + array(mean)).reshape(30, 6, 3)
    np.testing.assert_allclose(array(codec.decode(codec.encode(x))), expected, atol=1e-5)


def test_an_encoder_without_layers_has_no_parameters_and_leaves_all_to_the_linear_path() -> None:
    codec, x = make_codec(linear=True, encoder_depth=0), noise(20, 6, 3)
    assert not [name for name, _ in codec.named_parameters() if name.startswith("encoder")]
    _, features, _ = codec(x)
    assert not bool(features.any())
    assert codec.analysis is not None
    expected = codec.analysis(x.flatten(1)).unflatten(1, (4, 5)) + codec.quantizer.project_in.bias
    torch.testing.assert_close(codec.project(x), expected)
