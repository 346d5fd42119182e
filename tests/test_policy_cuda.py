"""On a GPU generation is recorded and layers are compiled, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from actionpiece.policy.generate import Sampling
from policies import INSTRUCTIONS, demonstrations, observation, policy
from test_policy_training import SHORT, material

pytestmark = [pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"), pytest.mark.slow]

OBSERVATIONS = [observation(seed, INSTRUCTIONS[seed % 2] + " slowly" * seed) for seed in range(4)]


@pytest.mark.parametrize(("kind", "block"), [("pq", 1), ("levels", 4), ("fast", 1)])
def test_recorded_generation_writes_what_a_cpu_writes(kind: str, block: int) -> None:
    here, there = policy(kind, block=block), policy(kind, block=block)
    there.vlm.cuda()
    plain = here.generate(here.read(OBSERVATIONS))
    for _ in range(2):  # the second time nothing is recorded any more
        recorded = there.generate(there.read(OBSERVATIONS))
        for one, two in zip(plain.log_probs, recorded.log_probs, strict=True):
            torch.testing.assert_close(two.cpu(), one, atol=2e-3, rtol=1e-3)
        for ids, others in zip(plain.ids, recorded.ids, strict=True):
            assert torch.equal(others.cpu(), ids)


def test_another_question_in_the_same_recording_has_its_own_answer() -> None:
    here, there = policy(), policy()
    there.vlm.cuda()
    for seed in range(5):
        seen = [observation(seed)]
        ids = there.generate(there.read(seen)).ids.cpu()
        assert torch.equal(ids, here.generate(here.read(seen)).ids)
    assert len(there._plans) == 1


def test_a_recorded_draw_depends_on_its_seed() -> None:
    made = policy(loud=3.0)
    made.vlm.cuda()
    batch = made.read([OBSERVATIONS[0]] * 16)
    one, same, other = (made.generate(batch, Sampling(1.0, seed=seed)).ids for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert len(one[:, 0].unique()) > 1


@pytest.mark.parametrize("recompute", [False, True])
def test_compiled_layers_have_the_loss_and_gradients_of_plain_ones(recompute: bool, tmp_path: Path) -> None:
    data = demonstrations(tmp_path / "shown")
    here, there = policy(loud=2.0), policy(loud=2.0)
    there.vlm.cuda()
    inputs = material(here, data).train.inputs(range(6))
    totals = []
    for made, device in ((here, "cpu"), (there, "cuda")):
        made.vlm.train()
        total, _, _ = made.loss({k: v.to(device) for k, v in inputs.items()}, made.learner(recompute=recompute))
        total.backward()
        totals.append(total.detach().cpu())
    torch.testing.assert_close(totals[1], totals[0], atol=1e-2, rtol=1e-3)
    for (name, one), two in zip(here.vlm.named_parameters(), there.vlm.parameters(), strict=True):
        apart = float((one.grad - two.grad.cpu()).abs().max())
        assert apart <= 0.02 * float(one.grad.abs().max()) + 1e-4, name


def test_a_policy_learns_on_a_gpu(tmp_path: Path) -> None:
    from dataclasses import replace

    from actionpiece.policy.training import train_policy

    data = demonstrations(tmp_path / "shown")
    made = policy(loud=1.0)
    some = material(made, data)
    config = replace(SHORT, steps=200, batch=24, warmup=20, learning_rate=2e-3, validate_every=1000, validate_chunks=4)
    train_policy(made, some, config, device="cuda", folder=tmp_path / "run")
    with torch.no_grad():
        inputs = {k: v.cuda() for k, v in some.train.inputs(range(24)).items()}
        _, right, count = made.loss(inputs)
    assert int(right) > 0.9 * count
