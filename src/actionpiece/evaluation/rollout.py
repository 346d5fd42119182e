"""Rollouts: a policy looks, answers with a chunk of commands, some of them are executed, and it looks again.

A policy is anything with `act(observation) -> (H, 7) commands`. The observation has the names that openpi's LIBERO
clients use, so that a policy that is served elsewhere understands it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.episodes import Journal, Progress, claim, environment, read_lines, run_episodes
from actionpiece.files import read_json, sha256_of
from actionpiece.makers import make, names_maker
from actionpiece.metrics.success import Paired, rate
from actionpiece.sim.libero_tasks import PROTOCOL

Video = Literal["none", "failures", "all"]


class Policy(Protocol):
    """What answers. It may also have `reset()`, called before an episode, and `cost()`, asked for after it."""

    def act(self, observation: dict[str, Any]) -> np.ndarray:
        """Commands (H, 7) for an observation.

        `prompt`: the instruction; `observation/state`: (8,) float32, position, axis-angle, two finger joints;
        `observation/image` and `observation/wrist_image`: (size, size, 3) uint8, upright, unless pictures are off.
        """
        ...


@dataclass(frozen=True)
class Rollout:
    """One episode of a policy.

    policy: what a worker loads. execute: commands of a chunk that are executed before it looks again.
    size: of the pictures it is shown, in pixels; 0: none. published: show LIBERO's as published policies see them.
    video: a GIF is kept of such episodes, in `folder`.
    """

    policy: str
    task: str
    seed: int
    repeat: int
    execute: int
    size: int
    published: bool = False
    video: Video = "none"
    folder: Path | None = None

    @property
    def key(self) -> str:
        """Names the episode; another policy has a journal of its own."""
        return f"{self.task} seed {self.seed} repeat {self.repeat}"

    @property
    def facts(self) -> dict[str, Any]:
        """See `episodes.Job`."""
        category = self.task.split("/")[0] if "/" in self.task else "robosuite"
        return {"task": self.task, "category": category, "seed": self.seed, "repeat": self.repeat}


def load_policy(text: str) -> Policy:
    """A policy from the folder of a trained one, or from `package.module:maker` or `path/to/file.py:maker`, where
    maker() makes one; once per process. Or a server that speaks openpi's protocol, by its address: ws://host:port.
    """
    return _load(text, weights_of(text))


def weights_of(policy: str) -> str | None:
    """The hash of a policy folder's weights: one that was trained anew is another one, by whatever name."""
    weights = _facts(policy).get("weights")
    return None if weights is None else str(weights)


def tokenizer_of(policy: str) -> str | None:
    """The fingerprint of the tokenizer whose ids a policy's folder predicts; None for others."""
    found = _facts(policy).get("vocabulary", {}).get("fingerprint")
    return None if found is None else str(found)


def picture_size(policy: str) -> int:
    """The side of the pictures that a policy's folder was trained with; 128 for others."""
    return int(_facts(policy).get("config", {}).get("side", 128))


def _facts(policy: str) -> dict[str, Any]:
    """What a policy's folder says of itself; nothing for others."""
    if (Path(policy) / "config.json").is_file() and not (Path(policy) / "policy.json").exists():
        raise ActionPieceError(f"{policy} holds a tokenizer, not a policy; `actionpiece policy train` makes one")
    facts = read_json(Path(policy) / "policy.json") if Path(policy).is_dir() else {}
    return facts if isinstance(facts, dict) else {}


@functools.cache
def _load(text: str, weights: str | None) -> Policy:
    if text.startswith(("ws://", "wss://")):
        from actionpiece.policy.client import RemotePolicy

        return RemotePolicy(text)
    if Path(text).is_dir():
        import torch

        from actionpiece.policy.model import ActionPolicy

        # What a server or a rollout waits for is reading the weights: half as wide is twice as fast.
        on_gpu = torch.cuda.is_available()
        return ActionPolicy.load(
            text, device="cuda" if on_gpu else "cpu", dtype=torch.bfloat16 if on_gpu else torch.float32
        )
    if not names_maker(text):
        raise ActionPieceError(
            f"'{text}' names no policy: give its folder, package.module:maker, path/to/file.py:maker or ws://host:port"
        )
    policy = make(text, "policy")
    if not callable(getattr(policy, "act", None)):
        raise ActionPieceError(f"what '{text}' makes has no act(observation), so it is no policy")
    answer: Policy = policy
    return answer


