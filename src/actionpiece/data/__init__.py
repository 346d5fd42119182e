"""Demonstrations: files of any known format in, episodes, splits and action chunks out.

    demos = open_demos("demos/")                       # npz, HDF5, LeRobot, or a folder of them
    split = demos.split()                              # whole episodes, seeded, or as the data card says
    test = Chunks(demos, split.test, horizon=8)
    chunks = test.sample(10_000, seed=0)               # (10000, 8, D) float32

This room reads files and slices arrays; it knows nothing about tensors or tokenizers.
"""

from __future__ import annotations

from actionpiece.data.chunks import Chunks, steps
from actionpiece.data.demos import Demos
from actionpiece.data.generated import generate
from actionpiece.data.inspect import info
from actionpiece.data.opening import open_demos
from actionpiece.data.split import Split

__all__ = ["Chunks", "Demos", "Split", "generate", "info", "open_demos", "steps"]
