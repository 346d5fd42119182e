"""The training loop: it learns, it can be stopped at any moment and goes on as if nothing had happened."""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from actionpiece.errors import ActionPieceError
from actionpiece.objectives import Step, combine
from actionpiece.tokenizers.actionpiece import ActionPieceConfig, ActionPieceTokenizer
from actionpiece.training import Examples, TrainConfig
from actionpiece.training.checkpoint import NAME as CHECKPOINT
from actionpiece.training.checkpoint import saved_stretches
from actionpiece.training.log import Log
from actionpiece.training.replica import Replica
from tiny import CHUNKS, PLAIN, SPACE, StopError, examples_for, fit, new, replica_of, same, stop_at, tiny

RANDOM = {**PLAIN, "sigreg": 0.1}  # an objective that draws at random


def entries(folder: Path) -> list[dict[str, Any]]:
    """The lines of a log without the time they took."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.mark.parametrize(("levels", "codebook"), [(1, "shared"), (2, "shared"), (2, "per_slot")])
def test_training_beats_the_mean_chunk_and_every_sequence_decodes(levels: int, codebook: str) -> None:
    config = tiny({"levels": levels, "codebook": codebook}, steps=150, batch=32, learning_rate=6e-3)
    tokenizer = fit(config)
    chunks = CHUNKS[240:]
    ids = tokenizer.encode(chunks)
    assert ids.shape == (60, 4 * levels)
    scale = tokenizer.normalizer.scale
    error = np.mean(((tokenizer.decode(ids) - chunks) / scale) ** 2)
    spread = np.mean(((chunks - chunks.mean(0)) / scale) ** 2)
    assert error < 0.6 * spread
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
    fit(tiny(steps=2, weights=RANDOM))
    assert torch.equal(torch.rand(3), expected)


def test_products_of_a_cpu_stay_exact_whatever_the_caller_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    advance = Replica.advance

    def looking(self: Replica) -> None:
        seen.add(torch.get_float32_matmul_precision())
        advance(self)

    monkeypatch.setattr(Replica, "advance", looking)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        fit(tiny())
        assert (seen, torch.get_float32_matmul_precision()) == ({"highest"}, "high")
    finally:
        torch.set_float32_matmul_precision(before)


def test_training_is_the_same_where_the_caller_has_switched_gradients_or_precision() -> None:
    plain = fit(tiny())
    with torch.inference_mode():
        assert same(fit(tiny()), plain)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert same(fit(tiny()), plain)


def test_a_batch_that_has_no_spread_is_refused() -> None:
    with pytest.raises(ActionPieceError, match="standardised by the spread of a batch, and 2 chunks"):
        fit(tiny(batch=2))
    fit(tiny({"deviation": 0.0}, batch=2))


def test_chunks_in_another_order_are_other_examples() -> None:
    one = examples_for(new(tiny()))
    other = Examples(one.chunks.flip(0), None, one.distance, one.normalizer, "cpu")
    assert one.fingerprint["sum"] != pytest.approx(other.fingerprint["sum"], rel=1e-6)
    owners = torch.arange(len(one.chunks)) % 2
    sums = [
        Examples(one.chunks, None, one.distance, one.normalizer, "cpu", {"embodiment": whose}).fingerprint["extras"]
        for whose in (owners, 1 - owners)
    ]
    assert sums[0] != sums[1]


def test_steps_are_those_of_adamw_with_clipped_gradients_at_the_scheduled_rate() -> None:
    rate = {"warmup": 3, "schedule": "cosine", "learning_rate": 3e-3}
    config = tiny({"deviation": 0.0}, steps=6, weight_decay=0.1, clip=0.3, **rate)
    ours, plain = replica_of(config), replica_of(config)
    ours.prepare()
    plain.prepare()
    codec, examples = plain.codec, plain.examples
    optimizer = torch.optim.AdamW(codec.parameters(), lr=1.0, weight_decay=0.1, foreach=False)
    norms = []
    for number in range(6):
        index = examples.batches(config.train, 0, 0)[number]
        x = examples.chunks[index]
        decoded, features, quantized = codec(x)
        step = Step(
            target=x,
            decoded=decoded,
            features=features,
            quantized=quantized,
            quantizer=codec.quantizer,
            distance=examples.distance,
            physical=examples.physical[index],
            offset=examples.offset,
            scale=examples.scale,
            rates=examples.rates,
            emphasis=torch.ones(7),
        )
        optimizer.param_groups[0]["lr"] = config.train.rate_at(number)
        optimizer.zero_grad()
        combine(step, config.train.weights)[0].backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(codec.parameters(), 0.3)))
        optimizer.step()
        codec.quantizer.update(quantized)
        ours.advance()
    assert max(norms) > 0.3  # something was clipped
    for name, tensor in ours.codec.state_dict().items():
        if name.endswith("key_value.bias"):
            continue  # a key's bias changes nothing, so its gradient is rounding, which AdamW makes as large as others
        torch.testing.assert_close(tensor, codec.state_dict()[name], atol=1e-5, rtol=1e-4, msg=name)


def test_the_emphasis_of_training_blends_from_normalised_to_physical() -> None:
    flat, half, whole = (replica_of(tiny(blend=blend)).emphasis for blend in (0.0, 0.5, 1.0))
    rates = replica_of(tiny()).examples.rates
    assert torch.equal(flat, torch.ones(7))
    torch.testing.assert_close(half, rates.sqrt())
    torch.testing.assert_close(whole, rates)
    assert not same(fit(tiny(steps=2)), fit(tiny(steps=2, blend=0.5)))


# --- Going on


@pytest.mark.parametrize("stop", [5, 8, 9])
def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    whole = fit(tiny(weights=RANDOM), tmp_path / "whole")
    stop_at(monkeypatch, stop)
    with pytest.raises(StopError):
        fit(tiny(weights=RANDOM), tmp_path / "broken")
    monkeypatch.undo()
    resumed = fit(tiny(weights=RANDOM), tmp_path / "broken", resume=True)
    assert same(whole, resumed)
    a, b = (entries(tmp_path / name) for name in ("whole", "broken"))
    assert a == b
    assert [entry["step"] for entry in a] == [3, 6, 9, 12]
    assert {"step", "loss", "reconstruction", "sigreg", "val_mse", "val_prc", "codes_used"} <= a[-1].keys()
    assert "val_mse" not in a[0]
    again = fit(tiny(weights=RANDOM), tmp_path / "broken", resume=True)  # a run that is over is over
    assert same(whole, again)
    assert entries(tmp_path / "broken") == a


def test_a_checkpoint_knows_where_its_steps_were_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(step: int, *, resume: bool) -> None:
        stop_at(monkeypatch, step)
        with pytest.raises(StopError):
            fit(tiny(), tmp_path, resume=resume)
        monkeypatch.undo()

    here = {"device": "cpu", "gpu": None, "torch": torch.__version__, "products": "float32"}
    stopped(5, resume=False)
    assert saved_stretches(tmp_path) == [{"from": 0, "to": 3, **here}]
    stopped(8, resume=True)
    assert saved_stretches(tmp_path) == [{"from": 0, "to": 6, **here}]  # the same place: the same stretch
    with safe_open(tmp_path / CHECKPOINT, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    elsewhere = {"from": 0, "to": 6, "device": "cuda", "gpu": "NVIDIA H200", "torch": "2.11.0"}
    save_file(tensors, tmp_path / CHECKPOINT, metadata | {"stretches": json.dumps([elsewhere])})
    fit(tiny(), tmp_path, resume=True)
    expected = [elsewhere, {"from": 6, "to": 12, **here}]
    assert saved_stretches(tmp_path) == expected
    fit(tiny(), tmp_path, resume=True)  # nothing is left to train
    assert saved_stretches(tmp_path) == expected
    assert saved_stretches(tmp_path / "nowhere") is None


def test_a_run_across_blocks_of_batches_is_resumed_in_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(steps=110, checkpoint_every=104, validate_every=200, weights=PLAIN, schedule="cosine")
    stop_at(monkeypatch, 107)
    with pytest.raises(StopError):
        fit(config, tmp_path)
    monkeypatch.undo()
    assert same(fit(config, tmp_path, resume=True), fit(config))


def test_a_checkpoint_from_another_machine_is_known_by_its_data_but_for_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(weights=PLAIN)  # draws nothing at random, so it ends the same
    whole = fit(config)
    stop_at(monkeypatch, 9)
    with pytest.raises(StopError):
        fit(config, tmp_path)
    monkeypatch.undo()
    path = tmp_path / "checkpoint.safetensors"
    with safe_open(path, "pt") as file:
        step, about = (file.metadata()[key] for key in ("step", "about"))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    known = json.loads(about)
    tensors["random"] = torch.zeros(16, dtype=torch.uint8)  # a GPU's generator has a state of another size

    def moved(factor: float) -> None:
        save_file(tensors, path, metadata={"step": step, "about": json.dumps(known | {"sum": known["sum"] * factor})})

    moved(1 + 1e-3)
    with pytest.raises(ActionPieceError, match="another sum;"):
        fit(config, tmp_path, resume=True)
    moved(1 + 1e-13)
    assert same(fit(config, tmp_path, resume=True), whole)


def test_a_checkpoint_whose_own_words_are_damaged_is_not_whole(tmp_path: Path) -> None:
    fit(tiny(), tmp_path)
    with safe_open(tmp_path / CHECKPOINT, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for damage in ({"about": "{"}, {"step": "many"}, {"stretches": "["}):
        save_file(tensors, tmp_path / CHECKPOINT, metadata | damage)
        with pytest.raises(ActionPieceError, match="is not a whole checkpoint"):
            fit(tiny(), tmp_path, resume=True)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    fit(tiny(), tmp_path)
    with pytest.raises(ActionPieceError, match="another seed;"):
        fit(tiny(), tmp_path, resume=True, seed=1)
    with pytest.raises(ActionPieceError, match="another config;"):
        fit(tiny(steps=20), tmp_path, resume=True)
    with pytest.raises(ActionPieceError, match="another chunks and distance and sum;"):
        ActionPieceTokenizer.fit(CHUNKS[:200], SPACE, tiny(), run=tmp_path, resume=True)
    with pytest.raises(ActionPieceError, match="no checkpoint"):
        fit(tiny(), tmp_path / "empty", resume=True)
    with pytest.raises(ActionPieceError, match="nothing to resume without a run folder"):
        fit(tiny(), None, resume=True)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"half")
    with pytest.raises(ActionPieceError, match="not a whole checkpoint"):
        fit(tiny(), tmp_path, resume=True)


OTHER_CODECS: list[dict[str, Any]] = [
    {"encoder_depth": 2},
    {"codes": 16},
    {"codebook": "per_slot"},
    {"heads": 4},
    {"decay": 0.9},
    {"dead_share": 0.2},
    {"deviation": 0.5},
]


@pytest.mark.parametrize("other", OTHER_CODECS, ids=str)
def test_a_checkpoint_of_another_codec_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    """Also of one whose tensors have the same shapes, or shapes that could be spread over this one's."""
    fit(tiny(steps=3), tmp_path)
    with pytest.raises(ActionPieceError, match="it has another"):
        fit(tiny(other, steps=3), tmp_path, resume=True)


