"""The policy server, on this machine, with clients that behave and clients that do not."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("msgpack", reason="needs the extra 'serve'")
pytest.importorskip("websockets", reason="needs the extra 'serve'")

import msgpack
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from actionpiece import ActionPieceError
from actionpiece.policy.client import RemotePolicy
from actionpiece.policy.robot_client import PolicyError, RobotClient, pack, unpack
from actionpiece.policy.server import PolicyServer, ServerConfig
from serving import Echo, Witness, asked, bare, echoing, frame, rest, until

GOOD = pack({"number": 7, "prompt": "lift", "observation/image": np.zeros((8, 8, 3), np.uint8)})


def array(dtype: Any, shape: Any, data: Any = b"12345678", **more: Any) -> bytes:
    inside = {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}
    packed: bytes = msgpack.packb({"number": 1, "picture": inside, **more})
    return packed


def scalar(dtype: Any, data: Any) -> bytes:
    packed: bytes = msgpack.packb({"number": {b"__npgeneric__": True, b"data": data, b"dtype": dtype}})
    return packed


MALFORMED: list[Callable[[random.Random], bytes | str]] = [
    lambda r: r.randbytes(r.randrange(200)),
    lambda r: GOOD[: r.randrange(len(GOOD))],
    lambda r: GOOD + r.randbytes(1 + r.randrange(9)),
    lambda r: "text" * r.randrange(100),
    lambda r: GOOD.hex(),
    lambda r: msgpack.packb({"prompt": r.random()}),
    lambda r: msgpack.packb({"number": r.choice(["7", 1.5, None, [7], {"number": 7}, b"7"])}),
    lambda r: msgpack.packb({"number": 7, "mood": "clumsy"}),
    lambda r: msgpack.packb({r.randrange(9): 7}),
    lambda r: msgpack.packb(r.choice([7, None, "number", [["number", 7]], b"", msgpack.Timestamp(1)])),
    lambda r: msgpack.packb({"number": msgpack.ExtType(r.randrange(128), b"7")}),
    lambda r: r.choice([b"\x91", b"\x81\xa1a", b"\xdc\x0f\xff"]) * r.choice([600, 1100, 20_000]),
    lambda r: b"\x81\xa6number" + b"\x91" * 900 + b"\x07",
    lambda r: r.choice([b"\xdd", b"\xdf", b"\xc6"]) + r.choice([b"\xff\xff\xff\xff", b"\0\0\xff\xff"]),
    lambda r: b"\xdc\x0f\xff" + (b"\xdc\x0f\xff" + b"\x80" * 4095) * 30,
    lambda r: array(r.choice(["|O", "O", "object", "|S8", "<U2", "<M8[s]", "|V8", "f4,f4", "(2,)f4"]), [1]),
    lambda r: array(r.choice(["<f3", "", "(1 2)f4", "<f4\0", None, 4, ["<f4"], {"names": ["a"]}]), [2]),
    lambda r: array("<f4", r.choice([[2**40, 2**40], [2**64 - 1], [-2], [-1, -2], [1.0, 2.0], [None], [[2]], [3]])),
    lambda r: array("<f4", r.choice([[0, 2**63], [2**64 - 1, 0], [0] + [2**62] * 9]), b""),
    lambda r: array("|u1", r.choice([None, 8, "8", {}, b"\x08", [1] * 33, [1] * 4000, [127] * 4096])),
    lambda r: array("<f4", [2], r.choice([None, 8, "12345678", [0] * 8, {}])),
    lambda r: scalar(r.choice(["<i4", "<i8", "|u1"]), r.choice([2**64 - 1, "7", None, [7], float("nan")])),
    lambda r: scalar(r.choice(["|O", "<f2", "|b1", "<c8"]), r.choice([7, 1e300])),
]


def test_a_thousand_malformed_messages_are_each_answered_and_cost_nobody_anything() -> None:
    """Every kind many times over, all on one connection, which a good question then still finds usable."""
    draw = random.Random(0)
    with echoing() as (_, server), Witness(server), connect(server.uri, compression=None) as line:
        line.recv()
        for number in range(1000):
            line.send(MALFORMED[number % len(MALFORMED)](draw))
            answer = line.recv(timeout=10)
            assert isinstance(answer, str), number
            assert len(answer.splitlines()) == 1
            assert len(answer) <= 300
        assert server.status.refused == 1000
        line.send(GOOD.hex())
        assert line.recv(timeout=10) == "a question is msgpack in a binary message, not text"
        line.send(GOOD)
        assert unpack(line.recv(timeout=10))["actions"][0, 0] == 7


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_message_with_a_wrong_byte_is_an_observation_or_an_error(place: int, change: int) -> None:
    message = GOOD[:place] + bytes([GOOD[place] ^ change]) + GOOD[place + 1 :]
    with contextlib.suppress(PolicyError):  # and no other
        unpack(message)


@pytest.mark.parametrize(
    ("mood", "said"),
    [
        ("angry", "the policy failed with ValueError: no way"),
        ("leaving", "the policy failed with SystemExit: 3"),
        ("lost", "'actions' that are not finite"),
        ("flat", r"'actions' of shape \(7,\), not \(H, D\)"),
        ("odd", "object cannot be sent"),
        ("silent", "without 'actions'"),
        ("miscounting", "0 answers to 1 questions"),
        ("clumsy", "the policy failed with KeyError"),
    ],
)
def test_a_policy_that_fails_says_so_in_a_sentence_and_is_asked_again(mood: str, said: str) -> None:
    with echoing() as (_, server), RobotClient(server.uri) as client:
        with pytest.raises(PolicyError, match=f"reports an error: .*{said}"):
            client.act({"number": 1, "mood": mood})
        asked(client, 2)


def test_who_drops_out_in_mid_message_or_mid_handshake_is_forgotten() -> None:
    with echoing(open_seconds=0.3) as (_, server), Witness(server):
        silent = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        silent.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        lines = [bare(server) for _ in range(3)]
        until(lambda: server.status.clients == 4)
        half = frame(GOOD)[: len(GOOD) // 2]
        for line in lines:
            line.sendall(half)
        lines[0].close()
        lines[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not a goodbye
        lines[1].close()
        lines[2].shutdown(socket.SHUT_WR)
        until(lambda: server.status.clients == 1)
        assert silent.recv(100) == b""
        lines[2].close()
        silent.close()


def test_who_stops_in_mid_message_is_let_go_when_it_answers_no_pings() -> None:
    with echoing(ping_seconds=0.3) as (_, server), Witness(server) as witness, bare(server) as line:
        until(lambda: server.status.clients == 2)
        line.sendall(frame(GOOD)[:20])
        witness.more()
        until(lambda: server.status.clients == 1)


def test_a_client_that_does_not_take_its_answer_is_let_go_and_holds_nobody_up() -> None:
    with echoing(send_seconds=2.0) as (policy, server), Witness(server) as witness, bare(server, receive=4096) as line:
        until(lambda: server.status.clients == 2)
        line.sendall(frame(pack({"number": 1, "mood": "generous"})))
        until(lambda: 1 in policy.numbers)
        witness.more()
        assert server.status.clients == 2  # it has not been let go yet, and others were served
        until(lambda: server.status.clients == 1)
        assert 1000 < rest(line) < 1 << 25  # cut off amid its answer


def test_what_waits_is_answered_in_batches_and_no_batch_is_too_large() -> None:
    with echoing(max_batch=4, max_wait_ms=0) as (policy, server), ThreadPoolExecutor(7) as pool:
        clients = [RobotClient(server.uri) for _ in range(7)]
        policy.open.clear()
        first = pool.submit(asked, clients[0], 0)
        assert policy.entered.wait(10)
        others = [pool.submit(asked, client, number) for number, client in enumerate(clients[1:], 1)]
        until(lambda: server._batcher._waiting.qsize() == 6)
        policy.open.set()
        for one in (first, *others):
            one.result(10)
        assert policy.batches == [1, 4, 2]


def test_a_question_waits_for_others_only_as_long_as_there_are_others() -> None:
    """With a wait of a minute: two clients that both ask share a batch at once, and so does one that is alone."""
    with echoing(max_wait_ms=60_000) as (policy, server), ThreadPoolExecutor(2) as pool:
        clients = [RobotClient(server.uri) for _ in range(2)]
        for one in [pool.submit(asked, client, number) for number, client in enumerate(clients)]:
            one.result(10)
        assert policy.batches == [2]
        clients[0].close()
        until(lambda: server.status.clients == 1)
        asked(clients[1], 5)
        assert policy.batches == [2, 1]


@pytest.mark.parametrize("mood", ["angry", "lost", "odd", "miscounting"])
def test_one_bad_question_in_a_batch_does_not_hurt_the_others(mood: str) -> None:
    with echoing(max_wait_ms=60_000) as (policy, server), ThreadPoolExecutor(5) as pool:
        clients = [RobotClient(server.uri) for _ in range(5)]
        bad = pool.submit(clients[0].act, {"number": 0, "mood": mood})
        good = [pool.submit(asked, client, number) for number, client in enumerate(clients[1:], 1)]
        for one in good:
            one.result(10)
        with pytest.raises(PolicyError, match="reports an error"):
            bad.result(10)
        assert policy.batches[0] == 5


def test_a_question_that_nobody_waits_for_any_more_is_not_asked() -> None:
    with echoing(max_wait_ms=0) as (policy, server), ThreadPoolExecutor(1) as pool:
        policy.open.clear()
        with RobotClient(server.uri) as client:
            first = pool.submit(asked, client, 1)
            assert policy.entered.wait(10)
            with pytest.raises(PolicyError, match="went away"):
                RobotClient(server.uri, timeout=0.1).act({"number": 2})
            until(lambda: server.status.clients == 1)
            policy.open.set()
            first.result(10)
            asked(client, 3)
        assert policy.batches == [1, 1]


@settings(max_examples=6, deadline=None)
@given(st.integers(2, 20), st.integers(1, 8), st.sampled_from([0.0, 1.0, 5.0]))
def test_answers_go_to_those_who_asked(clients: int, max_batch: int, wait: float) -> None:
    start = threading.Barrier(clients)

    def ask(who: int) -> None:
        with RobotClient(server.uri, timeout=20) as client:
            start.wait(20)
            for number in range(20):
                asked(client, 1000 * who + number)

    with echoing(max_batch=max_batch, max_wait_ms=wait) as (policy, server), ThreadPoolExecutor(clients) as pool:
        for one in [pool.submit(ask, who) for who in range(clients)]:
            one.result(60)
    assert sum(policy.batches) == server.status.answered == 20 * clients
    assert max(policy.batches) <= max_batch


def test_any_policy_with_act_can_be_served_and_asked_by_all_kinds_of_clients() -> None:
    class Plain:
        def act(self, observation: dict[str, Any]) -> Any:
            if "prompt" not in observation:
                raise ActionPieceError("there is no prompt")
            return [[float(observation["observation/state"][0])] * 7]

    observation = {"prompt": "lift", "observation/state": np.full(8, 0.5, np.float32)}
    with PolicyServer(Plain(), ServerConfig(port=0)) as server, RobotClient(server.uri) as robot:
        remote = RemotePolicy(server.uri)
        for client in (remote, robot):
            np.testing.assert_array_equal(client.act(observation), np.full((1, 7), 0.5, np.float32))
            assert client.metadata == {}
        with pytest.raises(ActionPieceError, match="reports an error: there is no prompt"):
            remote.act({})
        remote.close()
        robot.reset()
        with PolicyServer(RemotePolicy(server.uri), ServerConfig(port=0)) as second, RobotClient(second.uri) as far:
            assert far.act(observation).shape == (1, 7)


def headers(*values: str) -> list[tuple[str, str]]:
    return [("Authorization", value) for value in values]


def test_a_token_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with echoing(token="geheim") as (_, server):
        for token in (None, "Geheim", "geheim2", "geh", "gehéim"):
            with pytest.raises(PolicyError, match="refuses: 401 the token is missing or wrong"):
                RobotClient(server.uri, token)
        with RobotClient(server.uri, "geheim") as client:
            asked(client, 1)
        monkeypatch.setenv("ACTIONPIECE_POLICY_TOKEN", "geheim")
        RemotePolicy(server.uri).close()
        for good in ("Api-Key geheim", "bearer geheim"):
            with connect(server.uri, additional_headers=headers(good)) as line:
                assert unpack(line.recv()) == {"name": "echo"}
        for bad in (["Basic geheim"], ["geheim"], ["Bearer"], ["Bearer geheim", "Bearer geheim"]):
            with (
                pytest.raises(InvalidStatus, match="401"),
                connect(server.uri, additional_headers=headers(*bad)),
            ):
                pass
        assert "geheim" not in repr(server.config)
    with echoing(token="schlüssel") as (_, server):
        RobotClient(server.uri, "schlüssel").close()


def test_no_page_in_a_browser_may_ask() -> None:
    with (
        echoing() as (_, server),
        pytest.raises(InvalidStatus, match="403"),
        connect(server.uri, origin="http://evil.example"),  # type: ignore[arg-type]
    ):
        pass


def test_who_comes_too_many_is_told_so_and_may_come_again() -> None:
    with echoing(max_clients=2) as (_, server), RobotClient(server.uri) as first:
        second = RobotClient(server.uri)
        with pytest.raises(PolicyError, match="refuses: 503 all 2 places are taken"):
            RobotClient(server.uri)
        asked(first, 1)
        second.close()
        until(lambda: server.status.clients == 1)
        with RobotClient(server.uri) as third:
            asked(third, 3)


def test_a_message_that_is_too_large_ends_its_connection_and_no_other() -> None:
    with echoing(max_bytes=10_000) as (_, server), Witness(server), RobotClient(server.uri) as client:
        with pytest.raises(PolicyError, match="1009"):
            client.act({"number": 1, "picture": np.zeros(10_000, np.uint8)})
        client.act({"number": 1, "picture": np.zeros(9_900, np.uint8)})  # connects anew
        asked(client, 2)


def test_health_is_told_to_everybody() -> None:
    with (
        echoing(token="geheim") as (_, server),
        urllib.request.urlopen(server.uri.replace("ws", "http") + "/healthz", timeout=10) as page,
    ):
        assert (page.status, page.read()) == (200, b"OK\n")


def test_stopping_answers_what_is_in_hand_and_leaves_nothing_behind() -> None:
    before = set(threading.enumerate())
    with ThreadPoolExecutor(2) as pool, echoing() as (policy, server):
        client, idle = RobotClient(server.uri), connect(server.uri)
        policy.open.clear()
        answer = pool.submit(asked, client, 1)
        assert policy.entered.wait(10)
        stopped = pool.submit(server.stop)
        with idle as line:
            line.recv()
            until(server._stopping.is_set)
            line.send(GOOD)
            assert line.recv(timeout=10) == "the server is stopping"
            with pytest.raises(PolicyError, match="503 the server is stopping"):
                RobotClient(server.uri)
            policy.open.set()
            answer.result(10)
            stopped.result(10)
            with pytest.raises(ConnectionClosed, match="1001"):
                line.recv(timeout=10)
        with pytest.raises(PolicyError, match="went away"):
            client.act({"number": 1})
        server.stop()
        assert not server.running
    assert {thread for thread in set(threading.enumerate()) - before if thread.name.startswith("action")} == set()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_a_server_that_cannot_be_is_said() -> None:
    with echoing() as (_, server), pytest.raises(ActionPieceError, match=f":{server.port} cannot be listened on"):
        PolicyServer(Echo(), ServerConfig(port=server.port)).start()
    with pytest.raises(ActionPieceError, match="cannot be listened on"):
        PolicyServer(Echo(), ServerConfig(host="300.1.1.1", port=0)).start()
    PolicyServer(Echo()).stop()  # one that never ran
    for wrong, said in (
        ({"max_batch": 0}, "max_batch must be at least 1, not 0"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms"),
        ({"port": 65536}, "port must be from 0 to 65535"),
        ({"max_wait_ms": 1e13}, "max_wait_ms"),
        ({"token": ""}, "the token is empty"),
        ({"token": " geheim"}, "begins or ends with a blank"),
    ):
        with pytest.raises(ActionPieceError, match=said):
            ServerConfig(**wrong)  # type: ignore[arg-type]
