"""`policy serve`: policies for robots elsewhere."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import tyro

from actionpiece.commands.console import errors, say
from actionpiece.errors import ActionPieceError

_LOOK = 0.2  # seconds between two looks at the server


def serve(
    policy: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DIR|MODULE:MAKER|FILE.py:MAKER")]],
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    max_batch: int = 8,
    max_wait_ms: float = 3.0,
    max_clients: int = 32,
    max_mib: int = 16,
) -> None:
    """Serve a policy to robots and simulators over a websocket, in openpi's protocol, until Ctrl-C.

    Clients: `--policy ws://host:port` of `actionpiece rollout`, openpi's own, or one file to copy to the robot,
    actionpiece/policy/robot_client.py. Questions that come together are answered together.

    Args:
        policy: folder of a trained policy, or package.module:maker or path/to/file.py:maker, where maker() returns an
            object with act(observation) -> (H, D) commands. If it has warm_up() this is called before robots come.
        host: address to listen on; 0.0.0.0 is all of this machine's.
        port: to listen on; 0 is any free one.
        token_file: a file with a secret that clients must send; without one everybody who reaches the port is served.
        max_batch: questions that the policy gets at once.
        max_wait_ms: how long a question waits for others to join it.
        max_clients: at the same time; more are refused.
        max_mib: of a message, in MiB.
    """
    from rich.live import Live

    from actionpiece.evaluation.rollout import load_policy
    from actionpiece.policy.server import PolicyServer, ServerConfig

    config = ServerConfig(
        host,
        port,
        None if token_file is None else read_token(token_file),
        max_clients=max_clients,
        max_bytes=max_mib << 20,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
    )
    loaded = load_policy(policy)
    if hasattr(loaded, "warm_up"):
        loaded.warm_up()
    server = PolicyServer(loaded, config)
    if config.token is None and not is_loopback(host):
        warn(f"{host} can be reached from other machines and no token is asked for (--token-file)")
    if hasattr(loaded, "reset") and not hasattr(loaded, "act_batch"):
        warn("this policy has reset(), which nobody will call: the protocol has no episodes")
    with stop_signals() as stopped, shown_logs(), server:
        say(f"Serving {policy} at {server.uri}; Ctrl-C stops it.")
        line = Live("", console=errors, transient=True, auto_refresh=False) if errors.is_terminal else None
        with line or contextlib.nullcontext():
            while not stopped():
                time.sleep(_LOOK)
                if not server.running:
                    raise ActionPieceError("the policy server broke down; what it logged above says why")
                if line is not None:
                    line.update(str(server.status), refresh=True)
    done = server.status
    say(f"Stopped after {done.answered:,} answers and {done.refused:,} refusals.")


@contextlib.contextmanager
def shown_logs() -> Iterator[None]:
    """What the server logs appears above the status line."""
    from rich.logging import RichHandler

    handler, logger = RichHandler(console=errors, show_path=False), logging.getLogger("actionpiece.policy")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def warn(text: str) -> None:
    """A line beside the results."""
    errors.print(f"actionpiece: {text}", highlight=False, markup=False, soft_wrap=True)


def read_token(path: Path) -> str:
    """The secret in a file, without the line's end."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ActionPieceError(f"the token in {path} cannot be read: {error}") from None
    if not token:
        raise ActionPieceError(f"{path} holds no token")
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. A name other than localhost is not trusted to be."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Whether an interrupt or a polite request to end has come; a second one is no longer caught."""
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
