"""The training loop: batches, optimiser, schedule, validation, log, checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError
from actionpiece.metrics.prc import prc
from actionpiece.nn.codec import Codec
from actionpiece.normalize import Normalizer
from actionpiece.objectives import Step, combine
from actionpiece.training.checkpoint import load_checkpoint, save_checkpoint
from actionpiece.training.config import TrainConfig

LOG = "log.jsonl"
_REPORT = 100  # steps between lines of the log
_VALIDATION = 2000  # chunks, enough to see which way things go


def train(
    codec: Codec,
    chunks: Tensor,
    *,
    config: TrainConfig,
    distance: PhysicalDistance,
    normalizer: Normalizer,
    seed: int,
    validation: Tensor | None = None,
    run: Path | None = None,
    resume: bool = False,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> None:
    """Train a codec in place on normalised chunks (N, H, D), on the device it is on.

    validation: normalised chunks of other episodes; MSE, PRC and codes in use are logged for them.
    run: a folder for the log and the checkpoint; without it nothing is written.
    resume: go on from the checkpoint in `run`; on a CPU the result is bit for bit that of an uninterrupted run.
    """
    about = {"config": asdict(config), "seed": seed, "chunks": list(chunks.shape), "sum": float(chunks.double().sum())}
    with torch.random.fork_rng(devices=[]):  # a caller's random state is none of our business
        torch.manual_seed(seed)
        loop = _Loop(codec, chunks, config, distance, normalizer, seed, validation)
        done = 0
        if resume:
            if run is None:
                raise ActionPieceError("there is nothing to resume without a run folder")
            done = load_checkpoint(run, codec, loop.optimizer, loop.generator, about)
        else:
            loop.start()
        log = _Log(run, done)
        for step in range(done, config.steps):
            terms = loop.step(step)
            count = step + 1
            last = count == config.steps
            look = last or count % config.validate_every == 0
            keep = run is not None and (last or count % config.checkpoint_every == 0)
            if look or keep or count % _REPORT == 0:
                values = {name: float(value) for name, value in terms.items()}
                if not all(math.isfinite(value) for value in values.values()):
                    raise ActionPieceError(
                        f"the loss is not finite at step {count} ({_line(values)}); try a lower learning rate"
                        + (" and go on from the last checkpoint, which is kept" if run is not None else "")
                    )
                if look:
                    values |= loop.validate()
                log.write(count, values)
                progress(count / config.steps, f"step {count}: {_line(values)}")
            if keep:
                assert run is not None
                save_checkpoint(run, count, codec, loop.optimizer, loop.generator, about)


class _Loop:
    """One run's moving parts."""

    def __init__(
        self,
        codec: Codec,
        chunks: Tensor,
        config: TrainConfig,
        distance: PhysicalDistance,
        normalizer: Normalizer,
        seed: int,
        validation: Tensor | None,
    ) -> None:
        device = next(codec.parameters()).device
        self.codec, self.config, self.distance, self.normalizer = codec, config, distance, normalizer
        self.chunks = chunks.to(device)
        # Physical features are made once for all chunks; a batch is then two gathers.
        self.physical = distance.features(normalizer.denormalize(self.chunks), dtype=torch.float32)
        self.offset = torch.as_tensor(normalizer.offset, dtype=torch.float32, device=device)
        self.scale = torch.as_tensor(normalizer.scale, dtype=torch.float32, device=device)
        self.validation = validation[:_VALIDATION].to(device) if validation is not None else None
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.AdamW(
            codec.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )

    def start(self) -> None:
        """Start the codebooks from the features of some training chunks."""
        index = torch.randperm(len(self.chunks), generator=self.generator)[: self.config.start_chunks]
        with torch.no_grad():
            features = self.codec.encoder(self.chunks[index])
        self.codec.quantizer.start(features, self.generator)

    def step(self, number: int) -> dict[str, Tensor]:
        """One optimiser step; returns the loss and its terms."""
        index = torch.randint(len(self.chunks), (self.config.batch,), generator=self.generator)
        x = self.chunks[index]
        decoded, features, quantized = self.codec(x)
        step = Step(
            target=x,
            decoded=decoded,
            features=features,
            quantized=quantized,
            quantizer=self.codec.quantizer,
            distance=self.distance,
            physical=self.physical[index],
            offset=self.offset,
            scale=self.scale,
        )
        loss, terms = combine(step, self.config.weights)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate_at(number)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.codec.parameters(), self.config.clip)
        self.optimizer.step()
        self.codec.quantizer.update(quantized)
        return {"loss": loss.detach(), **{name: term.detach() for name, term in terms.items()}}

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """MSE, PRC and the share of codes in use on the validation chunks; nothing when there are none."""
        if self.validation is None:
            return {}
        codes = self.codec.encode(self.validation)
        decoded = self.codec.decode(codes)
        size = self.codec.quantizer.codebook.shape[2]
        used = torch.stack([torch.bincount(level.flatten(), minlength=size) > 0 for level in codes.unbind(-1)])
        found = {
            "val_mse": float((decoded - self.validation).square().mean()),
            "codes_used": float(used.float().mean()),
        }
        k = min(32, len(self.validation) - 1)
        if k >= 2:
            raw = [self.normalizer.denormalize(side) for side in (self.validation, decoded)]
            found["val_prc"] = prc(raw[0], raw[1], distance=self.distance, k=k).value
        return found


class _Log:
    """JSON lines, one per report. Lines after the checkpoint that a resumed run starts from are dropped."""

    def __init__(self, run: Path | None, done: int) -> None:
        self.path = run / LOG if run is not None else None
        self.began = time.perf_counter()
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        if done and self.path.is_file():
            # A line cut short by a kill is the last one, and later than the checkpoint.
            lines = [line for line in self.path.read_text().splitlines() if line.endswith("}")]
            kept = [line for line in lines if json.loads(line)["step"] <= done]
        self.path.write_text("".join(f"{line}\n" for line in kept))

    def write(self, step: int, values: dict[str, float]) -> None:
        if self.path is None:
            return
        entry: dict[str, Any] = {"step": step, "seconds": round(time.perf_counter() - self.began, 3), **values}
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _line(values: dict[str, float]) -> str:
    names = {"val_mse": "val MSE", "val_prc": "val PRC", "codes_used": "codes"}
    return ", ".join(f"{names.get(name, name)} {value:.3g}" for name, value in values.items())