def test_a_checkpoint_with_tensors_of_other_shapes_is_refused(tmp_path: Path) -> None:
    """Another version may have made it with the same settings."""
    fit(tiny(steps=3), tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    name = next(name for name, tensor in tensors.items() if name.startswith("model.") and tensor.ndim == 1)
    for other in (tensors[name][:1], tensors[name][:-1]):  # the first could be spread over all
        save_file(tensors | {name: other.clone()}, path, metadata=metadata)
        with pytest.raises(ActionPieceError, match="another codec, or of another version; move it away to start anew"):
            fit(tiny(steps=3), tmp_path, resume=True)


def poison(patch: pytest.MonkeyPatch, what: str) -> None:
    """In step 8, the parameters or the gradients become something that is not a number."""
    advance, clip = Replica.advance, torch.nn.utils.clip_grad_norm_
    at = [0]

    def poisoned(self: Replica) -> None:
        at[0] = self.done
        if self.done == 7 and what == "parameter":
            with torch.no_grad():
                next(self.codec.parameters()).fill_(torch.nan)
        advance(self)

    def clipping(parameters: list[torch.Tensor], largest: float) -> torch.Tensor:
        if at[0] == 8 and what == "gradient":
            next(p.grad for p in parameters if p.grad is not None).fill_(torch.nan)
        return clip(parameters, largest)

    patch.setattr(Replica, "advance", poisoned)
    patch.setattr(torch.nn.utils, "clip_grad_norm_", clipping)


@pytest.mark.parametrize("what", ["parameter", "gradient"])
def test_a_loss_that_is_not_finite_stops_training_and_keeps_the_last_good_checkpoint(tmp_path: Path, what: str) -> None:
    """A gradient that is not finite spoils the codec in the step whose own loss was still finite."""
    with pytest.MonkeyPatch.context() as patch:
        poison(patch, what)
        with pytest.raises(ActionPieceError, match=r"not finite.*last checkpoint"):
            fit(tiny(), tmp_path)
    assert same(fit(tiny(), tmp_path, resume=True), fit(tiny()))


# --- Settings


def test_the_defaults_are_the_papers() -> None:
    config = ActionPieceConfig()
    assert (config.slots, config.levels, config.codes, config.codebook) == (16, 1, 512, "shared")
    train = config.train
    assert (train.learning_rate, train.batch, train.steps) == (1e-4, 128, 100_000)
    assert train.weights == {
        "reconstruction": 1.0,
        "commitment": 0.25,
        "physical_rank": 6.25e-4,
        "quantization_order": 6.25e-4,
    }
    assert (train.blend, train.part, train.companions) == (0.0, "all", 0)


def test_the_schedule_warms_up_and_comes_down() -> None:
    config = TrainConfig(steps=100, warmup=10, schedule="cosine", learning_rate=1.0, continuous=0)
    rates = [config.rate_at(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.5)
    assert rates[99] < 0.01
    assert TrainConfig(schedule="constant", learning_rate=1.0).rate_at(99_999) == 1.0


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"steps": 0}, "steps must be at least 1, not 0"),
    ({"batch": 0}, "batch must be at least 1"),
    ({"checkpoint_every": 0}, "checkpoint_every must be at least 1"),
    ({"learning_rate": 0.0}, "learning_rate and clip must be positive and finite"),
    ({"learning_rate": math.nan}, "learning_rate and clip must be positive and finite"),
    ({"clip": 0.0}, "learning_rate and clip must be positive and finite"),
    ({"continuous": -1}, "no other setting negative"),
    ({"warmup": -1}, "no other setting negative"),
    ({"blend": -0.1}, r"blend runs from 0 \(normalised\) to 1 \(physical\), and is -0.1"),
    ({"blend": 1.5}, "blend runs from 0 .* and is 1.5"),
    ({"blend": math.nan}, "blend runs from 0 .* and is nan"),
    ({"part": "encoder"}, "part must be all or decoder, not 'encoder'"),
    ({"part": "decoder", "weights": {"commitment": 1.0}}, "a decoder alone learns nothing"),
    ({"companions": -1}, "a batch of 128 is not made of chunks with -1 companions"),
    ({"batch": 128, "companions": 2}, "a batch of 128 is not made of chunks with 2 companions"),
    ({"weights": {"neighbor_order": 1.0}}, "neighbor_order needs at least 2 companions"),
    ({"weights": {"neighbor_order": 1.0}, "companions": 1}, "neighbor_order needs at least 2 companions"),
    ({"weights": {}}, "no objective has a weight above zero"),
    ({"weights": {"reconstruction": 0.0}}, "no objective has a weight above zero"),
    ({"schedule": "linear"}, "schedule must be constant or cosine, not 'linear'"),
    ({"steps": 10, "continuous": 10}, "continuous"),  # the codebooks would never be started
    ({"steps": 10, "continuous": 11}, "continuous"),
    ({"settle": -1}, "no other setting negative"),
    ({"settle": 5, "part": "decoder"}, "codebooks never move"),
    ({"steps": 10, "continuous": 4, "settle": 6}, "lower `continuous` or `settle`"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ActionPieceError, match=message):
        TrainConfig(**settings)


