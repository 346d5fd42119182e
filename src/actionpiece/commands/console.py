"""What all commands print with: results to standard output, progress and errors to standard error."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

console = Console()
errors = Console(stderr=True)


@contextlib.contextmanager
def progress(total: float = 1.0) -> Iterator[Callable[[float, str], None]]:
    """A progress bar on standard error, gone when done; standard output stays clean for results."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, what: bar.update(task, completed=done, description=what)


def say(text: str) -> None:
    """A line of results; paths are not broken."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def command_line() -> str:
    """What was typed, as results write it down."""
    return shlex.join(["actionpiece", *sys.argv[1:]])
