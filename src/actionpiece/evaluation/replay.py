"""Replay: execute what is left of a demonstration after encoding and decoding, from the demonstration's own start.

Open loop: nothing corrects an error, so a tokenizer that loses what matters fails where the raw commands succeed. All
contenders replay the same starts, and so do the raw commands, which say how far the simulator is deterministic.
"""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actionpiece.arrays import to_tensor
from actionpiece.data import Demos
from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.episodes import Journal, Progress, check_no_errors, environment, run_episodes
from actionpiece.evaluation.score import split_episodes
from actionpiece.files import write_json
from actionpiece.metrics.success import Paired, rate
from actionpiece.tokenizers import ActionTokenizer

RAW = "raw commands"
_FRAMES = 6  # pictures of a filmstrip


@dataclass(frozen=True)
class Replay:
    """One start and the commands (T, 7) that each contender makes of its demonstration; the raw ones come first."""

    episode: int
    task: str
    seed: int
    plans: dict[str, np.ndarray]

    @property
    def key(self) -> str:
        """Names the start and everything that is executed from it."""
        digest = hashlib.sha256()
        for name, plan in self.plans.items():
            digest.update(name.encode() + np.ascontiguousarray(plan, np.float32).tobytes())
        return f"{self.task} {self.seed} {digest.hexdigest()[:16]}"

    @property
    def facts(self) -> dict[str, Any]:
        """See `episodes.Job`."""
        return {"episode": self.episode, "task": self.task, "seed": self.seed}


@dataclass(frozen=True)
class Film:
    """A start, some commands, and how many pictures to take of their execution, evenly spaced, the last at the end."""

    task: str
    seed: int
    plan: np.ndarray
    size: int
    frames: int = _FRAMES


def reconstruct(tokenizer: ActionTokenizer, actions: np.ndarray) -> np.ndarray:
    """decode(encode()) of a whole episode (T, D): chunk after chunk, the last one filled up with its last command."""
    horizon, length = tokenizer.horizon, len(actions)
    padded = np.concatenate((actions, np.repeat(actions[-1:], -length % horizon, axis=0)))
    chunks = padded.reshape(-1, horizon, actions.shape[1])
    decoded: np.ndarray = to_tensor(tokenizer.decode(tokenizer.encode(chunks))).numpy()
    return decoded.reshape(len(padded), -1)[:length]


def replayable(demos: Demos, *, tasks: Sequence[str] | None = None, split: str = "test", most: int = 50) -> list[int]:
    """The episodes of a split that can be replayed, at most so many of each task, in the split's drawn order.

    tasks: those of the simulator to take; None takes all there are.
    """
    if most < 1:
        raise ActionPieceError(f"at least one episode of each task is needed, not {most}")
    _check_whole(demos)
    starts = demos.starts
    there = sorted({start.task for start in starts if start is not None})
    if not there:
        raise ActionPieceError(
            f"{demos.name} does not say where its episodes began in a simulator, so they cannot be replayed;"
            " `actionpiece record` makes demonstrations that can"
        )
    for task in tasks or ():
        if task not in there:
            raise ActionPieceError(f"{demos.name} has no episode of the task '{task}'; it has {', '.join(there)}")
    counts: Counter[str] = Counter()
    chosen = []
    for index in split_episodes(demos, split):
        start = starts[int(index)]
        if start is not None and (tasks is None or start.task in tasks) and counts[start.task] < most:
            counts[start.task] += 1
            chosen.append(int(index))
    if not chosen:
        raise ActionPieceError(f"{demos.name}: the {split} split has no episode of these tasks; try --split all")
    return sorted(chosen, key=lambda index: there.index(starts[index].task))  # type: ignore[union-attr]


def _check_whole(demos: Demos) -> None:
    if demos.drop_idle is not None:
        raise ActionPieceError("demonstrations without their idle steps cannot be replayed: time would be missing")


def replay(
    demos: Demos,
    tokenizers: dict[str, ActionTokenizer],
    *,
    episodes: Sequence[int],
    journal: Path | None = None,
    workers: int = 2,
    progress: Progress = lambda fraction, what: None,
) -> dict[str, Any]:
    """Execute these episodes of `demos` raw and through every tokenizer; returns plain results.

    journal: a file of JSON lines, so that an interrupted replay can go on.
    """
    _check_whole(demos)
    if RAW in tokenizers:
        raise ActionPieceError(f"a tokenizer cannot be called '{RAW}'")
    if not len(episodes):
        raise ActionPieceError("there are no episodes to replay")
    for name, tokenizer in tokenizers.items():
        if tokenizer.space.groups != demos.space.groups:
            raise ActionPieceError(
                f"{name} is for the action space '{tokenizer.space.name}', and {demos.name} is in '{demos.space.name}'"
            )
    starts = demos.starts
    jobs = []
    for index in episodes:
        start = starts[index]
        if start is None:
            raise ActionPieceError(
                f"{demos.name}: where episode {index} began in the simulator is not known, so it cannot be replayed;"
                " `actionpiece record` makes demonstrations that can"
            )
        actions = demos.episode(int(index))
        plans = {RAW: actions} | {name: reconstruct(tokenizer, actions) for name, tokenizer in tokenizers.items()}
        jobs.append(Replay(int(index), start.task, start.seed, plans))
    lines = run_episodes(jobs, execute, journal=Journal(journal), workers=workers, progress=progress)
    check_no_errors(lines)
    return summary(lines)


