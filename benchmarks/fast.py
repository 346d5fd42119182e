"""How fast `fast` encodes and decodes, beside a plain implementation in the manner of FAST's own processor.

    python benchmarks/fast.py --data DATA.npz

Both are fitted on the same training chunks and timed on the same test chunks, in one run.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent / "baselines"))
from fast_plain import PlainFast

import actionpiece
from actionpiece.data import Chunks
from actionpiece.evaluation.score import Training, environment
from actionpiece.files import write_json
from actionpiece.tokenizers.fast import FastTokenizer


@dataclass(frozen=True)
class Options:
    """What to time.

    Attributes:
        data: demonstrations with a data card.
        n: test chunks.
        fit_chunks: training chunks both are fitted on.
        out: JSON file to write.
    """

    data: str
    n: int = 20_000
    fit_chunks: int = 60_000
    out: Path | None = None


def best_of(times: int, run: Callable[[], Any]) -> tuple[float, Any]:
    """The shortest of several wall-clock times, and the last answer."""
    seconds, answer = float("inf"), None
    for _ in range(times):
        start = time.perf_counter()
        answer = run()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds, answer


def main(options: Options) -> None:
    demos = actionpiece.open_demos(options.data)
    training = Training.of(demos, horizon=8)
    train = training.chunks.sample(options.fit_chunks)
    test = Chunks(demos, demos.split().test, 8).sample(options.n)
    n, normalizer = len(test), training.normalizer

    ours_fit, ours = best_of(1, lambda: FastTokenizer.fit(train, demos.space, normalizer=normalizer))
    ours_encode, ids = best_of(3, lambda: ours.encode(test))
    ours_decode, _ = best_of(3, lambda: ours.decode(ids))
    plain_fit, plain = best_of(1, lambda: PlainFast(normalizer.normalize(torch.from_numpy(train)).numpy()))
    test_normal = normalizer.normalize(torch.from_numpy(test)).numpy()
    plain_encode, plain_ids = best_of(3, lambda: [plain.encode(chunk) for chunk in test_normal])
    plain_decode, _ = best_of(3, lambda: [plain.decode(row) for row in plain_ids])
    answer = {
        "command": shlex.join(["python", *sys.argv]),
        "data": {"name": demos.name, "fingerprint": demos.fingerprint()},
        "seed": 0,  # of the draws of chunks
        "n": n,
        "environment": environment(),
        "ours": {
            "fit_s": ours_fit,
            "tokens_per_chunk": sum(map(len, ids)) / n,
            "encode_per_s": n / ours_encode,
            "decode_per_s": n / ours_decode,
        },
        "plain": {
            "fit_s": plain_fit,
            "tokens_per_chunk": sum(map(len, plain_ids)) / n,
            "encode_per_s": n / plain_encode,
            "decode_per_s": n / plain_decode,
        },
        "ratio": {"encode": plain_encode / ours_encode, "decode": plain_decode / ours_decode},
    }
    Console().print(answer)
    if options.out is not None:
        write_json(options.out, answer)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
