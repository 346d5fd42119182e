"""The training loop: it learns, it can be stopped at any moment and goes on as if nothing had happened."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from actionpiece.errors import ActionPieceError
from actionpiece.space import ActionSpace
from actionpiece.tokenizers.actionpiece import ActionPieceConfig, ActionPieceTokenizer
from actionpiece.training import TrainConfig
from conftest import libero_like

SPACE = ActionSpace.preset("libero")


def tiny(levels: int = 1, codebook: str = "shared", **train: object) -> ActionPieceConfig:
    settings = {"steps": 12, "batch": 16, "start_chunks": 64, "checkpoint_every": 3, "validate_every": 6, **train}
    return ActionPieceConfig(
        slots=4,
        levels=levels,
        codes=8,
        codebook=codebook,  # type: ignore[arg-type]
        code_dim=4,
        width=16,
        heads=2,
        encoder_depth=1,
        decoder_depth=1,
        train=TrainConfig(**settings),  # type: ignore[arg-type]
    )


def fit(
    config: ActionPieceConfig, run: Path | None = None, *, resume: bool = False, seed: int = 0
) -> ActionPieceTokenizer:
    chunks = libero_like(300)
    return ActionPieceTokenizer.fit(
        chunks[:240], SPACE, config, seed=seed, validation=chunks[240:], run=run, resume=resume
    )


def tensors(tokenizer: ActionPieceTokenizer) -> dict[str, torch.Tensor]:
    return tokenizer.codec.state_dict()


def same(a: ActionPieceTokenizer, b: ActionPieceTokenizer) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tensors(a).values(), tensors(b).values(), strict=True))


@pytest.mark.parametrize(("levels", "codebook"), [(1, "shared"), (2, "shared"), (2, "per_slot")])
def test_training_beats_the_mean_chunk_and_every_sequence_decodes(levels: int, codebook: str) -> None:
    config = tiny(levels, codebook, steps=400, batch=64, learning_rate=3e-3)
    tokenizer = fit(config)
    chunks = libero_like(300)[240:]
    ids = tokenizer.encode(chunks)
    assert ids.shape == (60, 4 * levels)
    scale = tokenizer.normalizer.scale
    error = np.mean(((tokenizer.decode(ids) - chunks) / scale) ** 2)
    spread = np.mean(((chunks - chunks.mean(0)) / scale) ** 2)
    assert error < 0.5 * spread
    rng = np.random.default_rng(0)
    for position in range(4 * levels):  # level l has the ids l K .. l K + K - 1
        first = position // 4 * 8
        assert tokenizer.vocab_at(position) == range(first, first + 8)
    random_ids = np.stack([rng.integers(8, size=50) + position // 4 * 8 for position in range(4 * levels)], 1)
    assert np.isfinite(tokenizer.decode(random_ids)).all()


def test_a_seed_names_a_result() -> None:
    assert same(fit(tiny()), fit(tiny()))
    assert not same(fit(tiny()), fit(tiny(), seed=1))


def test_training_leaves_the_callers_random_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(tiny(steps=2))
    assert torch.equal(torch.rand(3), expected)


def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actionpiece.training import loop

    whole = fit(tiny(), tmp_path / "whole")

    class StopError(Exception):
        pass

    step = loop._Loop.step

    def stop_at_eight(self: object, number: int) -> object:
        if number == 8:
            raise StopError
        return step(self, number)  # type: ignore[arg-type]

    monkeypatch.setattr(loop._Loop, "step", stop_at_eight)
    with pytest.raises(StopError):
        fit(tiny(), tmp_path / "broken")
    monkeypatch.undo()
    resumed = fit(tiny(), tmp_path / "broken", resume=True)
    assert same(whole, resumed)
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "broken")]
    entries = [[{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in log] for log in logs]
    assert entries[0] == entries[1]
    assert {"step", "loss", "reconstruction", "val_mse", "val_prc", "codes_used"} <= entries[0][-1].keys()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    fit(tiny(), tmp_path)
    with pytest.raises(ActionPieceError, match="seed differ"):
        fit(tiny(), tmp_path, resume=True, seed=1)
    with pytest.raises(ActionPieceError, match="config differ"):
        fit(tiny(steps=20), tmp_path, resume=True)
    with pytest.raises(ActionPieceError, match="no checkpoint"):
        fit(tiny(), tmp_path / "empty", resume=True)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"half")
    with pytest.raises(ActionPieceError, match="not a whole checkpoint"):
        fit(tiny(), tmp_path, resume=True)


def test_a_loss_that_is_not_finite_stops_training_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    from actionpiece.training import loop

    original = loop._Loop.step

    def poisoned(self: loop._Loop, number: int) -> dict[str, torch.Tensor]:
        if number == 7:
            with torch.no_grad():
                next(self.codec.parameters()).fill_(torch.nan)
        return original(self, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Loop, "step", poisoned)
        with pytest.raises(ActionPieceError, match="not finite at step 9"):
            fit(tiny(), tmp_path)
    assert same(fit(tiny(), tmp_path, resume=True), fit(tiny()))


def test_the_schedule_warms_up_and_comes_down() -> None:
    config = TrainConfig(steps=100, warmup=10, schedule="cosine", learning_rate=1.0)
    rates = [config.rate_at(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.5)
    assert rates[99] < 0.01
    assert TrainConfig(learning_rate=1.0).rate_at(99_999) == 1.0


SCRIPT = """
import sys; sys.path.insert(0, sys.argv[1])
import torch; torch.set_num_threads(1)
from pathlib import Path
from test_training import fit, tiny
fit(tiny(steps=400, checkpoint_every=1), Path(sys.argv[2]), resume=sys.argv[3] == "resume")
"""


@pytest.mark.slow
def test_kill_9_at_random_moments_loses_nothing(tmp_path: Path) -> None:
    random.seed(0)
    here, run, config = str(Path(__file__).parent), tmp_path / "run", tiny(steps=400, checkpoint_every=1)
    checkpoint = run / "checkpoint.safetensors"
    for attempt in range(3):
        before = checkpoint.stat().st_mtime_ns if attempt else 0
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, here, str(run), "resume" if attempt else "start"])
        # Training is under way once a checkpoint is newer than the last run's; then kill at any moment.
        while not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before:
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(0.2 * random.random())
        process.kill()
        assert process.wait() == -signal.SIGKILL  # it was killed, and had not come to its end
    assert same(fit(config, run, resume=True), fit(config))
