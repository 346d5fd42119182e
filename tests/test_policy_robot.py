"""The robot's client, which is one file, and the command that serves what it asks."""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("msgpack", reason="needs the extra 'serve'")
pytest.importorskip("websockets", reason="needs the extra 'serve'")

from websockets.sync.server import serve

from actionpiece import cli
from actionpiece.commands.policies import is_loopback
from actionpiece.policy import robot_client
from actionpiece.policy.robot_client import PolicyError, RobotClient, pack, unpack
from serving import asked, echoing

FILE = Path(robot_client.__file__)

POLICY = """
import numpy as np

class Still:
    metadata = {"name": "still"}

    def act(self, observation):
        return np.zeros((8, 7), np.float32)

    def warm_up(self):
        print("warm", flush=True)

    def reset(self):
        pass
"""


def alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder that holds the one file, shut off from this project."""
    (folder / FILE.name).write_bytes(FILE.read_bytes())
    return subprocess.run(
        [sys.executable, "-I", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_file_is_python_3_8_and_needs_three_packages() -> None:
    tree = ast.parse(FILE.read_text(), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    theirs = {name.split(".")[0] for name in names} - sys.stdlib_module_names
    assert theirs == {"numpy", "msgpack", "websockets"}
    # Annotations are never evaluated, so that they may be written as today's Python has them.
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    unions = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    annotations = [
        part
        for node in ast.walk(tree)
        for given in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if given is not None
        for part in ast.walk(given)
    ]
    assert all(union in annotations for union in unions)


def test_the_file_works_alone(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, '.'); import robot_client;"
        "print([name for name in ('actionpiece', 'torch') if name in sys.modules], robot_client.__file__)"
    )
    done = alone(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[] ")
    assert str(tmp_path) in str((tmp_path / done.stdout.split()[-1]).resolve())


def test_an_interrupt_while_waiting_gives_the_connection_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer may still come, and must not be taken for that to the next question."""

    def interrupted(timeout: float) -> bytes:
        raise KeyboardInterrupt

    with echoing() as (_, server), RobotClient(server.uri) as client:
        with monkeypatch.context() as patch:
            patch.setattr(client._socket, "recv", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.act({"number": 1})
        asked(client, 2)


def test_what_cannot_be_sent_costs_no_connection() -> None:
    with echoing() as (_, server), RobotClient(server.uri) as client:
        for value in (object(), 2**70, {1j: 1}):
            with pytest.raises(PolicyError, match="cannot be sent"):
                client.act({"number": value})
        asked(client, 1)
        assert server.status.refused == 0


def test_a_greeting_that_is_an_error_is_raised_and_not_kept() -> None:
    with serve(lambda line: line.send("Traceback\nValueError: no weights"), "127.0.0.1", 0) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        for _ in range(20):  # it may hang up before the client has a look
            with pytest.raises(PolicyError, match="reports an error: ValueError: no weights"):
                RobotClient(f"ws://127.0.0.1:{running.socket.getsockname()[1]}")
        running.shutdown()
        thread.join()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux can be told how long to wait")
def test_a_server_that_does_not_read_holds_a_robot_no_longer_than_its_timeout() -> None:
    """As when a cable is pulled: the kernel takes some bytes, and then no more."""

    def greet(line: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += line.recv(10_000)
        found = re.search(rb"Sec-WebSocket-Key: (\S+)", head)
        assert found
        accept = base64.b64encode(hashlib.sha1(found[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        line.sendall(b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
        line.sendall(b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + b"\x82\x01\x80")  # and an empty map

    with socket.create_server(("127.0.0.1", 0)) as door, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(RobotClient, f"ws://127.0.0.1:{door.getsockname()[1]}", timeout=0.5)
        line, _ = door.accept()
        with line:
            greet(line)
            client = connecting.result(10)
            began = time.monotonic()
            with pytest.raises(PolicyError, match="went away"):
                client.act({"number": 1, "picture": np.zeros(30_000_000, np.uint8)})
            assert time.monotonic() - began < 10  # TCP alone would wait for a quarter of an hour


def test_many_numbers_travel_as_an_array() -> None:
    for value in ([0] * 5000, [[0] * 1000] * 200, {str(number): 0 for number in range(5000)}):
        with pytest.raises(PolicyError, match="not well-formed"):
            unpack(pack(value))
    assert unpack(pack(np.zeros(10**6, np.uint8))).shape == (10**6,)


def served(folder: Path, *more: str) -> subprocess.Popen[str]:
    (folder / "mine.py").write_text(POLICY)
    command = [sys.executable, "-m", "actionpiece", "policy", "serve", "mine.py:Still", "--port", "0", *more]
    environment = os.environ | {"PYTHONPATH": str(FILE.parents[2])}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_robot_asks_what_the_command_serves(tmp_path: Path, ending: signal.Signals) -> None:
    (tmp_path / "token").write_text("geheim\n")
    with served(tmp_path, "--token-file", "token") as command:
        try:
            assert command.stdout is not None
            assert command.stdout.readline() == "warm\n"
            first = command.stdout.readline()
            found = re.search(r"^Serving mine.py:Still at (ws://127\.0\.0\.1:\d+);", first)
            assert found, command.stderr and command.stderr.read()
            refused = alone(tmp_path, FILE.name, found[1])
            assert refused.returncode == 1
            assert "robot_client: the policy server" in refused.stderr
            assert "401 the token is missing" in refused.stderr
            done = alone(tmp_path, FILE.name, found[1], "--token-file", "token", "--times", "3")
            assert done.returncode == 0, done.stderr
            assert "the server says: {'name': 'still'}" in done.stdout
            assert "actions (8, 7)" in done.stdout
            assert re.search(r"latency \d+\.\d ms \(median of 3", done.stdout)
        finally:
            command.send_signal(ending)
            out, err = command.communicate(timeout=30)
    assert command.returncode == 0
    assert "Stopped after 3 answers and 0 refusals." in out
    assert "has reset(), which nobody will call" in err
    assert "can be reached from other machines" not in err


def test_a_server_for_everybody_without_a_token_is_warned_of(tmp_path: Path) -> None:
    with served(tmp_path, "--host", "0.0.0.0") as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "warm\n"
        assert "ws://0.0.0.0:" in command.stdout.readline()
        command.terminate()
        _, err = command.communicate(timeout=30)
    assert "actionpiece: 0.0.0.0 can be reached from other machines and no token is asked for" in err
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "::", "", "10.0.0.1", "workstation")] == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mine.py:Nobody"], "cannot be loaded"),
        (["mine.py:Still", "--token-file", "none"], "the token in none cannot be read"),
        (["mine.py:Still", "--token-file", "empty"], "empty holds no token"),
        (["mine.py:Still", "--max-batch", "0"], "max_batch must be at least 1"),
        (["mine.py:Still", "--host", "300.0.0.1"], "300.0.0.1:8000 cannot be listened on"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mine.py").write_text(POLICY)
    (tmp_path / "empty").write_text("\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["actionpiece", "policy", "serve", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())
