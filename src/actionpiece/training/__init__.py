"""Training of learned codecs: the loop, its settings, and checkpoints that survive anything."""

from __future__ import annotations

from actionpiece.training.config import TrainConfig
from actionpiece.training.loop import train

__all__ = ["TrainConfig", "train"]
