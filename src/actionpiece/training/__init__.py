"""Training of learned codecs: the loop, its settings, and checkpoints that survive anything."""

from __future__ import annotations

from actionpiece.training.config import TrainConfig
from actionpiece.training.examples import Examples
from actionpiece.training.loop import train
from actionpiece.training.ranks import is_first, join, leave
from actionpiece.training.replica import Run

__all__ = ["Examples", "Run", "TrainConfig", "is_first", "join", "leave", "train"]
