"""Chunks a second that learned tokenizers encode and decode, and milliseconds for a single one, in one run.

    python benchmarks/encode.py --out docs/results/encode_h200.json

The paper's codec has random weights, which do not matter for speed; `libero` comes with the package. On a GPU many
chunks are timed there, a single one on one core of the CPU, as a robot would.
"""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console

import actionpiece
from actionpiece.evaluation.score import environment
from actionpiece.files import write_json
from actionpiece.metrics.latency import latency
from actionpiece.tokenizers.actionpiece import ActionPieceConfig, ActionPieceTokenizer


@dataclass(frozen=True)
class Options:
    """What to time.

    Attributes:
        out: JSON file to write.
        chunks: encoded and decoded at once.
    """

    out: Path | None = None
    chunks: int = 400_000


def main(options: Options) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    trained = actionpiece.load("libero")
    shared = {"space": trained.space, "normalizer": trained.normalizer, "distance": trained.distance, "horizon": 8}
    contenders = {"actionpiece": ActionPieceTokenizer(ActionPieceConfig(), **shared), "libero": trained}
    raw = torch.rand(options.chunks, 8, 7, generator=torch.Generator().manual_seed(0)) * 2 - 1
    rows: list[dict[str, Any]] = []
    for name, tokenizer in contenders.items():
        torch.set_num_threads(1)
        single = latency(tokenizer, raw[:64].numpy())
        tokenizer.to(device)
        x = raw.to(device)
        ids = tokenizer.encode(x)  # the first time everything is set up
        row: dict[str, Any] = {"name": name, "device": device}
        for what, function, given in (("encode", tokenizer.encode, x), ("decode", tokenizer.decode, ids)):
            best = min(seconds(function, given, device) for _ in range(3))
            row[f"{what}_chunks_per_s"] = options.chunks / best
        rows.append(row | {"encode_ms": single.encode_ms, "decode_ms": single.decode_ms})
        Console().print(rows[-1])
    if options.out:
        command = shlex.join(["python", *sys.argv])
        write_json(options.out, {"command": command, "seed": 0, "environment": environment(), "rows": rows})


def seconds(function: Any, given: torch.Tensor, device: str) -> float:
    began = time.perf_counter()
    function(given)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(tyro.cli(Options))
