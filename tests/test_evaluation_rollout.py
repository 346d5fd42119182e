"""Rollouts of policies in the real simulator: paired starts, crashes apart from failures, restartable."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from actionpiece import ActionPieceError
from actionpiece.cli import run
from actionpiece.evaluation.rollout import (
    Rollout,
    load_policy,
    paired,
    read_other,
    rollout,
    start_seed,
    summary,
    tokenizer_of,
)
from actionpiece.evaluation.rollout import run as run_one
from actionpiece.sim.rendering import choose_backend
from actionpiece.sim.tasks import TASKS

pytest.importorskip("robosuite")

POLICIES = '''
from __future__ import annotations
from dataclasses import dataclass
import numpy as np

class Reach:
    """Closed loop by what it is shown: goes down where it stands, closes the fingers, goes up."""
    def reset(self):
        self.calls = 0
    def act(self, observation):
        assert observation["prompt"] and observation["observation/state"].shape == (8,)
        assert "observation/image" not in observation
        self.calls += 1
        chunk = np.zeros((8, 7), np.float32)
        chunk[:, 2] = 0.5 if self.calls > 3 else -0.5
        chunk[:, 6] = 1 if self.calls > 2 else -1
        return chunk
    def cost(self):
        return self.calls

class Broken:
    def act(self, observation):
        raise ValueError("no idea")

class Wrong:
    def act(self, observation):
        return np.zeros((8, 6))

class Looks:
    def act(self, observation):
        picture = observation["observation/image"]
        assert picture.shape == (64, 64, 3) and picture.dtype == np.uint8 and picture.std() > 10
        assert observation["observation/wrist_image"].shape == (64, 64, 3)
        return np.zeros((60, 7), np.float32)

class NoPolicy:
    pass

@dataclass
class Picky:
    patience: float = 1.0
    def __post_init__(self):
        raise OSError("no weights")
'''


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies") / "mine.py"
    path.write_text(POLICIES)
    return path


def test_an_episode_says_all_of_itself_and_is_the_same_each_time(policies: Path) -> None:
    job = Rollout(f"{policies}:Reach", "lift", 3, 1, execute=5, size=0)
    line = run_one(job)
    assert job.facts == {"task": "lift", "category": "robosuite", "seed": 3, "repeat": 1}
    assert line["instruction"] in TASKS["lift"].instructions
    assert line["steps"] == 150
    assert line["calls"] == line["cost"] == 30
    assert line["success"] is False
    assert run_one(job) | {"seconds": 0} == line | {"seconds": 0}


def test_rollouts_are_kept_and_go_on_and_crashes_are_errors(policies: Path, tmp_path: Path) -> None:
    settings = {"tasks": ("lift",), "episodes": 2, "size": 0, "execute": 50, "workers": 2}
    lines = rollout(f"{policies}:Reach", out=tmp_path / "a", **settings)  # type: ignore[arg-type]
    assert [line["seed"] for line in lines] == [start_seed(7, "lift", 0), start_seed(7, "lift", 1)]
    before = (tmp_path / "a" / "episodes.jsonl").read_text()
    rollout(f"{policies}:Reach", out=tmp_path / "a", **settings)  # type: ignore[arg-type]
    assert (tmp_path / "a" / "episodes.jsonl").read_text() == before
    broken = rollout(f"{policies}:Broken", out=tmp_path / "b", **settings)  # type: ignore[arg-type]
    assert all(line["error"] == "ValueError: no idea" and "success" not in line for line in broken)
    assert broken[0] | {"traceback": ""} == {
        "key": f"lift seed {lines[0]['seed']} repeat 0",
        "task": "lift",
        "category": "robosuite",
        "seed": lines[0]["seed"],
        "repeat": 0,
        "error": "ValueError: no idea",
        "traceback": "",
    }
    results = summary([*lines, *broken])
    assert results["errors"] == 2
    assert results["overall"]["episodes"] == 2
    assert results["tasks"]["lift"] == results["categories"]["robosuite"] == results["overall"]
    with pytest.raises(ActionPieceError, match="no finished start in common"):
        paired(lines, broken)


def test_pictures_and_videos(policies: Path, tmp_path: Path) -> None:
    from PIL import Image

    try:
        choose_backend()
    except ActionPieceError as error:
        pytest.skip(str(error))
    job = Rollout(f"{policies}:Looks", "lift", 0, 0, execute=60, size=64, video="failures", folder=tmp_path)
    line = run_one(job)
    assert line["calls"] == 3
    with Image.open(tmp_path / line["video"]) as gif:
        assert gif.size == (64, 64)
        assert gif.n_frames >= 2


def test_an_answer_that_is_no_chunk_is_an_error(policies: Path) -> None:
    with pytest.raises(ActionPieceError, match=r"answered with \(8, 6\)"):
        run_one(Rollout(f"{policies}:Wrong", "lift", 0, 0, execute=8, size=0))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("nothing", "names no policy"),
        ("missing.py:Reach", "does not exist"),
        ("no.such.module:Reach", "cannot be loaded"),
        ("{file}:Nothing", "cannot be loaded"),
        ("{file}:NoPolicy", "has no act"),
        ("{file}:Picky", "OSError: no weights"),
        ("{broken}:Reach", "SyntaxError"),
    ],
)
def test_a_policy_that_is_none_is_said(policies: Path, text: str, what: str) -> None:
    broken = policies.with_name("broken.py")
    broken.write_text("def make(:")
    with pytest.raises(ActionPieceError, match=what):
        load_policy(text.format(file=policies, broken=broken))


def test_paired_tests_take_the_starts_both_have() -> None:
    first = [{"key": str(k), "success": True} for k in range(6)]
    second = [{"key": str(k), "success": False} for k in range(5)] + [{"key": "5", "error": "x"}]
    assert paired(first, second) == {"starts": 5, "both": 0, "only_first": 5, "only_second": 0, "p": 0.0625}


def test_only_a_rollout_can_be_paired_with_and_it_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    with pytest.raises(ActionPieceError, match="holds no rollout"):
        read_other(tmp_path)
    good = {"key": "a", "success": True}
    file.write_text(json.dumps(good) + "\n" + '{"key": "b", "succ')  # it is under way
    before = file.read_bytes()
    assert read_other(tmp_path) == [good]
    assert file.read_bytes() == before
    file.write_text(json.dumps({"key": "a", "raw": {}}) + "\n")  # a replay's
    with pytest.raises(ActionPieceError, match="do not say whether they succeeded"):
        read_other(tmp_path)


def test_the_command_prints_and_writes(
    policies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--policy", f"{policies}:Reach", "--env", "lift", "--episodes", "1", "--size", "0", "--workers", "1"]
    run(["rollout", *flags, "--out", str(tmp_path / "a")])
    out = capsys.readouterr().out
    assert "0 of 1" in out
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    assert results["overall"]["episodes"] == 1
    run(["rollout", *flags, "--out", str(tmp_path / "a"), "--against", str(tmp_path / "a"), "--json"])
    assert json.loads(capsys.readouterr().out)["against"]["p"] == 1.0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "episodes.jsonl").write_text('{"key": "another start", "success": true}\n')
    (tmp_path / "a" / "results.json").unlink()
    with pytest.raises(ActionPieceError, match="no finished start in common"):
        run(["rollout", *flags, "--out", str(tmp_path / "a"), "--against", str(elsewhere)])
    assert "0 of 1" in capsys.readouterr().out  # what there is is shown and kept all the same
    assert (tmp_path / "a" / "results.json").is_file()
    with pytest.raises(ActionPieceError, match="another execute"):
        run(["rollout", *flags, "--out", str(tmp_path / "a"), "--execute", "4"])
    with pytest.raises(ActionPieceError, match="no task 'fly'"):
        run(["rollout", "--policy", f"{policies}:Reach", "--env", "fly", "--out", str(tmp_path / "b")])
    with pytest.raises(ActionPieceError, match="size must be at least 0"):
        run(["rollout", *flags, "--out", str(tmp_path / "b"), "--size", "-4"])
    with pytest.raises(ActionPieceError, match=r"1 episodes crashed and are not counted, the first \(lift seed"):
        run(["rollout", *flags, "--out", str(tmp_path / "d"), "--policy", f"{policies}:Broken"])
    assert json.loads((tmp_path / "d" / "results.json").read_text())["errors"] == 1
    with pytest.raises(ActionPieceError, match="as published are LIBERO's"):
        run(["rollout", *flags, "--out", str(tmp_path / "b"), "--published"])
    with pytest.raises(ActionPieceError, match="a video needs pictures"):
        run(["rollout", *flags, "--out", str(tmp_path / "c"), "--video", "all"])
    assert not (tmp_path / "b").exists()  # a mistake leaves nothing behind
    assert not (tmp_path / "c").exists()


def test_starts_of_a_task_differ_and_depend_on_the_seed() -> None:
    seeds = [start_seed(7, "lift", k) for k in range(50)]
    assert len(set(seeds)) == 50
    assert start_seed(8, "lift", 0) not in seeds
    assert start_seed(7, "stack", 0) not in seeds
    assert [start_seed(7, "libero_object/0", k) for k in range(3)] == [0, 1, 2]
    assert max(seeds) < 2**32  # what numpy takes


def test_libero_has_no_more_starts_than_it_has(policies: Path, tmp_path: Path) -> None:
    with pytest.raises(ActionPieceError, match="LIBERO's tasks have 50 starts, not 51; `repeats` runs a policy again"):
        rollout(f"{policies}:Reach", ["libero_object/0"], tmp_path / "out", episodes=51)


def test_a_policy_that_was_trained_anew_is_loaded_anew(tmp_path: Path) -> None:
    from policies import policy

    policy(loud=2.0).save(tmp_path / "policy")
    first = load_policy(str(tmp_path / "policy"))
    assert load_policy(str(tmp_path / "policy")) is first
    other = policy(loud=1.0)
    other.save(tmp_path / "policy")
    assert load_policy(str(tmp_path / "policy")) is not first
    assert tokenizer_of(str(tmp_path / "policy")) == other.tokenizer.fingerprint()
    assert tokenizer_of("mine.py:make") is None


@pytest.mark.slow
def test_a_policys_folder_is_loaded_once_and_answers_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actionpiece.policy import server
    from actionpiece.policy.client import TOKEN
    from actionpiece.policy.model import ActionPolicy
    from policies import policy

    policy(loud=2.0).save(tmp_path / "policy")
    served: list[tuple[int, str | None]] = []
    looks: list[bytes] = []
    stop, act = server.PolicyServer.stop, ActionPolicy.act_batch

    def remember(self: ActionPolicy, observations: Any) -> Any:
        given = act(self, observations)
        for seen, answer in zip(observations, given, strict=True):
            looks.append(seen["observation/image"].tobytes())
            assert answer["actions"].shape == (8, 7)
        return given

    monkeypatch.setattr(ActionPolicy, "act_batch", remember)

    def count(self: server.PolicyServer) -> None:
        served.append((self.status.answered, self.config.token))
        stop(self)

    monkeypatch.setattr(server.PolicyServer, "stop", count)
    monkeypatch.setenv(TOKEN, "another server's")

    def lines(workers: int) -> list[tuple[Any, ...]]:
        out = tmp_path / f"by {workers}"
        done = rollout(str(tmp_path / "policy"), ["lift"], out, episodes=2, size=32, workers=workers)
        return [(line["key"], line["success"], line["steps"], line["calls"]) for line in done]

    one = lines(1)
    assert len(set(looks)) > 4  # of two episodes in which the arm moves
    looks.clear()
    assert lines(2) == one
    assert len(set(looks)) > 4
    assert [answered for answered, _ in served] == [sum(line[3] for line in one)] * 2
    assert served[0][1] not in (None, served[1][1])  # a secret of each run
    assert os.environ[TOKEN] == "another server's"
