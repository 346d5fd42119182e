"""Milliseconds per training step of the paper's recipe: eager against captured, alone and side by side, in one run.

    python benchmarks/train.py --data A.npz --out docs/results/train_h200.json

Needs a GPU for the captured step; on a CPU only the eager one is timed. The first steps, which compile and record, are
not counted; `ready_s` says how long they took.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console

import actionpiece
from actionpiece.evaluation.score import Training, environment
from actionpiece.files import write_json
from actionpiece.tokenizers.actionpiece import ActionPieceConfig, ActionPieceTokenizer
from actionpiece.training import Examples, TrainConfig
from actionpiece.training.examples import BLOCK
from actionpiece.training.replica import Replica


@dataclass(frozen=True)
class Options:
    """What to time.

    Attributes:
        data: demonstrations to train on.
        out: JSON file to write.
        steps: of each measurement, a multiple of 100.
        eager_steps: of the eager measurement, up to 100.
        side_by_side: replicas in the last measurement.
        warm_up: steps before each measurement.
    """

    data: str = "generated"
    out: Path | None = None
    steps: int = 1000
    eager_steps: int = 50
    side_by_side: int = 8
    warm_up: int = BLOCK


def run(replicas: list[Replica], steps: int) -> float:
    """Seconds for so many steps of every replica, whole blocks at a time, as the training loop takes them."""
    began = time.perf_counter()
    for first in range(0, steps, BLOCK):
        for replica in replicas:
            replica.prepare()
        for _ in range(min(BLOCK, steps - first)):
            for replica in replicas:
                replica.advance()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return time.perf_counter() - began


def main(options: Options) -> None:
    console = Console()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    demos = actionpiece.open_demos(options.data)
    training = Training.of(demos, 8)
    x = training.normalizer.normalize(torch.from_numpy(training.chunks.sample(300_000, 0)))
    examples = Examples(x, None, training.distance, training.normalizer, device)
    torch.set_float32_matmul_precision("high")

    def replica(seed: int, *, captured: bool) -> Replica:
        tokenizer = ActionPieceTokenizer(
            ActionPieceConfig(train=TrainConfig(continuous=0)),  # the steps with codebooks, PRP and QR: most of them
            space=demos.space,
            normalizer=training.normalizer,
            distance=training.distance,
            horizon=8,
        )
        return Replica(tokenizer._run(examples.chunks, seed, None, resume=False), examples, captured=captured)

    rows: list[dict[str, Any]] = []

    def measure(name: str, replicas: list[Replica], warm_up: int, steps: int) -> None:
        ready = run(replicas, warm_up)
        each = run(replicas, steps) / steps / len(replicas) * 1e3
        rows.append({"name": name, "replicas": len(replicas), "ready_s": ready, "ms_per_step": each})
        ratio = rows[0]["ms_per_step"] / each
        console.print(f"{name}: {each:.3f} ms per step, {ratio:.1f} times eager; 100,000 steps in {each * 100:.0f} s")

    with torch.compiler.set_stance("force_eager"):
        measure("eager", [replica(0, captured=False)], min(10, options.eager_steps), options.eager_steps)
    if device == "cuda":
        one = replica(0, captured=True)
        measure("captured", [one], options.warm_up, options.steps)
        more = [replica(seed, captured=True) for seed in range(1, options.side_by_side)]
        run(more, one.done)
        measure(f"{options.side_by_side} side by side, each", [one, *more], options.warm_up, options.steps)
    if options.out is not None:
        command = f"python benchmarks/train.py --data {Path(options.data).name} --steps {options.steps}"
        write_json(
            options.out,
            {
                "command": command,
                "seed": 0,
                "data": {key: demos.describe()[key] for key in ("name", "fingerprint")},
                "environment": environment(),
                "config": "the paper's recipe: batch 128, 2 + 4 layers, PRP and QR",
                "rows": rows,
            },
        )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
