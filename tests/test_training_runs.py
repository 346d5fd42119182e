"""Examples and their batches, several runs side by side, parts and phases of training, several processes."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError, BrokenRunsError
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace, Group
from actionpiece.tokenizers.actionpiece import ActionPieceConfig
from actionpiece.training import Examples, TrainConfig, examples, is_first, join
from actionpiece.training.replica import Replica
from baselines import BASELINES, batch_of
from baselines import new as new_baseline
from conftest import libero_like, smooth
from tiny import AS_PQ, PLAIN, SPACE, StopError, fit, fit_together, replica_of, same, stop_at, tensors, tiny

COMPANY = TrainConfig(batch=20, companions=4)


def make_examples(n: int = 240, space: ActionSpace = SPACE, chunks: np.ndarray | None = None) -> Examples:
    raw = torch.from_numpy(libero_like(n) if chunks is None else chunks)
    normalizer = Normalizer.fit("minmax", raw)
    return Examples(normalizer.normalize(raw), None, PhysicalDistance.fit(space, raw), normalizer, "cpu")


# --- Examples and batches


def test_batches_depend_on_the_seed_and_the_block_and_nothing_else() -> None:
    some = make_examples()
    first = some.batches(TrainConfig(), 3, 2)
    assert first.shape == (100, 128)
    assert (int(first.min()), int(first.max())) == (0, 239)
    torch.manual_seed(7)
    some.batches(TrainConfig(), 1, 1)
    other = TrainConfig(learning_rate=1.0, weights={"reconstruction": 2.0}, part="decoder")
    assert torch.equal(make_examples().batches(other, 3, 2), first)
    different = [some.batches(TrainConfig(), seed, block) for seed, block in ((3, 3), (4, 2), (2, 3))]
    assert not any(torch.equal(batch, first) for batch in different)


def test_every_chunk_is_drawn_about_equally_often() -> None:
    counts = torch.bincount(
        torch.cat([make_examples().batches(TrainConfig(), 0, block) for block in range(3)]).flatten()
    )
    assert len(counts) == 240
    assert 0.7 * 160 < int(counts.min()) < int(counts.max()) < 1.3 * 160


def test_companions_follow_their_anchor_and_are_some_of_its_32_neighbours() -> None:
    some = make_examples()
    groups = some.batches(COMPANY, 0, 0).unflatten(1, (-1, 5))
    assert groups.shape == (100, 4, 5)
    anchors, companions = groups[..., 0], groups[..., 1:]
    assert some.neighbors.shape == (240, 32)
    among = (companions[..., None] == some.neighbors[anchors][..., None, :]).any(-1)
    assert bool(among.all())
    assert bool((companions.sort(-1).values.diff(dim=-1) > 0).all())  # four different ones
    ranks = (companions[..., None] == some.neighbors[anchors][..., None, :]).int().argmax(-1)
    assert len(torch.unique(ranks)) == 32  # any of them, not the nearest only
    again = make_examples().batches(COMPANY, 0, 0)
    assert torch.equal(again, groups.flatten(1))
    assert not torch.equal(some.batches(COMPANY, 1, 0), again)


def squared_chords(some: Examples) -> np.ndarray:
    """(N, N) squared chord distances: differences of matrices in place of angles."""
    distance, raw = some.distance, some.normalizer.denormalize(some.chunks.double())
    features = distance.features(raw)
    chords = distance.chord_features(features).numpy()
    squared = ((chords[:, None] - chords) ** 2).sum(-1)
    exact = distance.pairwise(features).numpy()
    assert (squared <= exact * (1 + 1e-9) + 1e-12).all()  # a chord is no longer than its arc
    np.testing.assert_allclose(squared, exact, rtol=0.05, atol=1e-9)  # and hardly shorter for turns like these
    np.fill_diagonal(squared, np.inf)
    return squared


def test_neighbours_are_those_of_a_brute_force_search_near_to_far() -> None:
    some = make_examples(150)
    squared = squared_chords(some)
    found = some.neighbors.numpy()
    assert found.shape == (150, 32)
    assert not (found == np.arange(150)[:, None]).any()
    ours = np.take_along_axis(squared, found, 1)
    np.testing.assert_allclose(ours, np.sort(squared, 1)[:, :32], rtol=1e-3)
    agree = found == squared.argsort(1)[:, :32]
    assert agree.mean() > 0.99  # up to ties in rounding


def test_neighbours_are_sought_within_crowds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "_CROWD", 60)
    some = make_examples(250)
    found = some.neighbors.numpy()
    graph = csr_array((np.ones(250 * 32), (np.repeat(np.arange(250), 32), found.flatten())), shape=(250, 250))
    count, crowd = connected_components(graph, directed=False)
    assert count == 4
    assert sorted(np.bincount(crowd)) == [62, 62, 63, 63]
    squared = np.where(crowd[:, None] == crowd, squared_chords(some), np.inf)
    np.testing.assert_allclose(np.take_along_axis(squared, found, 1), np.sort(squared, 1)[:, :32], rtol=1e-3)


def test_identical_chunks_are_neighbours_of_each_other_and_nobody_of_itself() -> None:
    some = make_examples(chunks=np.repeat(libero_like(10), 4, 0))
    found = some.neighbors.numpy()
    for i in range(40):
        assert {int(j) for j in found[i, :3]} == {j for j in range(40) if j // 4 == i // 4} - {i}


def test_a_small_data_set_has_fewer_neighbours_and_says_when_they_are_too_few() -> None:
    some = make_examples(4)
    assert some.neighbors.shape == (4, 3)
    assert some.batches(TrainConfig(batch=4, companions=3), 0, 0).shape == (100, 4)
    with pytest.raises(ActionPieceError, match="there are 3 neighbours to choose 4 companions from"):
        some.batches(COMPANY, 0, 0)


@pytest.mark.parametrize("config", [TrainConfig(batch=12), TrainConfig(batch=24, companions=3)])
def test_processes_share_out_the_batches_of_one(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    some, group = make_examples(), config.companions + 1
    whole = some.batches(config, 5, 1).unflatten(1, (-1, group))
    monkeypatch.setattr(examples, "world_size", lambda: 3)
    shares = []
    for rank in range(3):
        monkeypatch.setattr(examples, "rank", lambda rank=rank: rank)
        shares.append(some.batches(config, 5, 1).unflatten(1, (-1, group)))
        assert shares[-1].shape == (100, whole.shape[1] // 3, group)
    joined = torch.cat(shares, 1)
    for step in range(100):
        assert sorted(joined[step].tolist()) == sorted(whole[step].tolist())


@pytest.mark.parametrize("config", [TrainConfig(batch=8), TrainConfig(batch=12, companions=2)])
def test_a_batch_that_cannot_be_shared_is_an_error(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "world_size", lambda: 3)
    with pytest.raises(ActionPieceError, match=f"a batch of {config.batch} cannot be shared by 3 processes"):
        make_examples().batches(config, 0, 0)


def test_rates_are_those_of_normalised_columns_and_none_is_lost_with_weight_0() -> None:
    groups = (
        Group("translation", (0, 1, 2), unit=0.05, delta=True),
        Group("joints", (3, 4), unit=1.0, delta=False, weight=0.0),
    )
    raw = smooth(50, 8, 5, 0) * np.array([1.0, 2.0, 3.0, 1.0, 1.0])
    some = make_examples(space=ActionSpace("test", groups), chunks=raw)
    expected = 0.05 * (raw.max((0, 1)) - raw.min((0, 1)))[:3] / 2 / some.distance.scales[0]
    np.testing.assert_allclose(some.rates[:3].numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(some.rates[3:].numpy(), 1e-3 * expected.max(), rtol=1e-5)


# --- Several runs side by side

SEVERAL: list[ActionPieceConfig] = [
    tiny(steps=12),
    tiny({"levels": 2}, steps=7, weights={**PLAIN, "sigreg": 0.1}, checkpoint_every=2),
    tiny(AS_PQ, steps=16, weights={**PLAIN, "neighbor_order": 0.1}, companions=3, validate_every=5),
    tiny({"deviation": 0.0}, steps=12, weights={**PLAIN, "sigreg": 1.0, "temporal": 0.1}, continuous=4),
]
SEEDS = [0, 5, 2, 3]


def checkpoint(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "checkpoint.safetensors")


def lines(folder: Path) -> dict[int, dict[str, Any]]:
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return {entry["step"]: {name: x for name, x in entry.items() if name != "seconds"} for entry in entries}


def test_runs_side_by_side_end_bit_for_bit_like_each_alone(tmp_path: Path) -> None:
    alone = [fit(config, tmp_path / f"alone {seed}", seed=seed) for config, seed in zip(SEVERAL, SEEDS, strict=True)]
    said: list[float] = []
    folders = [tmp_path / f"together {seed}" for seed in SEEDS]
    together = fit_together(SEVERAL, SEEDS, folders, progress=lambda done, what: said.append(done))
    for seed, one, other in zip(SEEDS, alone, together, strict=True):
        assert same(one, other)
        a, b = (checkpoint(tmp_path / f"{how} {seed}") for how in ("alone", "together"))
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)  # the optimiser's state and the random one too
        due = lines(tmp_path / f"alone {seed}")
        assert due == lines(tmp_path / f"together {seed}")
    assert said == sorted(said)
    assert said[-1] == 1.0


def test_a_run_that_breaks_does_not_stop_the_others(tmp_path: Path) -> None:
    wild = tiny(learning_rate=1e30, clip=1e30)
    folders = [tmp_path / name for name in ("broken", "whole", "broken too")]
    with pytest.raises(BrokenRunsError, match="not finite") as raised:
        fit_together([wild, tiny(), wild], (0, 0, 1), folders)
    assert raised.value.errors.keys() == {0, 2}
    alone = fit(tiny(), tmp_path / "alone")
    assert alone.config.train.steps in lines(tmp_path / "whole")
    whole, expected = checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "alone")
    assert all(torch.equal(whole[name], expected[name]) for name in expected)


def test_a_run_that_cannot_begin_does_not_stop_the_others(tmp_path: Path) -> None:
    lonely = tiny(batch=40, companions=39)
    with pytest.raises(BrokenRunsError, match="32 neighbours") as raised:
        fit_together([tiny(), lonely], (0, 0), [tmp_path / "whole", tmp_path / "lonely"])
    assert raised.value.errors.keys() == {1}
    fit(tiny(), tmp_path / "alone")
    whole, expected = checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "alone")
    assert all(torch.equal(whole[name], expected[name]) for name in expected)


def test_runs_side_by_side_that_were_stopped_at_different_steps_are_resumed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / str(seed) for seed in SEEDS]
    stop_at(monkeypatch, 11)  # checkpoints at 9, 7 (the end), 9 and 9
    with pytest.raises(StopError):
        fit_together(SEVERAL, SEEDS, folders)
    monkeypatch.undo()
    for config, seed, resumed in zip(SEVERAL, SEEDS, fit_together(SEVERAL, SEEDS, folders, resume=True), strict=True):
        assert same(resumed, fit(config, seed=seed))


# --- Parts and phases


def test_the_codebooks_of_one_codec_start_by_the_seed_of_the_run() -> None:
    replica, books = replica_of(tiny()), []
    for seed in (0, 0, 1):
        run = replace(replica.run, codec=copy.deepcopy(replica.codec), seed=seed)
        fresh = Replica(run, replica.examples, captured=False)
        fresh.prepare()
        books.append(fresh.codec.quantizer.codebook)
    assert torch.equal(books[0], books[1])
    assert not torch.equal(books[0], books[2])


@pytest.mark.parametrize(
    "codec", [AS_PQ, {**AS_PQ, "encoder_depth": 0}, {"levels": 2, "deviation": 0.0}, {"deviation": 0.2}], ids=str
)
def test_training_the_decoder_alone_leaves_what_makes_codes_as_it_was(codec: dict[str, Any]) -> None:
    replica = replica_of(tiny(codec, part="decoder", learning_rate=1e-2))
    replica.prepare()
    before = {name: tensor.clone() for name, tensor in replica.codec.state_dict().items()}
    with torch.no_grad():
        codes = replica.codec.encode(replica.examples.chunks)
    for _ in range(12):
        replica.advance()
    after = replica.codec.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    decoding = {name for name in before if name.startswith(("decoder.", "synthesis.", "quantizer.project_out."))}
    assert moved == decoding
    with torch.no_grad():
        assert torch.equal(replica.codec.encode(replica.examples.chunks), codes)


def test_training_the_decoder_alone_lowers_the_error() -> None:
    replica = replica_of(tiny(AS_PQ, part="decoder", learning_rate=3e-3, steps=100, batch=64, weights=PLAIN))
    replica.prepare()
    x, errors = replica.examples.chunks, []
    for _ in range(2):
        with torch.no_grad():
            errors.append(float((replica.codec(x)[0] - x).square().mean()))
        for _ in range(100 - replica.done):
            replica.advance()
    assert errors[1] < 0.98 * errors[0]


@pytest.mark.parametrize("codec", [{}, AS_PQ], ids=str)
def test_codebooks_start_after_the_continuous_steps(codec: dict[str, Any]) -> None:
    replica = replica_of(tiny(codec, steps=8, continuous=5, learning_rate=1e-3))
    module, x = replica.codec, replica.examples.chunks
    replica.prepare()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for step in range(5):
        batch, twin = x[replica.table[step]], copy.deepcopy(module)
        replica.advance()
        assert "reconstruction" not in replica.terms
        expected = (twin.continuous(batch) - batch).square().mean()
        assert float(replica.terms["loss"]) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert replica.validate() == {}  # there are no codes yet
    after = module.state_dict()
    for name in before:
        books = name in ("quantizer.codebook", "quantizer.count", "quantizer.total")
        assert torch.equal(before[name], after[name]) == books, name
    replica.prepare()
    quantizer = module.quantizer
    assert not torch.equal(quantizer.codebook, before["quantizer.codebook"])
    with torch.no_grad():
        u = module.project(x)
        left = module(x)[2].hard - u
    assert float(left.square().mean()) < 0.5 * float((u - u.mean(0)).square().mean())
    replica.advance()
    assert {"loss", "reconstruction", "commitment"} <= replica.terms.keys()
    assert {"val_mse", "codes_used", "val_prc"} == replica.validate().keys()


@pytest.mark.parametrize(
    ("every", "stop", "held"), [(4, 5, 4), (6, 7, 6), (6, 6, 6), (8, 10, 8)], ids=["inside", "at", "at once", "after"]
)
@pytest.mark.parametrize("codec", [{}, AS_PQ], ids=["kmeans", "pq"])
def test_a_run_with_continuous_steps_is_resumed_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: dict[str, Any], every: int, stop: int, held: int
) -> None:
    config = tiny(codec, continuous=6, checkpoint_every=every, validate_every=100, weights={**PLAIN, "sigreg": 0.1})
    stop_at(monkeypatch, stop)
    with pytest.raises(StopError):
        fit(config, tmp_path)
    monkeypatch.undo()
    assert max(lines(tmp_path)) == held
    resumed = fit(config, tmp_path, resume=True)
    assert same(resumed, fit(config))
    assert 6 in lines(tmp_path)
    assert not same(resumed, fit(tiny(codec, weights={**PLAIN, "sigreg": 0.1})))


def test_at_the_end_codebooks_stay_and_the_network_goes_on() -> None:
    replica = replica_of(tiny({"deviation": 0.2}, steps=9, settle=4, learning_rate=1e-3))

    def state() -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in replica.codec.state_dict().items()}

    stays = [name for name in state() if name.startswith("quantizer.") and "project" not in name]
    assert {"quantizer.codebook", "quantizer.standardize.mean"} <= set(stays)
    for step in range(9):
        replica.prepare()
        before = state()
        replica.advance()
        after = state()
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        assert moved.isdisjoint(stays) == (step >= 5), step
        assert "quantizer.project_out.weight" in moved


@pytest.mark.parametrize("stop", [5, 7, 10])
def test_a_run_that_settles_is_resumed_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    config = tiny(settle=5, checkpoint_every=3)
    stop_at(monkeypatch, stop)
    with pytest.raises(StopError):
        fit(config, tmp_path)
    monkeypatch.undo()
    resumed = fit(config, tmp_path, resume=True)
    assert same(resumed, fit(config))
    assert not same(resumed, fit(tiny()))
    assert 7 in lines(tmp_path)


# --- Several processes


def test_a_process_alone_joins_nobody_and_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (None, "1"):
        if size is not None:
            monkeypatch.setenv("WORLD_SIZE", size)
        assert join("cpu") == "cpu"
        assert not torch.distributed.is_initialized()
        assert is_first()
    monkeypatch.setenv("RANK", "1")  # as a launcher says
    assert not is_first()


SCRIPT = """
import gc, json, os, sys, time
sys.path.insert(0, sys.argv[1])
import torch; torch.set_num_threads(1)
from pathlib import Path
from actionpiece.training.ranks import average_gradients, end, leave
import baselines
from tiny import fit, tensors
from test_training_runs import TOGETHER, digest
out, rank = Path(sys.argv[2]), os.environ["RANK"]

