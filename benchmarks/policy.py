"""Latency of a chunk and speed of training for the real Qwen3-VL-4B architecture, plain against ours, in one run.

    python benchmarks/policy.py --out docs/results/policy_h200.json

Weights are random: neither figure depends on them. Two views of 224 pixels, bfloat16. `plain` is Hugging Face's
`generate` with a logits processor, and a training loop on its model as it comes. Without a GPU, `--size tiny` tries the
script itself.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from rich.console import Console

import actionpiece
from actionpiece.evaluation.score import environment
from actionpiece.files import write_json
from actionpiece.policy.model import ActionPolicy, PolicyConfig
from actionpiece.policy.prompt import patches
from actionpiece.policy.text import qwen3vl_config, text_tokenizer, transformers

INSTRUCTION = "pick up the black bowl between the plate and the ramekin and place it on the plate"


@dataclass(frozen=True)
class Options:
    """What to time.

    Attributes:
        out: JSON file to write.
        size: the released 4B architecture, or a tiny one.
        batch: examples of a training step.
        chunks: answers that are timed.
        steps: training steps that are timed.
        train: time training too.
    """

    out: Path | None = None
    size: Literal["4b", "tiny"] = "4b"
    batch: int = 16
    chunks: int = 20
    steps: int = 8
    train: bool = True


def released_4b(text: Any) -> Any:
    """The configuration of Qwen/Qwen3-VL-4B-Instruct, for a text tokenizer of our own."""
    token = text.convert_tokens_to_ids
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    return transformers().Qwen3VLConfig(
        text_config={
            "vocab_size": 151_936,
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rope_parameters": rope,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_heads": 16,
            "out_hidden_size": 2560,
            "deepstack_visual_indexes": [5, 11, 17],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )


def build(options: Options, device: str) -> ActionPolicy:
    """A policy with random weights, made where it is to be."""
    tokenizer = actionpiece.load("libero")
    text = text_tokenizer([f"user assistant Your task is {INSTRUCTION}."])
    from actionpiece.policy.text import SIZES

    config = released_4b(text) if options.size == "4b" else qwen3vl_config(SIZES["tiny"], text)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    with torch.device(device):
        torch.set_default_dtype(dtype)
        vlm = transformers().Qwen3VLForConditionalGeneration(config)
        torch.set_default_dtype(torch.float32)
    return ActionPolicy._new(vlm.eval(), text, tokenizer, PolicyConfig(side=224), 0)


def observation() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shots = {
        f"observation/{view}": rng.integers(0, 255, (224, 224, 3), dtype=np.uint8) for view in ("image", "wrist_image")
    }
    return {"prompt": INSTRUCTION, **shots}


def timed(function: Callable[[], Any], count: int, device: str) -> list[float]:
    """Milliseconds of each call, after two that are not counted."""
    times = []
    for _ in range(count + 2):
        began = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return sorted(times[2:])


class OnlyActions(transformers().LogitsProcessor):  # type: ignore[misc]
    """What plain `generate` needs to write action ids alone."""

    def __init__(self, rows: slice) -> None:
        self.rows = rows

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, self.rows] = scores[:, self.rows]
        return kept


def latency(policy: ActionPolicy, options: Options, device: str) -> dict[str, Any]:
    """Plain `generate` against ours, and how far their log-probabilities are from each other."""
    look = policy.vlm.config.vision_config
    side, seen = 224 // look.patch_size, observation()
    tokens = policy.tokenizer.tokens_per_chunk

    def plain() -> torch.Tensor:
        batch = policy.read([seen]).to(device)
        start = torch.full((1, 1), policy.vocabulary.start, device=device)
        ids = torch.cat((batch.ids, start), 1)
        pixels = patches(batch.pictures.flatten(0, 1), look.patch_size, look.temporal_patch_size).flatten(0, 1)
        written: torch.Tensor = policy.vlm.generate(
            input_ids=ids,
            attention_mask=torch.cat((batch.mask, torch.ones_like(start, dtype=torch.bool)), 1).long(),
            pixel_values=pixels.to(policy.vlm.dtype),
            image_grid_thw=torch.tensor([[1, side, side]] * 2, device=device),
            mm_token_type_ids=(ids == policy.prompter.image).int(),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            logits_processor=[OnlyActions(policy.vocabulary.rows)],
        )
        return written[:, ids.shape[1] :]

    def ours() -> Any:
        return policy.act_batch([seen])

    began = time.perf_counter()
    ours()
    ready = time.perf_counter() - began
    rows = {"plain": timed(plain, min(options.chunks, 5), device), "ours": timed(ours, options.chunks, device)}
    found = {name: {"median_ms": times[len(times) // 2], "worst_ms": times[-1]} for name, times in rows.items()}
    return {**found, "ready_s": ready, **agreement(policy, seen)}


def whole(policy: ActionPolicy, ids: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
    """Logits (B, T, rows of the table) of Hugging Face's forward pass over prompts and chunks of local ids (B, T)."""
    look, prompt = policy.vlm.config.vision_config, policy.prompt(INSTRUCTION)
    rows = [[*prompt, policy.vocabulary.start, *row[:-1]] for row in (ids + policy.vocabulary.first).tolist()]
    batch = policy.prompter.batch(rows, pictures, pad="left").to(policy.device)
    side = policy.config.side // look.patch_size
    logits: torch.Tensor = policy.vlm(
        input_ids=batch.ids,
        attention_mask=batch.mask.long(),
        pixel_values=patches(batch.pictures.flatten(0, 1), look.patch_size, look.temporal_patch_size).flatten(0, 1),
        image_grid_thw=torch.tensor([[1, side, side]] * (2 * len(rows)), device=policy.device),
        mm_token_type_ids=(batch.ids == policy.prompter.image).int(),
        logits_to_keep=ids.shape[1],
        use_cache=False,
    ).logits
    return logits