def execute(job: Replay) -> dict[str, Any]:
    """Run in a worker: every contender's commands from the same start, and how far the hand strays from the raw way."""
    env = environment(job.task)
    runs: dict[str, dict[str, Any]] = {}
    reference: tuple[np.ndarray, np.ndarray] | None = None
    for name, plan in job.plans.items():
        env.reset(job.seed)
        positions, rotations = [], []
        for action in plan:
            env.step(action)
            position, rotation = env.hand
            positions.append(position)
            rotations.append(rotation)
        way = np.stack(positions), np.stack(rotations)
        reference = reference or way
        apart = 1e3 * np.linalg.norm(way[0] - reference[0], axis=1)
        turned = np.degrees(_angles(way[1], reference[1]))
        runs[name] = {
            "success": env.success,
            "mm": {"mean": float(apart.mean()), "max": float(apart.max())},
            "degrees": {"mean": float(turned.mean()), "max": float(turned.max())},
        }
    return {"steps": len(next(iter(job.plans.values()))), "runs": runs}


def _angles(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The angles (T,) between rotation matrices (T, 3, 3), exact for small ones too."""
    relative = np.einsum("tij,tik->tjk", a, b)
    cosine = (np.trace(relative, axis1=1, axis2=2) - 1) / 2
    skew = relative - relative.transpose(0, 2, 1)
    sine = np.sqrt(np.square(skew).sum((1, 2)) / 8)
    angles: np.ndarray = np.arctan2(sine, cosine)
    return angles


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rates with intervals, deviations and paired tests of replayed episodes."""
    names = list(lines[0]["runs"])
    tasks = list(dict.fromkeys(line["task"] for line in lines))
    outcomes = {name: [line["runs"][name]["success"] for line in lines] for name in names}
    rows = []
    for name in names:
        runs = [line["runs"][name] for line in lines]
        row: dict[str, Any] = {"name": name, **rate(outcomes[name])}
        for unit in ("mm", "degrees"):
            row[unit] = float(np.mean([run[unit]["mean"] for run in runs]))
            row[f"{unit}_worst"] = float(np.max([run[unit]["max"] for run in runs]))
        row["tasks"] = {
            task: rate([line["runs"][name]["success"] for line in lines if line["task"] == task]) for task in tasks
        }
        rows.append(row)
    pairs = [
        {"first": first, "second": second, **dataclasses.asdict(Paired.of(outcomes[first], outcomes[second]))}
        for number, first in enumerate(names)
        for second in names[number + 1 :]
    ]
    return {"tasks": tasks, "rows": rows, "pairs": pairs, "episodes": list(lines)}


def telling_failure(results: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """A contender and an episode where it failed and the raw commands succeeded: of the one that fails most often.

    Among its failures the one whose hand stayed nearest, since that shows how little it takes; None if none fails.
    """
    worst = min(results["rows"][1:], key=lambda row: row["successes"], default=None)
    if worst is None:
        return None
    name = worst["name"]
    failures = [
        line for line in results["episodes"] if line["runs"][RAW]["success"] and not line["runs"][name]["success"]
    ]
    if not failures:
        return None
    return name, min(failures, key=lambda line: line["runs"][name]["mm"]["max"])


def film(job: Film) -> list[np.ndarray]:
    """Pictures (size, size, 3) of the agent camera while the commands are executed."""
    env = environment(job.task, cameras=job.size)
    env.reset(job.seed)
    at = {round(k * len(job.plan) / (job.frames - 1)) for k in range(job.frames)}
    shots = []
    for step in range(len(job.plan) + 1):
        if step in at:
            shots.append(env.picture("agent", job.size))
        if step < len(job.plan):
            env.step(job.plan[step])
    return shots


def filmstrip(
    results: dict[str, Any], demos: Demos, tokenizers: dict[str, ActionTokenizer], size: int = 160
) -> dict[str, Any] | None:
    """Pictures of a telling failure below the raw commands' success; None if there is no failure to show.

    Where no picture can be drawn, `problem` says why: the figures are worth having without it.
    """
    from actionpiece.report.replay import strip_png

    found = telling_failure(results)
    if found is None:
        return None
    name, line = found
    actions = demos.episode(line["episode"])
    plans = (actions, reconstruct(tokenizers[name], actions))
    jobs = [Film(line["task"], line["seed"], plan, size) for plan in plans]
    strip = {"name": name, "task": line["task"], "seed": line["seed"], "episode": line["episode"]}
    # A process of its own: a renderer wants to be chosen before anything has loaded another.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return {**strip, "png": strip_png(list(pool.map(film, jobs)))}
        except (ActionPieceError, BrokenProcessPool) as error:
            return {**strip, "problem": str(error)}


def write_replay(
    out: Path, results: dict[str, Any], demos: Demos, tokenizers: dict[str, ActionTokenizer], *, film: bool
) -> Path | None:
    """Write replay.json, and the filmstrip if it is wanted and there is one; returns where that is."""
    write_json(out / "replay.json", results)
    strip = filmstrip(results, demos, tokenizers) if film else None
    if strip is None:
        return None
    if "problem" in strip:
        raise ActionPieceError(strip["problem"])
    from actionpiece.report.replay import save_strip

    save_strip(out / "filmstrip.png", strip)
    return out / "filmstrip.png"
