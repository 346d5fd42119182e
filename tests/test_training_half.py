"""Weights in half precision for a step, gradients in whole; what is compiled for training on a GPU is one graph.

On a CPU, where products are of float32: autocast is switched on by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from actionpiece.nn import fsq, quantize
from actionpiece.nn.transformer import HalfProducts
from actionpiece.training.half import HalfWeights
from actionpiece.training.loop import many_shapes
from actionpiece.training.replica import Replica
from baselines import examples_for, new
from tiny import replica_of, tiny


@pytest.fixture
def autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HalfProducts, "half_products", lambda self, x: torch.autocast("cpu", torch.bfloat16))


def replica(kind: str) -> Replica:
    torch.manual_seed(0)
    if kind == "actionpiece":
        return replica_of(tiny(weights={"reconstruction": 1.0, "commitment": 0.25, "quantization_order": 0.1}))
    tokenizer = new(kind)
    examples = examples_for(tokenizer)
    return Replica(tokenizer._run(examples.chunks, 0, None, resume=False), examples, captured=False)


def steps(one: Replica, count: int) -> Replica:
    for _ in range(count):
        one.prepare()
        one.advance()
    return one


@pytest.mark.usefixtures("autocast")
@pytest.mark.parametrize("kind", ["actionpiece", "quest", "actioncodec"])
def test_training_is_the_same_as_with_weights_that_autocast_copies(kind: str) -> None:
    plain, half = steps(replica(kind), 6), replica(kind)
    half.half = HalfWeights(half.codec)
    assert half.half.places
    steps(half, 6)
    start = replica(kind).codec.state_dict()
    assert any(not torch.equal(start[name], value) for name, value in half.codec.state_dict().items())
    for name, value in plain.codec.state_dict().items():
        assert torch.equal(half.codec.state_dict()[name], value), name


@pytest.mark.usefixtures("autocast")
def test_the_layers_of_all_half_products_have_copies_within_the_block_and_their_own_weights_after_it() -> None:
    codec = replica("actionpiece").codec
    own = dict(codec.named_parameters())
    half = HalfWeights(codec)
    with half:
        within = {name: value.dtype for name, value in codec.named_parameters()}
    copied = {name for name, dtype in within.items() if dtype == torch.bfloat16}
    assert copied == {name for name in own if ".reader." in name and (".blocks." in name or "key_value" in name)} - {
        name for name in own if "norm" in name
    }
    assert dict(codec.named_parameters()) == own
    with pytest.raises(ZeroDivisionError), half:
        _ = 1 / 0
    assert dict(codec.named_parameters()) == own


@pytest.mark.usefixtures("autocast")
def test_what_is_not_trained_gets_no_gradient() -> None:
    one = replica_of(tiny(part="decoder"))
    one.half = HalfWeights(one.codec)
    before = {name: value.clone() for name, value in one.codec.encoder.state_dict().items()}
    steps(one, 2)
    assert all(value.grad is None for value in one.codec.encoder.parameters())
    assert all(torch.equal(value, before[name]) for name, value in one.codec.encoder.state_dict().items())
    assert all(value.grad is not None for value in one.codec.decoder.parameters())


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FUSED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "renormalized": (quantize._renormalized, (vectors(16, 4, 3), vectors(4, 3, seed=1), vectors(4, 3).square(), 0.2)),
    "variance": (quantize._variance_about, (vectors(16, 4, 3), vectors(4, 3, seed=1))),
    "completed": (quantize._completed, (vectors(16, 4, 3), vectors(16, 4, 8, seed=1), vectors(1, 8, 3, seed=2))),
    "seen": (quantize._seen, (vectors(64, 3), torch.arange(64) % 7, 8)),
    "fresh": (quantize._fresh, (vectors(1, 64, 3), 8)),
    "follow": (
        quantize._follow,
        (*(vectors(1, 8, n, seed=n).square() for n in (4, 3)), torch.ones(1, 8), *vectors(2, 1, 8, 3), 0.9, 0.5),
    ),
    "fsq": (fsq._quantized, (vectors(16, 4, 2).tanh(), torch.tensor([5, 3]), torch.tensor([1, 5]))),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_is_compiled_for_a_gpu_is_one_graph_that_does_the_same(name: str) -> None:
    function, arguments = FUSED[name]

    def call(way: Callable[..., Any]) -> list[Tensor]:
        own = [one.clone() if isinstance(one, Tensor) else one for one in arguments]
        if name in ("renormalized", "completed", "fsq"):
            own[0].requires_grad_()
        found = way(*own)
        outputs = [] if found is None else [found] if isinstance(found, Tensor) else list(found)
        if own[0].requires_grad:
            wanted = next(one for one in outputs if one.is_floating_point())
            wanted.backward(vectors(*wanted.shape, seed=5))
            outputs.append(own[0].grad)
        return [*outputs, *(one for one in own if isinstance(one, Tensor))]  # what was changed in place, too

    compiled = torch.compile(function.__wrapped__, backend="aot_eager", dynamic=False, fullgraph=True)
    for ours, expected in zip(call(compiled), call(function), strict=True):
        torch.testing.assert_close(ours, expected)


def test_a_function_is_compiled_for_the_shapes_of_many_runs() -> None:
    shapes: list[tuple[int, ...]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        shapes.append(tuple(inputs[0].shape))
        return graph.forward

    compiled = torch.compile(lambda x: x.sin().sum(), backend=backend, dynamic=False)
    with many_shapes():
        for size in range(2, 22):
            compiled(torch.ones(size))
    assert len(shapes) == 20
