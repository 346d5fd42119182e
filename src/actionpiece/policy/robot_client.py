"""Asks a policy server for commands, in openpi's protocol. This one file is all a robot needs.

It runs on Python 3.8 and newer with numpy, msgpack and websockets (13 or newer) and imports nothing else of
ActionPiece, so that it can be copied to a robot's computer as it is:

    from robot_client import RobotClient

    robot = RobotClient("ws://workstation:8000", token="...")
    chunk = robot.act({"prompt": "lift the cube", "observation/state": state,
                       "observation/image": picture, "observation/wrist_image": wrist})  # see robot.metadata

`python robot_client.py ws://workstation:8000` asks once with a made-up observation and says how long it took.
"""

from __future__ import annotations

import argparse
import math
import re
import socket
import statistics
import sys
import time
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import msgpack  # type: ignore[import-untyped]
import numpy as np
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import connect
from websockets.version import version

_NUMBERS = "biufc"  # kinds of dtypes that may travel
_DTYPE = re.compile(rf"[<>|=][{_NUMBERS}][0-9]{{1,2}}")
_LARGEST = 1 << 26  # bytes of an answer; a chunk of commands has some hundred
_MOST = 100_000  # values of a message that are not in arrays: a few bytes must not become gigabytes of objects
_LONGEST = 4096  # values of one list or map
_TROUBLE = (WebSocketException, OSError, TimeoutError)
_PATIENCE = 1_000_000  # seconds; the kernel counts milliseconds in 31 bits
_HANG_UP = 1.0  # seconds that a server has to say goodbye


class PolicyError(Exception):
    """What went wrong, in one sentence."""


def pack(value: Any) -> bytes:
    """Plain data and numpy arrays as bytes."""
    try:
        packed: bytes = msgpack.packb(value, default=_to_map)
    except (ValueError, TypeError, OverflowError) as error:
        raise PolicyError(f"this cannot be sent: {error}") from None
    return packed


def unpack(data: bytes) -> Any:
    """The inverse of `pack`; anything that is not well-formed is an error. Nothing is executed or unpickled."""
    left = _MOST

    def counted(value: Any) -> Any:
        nonlocal left
        left -= 1 + len(value)
        if left < 0:
            raise ValueError(f"it has more than {_MOST:,} values; many numbers travel as an array")
        return value

    def on_map(value: dict[Any, Any]) -> Any:
        return _from_map(counted(value))

    try:
        return msgpack.unpackb(
            data, object_hook=on_map, list_hook=counted, max_array_len=_LONGEST, max_map_len=_LONGEST
        )
    except (msgpack.UnpackException, ValueError, TypeError, KeyError, OverflowError) as error:
        raise PolicyError(f"a message is not well-formed msgpack: {str(error) or type(error).__name__}") from None


def _to_map(value: Any) -> dict[bytes, Any]:
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in _NUMBERS:
        if isinstance(value, np.generic):
            return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    raise PolicyError(f"{type(value).__name__} cannot be sent: plain data and arrays of numbers can")


