"""Weights in half precision for a step, gradients in whole; what is compiled for training on a GPU is one graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.nn import fsq, fused, quantize
from actionpiece.nn.attention import attend
from actionpiece.nn.fused import GPU_OPTIONS
from actionpiece.training.checkpoint import saved_stretches
from actionpiece.training.half import HalfWeights
from actionpiece.training.loop import many_shapes
from actionpiece.training.replica import Replica
from baselines import examples_for, new
from tiny import StopError, fit, replica_of, same, stop_at, tiny


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU with instructions for bfloat16; any other imitates them."""
    monkeypatch.setattr(fused, "CPU_HALVES", True)


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


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("kind", ["actionpiece", "quest", "actioncodec"])
def test_training_is_the_same_as_with_weights_that_autocast_copies(kind: str) -> None:
    plain, half = replica(kind), replica(kind)
    plain.half = nullcontext()
    assert isinstance(half.half, HalfWeights)
    assert half.half.places
    steps(plain, 6)
    steps(half, 6)
    start = replica(kind).codec.state_dict()
    assert any(not torch.equal(start[name], value) for name, value in half.codec.state_dict().items())
    for name, value in plain.codec.state_dict().items():
        assert torch.equal(half.codec.state_dict()[name], value), name


@pytest.mark.usefixtures("halves")
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


@pytest.mark.usefixtures("halves")
def test_what_is_not_trained_gets_no_gradient() -> None:
    one = replica_of(tiny(part="decoder"))
    before = {name: value.clone() for name, value in one.codec.encoder.state_dict().items()}
    steps(one, 2)
    assert all(value.grad is None for value in one.codec.encoder.parameters())
    assert all(torch.equal(value, before[name]) for name, value in one.codec.encoder.state_dict().items())
    assert all(value.grad is not None for value in one.codec.decoder.parameters())


@pytest.mark.parametrize("kind", ["actionpiece", "quest", "actioncodec"])
def test_gradients_are_those_of_whole_products_but_for_rounding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradient(way: bool) -> tuple[float, Tensor]:
        monkeypatch.setattr(fused, "CPU_HALVES", way)
        one = steps(replica(kind), 1)
        return float(one.terms["loss"]), torch.cat([p.grad.flatten() for p in one.parameters if p.grad is not None])

    (loss, whole), (half_loss, half) = gradient(False), gradient(True)
    assert half_loss == pytest.approx(loss, rel=0.05)
    assert not torch.equal(half, whole)
    assert half.dtype == torch.float32
    assert torch.cosine_similarity(half, whole, dim=0) > 0.98


@pytest.mark.usefixtures("halves")
def test_a_resumed_run_ends_bit_for_bit_and_says_how_it_multiplied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 8)
        with pytest.raises(StopError):
            fit(tiny(), tmp_path)
    assert same(fit(tiny(), tmp_path, resume=True), fit(tiny()))
    (stretch,) = saved_stretches(tmp_path) or []
    assert stretch["products"] == "bfloat16"


@pytest.mark.usefixtures("halves")
def test_only_training_multiplies_in_half_precision() -> None:
    """A tokenizer gives the same tokens on every CPU."""
    codec, x = replica("quest").codec, replica("quest").examples.chunks[:8]
    with torch.no_grad():
        in_training = codec.continuous(x)
    learning = codec.continuous(x)
    codec.eval()
    assert torch.equal(in_training, codec.continuous(x))
    assert not torch.equal(in_training, learning)
    torch.testing.assert_close(learning, in_training, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_to_halves_is_that_to_the_numbers_they_stand_for(masked: bool) -> None:
    q, keys, values = (vectors(2, 3, n, 4, seed=seed).bfloat16() for seed, n in enumerate((5, 6, 6)))
    mask = torch.ones(5, 6, dtype=torch.bool).tril() if masked else None
    for context in (nullcontext(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            found = attend(q, keys, values, mask)
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, attend(q.float(), keys.float(), values.float(), mask).bfloat16())


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


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("kind", ["actionpiece", "oat", "actioncodec", "fastervq", "xtokenizer", "quest"])
def test_every_part_that_is_compiled_for_a_gpu_is_traced_in_half_precision(kind: str) -> None:
    """Whether to multiply in half precision is asked within what is compiled: it must not break the graph there."""
    plain, one = replica(kind), replica(kind)  # a call moves running means
    x = one.examples.chunks[:8]
    parts = one.codec.compiled()
    assert parts
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    for part in parts:
        part.compile(backend=backend, dynamic=False, fullgraph=True)
    torch.testing.assert_close(one.codec.continuous(x), plain.codec.continuous(x))
    assert any("_enter_autocast" in str(graph.graph) for graph in graphs)
    one.release()


@pytest.mark.parametrize("kind", ["actionpiece", "oat", "actioncodec", "fastervq", "xtokenizer", "quest"])
def test_what_is_compiled_is_checked_against_the_plain_step(kind: str) -> None:
    """A compiler whose gradients are wrong changes no loss, so that nothing else would tell."""
    one = replica(kind)
    one.prepare()
    chance, state = one.generator.get_state(), {name: value.clone() for name, value in one.codec.state_dict().items()}

    def check(backend: Any) -> None:
        for part in one.codec.compiled():
            part.compile(backend=backend, dynamic=False)
        one.check_compiled()

    def wrong(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        return lambda *values: tuple(with_half_a_gradient(value) for value in graph(*values))

    def with_half_a_gradient(value: Any) -> Any:
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return value / 2 + value.detach() / 2 if floating else value

    check("aot_eager")
    torch._dynamo.reset()
    with pytest.raises(ActionPieceError, match=r"compiles this network wrongly .* the gradient of \S+ is \d+% off"):
        check(wrong)
    one.release()
    assert torch.equal(one.generator.get_state(), chance)
    assert all(torch.equal(value, state[name]) for name, value in one.codec.state_dict().items())
    assert all(parameter.grad is None for parameter in one.parameters)


def test_torch_knows_what_it_is_told_to_leave_out() -> None:
    told = torch._inductor.list_options()
    assert GPU_OPTIONS.keys() <= set(told)
