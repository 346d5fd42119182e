"""What PRP and QR do, alone and together: the square of two factors in an ablation's cells, with standard errors.

    python benchmarks/square.py --ablation docs/results/libero/ablation.json --out docs/results/libero/square.json

An effect is the mean difference with and without a term, over the other one; `together` is how far both at once are off
the sum of each alone. The standard deviation of a run is pooled over the four rows.
"""

from __future__ import annotations

import math
import shlex
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from actionpiece.errors import ActionPieceError
from actionpiece.files import read_json, sha256_of, write_json

ROWS = ("rvq", "prp", "qr", "actionpiece")


@dataclass(frozen=True)
class Options:
    """What to read.

    Attributes:
        ablation: the JSON file that `actionpiece ablate` wrote.
        out: JSON file to write.
    """

    ablation: Path
    out: Path | None = None


def effects(values: dict[str, list[float]]) -> dict[str, Any]:
    """The effects of two factors on one figure, given by row, as many seeds in each."""
    counts = {len(seeds) for seeds in values.values()}
    if len(counts) != 1 or min(counts) < 2:
        raise ActionPieceError(f"the rows {', '.join(ROWS)} need the same number of seeds, two at least")
    none, prp, qr, both = (statistics.mean(values[row]) for row in ROWS)
    deviation = math.sqrt(statistics.mean(statistics.variance(values[row]) for row in ROWS))
    error = deviation / math.sqrt(counts.pop())  # of a row's mean
    return {
        "deviation_of_a_run": deviation,
        "prp": (prp + both - none - qr) / 2,
        "qr": (qr + both - none - prp) / 2,
        "standard_error": error,
        "together": both - prp - qr + none,
        "standard_error_together": 2 * error,
    }


def main(options: Options) -> None:
    cells = read_json(options.ablation)["cells"]
    result: dict[str, Any] = {
        "command": shlex.join(["python", *sys.argv]),
        "sha256": sha256_of([options.ablation]),
        "seeds": {row: [c["about"]["seed"] for c in cells if c["about"]["row"] == row] for row in ROWS},
    }
    for key in ("mse", "prc"):
        result[key] = effects({row: [c["row"][key] for c in cells if c["about"]["row"] == row] for row in ROWS})
    Console().print(result)
    if options.out is not None:
        write_json(options.out, result)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