def test_settings_that_only_just_fit_are_taken() -> None:
    TrainConfig(batch=129, companions=2, weights={"neighbor_order": 1.0})
    TrainConfig(weights={"reconstruction": 1e-9, "neighbor_order": 0.0})
    TrainConfig(steps=10, continuous=9, blend=1.0)


def test_validation_chunks_of_another_length_are_refused_before_a_step_is_taken() -> None:
    with pytest.raises(ActionPieceError, match="validation chunks have 7 steps, training chunks 8"):
        ActionPieceTokenizer.fit(CHUNKS[:240], SPACE, tiny(), validation=CHUNKS[240:, :7])


def test_an_objective_that_does_not_exist_is_named_before_a_step_is_taken() -> None:
    with pytest.raises(ActionPieceError, match="no objective 'magic'"):
        fit(tiny(weights={"reconstruction": 1.0, "magic": 1.0}))


# --- The log


def test_a_log_drops_the_lines_after_the_step_it_goes_on_from(tmp_path: Path) -> None:
    first = Log(tmp_path / "run", 0, tensorboard=False)
    for step in (3, 6, 9):
        first.write(step, {"loss": 1.0 / step})
    with first.path.open("a") as file:
        file.write('{"step": 12, "lo')  # cut short by a kill
    log = Log(tmp_path / "run", 6, tensorboard=False)
    assert entries(tmp_path / "run") == [{"step": 3, "loss": 1 / 3}, {"step": 6, "loss": 1 / 6}]
    log.write(9, {"loss": 0.5, "val_prc": math.nan})
    assert entries(tmp_path / "run")[-1] == {"step": 9, "loss": 0.5, "val_prc": None}
    seconds = [json.loads(line)["seconds"] for line in log.path.read_text().splitlines()]
    assert all(second >= 0 for second in seconds)
    Log(tmp_path / "run", 0, tensorboard=False)  # a new run in an old folder
    assert entries(tmp_path / "run") == []


