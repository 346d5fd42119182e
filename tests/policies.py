"""Policies small enough for tests, and a data set with pictures."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'policy'")
pytest.importorskip("accelerate", reason="needs the extra 'policy'")

import torch
from PIL import Image

from actionpiece.data.lerobot_writer import About, Episode, write_lerobot
from actionpiece.files import write_json
from actionpiece.policy.model import ActionPolicy, PolicyConfig
from actionpiece.policy.prompt import patches
from actionpiece.space import ActionSpace
from actionpiece.tokenizers.actionpiece import ActionPieceConfig
from actionpiece.tokenizers.base import ActionTokenizer
from actionpiece.tokenizers.binning import BinningConfig, BinningTokenizer
from actionpiece.tokenizers.fast import FastConfig, FastTokenizer
from actionpiece.tokenizers.pq import PQConfig, PQTokenizer
from conftest import libero_like
from tiny import new

SPACE = ActionSpace.preset("libero")
SIDE = 32
INSTRUCTIONS = ("lift the cube", "put the can into the bin")


@functools.cache
def tokenizer(kind: str = "pq") -> ActionTokenizer:
    """A tokenizer of each length: 4 tokens, 56 tokens of few ids, two levels of 4, or as many as a chunk needs."""
    chunks = libero_like(300)
    if kind == "pq":
        return PQTokenizer.fit(chunks, SPACE, PQConfig(tokens=4, codes=16, refine=1))
    if kind == "binning":
        return BinningTokenizer.fit(chunks, SPACE, BinningConfig(bins=8))
    if kind == "levels":
        return new(ActionPieceConfig(slots=4, levels=2, codes=8, width=16, heads=2, encoder_depth=1, decoder_depth=1))
    return FastTokenizer.fit(chunks, SPACE, FastConfig(scale=4, vocab_size=128))


def policy(kind: str = "pq", seed: int = 0, loud: float = 8.0, tied: bool = True, **config: Any) -> ActionPolicy:
    """A tiny policy. tied: its head is its table, as in small releases.

    loud: its weights are this much larger than they would start, so that its answers depend on what it sees; those of
    an untrained model hardly do.
    """
    settings = PolicyConfig(**{"side": SIDE, **config})
    made = ActionPolicy.tiny(tokenizer=tokenizer(kind), corpus=INSTRUCTIONS, config=settings, seed=seed)
    if not tied:
        made.vlm.config.tie_word_embeddings = made.vlm.config.text_config.tie_word_embeddings = False
        head = made.vlm.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().flip(1).clone())
    with torch.no_grad():
        for parameter in made.vlm.parameters():
            if parameter.ndim > 1:
                parameter.mul_(loud)
    made.vlm.eval()
    return made


def observation(seed: int = 0, prompt: str = INSTRUCTIONS[0], side: int = SIDE) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shots = {
        f"observation/{view}": rng.integers(0, 256, (side, side, 3), np.uint8) for view in ("image", "wrist_image")
    }
    return {"prompt": prompt, "observation/state": rng.normal(size=8).astype(np.float32), **shots}


def their_logits(
    made: ActionPolicy, prompts: list[list[int]], ids: torch.Tensor, pictures: torch.Tensor
) -> torch.Tensor:
    """Hugging Face's logits (B, T, rows) for chunks of local ids (B, T), read after their prompts block by block."""
    block, words = made.config.block, (ids + made.vocabulary.first).tolist()
    rows = [[*p, *[made.vocabulary.start] * block, *w][: len(p) + len(w)] for p, w in zip(prompts, words, strict=True)]
    batch = made.prompter.batch(rows, pictures, pad="left")
    flat = patches(pictures.flatten(0, 1), 16, 2).flatten(0, 1)
    side = made.config.side // 16
    answer = made.vlm(
        input_ids=batch.ids,
        attention_mask=batch.mask.long(),
        pixel_values=flat,
        image_grid_thw=torch.tensor([[1, side, side]] * (len(flat) // side**2)),
        mm_token_type_ids=(batch.ids == made.prompter.image).int(),
        logits_to_keep=ids.shape[1],
        use_cache=False,
    )
    return answer.logits


def png(picture: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "png")
    return out.getvalue()


def demonstrations(folder: Path, episodes: int = 10, steps: int = 12, every: int = 4) -> Path:
    """A LeRobot data set whose commands can be read off the pictures: a bright square, where the command points to."""
    rng = np.random.default_rng(0)

    def episode(number: int) -> Episode:
        actions = np.repeat(libero_like(1, steps, seed=number), 1, 0)[0]
        states = rng.normal(size=(steps, 8)).astype(np.float32)
        shots: list[bytes | None] = []
        for step in range(steps):
            picture = np.zeros((SIDE, SIDE, 3), np.uint8)
            x, y = ((actions[step, :2] + 1) / 2 * (SIDE - 6)).astype(int)
            picture[y : y + 6, x : x + 6] = (255, 128, int(127 * (actions[step, 2] + 1)))
            shots.append(png(picture) if step % every == 0 else None)
        return Episode(actions, states, INSTRUCTIONS[number % 2], {"agent": shots, "wrist": shots})

    names = tuple(f"a{i}" for i in range(7)), tuple(f"s{i}" for i in range(8))
    about = About(20, "panda", *names, {"agent": SIDE, "wrist": SIDE})
    write_lerobot(folder, (episode(n) for n in range(episodes)), about)
    write_json(folder / "actionpiece.json", {"space": "libero"})
    return folder
