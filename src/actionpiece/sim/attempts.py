"""One attempt at a demonstration, and the file that keeps it until the data set is put together.

An attempt is decided by its task and its seed alone: who makes it, when, and after which others does not matter.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from actionpiece.errors import ActionPieceError
from actionpiece.files import writing
from actionpiece.sim.demonstrator import demonstrate
from actionpiece.sim.environment import CAMERAS, Environment


@dataclass(frozen=True)
class Attempt:
    """Which attempt: at which task, the how-manieth, from which start (`Environment.reset(seed)`)."""

    task: str
    number: int
    seed: int

    @classmethod
    def of(cls, seed: int, task: str, number: int) -> Attempt:
        """Attempt `number` at a task in the recording with this seed."""
        # Each recording and task has its own place to count from, so that no start comes twice in a task.
        base = int.from_bytes(hashlib.sha256(f"{seed} {task}".encode()).digest()[:4], "big")
        return cls(task, number, (base + number) % 2**32)

    def kept(self, folder: Path) -> Path:
        """Where it is kept if it succeeded."""
        return folder / self.task.replace("/", ".") / f"{self.number:06d}.npz"

    def discarded(self, folder: Path) -> Path:
        """The empty file that says that it failed."""
        return self.kept(folder).with_suffix(".failed")


@dataclass(frozen=True)
class Demonstration:
    """T steps: actions (T, 7) and the states (T, 8) before them, float32; the instruction that was given.

    astray: the steps of mistakes. shown: the steps that have pictures; pictures: those of each camera, as PNG, in that
    order.
    """

    actions: np.ndarray
    states: np.ndarray
    instruction: str
    astray: tuple[int, ...] = ()
    shown: tuple[int, ...] = ()
    pictures: dict[str, list[bytes]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        arrays: dict[str, np.ndarray] = {
            "actions": self.actions,
            "states": self.states,
            "instruction": np.array(self.instruction),
            "astray": np.array(self.astray, np.int64),
            "shown": np.array(self.shown, np.int64),
        }
        for camera, shots in self.pictures.items():
            arrays[f"{camera} ends"] = np.cumsum([len(shot) for shot in shots])
            arrays[f"{camera} bytes"] = np.frombuffer(b"".join(shots), np.uint8)
        with writing(path) as aside, aside.open("wb") as handle:
            np.savez(handle, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Demonstration:
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            pictures = {}
            for camera in [name.removesuffix(" ends") for name in arrays if name.endswith(" ends")]:
                ends = arrays[f"{camera} ends"].tolist()
                data = arrays[f"{camera} bytes"].tobytes()
                pictures[camera] = [data[a:b] for a, b in zip([0, *ends][:-1], ends, strict=True)]
            return cls(
                arrays["actions"],
                arrays["states"],
                str(arrays["instruction"]),
                tuple(arrays["astray"].tolist()),
                tuple(arrays["shown"].tolist()),
                pictures,
            )
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
            raise ActionPieceError(f"{path} is damaged ({error}); remove it and record again") from None


def perform(
    env: Environment, attempt: Attempt, *, size: int = 0, every: int = 1, horizon: int = 8, mistakes: float = 0.0
) -> Demonstration | None:
    """Let the demonstrator try; None if the task is not done when its plan has ended, or its steps are used up.

    size: of the pictures in pixels, 0 for none. every: steps between pictures, beginning with the first step.
    mistakes: see `demonstrator.demonstrate`. A look that one of them follows within `horizon` steps keeps no picture:
    a policy that learns chunks of so many steps then learns how mistakes are mended, and not how they are made. The
    first look always has one: so early there are no mistakes.
    """
    env.reset(attempt.seed)
    phrasings = env.task.instructions
    instruction = phrasings[int(np.random.default_rng((attempt.seed, 1)).integers(len(phrasings)))]
    actions: list[np.ndarray] = []
    states: list[np.ndarray] = []
    pictures: dict[str, list[bytes]] = {camera: [] for camera in CAMERAS} if size else {}
    astray: list[int] = []
    for move in demonstrate(env, np.random.default_rng(attempt.seed), mistakes, horizon):
        if len(actions) % every == 0:
            for camera, shots in pictures.items():
                shots.append(png(env.picture(camera, size)))
        states.append(env.state)
        if move.astray:
            astray.append(len(actions))
        actions.append(move.command)
        env.step(move.command)
        if len(actions) >= env.task.max_steps:
            break
    if not env.success:
        return None
    looks = range(0, len(actions), every) if size else range(0)
    good = [number for number, look in enumerate(looks) if not any(look <= step < look + horizon for step in astray)]
    return Demonstration(
        np.stack(actions),
        np.stack(states),
        instruction,
        tuple(astray),
        tuple(looks[number] for number in good),
        {camera: [shots[number] for number in good] for camera, shots in pictures.items()},
    )


def png(picture: np.ndarray) -> bytes:
    """A picture (H, W, 3) uint8 as PNG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "png", compress_level=4)
    return stream.getvalue()
