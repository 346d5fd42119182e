"""The training loop: steps, validation, log, checkpoints, for one run or several side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import torch

from actionpiece.errors import ActionPieceError, BrokenRunsError
from actionpiece.nn.fused import products
from actionpiece.training import log
from actionpiece.training.checkpoint import load_checkpoint, save_checkpoint, saved_step
from actionpiece.training.examples import BLOCK, Examples
from actionpiece.training.ranks import is_first, world_size
from actionpiece.training.replica import Replica, Run

Progress = Callable[[float, str], None]


def train(
    runs: Sequence[Run],
    examples: Examples,
    *,
    captured: bool | None = None,
    progress: Progress = lambda fraction, what: None,
) -> None:
    """Train the networks of `runs` in place, side by side, on the device of the examples.

    On a CPU a run that was resumed ends bit for bit like one that was not interrupted.
    A run whose loss is no longer finite ends there, one whose checkpoint does not fit does not begin, and the others
    come to their last step; then `BrokenRunsError` says which.
    captured: compile the step, record it and replay it. By default where that is possible: on one GPU.
    """
    if captured is None:
        captured = examples.device.type == "cuda" and world_size() == 1
    # On a GPU exact products are more than a gradient needs. On a CPU inexact ones would be no faster, and torch's
    # attention (2.13, small heads, a CPU with matrix instructions) ten times slower.
    on_gpu = examples.device.type == "cuda"
    with products("high" if on_gpu else "highest"), many_shapes() if on_gpu else nullcontext():
        trackers = [_Tracker(run, examples, captured=captured) for run in runs]
        total = sum(run.config.steps for run in runs)
        while behind := [tracker for tracker in trackers if not tracker.over]:
            # All that stand at the same step go on together, the hindmost first.
            at = min(tracker.replica.done for tracker in behind)
            together = [tracker for tracker in behind if tracker.replica.done == at]
            for tracker in together:
                tracker.prepare()
            together = [tracker for tracker in together if not tracker.over]
            if not together:
                continue
            marks = [tracker.next_mark() for tracker in together]
            until = min(marks)
            for _ in range(at, until):
                for tracker in together:
                    tracker.replica.advance()
            if captured:
                torch.cuda.synchronize()
            done = sum(tracker.replica.done for tracker in trackers) / total
            for tracker, mark in zip(together, marks, strict=True):
                if mark == until:
                    tracker.look(lambda what: progress(done, what))  # noqa: B023 (called at once)
        for tracker in trackers:
            tracker.replica.release()
    # One that broke does not stop the others, but it is not passed over.
    broken = {number: tracker.broken for number, tracker in enumerate(trackers) if tracker.broken is not None}
    if broken:
        raise BrokenRunsError(broken)


def many_shapes() -> AbstractContextManager[object]:
    """Let a function be compiled for the shapes of many runs.

    By default it is for eight in the life of a process, and left as it is for all that come after.
    """
    limits: AbstractContextManager[object] = torch._dynamo.config.patch(
        recompile_limit=256, accumulated_recompile_limit=1024
    )
    return limits


class _Tracker:
    """A replica with its log and checkpoints."""

    def __init__(self, run: Run, examples: Examples, *, captured: bool) -> None:
        self.run, self.config = run, run.config
        self.about: dict[str, Any] = {
            "config": asdict(run.config),
            "seed": run.seed,
            **run.about,
            **examples.fingerprint,
        }
        self.broken: ActionPieceError | None = None
        self.replica = Replica(run, examples, captured=captured)
        if run.resume:
            if run.folder is None:
                raise ActionPieceError("there is nothing to resume without a run folder")
            try:
                load_checkpoint(run.folder, self.replica, self.about)
            except ActionPieceError as error:
                self.broken = error
        self.log = None
        if run.folder is not None and is_first() and self.broken is None:  # what stays as it was keeps its log
            self.log = log.Log(run.folder, self.replica.done, tensorboard=run.config.tensorboard)

    @property
    def finished(self) -> bool:
        return self.replica.done >= self.config.steps

    @property
    def over(self) -> bool:
        return self.finished or self.broken is not None

    def prepare(self) -> None:
        """Get ready for the next steps, or break."""
        try:
            self.replica.prepare()
        except ActionPieceError as error:
            self.broken = error

    def next_mark(self) -> int:
        """The next step after which something is to be written."""
        every = (BLOCK, self.config.checkpoint_every, self.config.validate_every)
        marks = [(self.replica.done // n + 1) * n for n in every]
        if self.replica.done < self.config.continuous:
            marks.append(self.config.continuous)
        if self.replica.done < self.config.steps - self.config.settle:
            marks.append(self.config.steps - self.config.settle)
        return min(self.config.steps, *marks)

    def look(self, say: Callable[[str], None]) -> None:
        """Report, validate and keep a checkpoint, whatever is due."""
        done = self.replica.done
        values = {name: float(value) for name, value in self.replica.terms.items()}
        if is_first() and _finite(values) and (self.finished or done % self.config.validate_every == 0):
            # The losses are of the weights before the last step; this is of those after it.
            values |= self.replica.validate()
            if not _finite(values) and not self.finished and world_size() > 1:
                return  # the other processes have not looked: all of them see it in the next step's loss
        if not _finite(values):
            step = saved_step(self.run.folder)
            self.broken = ActionPieceError(
                f"the loss is not finite at step {done} ({log.line(values)}); try a lower learning rate"
                + ("" if step is None else f"; the last checkpoint, of step {step}, is kept")
            )
            return
        if not is_first():
            return
        if self.log is not None:
            self.log.write(done, values)
        say(f"step {done}: {log.line(values)}")
        if self.run.folder is not None and (self.finished or done % self.config.checkpoint_every == 0):
            save_checkpoint(self.run.folder, self.replica, self.about)


def _finite(values: dict[str, float]) -> bool:
    return all(math.isfinite(value) for value in values.values())
