"""Training of learned tokenizers: the loop, its settings, and checkpoints that survive anything."""

from __future__ import annotations

from actionpiece.training.config import TrainConfig
from actionpiece.training.examples import Examples
from actionpiece.training.loop import train
from actionpiece.training.ranks import is_first, join, leave
from actionpiece.training.replica import Run
from actionpiece.training.trainable import Batch, Losses, Trainable, VectorQuantized

__all__ = [
    "Batch",
    "Examples",
    "Losses",
    "Run",
    "TrainConfig",
    "Trainable",
    "VectorQuantized",
    "is_first",
    "join",
    "leave",
    "train",
]
