"""`actionpiece record`: parse, record, print."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def record(
    env: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK [TASK ...]")],
    out: Path,
    episodes: int = 50,
    workers: int = 2,
    images: Literal["none", "chunks", "all"] = "none",
    size: int = 128,
    horizon: int = 8,
    seed: int = 0,
) -> None:
    """Record scripted demonstrations in the simulator as a LeRobot v3.0 data set.

    Failed attempts are left out and counted. Run the same command again to go on after an interrupt: finished attempts
    are kept in OUT.recording until the data set is whole. The same settings and seed give the same files.

    Args:
        env: tasks by name, or `all`: lift, stack, can, milk, cereal, square_nut, round_nut, door. LIBERO's, where it is
            installed, are libero_object/0 and so on, or a whole suite.
        out: folder for the data set.
        episodes: successful demonstrations of each task.
        workers: processes that record side by side; about one for each core.
        images: pictures of the agent and the wrist camera: none, at chunk starts (every HORIZON steps, which is where a
            policy looks), or at all steps.
        size: of the pictures, in pixels.
        horizon: steps of an action chunk, for `--images chunks`.
        seed: of the starts and of how the demonstrators go about it.
    """
    from actionpiece.sim.make import expand
    from actionpiece.sim.recording import record as run
    from actionpiece.sim.rendering import choose_backend

    console = Console()
    tasks = expand(env)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    if images != "none":
        say(choose_backend().line)
    errors = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        line = bar.add_task("starting", total=None)
        done = run(
            tasks,
            episodes,
            out,
            workers=workers,
            seed=seed,
            images=images,
            size=size,
            horizon=horizon,
            progress=lambda good, total, what: bar.update(line, completed=good, total=total, description=what),
        )
    if not done.fresh:
        say(f"{out} holds this recording already; nothing was done.")
    megabytes = done.nbytes / 1e6
    say(f"{done.episodes:,} episodes, {done.steps:,} steps, {megabytes:.1f} MB in {out}.")
    failures = ", ".join(f"{name} {count}" for name, count in done.discarded.items() if count)
    say(f"Failed attempts left out: {failures or 'none'}.")
    say(f"Next: {shlex.join(['actionpiece', 'data', 'info', str(out)])}")