def _from_map(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        dtype, shape, data = _dtype(value[b"dtype"]), value[b"shape"], value[b"data"]
        if not isinstance(shape, list) or not isinstance(data, bytes):
            raise ValueError("an array has bytes and a list of sizes")
        if any(not isinstance(n, int) or n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"an array of {len(data)} bytes is not of shape {shape}")
        return np.frombuffer(data, dtype).reshape(shape)
    if b"__npgeneric__" in value:
        if not isinstance(value[b"data"], (bool, int, float)):
            raise ValueError(f"{type(value[b'data']).__name__} is not a number")
        with np.errstate(all="ignore"):  # what is too large for its type is infinite
            return _dtype(value[b"dtype"]).type(value[b"data"])
    return value


def _dtype(name: Any) -> Any:
    # Only what `dtype.str` writes: numpy reads much more than that, and runs parsers of its own on it.
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise ValueError("arrays are of numbers, and their dtype is written like '<f4'")
    return np.dtype(name)


class RobotClient:
    """Asks the server at `uri` (ws://host:port). metadata: what the server says of itself.

    token: sent as `Authorization: Bearer …`. timeout: seconds that an answer may take; the first one of a policy can
    take long. open_timeout: seconds for a connection.

    The connection is kept. A server that answers with text reports an error, which is raised here as `PolicyError`,
    as is everything else that goes wrong. After any trouble the connection is given up, so that a late answer is never
    taken for that to the next question; the next question makes a new one. One thread may ask at a time.
    """

    def __init__(
        self, uri: str, token: str | None = None, *, timeout: float = 60.0, open_timeout: float = 10.0
    ) -> None:
        if token and not token.isprintable():
            raise PolicyError("a token is one line of printable characters")  # others would be echoed in errors
        for seconds in (timeout, open_timeout):
            if not isinstance(seconds, (int, float)) or not 0 < seconds <= _PATIENCE:
                raise PolicyError(f"a timeout is more than 0 and at most {_PATIENCE:,} seconds, not {seconds}")
        self.uri, self._timeout, self._open_timeout = uri, timeout, open_timeout
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._socket: Any = None
        self._line = ExitStack()  # newer releases of websockets want a connection to be a context manager
        self.metadata: dict[str, Any] = {}
        self._connect()

    def __enter__(self) -> RobotClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> None:
        try:
            self._greet()
        except BaseException:  # an interrupt too: a greeting that is still to be read must not pass for an answer
            self.close()
            raise

    def _greet(self) -> None:
        options: dict[str, Any] = {"max_size": _LARGEST, "open_timeout": self._open_timeout, "close_timeout": _HANG_UP}
        if int(version.split(".")[0]) >= 15:
            # A server that does not answer pings while it thinks is not dead; older releases send none.
            options["ping_interval"] = None
        try:
            if int(version.split(".")[0]) >= 15 and urlsplit(self.uri).hostname in ("127.0.0.1", "::1", "localhost"):
                options["proxy"] = None  # a proxy would look for the server on its own machine
            self._socket = self._line.enter_context(
                connect(self.uri, compression=None, additional_headers=self._headers, **options)
            )
            self._give_up_on_the_dead()
            greeting = self._socket.recv(timeout=self._open_timeout)
        except InvalidStatus as error:
            said = (error.response.body or b"").decode("utf-8", "replace").strip()
            why = f"{error.response.status_code} {said}".strip()
            raise PolicyError(f"the policy server at {self.uri} refuses: {why}") from None
        except (*_TROUBLE, ValueError) as error:
            why = str(error) or type(error).__name__
            raise PolicyError(f"there is no policy server at {self.uri}: {why}") from None
        self.metadata = self._understood(greeting)

    def _give_up_on_the_dead(self) -> None:
        # Sending has no timeout of its own: a cable that is pulled would hold a robot for as long as TCP has patience.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            patience = int(1000 * self._timeout)
            with suppress(OSError):  # the server may have hung up already; what it said last is still to be read
                self._socket.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)

    def ask(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The server's whole answer: "actions", "server_timing" and whatever else it says."""
        question = pack(observation)
        if self._socket is None:
            self._connect()
        try:
            self._socket.send(question)
            answer = self._socket.recv(timeout=self._timeout)
        except _TROUBLE as error:
            self.close()
            why = str(error) or type(error).__name__
            raise PolicyError(f"the policy server at {self.uri} went away: {why}") from None
        except BaseException:  # an interrupt: the answer may still come
            self.close()
            raise
        try:
            return self._understood(answer)
        except PolicyError:
            self.close()  # openpi's servers hang up after they have reported an error
            raise

    def act(self, observation: dict[str, Any]) -> Any:
        """Commands (H, D), float32, for an observation."""
        actions = self.ask(observation).get("actions")
        if actions is None:
            raise PolicyError(f"the policy server at {self.uri} answered without 'actions'")
        try:
            return np.array(actions, np.float32)  # a copy: what came over the wire is read-only
        except (ValueError, TypeError):
            raise PolicyError(f"the policy server at {self.uri} answered with 'actions' that are no numbers") from None

    def reset(self) -> None:
        """Does nothing, and is here for loops that call it: the protocol has no episodes, each question is new."""

    def close(self) -> None:
        """Hang up."""
        self._socket = None
        self._line.close()

    def _understood(self, answer: Any) -> dict[str, Any]:
        if isinstance(answer, str):
            last = answer.strip().splitlines()[-1] if answer.strip() else "an empty text"
            raise PolicyError(f"the policy server at {self.uri} reports an error: {last}")
        value = unpack(answer)
        if not isinstance(value, dict):
            raise PolicyError(f"the policy server at {self.uri} answered with {type(value).__name__}, not a map")
        return value


def made_up(size: int, prompt: str) -> dict[str, Any]:
    """An observation with the names that openpi's LIBERO clients use."""
    picture = np.zeros((size, size, 3), np.uint8)
    return {
        "prompt": prompt,
        "observation/state": np.zeros(8, np.float32),
        "observation/image": picture,
        "observation/wrist_image": picture,
    }


def main() -> None:
    """Ask once, or a few times, with a made-up observation, and say how long it took."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("uri", help="ws://host:port")
    parser.add_argument("--token-file", help="a file that holds the token")
    parser.add_argument("--prompt", default="do nothing")
    parser.add_argument("--size", type=int, default=224, help="of the two pictures, in pixels")
    parser.add_argument("--times", type=int, default=1, help="how often to ask")
    arguments = parser.parse_args()
    if arguments.size < 1:
        parser.error("pictures have at least one pixel")
    try:
        token = None
        if arguments.token_file:
            with open(arguments.token_file, encoding="utf-8") as file:
                token = file.read().strip()
        with RobotClient(arguments.uri, token) as robot:
            print(f"the server says: {robot.metadata}")
            took = []
            for _ in range(max(1, arguments.times)):
                began = time.perf_counter()
                answer = robot.ask(made_up(arguments.size, arguments.prompt))
                took.append(1000 * (time.perf_counter() - began))
            shape = np.asarray(answer.get("actions")).shape
            print(f"actions {shape}, server_timing {answer.get('server_timing')}")
            print(f"latency {statistics.median(took):.1f} ms (median of {len(took)}, slowest {max(took):.1f} ms)")
    except (PolicyError, OSError) as error:
        sys.exit(f"robot_client: {error}")


if __name__ == "__main__":
    main()
