"""How fast is PRC, against a plain scipy loop, on the same chunks in one run?

    python benchmarks/prc.py --data DATA.npz                       # 10,000 test chunks
    python benchmarks/prc.py --data DATA.npz --split train --n 100000 --device cuda --anchors 0

The scipy loop is run on some of the anchors (`--anchors`, all of them with -1) and its time scaled to all; on those
anchors the two must agree to 1e-9.
"""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent / "baselines"))
from prc_scipy import prc_scipy

import actionpiece
from actionpiece.data import Chunks
from actionpiece.evaluation.score import Training, environment
from actionpiece.files import write_json


@dataclass(frozen=True)
class Options:
    """What to time.

    Attributes:
        data: demonstrations with a data card.
        split: which episodes.
        n: chunks.
        anchors: anchors the scipy loop is run on; -1 for all, 0 for none.
        repeats: timed runs of ours; the best counts.
        device: where ours runs.
        out: JSON file to write.
    """

    data: str
    split: str = "test"
    n: int = 10_000
    anchors: int = 100
    repeats: int = 3
    device: str = "cpu"
    out: Path | None = None


def main(options: Options) -> None:
    demos = actionpiece.open_demos(options.data)
    training = Training.of(demos, horizon=8)
    chunks = Chunks(demos, getattr(demos.split(), options.split), 8).sample(options.n)
    # A coarse rounding stands for a tokenizer: it keeps some order, loses some, and makes ties.
    decoded = (np.round(chunks * 8) / 8).astype(np.float32)
    original = torch.from_numpy(chunks).to(options.device)
    rounded = torch.from_numpy(decoded).to(options.device)
    times = []
    for _ in range(options.repeats + 1):  # the first run warms up
        began = time.perf_counter()
        result = actionpiece.prc(original, rounded, distance=training.distance)
        times.append(time.perf_counter() - began)
    ours = min(times[1:])
    answer = {
        "command": shlex.join(["python", *sys.argv]),
        "data": {"name": demos.name, "fingerprint": demos.fingerprint()},
        "seed": 0,  # of the draw of chunks
        "n": len(chunks),
        "device": options.device,
        "environment": environment(),
        "prc": result.value,
        "left_out": result.left_out,
        "seconds": ours,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if options.device == "cuda" else None,
    }
    if options.anchors:
        count = len(chunks) if options.anchors < 0 else min(options.anchors, len(chunks))
        began = time.perf_counter()
        groups, scales = demos.space.to_dict()["groups"], training.distance.to_dict()
        plain = prc_scipy(chunks, decoded, groups, scales, anchors=range(count))
        seconds = (time.perf_counter() - began) * len(chunks) / count
        gap = abs(float(np.nanmean(result.per_anchor[:count])) - plain["value"])
        answer |= {"scipy_anchors": count, "scipy_seconds": seconds, "ratio": seconds / ours, "difference": gap}
        if gap > 1e-9:
            raise SystemExit(f"the two disagree by {gap}")
    Console().print(answer)
    if options.out is not None:
        write_json(options.out, answer)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