def test_tensorboard_gets_the_same_values_when_asked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(tiny(tensorboard=True, weights=PLAIN), tmp_path / "with")
    fit(tiny(weights=PLAIN), tmp_path / "without")
    assert not (tmp_path / "without" / "tensorboard").exists()
    assert list((tmp_path / "with" / "tensorboard").glob("events.out.tfevents.*"))
    board = EventAccumulator(str(tmp_path / "with" / "tensorboard")).Reload()
    for name in ("loss", "commitment", "val_mse"):
        written = [(entry["step"], entry[name]) for entry in entries(tmp_path / "with") if name in entry]
        assert [event.step for event in board.Scalars(name)] == [step for step, _ in written]
        assert [event.value for event in board.Scalars(name)] == pytest.approx([value for _, value in written])


def test_without_tensorboard_the_error_names_the_extra_and_nothing_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    stop_at(monkeypatch, 0)
    with pytest.raises(ActionPieceError, match=r"TensorBoard is not installed: .*pip install -e '.\[tensorboard\]'"):
        fit(tiny(tensorboard=True), tmp_path)


# --- Kills

SCRIPT = """
import sys; sys.path.insert(0, sys.argv[1])
import torch; torch.set_num_threads(1)
from pathlib import Path
from tiny import fit, tiny
fit(tiny(steps=150, checkpoint_every=1), Path(sys.argv[2]), resume=sys.argv[3] == "resume")
"""


@pytest.mark.slow
def test_kill_9_at_random_moments_loses_nothing(tmp_path: Path) -> None:
    random.seed(0)
    here, run, config = str(Path(__file__).parent), tmp_path / "run", tiny(steps=150, checkpoint_every=1)
    checkpoint = run / "checkpoint.safetensors"
    for attempt in range(2):
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
    steps = [entry["step"] for entry in entries(run)]
    assert steps == list(range(1, 151))
