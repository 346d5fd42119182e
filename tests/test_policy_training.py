"""A policy learns what it is shown, alone or shared, in one go or interrupted."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from actionpiece import cli
from actionpiece.data import open_demos
from actionpiece.errors import ActionPieceError
from actionpiece.policy.examples import Changes, Lookings, PolicyExamples, augmented
from actionpiece.policy.model import ActionPolicy
from actionpiece.policy.questions import Questions, answer_loss, read_questions
from actionpiece.policy.recipes import PolicyTrainConfig, paper
from actionpiece.policy.training import Material, batch_at, generated_commands, train_policy
from policies import INSTRUCTIONS, SIDE, demonstrations, observation, png, policy, their_logits, tokenizer

SHORT = PolicyTrainConfig(
    steps=6,
    batch=4,
    warmup=2,
    learning_rate=1e-3,
    augment=False,
    validate_every=3,
    validate_chunks=4,
    checkpoint_every=2,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demonstrations(tmp_path_factory.mktemp("demos") / "shown")


class EnoughError(Exception):
    """Somebody stopped the training."""


def lookings(folder: Path) -> Lookings:
    return Lookings.of(open_demos(folder), ["agent", "wrist"], 8)


def material(made: ActionPolicy, folder: Path, questions: Questions | None = None) -> Material:
    seen = lookings(folder)
    return Material(PolicyExamples(seen.among(range(8)), made), PolicyExamples(seen.among([8, 9]), made), questions)


def weights(made: ActionPolicy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in made.vlm.parameters()])


def test_a_look_goes_with_the_chunk_that_follows_it(data: Path) -> None:
    demos = open_demos(data)
    seen = lookings(data)
    assert [(look.episode, look.step) for look in seen.looks[:4]] == [(0, 0), (0, 4), (0, 8), (1, 0)]
    assert seen.instructions[0] == INSTRUCTIONS[0]
    assert seen.instructions[3] == INSTRUCTIONS[1]
    np.testing.assert_array_equal(seen.chunks[1], demos.episode(0)[4:12])
    np.testing.assert_array_equal(seen.chunks[2, 3], demos.episode(0)[11])
    np.testing.assert_array_equal(seen.chunks[2, 4:], np.repeat(demos.episode(0)[11:], 4, 0))  # the end is repeated
    assert len(seen.looks[0].state) == 8
    assert seen.side() == SIDE


def test_states_that_are_not_finite_are_named_before_the_training(data: Path) -> None:
    seen = lookings(data)
    state = seen.looks[4].state.copy()
    state[2] = np.nan
    looks = [*seen.looks[:4], replace(seen.looks[4], state=state), *seen.looks[5:]]
    damaged = replace(seen, looks=looks)
    with pytest.raises(ActionPieceError, match="the state at step 4 of episode 1 holds values that are not finite"):
        damaged.state_range()
    low, high = seen.state_range()
    made = policy(state=True, state_low=low, state_high=high)
    with pytest.raises(ActionPieceError, match="the state at step 4 of episode 1"):
        PolicyExamples(damaged, made)
    PolicyExamples(damaged, policy())  # who does not read it need not mind
    long = replace(seen, instructions=["lift " * 300] * len(seen))
    with pytest.raises(ActionPieceError, match="an instruction has at most 2,000 characters and 256 tokens"):
        PolicyExamples(long, policy())


def test_looks_that_mistakes_may_follow_are_refused(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "demos")
    card = tmp_path / "demos" / "actionpiece.json"
    facts = json.loads(card.read_text())
    card.write_text(json.dumps(facts | {"ahead": 8}))
    assert len(lookings(tmp_path / "demos")) == len(lookings(data))
    card.write_text(json.dumps(facts | {"ahead": 4}))
    with pytest.raises(ActionPieceError, match="demos was recorded for chunks of at most 4 steps, not 8"):
        lookings(tmp_path / "demos")
    card.write_text(json.dumps(facts | {"ahead": 0}))
    with pytest.raises(ActionPieceError, match="ahead must be a whole number of steps, at least 1, not 0"):
        lookings(tmp_path / "demos")


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("kind", "block"), [("pq", 1), ("levels", 4)])
def test_loss_and_gradients_are_those_of_hugging_faces_model(
    kind: str, block: int, recompute: bool, data: Path
) -> None:
    made = policy(kind, loud=2.0, block=block)
    examples = PolicyExamples(lookings(data).among(range(2)), made)
    index, targets = [0, 3, 5], torch.from_numpy(examples.ids[[0, 3, 5]])
    made.vlm.train()
    total, right, count = made.loss(examples.inputs(index), made.learner(recompute=recompute))
    total.backward()
    ours = {name: parameter.grad.clone() for name, parameter in made.vlm.named_parameters()}
    made.vlm.zero_grad()
    logits = their_logits(made, [examples.prompts[n] for n in index], targets, examples.pictures(index))
    theirs = F.cross_entropy(logits.flatten(0, 1), (targets + made.vocabulary.first).flatten(), reduction="sum")
    theirs.backward()
    assert count == targets.numel()
    assert int(right) == int((logits.argmax(-1) == targets + made.vocabulary.first).sum())
    torch.testing.assert_close(total, theirs, atol=1e-4, rtol=1e-5)
    for name, parameter in made.vlm.named_parameters():
        apart = float((ours[name] - parameter.grad).abs().max())
        assert apart <= 1e-3 * float(parameter.grad.abs().max()) + 1e-5, name


@pytest.mark.parametrize(("kind", "block", "steps"), [("pq", 1, 180), ("levels", 4, 150), ("fast", 1, 250)])
def test_eight_chunks_are_learned_without_an_error(kind: str, block: int, steps: int, data: Path) -> None:
    made = policy(kind, loud=1.0, block=block)
    few = lookings(data).among(range(3))
    few = Lookings(few.looks[:8], few.instructions[:8], few.chunks[:8])
    examples = PolicyExamples(few, made)
    config = replace(
        SHORT, steps=steps, batch=8, warmup=10, learning_rate=4e-3, validate_every=1000, checkpoint_every=1000
    )
    train_policy(made, Material(examples, examples), replace(config, validate_chunks=0))
    with torch.no_grad():
        _, right, count = made.loss(examples.inputs(range(8)))
    assert int(right) == count
    commands = generated_commands(made, examples.prompts, examples.pictures(range(8)))
    wanted = made.tokenizer.decode(made.tokenizer.encode(torch.from_numpy(few.chunks)))
    torch.testing.assert_close(commands, wanted)


def test_an_interrupted_run_ends_like_one_that_was_not(data: Path, tmp_path: Path) -> None:
    whole, broken = policy(), policy()
    train_policy(whole, material(whole, data), SHORT, folder=tmp_path / "whole")

    def stop(fraction: float, what: str) -> None:
        if fraction > 0.7:
            raise EnoughError

    with pytest.raises(EnoughError):
        train_policy(broken, material(broken, data), SHORT, folder=tmp_path / "run", progress=stop)
    again = policy(seed=5)  # whatever it was, it goes on from the checkpoint
    train_policy(again, material(again, data), SHORT, folder=tmp_path / "run", resume=True)
    assert torch.equal(weights(whole), weights(again))
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert steps == [2, 3, 4, 6]
    last = json.loads((tmp_path / "whole" / "log.jsonl").read_text().splitlines()[-1])
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "val_translation_mm", "val_rotation_deg"} <= set(last)
    other = policy()
    changed = replace(SHORT, learning_rate=2e-3)
    with pytest.raises(ActionPieceError, match="another run: it has another config;"):
        train_policy(other, material(other, data), changed, folder=tmp_path / "run", resume=True)
    fewer = Material(material(other, data).validation, material(other, data).validation)
    with pytest.raises(ActionPieceError, match="another run: it has another examples;"):
        train_policy(other, fewer, SHORT, folder=tmp_path / "run", resume=True)
    blocks = policy(block=2)
    with pytest.raises(ActionPieceError, match="another run: it has another policy;"):
        train_policy(blocks, material(blocks, data), SHORT, folder=tmp_path / "run", resume=True)
    with pytest.raises(ActionPieceError, match="another run: it has another precision;"):
        train_policy(other, material(other, data), SHORT, folder=tmp_path / "run", resume=True, precision="float32")
    with pytest.raises(ActionPieceError, match="no checkpoint"):
        train_policy(other, material(other, data), SHORT, folder=tmp_path / "none", resume=True)


def test_a_checkpoint_whose_metadata_is_damaged_is_said(data: Path, tmp_path: Path) -> None:
    made = policy()
    train_policy(made, material(made, data), replace(SHORT, steps=1), folder=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    tensors = load_file(path)
    for metadata in ("{", '{"about": {}}', '{"about": 3, "step": 1}', "[]"):
        save_file(tensors, path, metadata={"json": metadata})
        with pytest.raises(ActionPieceError, match=r"checkpoint\.safetensors is not a whole checkpoint of this policy"):
            train_policy(made, material(made, data), replace(SHORT, steps=2), folder=tmp_path, resume=True)


def test_a_loss_that_is_not_finite_stops_training_and_the_checkpoint_stays(data: Path, tmp_path: Path) -> None:
    made = policy()
    train_policy(made, material(made, data), replace(SHORT, steps=2), folder=tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    broken = policy(seed=4)

    def breaks(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.nan

    handles = []

    def later(fraction: float, what: str) -> None:  # after the first checkpoint the gradient alone is broken
        if not handles:
            handles.append(broken.vlm.model.language_model.norm.weight.register_hook(breaks))

    longer = replace(SHORT, checkpoint_every=2, validate_every=100)
    with pytest.raises(ActionPieceError, match="not finite at step 4"):
        train_policy(broken, material(broken, data), longer, folder=tmp_path, progress=later)
    with safe_open(tmp_path / "checkpoint.safetensors", "pt") as file:
        assert json.loads(file.metadata()["json"])["step"] == 2
        assert all(bool(torch.isfinite(file.get_tensor(name)).all()) for name in file.keys())  # noqa: SIM118
    assert (tmp_path / "checkpoint.safetensors").read_bytes() != before


def test_an_old_checkpoint_is_not_taken_for_that_of_a_new_run(data: Path, tmp_path: Path) -> None:
    made = policy()
    train_policy(made, material(made, data), SHORT, folder=tmp_path)

    def stop(fraction: float, what: str) -> None:
        raise EnoughError

    again = policy(seed=1)
    with pytest.raises(EnoughError):
        train_policy(again, material(again, data), replace(SHORT, checkpoint_every=5), folder=tmp_path, progress=stop)
    with pytest.raises(ActionPieceError, match="no checkpoint"):
        train_policy(again, material(again, data), replace(SHORT, checkpoint_every=5), folder=tmp_path, resume=True)


def test_a_policy_trained_in_bfloat16_answers_the_same_after_saving(data: Path, tmp_path: Path) -> None:
    made = policy()
    train_policy(made, material(made, data), replace(SHORT, steps=2), precision="bf16")
    assert made.vlm.dtype == torch.bfloat16
    made.save(tmp_path / "policy")
    again = ActionPolicy.load(tmp_path / "policy")
    batch = made.read([observation(0), observation(1)])
    torch.testing.assert_close(made.generate(batch).log_probs, again.generate(batch).log_probs, rtol=0, atol=0)


def test_batches_go_through_all_examples_and_depend_on_seed_and_step_alone() -> None:
    epoch = [n for step in range(5) for n in batch_at(20, 4, step, 0)]
    assert sorted(epoch) == list(range(20))
    assert [n for step in range(5, 10) for n in batch_at(20, 4, step, 0)] != epoch  # the next round has its own order
    assert sorted(batch_at(3, 6, 0, 0)) == [0, 0, 1, 1, 2, 2]  # a batch may be larger than the data
    assert batch_at(20, 4, 7, 1) == batch_at(20, 4, 7, 1)
    assert batch_at(20, 4, 7, 1) != batch_at(20, 4, 7, 2)


def test_pictures_are_moved_and_lit_a_little_and_the_seed_decides_how() -> None:
    rng = np.random.default_rng(0)
    picture = torch.from_numpy(
        np.kron(rng.integers(0, 255, (2, 2, 8, 8, 3), np.uint8), np.ones((1, 1, 4, 4, 1), np.uint8))
    )
    once = augmented(picture, Changes.draw(4, 0))
    assert once.shape == picture.shape
    assert once.dtype == torch.uint8
    assert torch.equal(once, augmented(picture, Changes.draw(4, 0)))
    halves = [augmented(picture[n : n + 1], Changes.draw(4, 0).part(n, 2)) for n in range(2)]
    assert torch.equal(once, torch.cat(halves))
    other = augmented(picture, Changes.draw(4, 1))
    assert not torch.equal(once, other)
    assert 5 < float((once.float() - picture.float()).abs().mean()) < 60
    flat = torch.full((1, 1, 32, 32, 3), 100, dtype=torch.uint8)
    lit = augmented(flat, Changes.draw(1, 0)).float()
    assert 79 <= float(lit.min()) <= float(lit.max()) <= 121


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    (tmp_path / "red.png").write_bytes(png(np.full((SIDE, SIDE, 3), (255, 0, 0), np.uint8)))
    (tmp_path / "blue.png").write_bytes(png(np.full((SIDE, SIDE, 3), (0, 0, 255), np.uint8)))
    lines = [{"image": f"{c}.png", "question": "What colour is it?", "answer": f"It is {c}."} for c in ("red", "blue")]
    (tmp_path / "vqa.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path / "vqa.jsonl"


def test_answers_are_learned_beside_actions_with_their_weight(data: Path, questions: Path) -> None:
    config = replace(
        SHORT, steps=60, batch=8, cotrain_batch=2, learning_rate=4e-3, validate_chunks=0, cotrain_weight=1.0
    )

    def after(weight: float) -> float:
        made = policy(loud=1.0)
        asked = Questions(read_questions(questions), made)
        train_policy(made, material(made, data, asked), replace(config, cotrain_weight=weight))
        inputs = asked.inputs([0, 1])
        assert sorted((inputs["targets"] >= 0).sum(1).tolist()) == sorted(
            len(asked.prompter.plain(f"It is {c}.")) + 1 for c in ("red", "blue")
        )
        with torch.no_grad():
            return float(answer_loss(made.learner(), inputs)) / int((inputs["targets"] >= 0).sum())

    assert after(1.0) < 0.2 < 2.0 < after(0.0)


def test_lines_that_are_no_questions_are_named(questions: Path) -> None:
    for line, said in (
        ("{", "line 3 is no image"),
        ('{"image": "red.png", "question": "q"}', "line 3 is no image"),
        ('{"image": "red.png", "question": "q", "answer": ""}', "must be texts"),
        ('{"image": "green.png", "question": "q", "answer": "a"}', "does not exist"),
        ('{"image": "vqa.jsonl", "question": "q", "answer": "a"}', r"vqa\.jsonl cannot be decoded: it is no picture"),
        ('{"image": "red.png", "question": "\\ud800", "answer": "a"}', "line 3 cannot be written as UTF-8"),
    ):
        bad = questions.with_name("bad.jsonl")
        bad.write_text(questions.read_text() + "\n" + line)
        with pytest.raises(ActionPieceError, match=said):
            read_questions(bad)


def test_the_papers_recipe_is_what_the_paper_says() -> None:
    config = paper()
    assert (config.steps, config.batch, config.learning_rate, config.warmup) == (30_000, 128, 1e-5, 5000)
    assert (config.beta1, config.beta2, config.weight_decay, config.clip) == (0.9, 0.95, 1e-8, 1.0)
    assert config.cotrain_weight == 0.1
    assert config.rate_at(4999) == pytest.approx(1e-5)
    assert config.rate_at(30_000) == pytest.approx(1e-6)
    with pytest.raises(ActionPieceError, match="must be at least 1"):
        PolicyTrainConfig(steps=0)


def run(arguments: list[str]) -> None:
    cli.run(arguments)


def command(data: Path, out: Path, *more: str) -> list[str]:
    settings = {"vlm": "tiny", "steps": 4, "batch": 8, "warmup": 1, "validate-every": 4, "checkpoint-every": 2}
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    flags += ["--validate-chunks", "2"]
    tokens = out.parent / "tokens"
    if not tokens.exists():
        tokenizer().save_pretrained(tokens)
    return ["policy", "train", "--data", str(data), "--tokenizer", str(tokens), "--out", str(out), *flags, *more]


def test_the_command_trains_and_saves_what_rollouts_load(data: Path, tmp_path: Path, capsys: Any) -> None:
    run(command(data, tmp_path / "policy", "--state"))
    said = capsys.readouterr().out
    assert "saved in" in said
    assert "actionpiece rollout --policy" in said
    made = ActionPolicy.load(tmp_path / "policy")
    assert made.config.views == ("image", "wrist_image")
    assert made.config.side == SIDE
    assert made.config.state
    made.warm_up()  # by a question with pictures and a state
    assert (tmp_path / "policy.run" / "checkpoint.safetensors").is_file()
    for wrong, said in (
        (["--cameras", "front"], "no camera 'front'"),
        (["--recipe", "fast"], "there is no recipe"),
        (["--questions", str(tmp_path / "none.jsonl")], "not readable"),
    ):
        with pytest.raises(ActionPieceError, match=said):
            run(command(data, tmp_path / "other", *wrong))
    with pytest.raises(ActionPieceError, match="holds no pictures"):
        run(command(Path("recorded"), tmp_path / "other"))
    with pytest.raises(ActionPieceError, match="holds a policy already; --overwrite replaces it"):
        run(command(tmp_path / "none", tmp_path / "policy"))
    (tmp_path / "policy").rename(tmp_path / "moved")
    with pytest.raises(ActionPieceError, match=r"policy\.run holds an interrupted training: --resume"):
        run(command(tmp_path / "none", tmp_path / "policy"))
    (tmp_path / "moved").rename(tmp_path / "policy")
    (tmp_path / "policy" / "notes.txt").write_text("do not touch")
    with pytest.raises(ActionPieceError, match=r"also holds notes\.txt"):  # before the data are looked for
        run(command(tmp_path / "none", tmp_path / "policy"))


def test_two_processes_train_like_one_at_the_same_batch(data: Path, tmp_path: Path) -> None:
    more: list[str] = []
    run(command(data, tmp_path / "one", *more))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_addr=127.0.0.1", f"--master_port={port}"]
    arguments = [sys.executable, *launch, "-m", "actionpiece", *command(data, tmp_path / "two", *more)]
    with (tmp_path / "said").open("w") as said:
        torchrun = subprocess.Popen(arguments, env=environment, stdout=said, stderr=said)
    try:
        assert torchrun.wait(120) == 0, (tmp_path / "said").read_text()[-3000:]
    finally:
        torchrun.terminate()  # it ends its processes when it is asked to, not when it is killed
        torchrun.wait(60)
    one, two = (ActionPolicy.load(tmp_path / name) for name in ("one", "two"))
    torch.testing.assert_close(weights(one), weights(two), atol=3e-5, rtol=1e-3)  # Adam enlarges rounding
    logs = [
        [json.loads(line) for line in (tmp_path / f"{name}.run" / "log.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert len(logs[0]) == len(logs[1]) == 2
    for one_line, two_line in zip(*logs, strict=True):
        for name in ("loss", "accuracy", "gradient"):
            assert one_line[name] == pytest.approx(two_line[name], rel=1e-3), name
    assert logs[0][-1]["val_loss"] == pytest.approx(logs[1][-1]["val_loss"], rel=1e-3)
