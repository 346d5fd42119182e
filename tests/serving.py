"""Helpers of the tests of the policy server: a policy that says who asked, a bare socket, and waiting."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from actionpiece import ActionPieceError
from actionpiece.policy.robot_client import RobotClient
from actionpiece.policy.server import PolicyServer, ServerConfig


class Echo:
    """Answers with the number that it was asked; "mood" makes it misbehave. batches: how many came at once;
    numbers: what was answered.

    While `open` is cleared it does not answer; `entered` says that it has been asked.
    """

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {"name": "echo"}
        self.batches: list[int] = []
        self.numbers: set[int] = set()
        self.open, self.entered = threading.Event(), threading.Event()
        self.open.set()

    def check(self, observation: Any) -> None:
        if observation.get("mood") == "clumsy":
            raise KeyError("clumsy")
        if not isinstance(observation.get("number"), int):
            raise ActionPieceError("an observation needs a 'number'")

    def act_batch(self, observations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        self.batches.append(len(observations))
        self.entered.set()
        assert self.open.wait(30)
        moods = [observation.get("mood") for observation in observations]
        if "angry" in moods:
            raise ValueError("no\nway")
        if "leaving" in moods:
            raise SystemExit(3)
        if "miscounting" in moods:
            return []
        self.numbers.update(observation["number"] for observation in observations)
        return [self._answer(observation) for observation in observations]

    def _answer(self, observation: dict[str, Any]) -> dict[str, Any]:
        actions = np.full((2, 7), observation["number"], np.float64)
        match observation.get("mood"):
            case "lost":
                actions[1, 3] = np.nan
            case "flat":
                actions = actions[0]
            case "odd":
                return {"actions": actions, "extra": object()}
            case "silent":
                return {}
            case "generous":
                return {"actions": actions, "extra": np.zeros(1 << 25, np.uint8)}
        return {"actions": actions, "log_probs": np.zeros(16, np.float32)}


@contextlib.contextmanager
def echoing(**settings: Any) -> Iterator[tuple[Echo, PolicyServer]]:
    """The policy and a server of it on a free port."""
    policy = Echo()
    with PolicyServer(policy, ServerConfig(port=0, **settings)) as server:
        try:
            yield policy, server
        finally:
            policy.open.set()


def asked(client: RobotClient, number: int) -> None:
    """Ask, and see that the answer is to this question."""
    answer = client.ask({"number": number, "prompt": "lift"})
    np.testing.assert_array_equal(answer["actions"], np.full((2, 7), number, np.float32))
    assert answer["actions"].dtype == np.float32
    assert answer["server_timing"].keys() == {"infer_ms", "queue_ms"}


class Witness:
    """Another client, that is being served the whole time. At the end it has been, also after all that happened."""

    def __init__(self, server: PolicyServer) -> None:
        self._uri, self._done, self.count = server.uri, threading.Event(), 0
        self._wrong: list[BaseException] = []
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        try:
            with RobotClient(self._uri, timeout=5.0) as client:
                while not self._done.is_set():
                    asked(client, 10_000_000 + self.count)
                    self.count += 1
        except BaseException as error:  # noqa: BLE001  (raised again by whoever waits)
            self._wrong.append(error)

    def more(self, questions: int = 20) -> None:
        """Wait until it has been answered that many more times."""
        goal = self.count + questions
        until(lambda: self.count >= goal or bool(self._wrong))
        if self._wrong:
            raise self._wrong[0]

    def __enter__(self) -> Witness:
        self._thread.start()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.more()
        finally:
            self._done.set()
            self._thread.join()


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that has no event."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.002)


def bare(server: PolicyServer, *, receive: int | None = None) -> socket.socket:
    """A socket that has shaken hands and says nothing more by itself. receive: bytes the kernel takes for it."""
    line = socket.socket()
    line.settimeout(20)
    if receive is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    line.connect(("127.0.0.1", server.port))
    key = base64.b64encode(os.urandom(16)).decode()
    head = f"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
    line.sendall(f"{head}Sec-WebSocket-Version: 13\r\n\r\n".encode())
    said = b""
    while b"\r\n\r\n" not in said:
        said += line.recv(1)
    assert b" 101 " in said
    return line


def rest(line: socket.socket) -> int:
    """Bytes that still come before the other side ends the connection, one way or the other."""
    count = 0
    with contextlib.suppress(ConnectionResetError):
        while block := line.recv(1 << 16):
            count += len(block)
    return count


def frame(message: bytes) -> bytes:
    """A binary frame as clients send it."""
    mask = b"\1\2\3\4"
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(message))
    return b"\x82" + struct.pack("!BH", 128 | 126, len(message)) + mask + masked
