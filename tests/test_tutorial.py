"""Every command of the tutorial works, with smaller numbers."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from actionpiece import cli
from actionpiece.errors import ActionPieceError

for extra in ("transformers", "accelerate", "robosuite", "websockets", "msgpack"):
    pytest.importorskip(extra, reason="needs the extras 'policy', 'sim' and 'serve'")

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
#: What the tutorial says, and what is done here instead.
SMALLER = {"--episodes": {"record": "4"}, "--size": {"": "32"}, "--vlm": {"": "tiny"}, "--device": {"": "cpu"}}
MORE = {
    "fit": ["--tokens", "4", "--codes", "16", "--refine", "1"],
    "eval": ["--n", "60"],
    "train": ["--steps", "2", "--batch", "4", "--warmup", "1", "--validate-chunks", "2"],
}


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert all(line.startswith("actionpiece ") for line in lines)
    return [shlex.split(line)[1:] for line in lines]


def smaller(command: list[str], port: int) -> list[str]:
    verb = command[1] if command[0] == "policy" else command[0]
    out = [word.replace("8000", str(port)) for word in command]
    for at, word in enumerate(out[:-1]):
        values = SMALLER.get(word, {})
        out[at + 1] = values.get(verb, values.get("", "1" if word == "--episodes" else out[at + 1]))
    return out + MORE.get(verb, [])


def test_the_commands_are_those_that_the_tutorial_is_about() -> None:
    verbs = [" ".join(command[:2]) if command[0] == "policy" else command[0] for command in commands()]
    assert verbs == ["record", "data", "fit", "eval", "replay", "policy train", "rollout", "policy serve", "rollout"]


@pytest.mark.slow
def test_every_command_of_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from actionpiece.sim.rendering import choose_backend

    try:
        choose_backend()
    except ActionPieceError as error:
        pytest.skip(f"no pictures without a screen here: {error}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = None
    try:
        for command in commands():
            arguments = smaller(command, port)
            if command[:2] == ["policy", "serve"]:
                server = subprocess.Popen([sys.executable, "-m", "actionpiece", *arguments], env=os.environ.copy())
                wait_for(port)
            else:
                cli.run(arguments)
    finally:
        if server is not None:
            server.terminate()
            assert server.wait(30) == 0
    for folder in ("rollouts", "served"):
        lines = [json.loads(line) for line in (tmp_path / folder / "episodes.jsonl").read_text().splitlines()]
        assert len(lines) == 1
        assert "error" not in lines[0], lines[0]
        assert lines[0]["calls"] >= 1
    # The same policy, the same start: here and behind the socket it does the same.
    keys = ("key", "success", "steps", "calls")
    first, second = (
        json.loads((tmp_path / f / "episodes.jsonl").read_text().splitlines()[0]) for f in ("rollouts", "served")
    )
    assert {k: first[k] for k in keys} == {k: second[k] for k in keys}


def wait_for(port: int) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1) as answer:
                assert answer.status == 200
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError("the server did not start")