def rollout(
    policy: str,
    tasks: Sequence[str],
    out: Path,
    *,
    episodes: int,
    repeats: int = 1,
    seed: int = 7,
    execute: int = 8,
    size: int = 128,
    published: bool = False,
    video: Video = "none",
    workers: int = 2,
    progress: Progress = lambda fraction, what: None,
) -> list[dict[str, Any]]:
    """Run a policy `repeats` times from `episodes` starts of each task; a line for each, kept in OUT/episodes.jsonl.

    The starts depend on seed and task alone, so that policies meet the same ones. Run it again to go on.
    published: for LIBERO's tasks, pictures of the published size and orientation, whatever `size` says.
    """
    from actionpiece.sim.libero_tasks import is_libero
    from actionpiece.sim.make import task as find

    for name, value, least in (
        ("episodes", episodes, 1),
        ("repeats", repeats, 1),
        ("execute", execute, 1),
        ("size", size, 0),
        ("workers", workers, 1),
    ):
        if value < least:
            raise ActionPieceError(f"{name} must be at least {least}, not {value}")
    names = [find(task).name for task in tasks]
    if episodes > PROTOCOL.trials and any(map(is_libero, names)):
        raise ActionPieceError(
            f"LIBERO's tasks have {PROTOCOL.trials} starts, not {episodes}; `repeats` runs a policy again from each"
        )
    if published and not all(map(is_libero, names)):
        raise ActionPieceError("pictures as published are LIBERO's; robosuite's own tasks have none")
    loaded = load_policy(policy)  # a mistake in its name is better known now
    settings = {"policy": policy, "execute": execute, "size": size, "published": published, "seed": seed}
    if Path(policy).is_dir():
        settings["weights"] = weights_of(policy)
    elif Path(file := policy.rpartition(":")[0]).is_file():
        settings["code"] = sha256_of([Path(file)])  # what it imports is not known here
    elif said := getattr(loaded, "metadata", None):  # another policy may be served there later
        settings["server"] = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
    claim(out, settings)
    with asked_for(policy, workers) as name:
        jobs = [
            Rollout(name, task, start_seed(seed, task, k), repeat, execute, size, published, video, out)
            for task in names
            for k in range(episodes)
            for repeat in range(repeats)
        ]
        return run_episodes(jobs, run, journal=Journal(out / "episodes.jsonl"), workers=workers, progress=progress)


@contextlib.contextmanager
def asked_for(policy: str, workers: int) -> Iterator[str]:
    """What workers load to ask a policy. That of a folder is served to them by this process, until the block ends.

    So its weights are in memory once, however many simulators there are, and those who wait are answered together. With
    whom rounds the last bits differently: in bfloat16 another run may see a token of two equals chosen otherwise.
    """
    if not Path(policy).is_dir():
        yield policy
        return
    from actionpiece.policy.client import TOKEN
    from actionpiece.policy.server import PolicyServer, ServerConfig

    before, token = os.environ.get(TOKEN), secrets.token_hex(16)
    config = ServerConfig(port=0, token=token, max_clients=2 * workers, max_batch=workers)
    try:
        os.environ[TOKEN] = token  # workers inherit it
        with PolicyServer(load_policy(policy), config) as server:
            yield server.uri
    finally:
        os.environ.pop(TOKEN)
        if before is not None:
            os.environ[TOKEN] = before


def start_seed(seed: int, task: str, number: int) -> int:
    """The seed of a start. LIBERO's initial states are counted through, as its protocol does; others are drawn."""
    if task.startswith("libero"):
        return number
    base = int.from_bytes(hashlib.sha256(f"rollout {seed} {task}".encode()).digest()[:4], "big")
    return (base + number) % 2**32


