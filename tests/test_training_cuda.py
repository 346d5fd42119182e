"""Captured training on a GPU does what plain training does, alone and beside others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace
from actionpiece.tokenizers.actionpiece import ActionPieceConfig, ActionPieceTokenizer, best
from actionpiece.training import Examples, TrainConfig, train
from conftest import libero_like

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

SPACE = ActionSpace.preset("libero")
CHUNKS = libero_like(2000)


def fit(configs: list[ActionPieceConfig], *, captured: bool) -> list[dict[str, torch.Tensor]]:
    """The codecs' states after training them side by side."""
    from actionpiece.distance import PhysicalDistance

    normalizer, distance = Normalizer.fit("minmax", CHUNKS), PhysicalDistance.fit(SPACE, CHUNKS)
    x = normalizer.normalize(torch.from_numpy(CHUNKS))
    examples = Examples(x, x[:200], distance, normalizer, "cuda")
    shared = {"space": SPACE, "normalizer": normalizer, "distance": distance, "horizon": CHUNKS.shape[1]}
    tokenizers = [ActionPieceTokenizer(config, **shared) for config in configs]
    runs = [t._run(examples.chunks, seed, None, resume=False) for seed, t in enumerate(tokenizers)]
    train(runs, examples, captured=captured)
    return [t.codec.state_dict() for t in tokenizers]


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


@pytest.mark.slow
def test_a_captured_step_is_the_plain_step() -> None:
    for plain, recorded in zip(fit(VARIANTS, captured=False), fit(VARIANTS, captured=True), strict=True):
        for name, value in plain.items():
            assert torch.allclose(value, recorded[name], rtol=1e-2, atol=2e-3), name


@pytest.mark.slow
def test_replicas_side_by_side_do_not_touch_each_other() -> None:
    together = fit(VARIANTS, captured=True)
    alone = fit(VARIANTS[:1], captured=True)[0]
    for name, value in alone.items():
        assert torch.allclose(value, together[0][name], rtol=1e-3, atol=1e-4), name
