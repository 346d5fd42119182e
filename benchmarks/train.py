"""Milliseconds per training step of learned tokenizers: eager against captured, alone and side by side, in one run.

    python benchmarks/train.py --data A.npz --out docs/results/train_h200.json
    python benchmarks/train.py --data A.npz --tokenizers oat quest fastervq --copies 1 --out OUT.json
    python benchmarks/train.py --data A.npz --tokenizers best quest --eager-steps 20 --out docs/results/train_cpu.json

Every tokenizer is timed by itself, then all of them together, `copies` of each, launched by one thread, as the training
loop does, and by a thread each. Needs a GPU for captured steps; on a CPU only the eager ones are timed, and where it
trains with products of bfloat16 those of float32 beside them. The first steps, which compile and record, are not
counted; `ready_s` says how long they took. `launching` is the share of the time in which the program draws batches and
hands steps to the GPU: near 1, it is the program that is waited for. `kernels` is what a captured step launches.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from torch.autograd import DeviceType

import actionpiece
from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.contenders import Contender, check_names, unfitted
from actionpiece.evaluation.score import Training, environment
from actionpiece.files import write_json
from actionpiece.nn import fused
from actionpiece.tokenizers.learned import LearnedTokenizer
from actionpiece.training import Examples
from actionpiece.training.examples import BLOCK
from actionpiece.training.loop import many_shapes
from actionpiece.training.replica import Replica


@dataclass(frozen=True)
class Options:
    """What to time.

    Attributes:
        data: demonstrations to train on.
        tokenizers: learned ones, with settings as in `actionpiece compare`.
        out: JSON file to write.
        steps: of each measurement.
        eager_steps: of the eager measurements; 0: there are none.
        copies: of every tokenizer in the last measurement, all side by side.
    """

    data: str = "generated"
    tokenizers: tuple[str, ...] = ("actionpiece",)
    out: Path | None = None
    steps: int = 1000
    eager_steps: int = 50
    copies: int = 8


def run(replicas: list[Replica], steps: int, *, threads: bool = False) -> tuple[float, float]:
    """Seconds for so many steps of every replica, block by block, as the training loop takes them; and how many of them
    passed before the last step was launched. All stand at the same step.

    threads: a thread for each launches, instead of one for all.
    """
    taken = launching = 0.0
    end = replicas[0].done + steps if replicas else 0
    with ThreadPoolExecutor(max(len(replicas), 1)) as pool, many_shapes():
        while replicas and replicas[0].done < end:
            count = min(BLOCK - replicas[0].done % BLOCK, end - replicas[0].done)
            began = time.perf_counter()
            for replica in replicas:
                replica.prepare()
            if threads:
                list(pool.map(advance, [[replica] for replica in replicas], [count] * len(replicas)))
            else:
                advance(replicas, count)
            launching += time.perf_counter() - began
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            taken += time.perf_counter() - began
    return taken, launching


def advance(replicas: list[Replica], steps: int) -> None:
    """So many steps of every replica, in turn."""
    for _ in range(steps):
        for replica in replicas:
            replica.advance()


def kernels(replica: Replica) -> float:
    """How many kernels a captured step launches, with the few that a block of steps begins with shared among them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        run([replica], BLOCK)
    launched = [event for event in profiled.events() if event.device_type == DeviceType.CUDA]
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in launched) / BLOCK


@contextmanager
def whole_products() -> Iterator[None]:
    """As on a CPU without instructions for bfloat16."""
    fused.CPU_HALVES, before = False, fused.CPU_HALVES
    try:
        yield
    finally:
        fused.CPU_HALVES = before


class Timing:
    """The rows of a run, each printed as it comes."""

    def __init__(self, options: Options, device: str) -> None:
        demos = actionpiece.open_demos(options.data)
        self.options, self.demos, self.training = options, demos, Training.of(demos, 8)
        x = self.training.normalizer.normalize(torch.from_numpy(self.training.chunks.sample(300_000, 0)))
        self.examples = Examples(x, None, self.training.distance, self.training.normalizer, device)
        self.console, self.rows = Console(), list[dict[str, Any]]()

    def replica(self, name: str, seed: int, *, captured: bool) -> Replica:
        """A tokenizer at its first step with codebooks: most steps have them."""
        contender = Contender.parse(name)
        tokenizer = unfitted(contender, self.demos, self.training) if contender.kind else None
        if not isinstance(tokenizer, LearnedTokenizer):
            raise ActionPieceError(f"{name} is not trained step by step")
        made = tokenizer._run(self.examples.chunks, seed, None, resume=False)
        config = dataclasses.replace(made.config, continuous=0)
        return Replica(dataclasses.replace(made, config=config), self.examples, captured=captured)

    def eager(self, how: str, name: str) -> None:
        steps = self.options.eager_steps
        with torch.compiler.set_stance("force_eager"):
            self.measure(how, {name: [self.replica(name, 0, captured=False)]}, steps, min(10, steps))

    def measure(
        self, how: str, named: dict[str, list[Replica]], steps: int, warm_up: int, *, threads: bool = False
    ) -> None:
        replicas = [replica for several in named.values() for replica in several]
        ready, _ = run(replicas, warm_up)
        taken, launching = run(replicas, steps, threads=threads)
        row: dict[str, Any] = {"how": how, "tokenizers": list(named), "replicas": len(replicas), "ready_s": ready}
        row |= {"ms_per_step": 1e3 * taken / steps / len(replicas), "launching": launching / taken}
        if how == "captured":
            row["kernels"] = kernels(replicas[0])
        self.rows.append(row)
        told = f"{row['ms_per_step']:.3f} ms a step, launching {row['launching']:.0%}"
        self.console.print(f"{how}: {', '.join(named)}: {told}", row.get("kernels", ""))


def main(options: Options) -> None:
    if options.steps < 1 or options.eager_steps < 0 or options.copies < 1:
        raise ActionPieceError("at least one step of one copy is timed, and no fewer than no eager ones")
    check_names([Contender.parse(name) for name in options.tokenizers])
    torch.set_float32_matmul_precision("high" if torch.cuda.is_available() else "highest")  # as the training loop does
    timing = Timing(options, "cuda" if torch.cuda.is_available() else "cpu")
    together: dict[str, list[Replica]] = {}
    for name in options.tokenizers:
        if options.eager_steps:
            timing.eager("eager", name)
            if fused.CPU_HALVES and not torch.cuda.is_available():
                with whole_products():
                    timing.eager("eager, products of float32", name)
        if torch.cuda.is_available():
            together[name] = [timing.replica(name, seed, captured=True) for seed in range(options.copies)]
            timing.measure("captured", {name: together[name][:1]}, options.steps, BLOCK)
    if torch.cuda.is_available():
        for first, *others in together.values():
            run(others, first.done)
        timing.measure("side by side, each", together, options.steps, BLOCK)
        timing.measure("side by side, launched by a thread each", together, options.steps, BLOCK, threads=True)
    if options.out is not None:
        write_json(
            options.out,
            {
                "command": f"python benchmarks/train.py {shlex.join(sys.argv[1:])}",
                "seed": 0,
                "data": {key: timing.demos.describe()[key] for key in ("name", "fingerprint")},
                "environment": environment(),
                "rows": timing.rows,
            },
        )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
