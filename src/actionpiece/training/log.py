"""The log of a run: JSON lines always, TensorBoard where it is asked for."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from actionpiece.errors import not_installed

NAME = "log.jsonl"


class Log:
    """One line per report in a run's folder. Lines after the step that a resumed run starts from are dropped."""

    def __init__(self, folder: Path, done: int, *, tensorboard: bool) -> None:
        self.path = folder / NAME
        self.began = time.perf_counter()
        folder.mkdir(parents=True, exist_ok=True)
        kept = []
        if done and self.path.is_file():
            # A line cut short by a kill is the last one, and later than the checkpoint.
            lines = [line for line in self.path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
            kept = [line for line in lines if json.loads(line)["step"] <= done]
        self.path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        self.board = _board(folder / "tensorboard", done) if tensorboard else None

    def write(self, step: int, values: dict[str, float]) -> None:
        entry: dict[str, Any] = {"step": step, "seconds": round(time.perf_counter() - self.began, 3)}
        entry |= {name: value if math.isfinite(value) else None for name, value in values.items()}  # JSON has no NaN
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if self.board is not None:
            for name, value in values.items():
                self.board.add_scalar(name, value, step)
            self.board.flush()


def _board(folder: Path, done: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise not_installed(
            "TensorBoard is not installed: leave out --tensorboard, or install it", "tensorboard"
        ) from None
    return SummaryWriter(folder, purge_step=done + 1)


def line(values: dict[str, float]) -> str:
    """Values for a progress line."""
    names = {"val_mse": "val MSE", "val_prc": "val PRC", "codes_used": "share of codes used"}
    return ", ".join(f"{names.get(name, name)} {value:.3g}" for name, value in values.items())