def run(job: Rollout) -> dict[str, Any]:
    """One episode, in a worker."""
    began = time.perf_counter()
    env = environment(job.task, cameras=PROTOCOL.render if job.published else job.size)
    policy = load_policy(job.policy)
    if hasattr(policy, "reset"):
        policy.reset()
    env.reset(job.seed)
    instructions = env.task.instructions
    instruction = instructions[job.repeat % len(instructions)]
    frames: list[np.ndarray] = []
    steps, calls, success = 0, 0, False
    while steps < env.task.max_steps and not success:
        observation = observe(env, instruction, job.size, published=job.published)
        if job.video != "none" and "observation/image" in observation:
            frames.append(observation["observation/image"])
        chunk = np.asarray(policy.act(observation), np.float32)
        if chunk.ndim != 2 or chunk.shape[1] != 7 or not len(chunk) or not np.isfinite(chunk).all():
            raise ActionPieceError(f"the policy answered with {chunk.shape}, not with finite commands (H, 7)")
        calls += 1
        for command in chunk[: job.execute]:
            env.step(command)
            steps += 1
            success = env.success
            if success or steps >= env.task.max_steps:
                break
    line: dict[str, Any] = {
        "instruction": instruction,
        "success": success,
        "steps": steps,
        "calls": calls,
        "cost": float(policy.cost()) if hasattr(policy, "cost") else None,
        "seconds": round(time.perf_counter() - began, 3),
    }
    if frames and job.folder is not None and (job.video == "all" or not success):
        frames.append(observe(env, instruction, job.size, published=job.published)["observation/image"])
        line["video"] = save_gif(job.folder / "videos" / f"{job.key.replace('/', '.').replace(' ', '-')}.gif", frames)
    return line


def observe(env: Any, instruction: str, size: int, *, published: bool = False) -> dict[str, Any]:
    """What a policy is shown."""
    observation: dict[str, Any] = {"prompt": instruction, "observation/state": env.state}
    if size or published:
        for name, camera in (("image", "agent"), ("wrist_image", "wrist")):
            picture = env.published_picture(camera) if published else env.picture(camera, size)
            observation[f"observation/{name}"] = picture
    return observation


def save_gif(path: Path, frames: Sequence[np.ndarray]) -> str:
    """Write pictures as a GIF, one for each look of the policy; returns its name beside the journal."""
    from PIL import Image

    from actionpiece.files import writing

    pictures = [Image.fromarray(frame) for frame in frames]
    with writing(path) as aside:
        pictures[0].save(aside, "gif", save_all=True, append_images=pictures[1:], duration=200, loop=0)
    return f"{path.parent.name}/{path.name}"


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rates with intervals, over all episodes, by category and by task; crashed episodes are counted apart."""
    good = [line for line in lines if "error" not in line]
    results: dict[str, Any] = {"errors": len(lines) - len(good), "overall": None, "categories": {}, "tasks": {}}
    if good:
        results["overall"] = rate([line["success"] for line in good])
        for group, key in (("categories", "category"), ("tasks", "task")):
            for value in dict.fromkeys(line[key] for line in good):
                results[group][value] = rate([line["success"] for line in good if line[key] == value])
        results["mean_steps"] = float(np.mean([line["steps"] for line in good]))
        costs = [line["cost"] for line in good if line["cost"] is not None]
        results["mean_cost"] = float(np.mean(costs)) if costs else None
    return results


def read_other(folder: Path) -> list[dict[str, Any]]:
    """The lines of another policy's rollout, to be paired with. It may be under way: its file is only read."""
    file = folder / "episodes.jsonl"
    if not file.is_file():
        raise ActionPieceError(f"{folder} holds no rollout: it has no episodes.jsonl")
    lines = list({line["key"]: line for line in read_lines(file)}.values())
    if not all("error" in line or isinstance(line.get("success"), bool) for line in lines):
        raise ActionPieceError(f"{folder} holds episodes, but no rollout: they do not say whether they succeeded")
    return lines


def paired(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Two policies on the episodes that both have finished; repeats of a start count as episodes of their own."""
    ours, theirs = (
        {line["key"]: line["success"] for line in lines if "error" not in line} for lines in (first, second)
    )
    shared = [key for key in ours if key in theirs]
    if not shared:
        raise ActionPieceError("the two rollouts have no finished start in common; use the same tasks and seed")
    return dataclasses.asdict(Paired.of([ours[key] for key in shared], [theirs[key] for key in shared]))