def trained(name, config, **rest):
    tokenizer = fit(config, out / name.split()[0], **rest)
    (out / f"{name}-{rank}.json").write_text(json.dumps(digest(tokenizer)))
    if rank == "0":
        torch.save(tensors(tokenizer), out / f"{name}.pt")
    gc.collect()
    time.sleep(0.5 * int(rank))  # one goes on before the other

for name, config in TOGETHER.items():
    trained(name, config)
trained("paper again", TOGETHER["paper"], resume=True)
for kind in baselines.BASELINES:
    settings = baselines.config(kind, steps=4, continuous=2, batch=16)
    (out / f"{kind}-{rank}.json").write_text(json.dumps(digest(baselines.fit(kind, settings))))
batch = baselines.batch_of(baselines.new("oat"), 8)
drawn = [batch.rand(2).tolist(), batch.randint(0, 100).tolist()]
(out / f"drawn-{rank}.json").write_text(json.dumps(drawn))
values = [torch.zeros(2), torch.zeros(3), torch.zeros(1)]
for value, gradient in zip(values, (torch.ones(2), torch.arange(3.0), None), strict=True):
    value.grad = gradient if gradient is None else gradient * (int(rank) + 1)
average_gradients(values)
means = [value.grad if value.grad is None else value.grad.tolist() for value in values]
(out / f"gradients-{rank}.json").write_text(json.dumps(means))
leave()
end()
"""

TOGETHER: dict[str, ActionPieceConfig] = {
    "paper": tiny({"dead_share": 0.5}, steps=7),
    "plain": tiny({"dead_share": 0.0, "deviation": 0.0}, steps=4, weights=PLAIN, learning_rate=1e-3),
    "company": tiny(AS_PQ, steps=4, weights={**PLAIN, "neighbor_order": 0.1}, companions=3, continuous=2),
}


def digest(tokenizer: Any) -> dict[str, str]:
    return {name: hashlib.sha256(x.numpy().tobytes()).hexdigest() for name, x in tensors(tokenizer).items()}


def digests(out: Path, name: str) -> list[dict[str, str]]:
    return [json.loads((out / f"{name}-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left behind, started as torchrun does, after they trained one codec after the other."""
    out = tmp_path_factory.mktemp("ranks")
    (out / "script.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--nproc_per_node=2", "--master_addr=127.0.0.1", f"--master_port={port}"]
    command = ["-m", "torch.distributed.run", *options, str(out / "script.py"), str(Path(__file__).parent), str(out)]
    with (out / "said").open("w") as said:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        torchrun = subprocess.Popen([sys.executable, *command], env=environment, stdout=said, stderr=said)
    try:
        assert torchrun.wait(180) == 0, (out / "said").read_text()[-3000:]
    finally:
        torchrun.terminate()  # it ends its processes when it is asked to, not when it is killed
        torchrun.wait(60)
    return out


