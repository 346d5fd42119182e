"""Small seeded chunks that several test files share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from actionpiece.data import Demos, generate, open_demos
from actionpiece.evaluation.score import Training
from actionpiece.nn import fused
from actionpiece.space import ActionSpace

torch.set_num_threads(1)  # tiny tensors: threads only fight each other, and results stay the same on any machine
fused.CPU_HALVES = False  # likewise; tests of training in half precision switch it on

# The same examples on every run: a change is judged by what it changed. `--hypothesis-profile=default` looks further.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


def smooth(n: int, steps: int, columns: int, seed: int, size: float = 1.0) -> np.ndarray:
    """Smooth random chunks (n, steps, columns) within [-size, size]: a random level, slope and bend per column."""
    rng = np.random.default_rng(seed)
    t = np.linspace(-1, 1, steps)[None, :, None]
    level, slope, bend = rng.normal(0, (0.3, 0.2, 0.1), (n, columns, 3)).transpose(2, 0, 1)[:, :, None]
    return np.clip(level + slope * t + bend * t**2, -1, 1) * size


def libero_like(n: int, steps: int = 8, seed: int = 0) -> np.ndarray:
    """OSC_POSE commands: smooth translation and small rotation, a gripper that switches at most once."""
    chunks = smooth(n, steps, 7, seed)
    chunks[..., 3:6] *= 0.3
    switch = np.random.default_rng(seed + 1).integers(-steps, 2 * steps, n)
    chunks[..., 6] = np.where(np.arange(steps) < switch[:, None], -1.0, 1.0)
    return chunks.astype(np.float32)


def aloha_like(n: int, steps: int = 8, seed: int = 0) -> np.ndarray:
    """Two arms of six joint targets and a gripper in [0, 1] each."""
    chunks = smooth(n, steps, 14, seed, size=1.5)
    chunks[..., [6, 13]] = np.clip(0.5 + chunks[..., [6, 13]], 0, 1)
    return chunks.astype(np.float32)


@pytest.fixture(scope="session")
def demos() -> Demos:
    """Generated demonstrations; files that need others have a fixture of their own by this name."""
    return open_demos("generated")


@pytest.fixture(scope="session")
def training(demos: Demos) -> Training:
    return Training.of(demos, 8)


@pytest.fixture(scope="session")
def libero() -> ActionSpace:
    return ActionSpace.preset("libero")


@pytest.fixture(scope="session")
def aloha() -> ActionSpace:
    return ActionSpace.preset("aloha")


@pytest.fixture(scope="session")
def libero_chunks() -> np.ndarray:
    return libero_like(400)


@pytest.fixture(scope="session")
def aloha_chunks() -> np.ndarray:
    return aloha_like(300)


@pytest.fixture(scope="session")
def joint_chunks() -> np.ndarray:
    """A robot of 26 joints."""
    return smooth(300, 8, 26, seed=5, size=2.0).astype(np.float32)


@pytest.fixture(scope="module")
def small_npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small npz with a data card, as a user would keep it."""
    episodes, _ = generate(seed=3, episodes=12)
    path = tmp_path_factory.mktemp("demos") / "small.npz"
    np.savez(path, actions=np.concatenate(episodes), ep_len=np.array([len(e) for e in episodes]))
    card = {"space": "libero", "split": {"seed": 0, "test": 3, "validation": 2}, "clip": [2.5] * 6 + [None]}
    path.with_suffix(".json").write_text(json.dumps(card))
    return path
