"""The `actionpiece` command: its subcommands, and what becomes of mistakes.

Exit code 0 is success, 2 a mistake in what was given (one sentence on standard error), 130 an interrupt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect as inspection
import io
import os
import re
import select
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from actionpiece.commands.console import errors, json_alone
from actionpiece.commands.looking import data_info, inspect, list_all, tokenize
from actionpiece.commands.policies import serve
from actionpiece.commands.scoring import ablate, compare, correlate, evaluate
from actionpiece.commands.simulating import record, replay, rollout
from actionpiece.errors import ActionPieceError


def fit() -> None:
    """Fit a tokenizer on demonstrations: `actionpiece fit NAME --data … --out DIR` (NAME --help shows its settings)."""


def data() -> None:
    """Look at demonstrations: `actionpiece data info PATH`."""


def policy() -> None:
    """Train a policy, and serve it to robots: `actionpiece policy train`, `actionpiece policy serve`."""


COMMANDS: dict[str, Callable[..., None]] = {
    "fit": fit,
    "eval": evaluate,
    "compare": compare,
    "ablate": ablate,
    "correlate": correlate,
    "tokenize": tokenize,
    "inspect": inspect,
    "data": data,
    "record": record,
    "replay": replay,
    "rollout": rollout,
    "policy": policy,
    "list": list_all,
}

_SETTINGS = (tyro.conf.FlagCreatePairsOff,)
_ABOUT = "Action tokenizers for vision-language-action policies: fit, measure, compare."


def run(arguments: Sequence[str]) -> None:
    """Parse the arguments and run the command they name; mistakes are raised as `ActionPieceError`."""
    if arguments[:1] == ["fit"]:  # its flags depend on the tokenizer, whose file imports torch: only when asked for
        from actionpiece.commands.fitting import fit_command
        from actionpiece.tokenizers import KINDS, RECIPES

        names = [*KINDS, *RECIPES]
        named = next(iter(arguments[1:]), "-")
        if named in names:  # flags of others do not concern whoever has named one
            command = fit_command(named)
            _let_flow(command)
            tyro.cli(command, prog=f"actionpiece fit {named}", args=list(arguments[2:]), config=_SETTINGS)
        elif named.startswith("-"):
            table = {name: fit_command(name) for name in names}
            _parse(table, arguments[1:], "actionpiece fit", "Fit a tokenizer on the training episodes of a data set.")
        else:
            raise ActionPieceError(f"there is no tokenizer '{named}' to fit; there are {', '.join(names)}")
    elif arguments[:1] == ["data"]:
        _parse({"info": data_info}, arguments[1:], "actionpiece data", "Look at demonstrations.")
    elif arguments[:1] == ["policy"]:
        from actionpiece.commands.policy_training import train_command

        table = {"train": train_command(arguments), "serve": serve}
        _parse(table, arguments[1:], "actionpiece policy", "Policies: vision-language models that speak action tokens.")
    else:
        _parse(COMMANDS, arguments, "actionpiece", _ABOUT)


def _parse(table: dict[str, Callable[..., None]], arguments: Sequence[str], program: str, about: str) -> None:
    from actionpiece import __version__

    if list(arguments) in (["--version"], ["-V"]):
        sys.stdout.write(f"actionpiece {__version__}\n")
        return
    for command in table.values():
        _let_flow(command)
    alone = "--json" in arguments and not {"-h", "--help"} & {*arguments}
    with json_alone() if alone else contextlib.nullcontext():
        tyro.extras.subcommand_cli_from_dict(
            table,
            prog=program,
            description=about,
            args=list(arguments) or ["--help"],
            config=_SETTINGS,
        )


def _let_flow(described: Any) -> None:
    """Let the help of arguments flow: tyro would break its lines where our docstrings do, and where they are full.

    It joins the lines of what is said of a command itself, but for those that begin with a backtick.
    described: a command or a dataclass; those among its arguments come next.
    """
    described.__doc__ = re.sub(r"\n {8,}(?=\S)|(?<!\n)\n(?=`)", " ", inspection.cleandoc(described.__doc__ or ""))
    for kind in typing.get_type_hints(described).values():
        for part in (kind, *typing.get_args(kind)):
            if dataclasses.is_dataclass(part):
                _let_flow(part)


def _reader_left() -> bool:
    """Whether nobody reads what is printed any more, as after `| head`. Then nothing more is."""
    try:
        out = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    asked = select.poll()
    asked.register(out, 0)
    left = any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0))
    if left:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out)
    return left


def _memory(error: Exception) -> str | None:
    """What is said of memory that is not there; None for other errors. torch has RuntimeErrors of its own for it."""
    text = str(error).partition("\n")[0].rpartition("DefaultCPUAllocator: ")[2]
    if not isinstance(error, MemoryError) and not re.search("out of memory|can't allocate memory", text):
        return None
    return f"there is not enough memory for this{': ' if text else ''}{text}"


def main() -> None:
    """The entry point of the `actionpiece` command."""
    # Tokenizers make many small parallel calls; threads that spin between them starve everything else on the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale may lack our signs; that must not cost the results
    try:
        run(sys.argv[1:])
        sys.stdout.flush()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # a launcher started several of us
            from actionpiece.training.ranks import end

            end()
    except ActionPieceError as error:
        errors.print(f"actionpiece: {error}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        lacking = _memory(error)
        if lacking is None:
            raise
        errors.print(f"actionpiece: {lacking}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("actionpiece: interrupted", highlight=False, soft_wrap=True)
        sys.exit(130)
    except OSError as error:  # a disk that is full, a folder that may not be written
        if isinstance(error, BrokenPipeError) and _reader_left():
            sys.exit(0)
        errors.print(f"actionpiece: {error}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