@pytest.mark.slow
def test_two_processes_end_with_the_same_codec_and_one_log(two_processes: Path) -> None:
    for name, config in TOGETHER.items():
        first, second = digests(two_processes, name)
        assert first == second
        assert len(first) > 20
        text = (two_processes / name / "log.jsonl").read_text()
        steps = [json.loads(line)["step"] for line in text.splitlines()]
        marks = {3, 6, config.train.continuous, config.train.steps}
        assert steps == sorted(mark for mark in marks if 0 < mark <= config.train.steps)
        assert (two_processes / name / "checkpoint.safetensors").is_file()
    # A run that was over is read back by both.
    assert digests(two_processes, "paper again") == digests(two_processes, "paper")


@pytest.mark.slow
def test_two_processes_end_with_the_same_baseline(two_processes: Path) -> None:
    for kind in BASELINES:
        first, second = digests(two_processes, kind)
        assert first == second, kind
        start = digest(new_baseline(kind))
        assert first.keys() == start.keys()
        assert first != start  # it was trained


@pytest.mark.slow
def test_every_process_gets_the_mean_gradient(two_processes: Path) -> None:
    for rank in (0, 1):
        found = json.loads((two_processes / f"gradients-{rank}.json").read_text())
        assert found == [[1.5, 1.5], [0.0, 1.5, 3.0], None]


