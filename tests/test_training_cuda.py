"""Captured training on a GPU does what plain training does, alone and beside others, whatever is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from actionpiece.nn.quantize import ResidualVQ
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace
from actionpiece.tokenizers import KINDS, tokenizer_class
from actionpiece.tokenizers.actionpiece import ActionPieceConfig, best
from actionpiece.training import Examples, Run, TrainConfig, train
from baselines import BASELINES
from baselines import config as baseline
from conftest import libero_like

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

SPACE = ActionSpace.preset("libero")
CHUNKS = libero_like(2000)


def fit(configs: Sequence[Any], *, captured: bool) -> list[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    """After training them side by side: the codecs' states, and how far their parameters have moved."""
    from actionpiece.distance import PhysicalDistance

    classes = {tokenizer_class(kind).config_class: tokenizer_class(kind) for kind in KINDS}
    normalizer, distance = Normalizer.fit("minmax", CHUNKS), PhysicalDistance.fit(SPACE, CHUNKS)
    x = normalizer.normalize(torch.from_numpy(CHUNKS))
    examples = Examples(x, x[:200], distance, normalizer, "cuda")
    shared = {"space": SPACE, "normalizer": normalizer, "distance": distance, "horizon": CHUNKS.shape[1]}
    tokenizers: list[Any] = [classes[type(config)](config, **shared) for config in configs]
    # On the CPU: a GPU adds in any order, and the quantiser that `best` starts from would be another one each time.
    runs = [t._run(x, seed, None, resume=False) for seed, t in enumerate(tokenizers)]
    starts = [flat(t.codec) for t in tokenizers]
    train([_with_codebooks(run) for run in runs], examples, captured=captured)
    return [(t.codec.state_dict(), flat(t.codec) - start) for t, start in zip(tokenizers, starts, strict=True)]


def flat(codec: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().cuda() for parameter in codec.parameters()])


def check_alike(one: Any, other: Any, *, bound: float) -> None:
    """Two trainings ended alike: their states, and the way there, which is short.

    Adam makes whole steps of the smallest gradients, whose signs are rounding; so a part of the way differs. Half of it
    would mean that updates, batches or learning rates are not the same.
    """
    assert max(apart(one[0], other[0]).values()) < bound
    assert float(one[1].norm()) > 0
    assert float((one[1] - other[1]).norm() / one[1].norm()) < 0.5


def _with_codebooks(run: Run) -> Run:
    """The run with codebooks to start from: k-means would make different ones of features that differ by rounding."""
    if run.first is not None or not isinstance(run.codec.quantizer, ResidualVQ):
        return run
    shape = run.codec.quantizer.codebook.shape[1:]
    return replace(run, first=0.2 * torch.randn(shape, generator=torch.Generator().manual_seed(run.seed)))


def config(**weights: float) -> ActionPieceConfig:
    settings = {"reconstruction": 1.0, "commitment": 0.25, **weights}
    # A rate so small that rounding, which differs between kernels, has no time to grow.
    training = TrainConfig(steps=20, batch=64, learning_rate=1e-5, warmup=0, continuous=5, weights=settings)
    return ActionPieceConfig(slots=8, codes=32, width=64, train=training)


VARIANTS = [
    config(),
    config(physical_rank=0.1, quantization_order=0.1),
    config(sigreg=0.1),
    config(temporal=0.1),
    config(neighborhood=0.1),
    replace(
        best(),
        slots=8,
        codes=32,
        width=64,
        blends=(),
        train=replace(best().train, steps=20, batch=64, learning_rate=1e-5, warmup=0),
    ),
]


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, float]:
    """How far two trained codecs are from each other, tensor by tensor, as a share of the tensor.

    Small tensors count as if their values were 5e-3: the biases of attention's keys start at zero and have no gradient
    but rounding, of which Adam makes whole steps (2e-4 in all).
    """
    return {
        name: float((value - other[name]).norm() / value.norm().clamp_min(5e-3 * value.numel() ** 0.5))
        for name, value in one.items()
        if value.is_floating_point()
    }


# Rounding differs between kernels and turns some codes over, which moves counts and codebooks by a few per cent.
@pytest.mark.slow
def test_a_captured_step_is_the_plain_step() -> None:
    for plain, recorded in zip(fit(VARIANTS, captured=False), fit(VARIANTS, captured=True), strict=True):
        check_alike(plain, recorded, bound=0.1)


@pytest.mark.slow
def test_replicas_side_by_side_do_not_touch_each_other() -> None:
    together = fit(VARIANTS, captured=True)
    alone = fit(VARIANTS[:1], captured=True)[0]
    check_alike(alone, together[0], bound=0.02)


def baselines() -> list[Any]:
    """Every baseline, with one level of codebooks: those of the next would start by k-means of differing features."""
    slow = {"steps": 20, "batch": 64, "learning_rate": 1e-5, "continuous": 0}
    one = {kind: {} if kind in ("oat", "quest") else {"levels": 1} for kind in BASELINES}
    # Strides of its attention's scores are no multiples of what torch's compiler likes: see `GPU_OPTIONS`.
    uneven = baseline("oat", {"tokens": 14, "width": 32, "heads": 4}, **slow)
    return [*(baseline(kind, one[kind], **slow) for kind in BASELINES), uneven]


@pytest.mark.slow
def test_a_captured_step_of_a_baseline_is_the_plain_step() -> None:
    for plain, recorded in zip(fit(baselines(), captured=False), fit(baselines(), captured=True), strict=True):
        check_alike(plain, recorded, bound=0.1)
