"""What all commands print with: results to standard output, progress and errors to standard error."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

console = Console()
errors = Console(stderr=True)

EVERY = 60.0  # seconds between lines of progress in a log


def _lines(total: float) -> Callable[[float, str], None]:
    last = time.monotonic()

    def show(done: float, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY:
            last = now
            note(f"{time.strftime('%H:%M:%S')} {done / total:4.0%}  {what}")

    return show


@contextlib.contextmanager
def progress(total: float = 1.0) -> Iterator[Callable[[float, str], None]]:
    """A progress bar on standard error, gone when done; where that is a file, a line a minute, so that logs tell, too.

    Standard output stays clean for results.
    """
    if os.environ.get("RANK", "0") != "0":  # of several processes that torchrun started one speaks
        yield lambda done, what: None
        return
    if not errors.is_terminal:
        yield _lines(total)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, what: bar.update(task, completed=done, description=what)


def say(text: str) -> None:
    """A line of results; paths are not broken."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def note_few_chunks(name: str, config: Any, chunks: int) -> None:
    """Say it where there are so few chunks that codes would be learned by heart."""
    codes = getattr(config, "codes", 0)
    if chunks < 10 * codes:
        note(f"{name} has {codes:,} codes to learn from {chunks:,} training chunks: fewer codes may do better.")


def note(text: str) -> None:
    """A line beside the results, on standard error."""
    errors.print(text, highlight=False, soft_wrap=True, markup=False)


_held: list[str] | None = None


@contextlib.contextmanager
def json_alone() -> Iterator[None]:
    """Keep standard output for `print_json`, whose text comes at the end of the block.

    What is printed meanwhile, also by users' code and by processes that it starts, goes to standard error.
    """
    global _held
    out = sys.stdout
    if out is None or sys.stderr is None:  # closed by whoever started us
        yield
        return
    out.flush()
    descriptor = os.dup(1)
    os.dup2(2, 1)
    _held = []
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        text, _held = "".join(_held), None
        out.flush()
        os.dup2(descriptor, 1)
        os.close(descriptor)
        out.write(text)


def print_json(value: Any) -> None:
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    if _held is None:
        sys.stdout.write(text)
    else:
        _held.append(text)


def command_line() -> str:
    """What was typed, as results write it down."""
    return shlex.join(["actionpiece", *sys.argv[1:]])