@pytest.mark.slow
def test_two_processes_draw_for_their_chunks_what_one_draws(two_processes: Path) -> None:
    batch = batch_of(new_baseline("oat"), 16)
    for alone, *shares in zip(
        (batch.rand(2).tolist(), batch.randint(0, 100).tolist()),
        *(json.loads((two_processes / f"drawn-{rank}.json").read_text()) for rank in (0, 1)),
        strict=True,
    ):
        assert [alone[rank::2] for rank in (0, 1)] == shares


@pytest.mark.slow
def test_two_processes_do_what_one_does(two_processes: Path) -> None:
    """Where no objective compares the chunks of a batch with each other, only the rounding differs."""
    alone = tensors(fit(TOGETHER["plain"]))
    start = replica_of(TOGETHER["plain"]).codec.state_dict()
    together = torch.load(two_processes / "plain.pt", weights_only=True)
    for name, tensor in alone.items():
        # A key's bias changes no attention: its gradient is rounding, of which Adam makes whole steps.
        atol = 1e-3 if name.endswith("key_value.bias") else 1e-4
        torch.testing.assert_close(together[name], tensor, rtol=1e-3, atol=atol, msg=name)
    moved = max(float((alone[name] - start[name]).abs().max()) for name in alone if name.startswith("decoder."))
    assert moved > 2e-3  # twenty times what all others may differ by