@torch.no_grad()
def agreement(policy: ActionPolicy, seen: dict[str, Any]) -> dict[str, Any]:
    """Our log-probabilities of our tokens against those of Hugging Face's forward pass over the whole sequence."""
    batch = policy.read([seen])
    made = policy.generate(batch)
    logits = whole(policy, made.ids.cpu(), batch.pictures)[..., policy.vocabulary.rows].float()
    theirs = logits.log_softmax(-1).gather(-1, made.ids[..., None])[..., 0]
    return {
        "log_prob_difference": float((theirs - made.log_probs).abs().max()),
        "log_prob_mean": float(theirs.mean()),
        "same_token": float((logits.argmax(-1) == made.ids).float().mean()),
    }


def training(policy: ActionPolicy, options: Options, device: str, *, ours: bool) -> dict[str, Any]:
    """Examples a second and memory of a training step in bfloat16, without recomputation."""
    policy.vlm.train()
    optimizer = torch.optim.AdamW(policy.vlm.parameters(), lr=1e-5, fused=device == "cuda")
    rng = np.random.default_rng(1)
    pictures = torch.from_numpy(rng.integers(0, 255, (options.batch, 2, 224, 224, 3), dtype=np.uint8))
    ids = torch.from_numpy(rng.integers(0, policy.vocabulary.size, (options.batch, policy.tokenizer.tokens_per_chunk)))
    targets = policy.targets(ids)
    inputs = policy.training_inputs([policy.prompt(INSTRUCTION)] * options.batch, targets, pictures)
    learner = policy.learner()

    def step() -> None:
        if ours:
            total, _, count = policy.loss({name: value.to(device) for name, value in inputs.items()}, learner)
            loss = total / count
        else:
            logits = whole(policy, ids, pictures)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten().to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.vlm.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = timed(step, options.steps, device)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    middle = times[len(times) // 2]
    return {"ms_per_step": middle, "examples_per_s": 1e3 * options.batch / middle, "memory_gib": memory}


def main(options: Options) -> None:
    console = Console()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = build(options, device)
    result: dict[str, Any] = {
        "command": shlex.join(["python", *sys.argv]),
        "seed": 0,
        "environment": environment() | {"transformers": transformers().__version__},
        "parameters": sum(p.numel() for p in policy.vlm.parameters()),
        "tokenizer": policy.tokenizer.kind,
        "latency": latency(policy, options, device),
    }
    for name, row in result["latency"].items():
        console.print(name, row)
    if options.out:
        write_json(options.out, result)
    if options.train:
        policy.forget_plans()
        result["training"] = {}
        for name, ours in (("plain", False), ("ours", True)):
            result["training"][name] = training(policy, options, device, ours=ours)
            console.print(name, result["training"][name])
        if options.out:
            write_json(options.out, result)


if __name__ == "__main__":
    main(tyro.cli(Options))
