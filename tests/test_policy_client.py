"""The wire format, and a client against a real server of the protocol on this machine."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from actionpiece import ActionPieceError
from actionpiece.evaluation.rollout import load_policy
from actionpiece.policy.client import RemotePolicy
from actionpiece.policy.robot_client import PolicyError, RobotClient
from actionpiece.policy.wire import pack, unpack

msgpack = pytest.importorskip("msgpack")
server = pytest.importorskip("websockets.sync.server")

ARRAYS = npst.arrays(
    st.sampled_from([np.uint8, np.int64, np.float32, np.float64, np.bool_]), npst.array_shapes(min_dims=0, min_side=0)
)


@given(st.dictionaries(st.text(), ARRAYS | st.integers(-(2**62), 2**62) | st.text() | st.binary() | st.none()))
def test_what_is_packed_comes_back(value: dict[str, Any]) -> None:
    again = unpack(pack(value))
    assert again.keys() == value.keys()
    for key, one in value.items():
        np.testing.assert_array_equal(again[key], one)
        if isinstance(one, np.ndarray):
            assert again[key].dtype == one.dtype
            assert again[key].shape == one.shape


def test_the_format_is_openpis() -> None:
    """As its client writes it: maps with bytes for keys, raw data, dtype as a string, shape."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    theirs = {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": "<f4", b"shape": (2, 3)}
    assert pack({"actions": array}) == msgpack.packb({"actions": theirs})
    np.testing.assert_array_equal(unpack(msgpack.packb({"actions": theirs}))["actions"], array)
    assert unpack(pack(np.float32(1.5))) == 1.5


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        msgpack.packb({b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": (2,)}),
        msgpack.packb({b"__ndarray__": True, b"data": b"12345678", b"dtype": "|O", b"shape": (1,)}),
        msgpack.packb({b"__ndarray__": True, b"data": b"1234", b"dtype": "nonsense", b"shape": (1,)}),
        *(
            msgpack.packb({b"__ndarray__": True, b"data": b"1234", b"dtype": name, b"shape": (1,)})
            for name in ("|n,,", "<f4\n", "<f", "<M8", "<f4,", "<f99")  # numpy would parse some of these
        ),
        msgpack.packb({b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4"}),
        msgpack.packb({b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": (-1, -1)}),
    ],
)
def test_a_message_that_is_none_is_an_error(message: bytes) -> None:
    with pytest.raises(ActionPieceError, match="not well-formed"):
        unpack(message)


def test_what_cannot_be_sent_is_said() -> None:
    for value in (object(), np.array([object()])):
        with pytest.raises(ActionPieceError, match="cannot be sent"):
            pack({"x": value})


@contextlib.contextmanager
def serving(answer: Callable[[Any], bytes | str], greeting: bytes | None = None) -> Iterator[str]:
    """A policy server on a free port; `answer` gets what was asked."""

    def handle(socket: Any) -> None:
        socket.send(pack({"name": "test"}) if greeting is None else greeting)
        for message in socket:
            socket.send(answer(unpack(message)))

    with server.serve(handle, "127.0.0.1", 0) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{running.socket.getsockname()[1]}"
        finally:
            running.shutdown()
            thread.join()


def test_a_policy_elsewhere_answers_like_one_here() -> None:
    def answer(observation: Any) -> bytes:
        assert observation["observation/image"].shape == (4, 4, 3)
        return pack({"actions": np.full((8, 7), float(observation["observation/state"][0]), np.float64)})

    with serving(answer) as uri:
        policy = load_policy(uri)
        assert isinstance(policy, RemotePolicy)
        assert policy.metadata == {"name": "test"}
        observation = {"prompt": "lift", "observation/state": np.full(8, 0.5, np.float32)}
        for _ in range(3):
            chunk = policy.act(observation | {"observation/image": np.zeros((4, 4, 3), np.uint8)})
            np.testing.assert_array_equal(chunk, np.full((8, 7), 0.5, np.float32))
            assert chunk.dtype == np.float32
        policy.close()


def test_a_server_of_this_machine_is_not_looked_for_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody is
    with serving(lambda _: pack({"actions": np.zeros((8, 7))})) as uri:
        assert RemotePolicy(uri).act({"prompt": "lift"}).shape == (8, 7)


def test_a_greeting_that_was_not_waited_for_is_never_an_answer() -> None:
    """A signal comes while the connection is made anew: what is still to be read is no answer to the next question."""
    with serving(lambda question: pack({"actions": np.full((1, 7), question["number"])})) as uri:
        client = RobotClient(uri)
        client.close()
        greet, understood = client._greet, client._understood

        def interrupted(answer: Any) -> Any:
            raise KeyboardInterrupt

        client._understood = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            client.ask({"number": 1})
        assert client._socket is None
        client._greet, client._understood = greet, understood  # type: ignore[method-assign]
        for number in (2.0, 3.0):
            actions = client.act({"number": number})
            assert actions.max() == number
            actions += 1  # it is the caller's own
        client.close()


@pytest.mark.parametrize("wrong", [{"timeout": np.inf}, {"timeout": None}, {"open_timeout": 0}, {"timeout": 1e9}])
def test_times_that_cannot_be_waited_for_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="a timeout is more than 0"):
        RobotClient("ws://127.0.0.1:1", **wrong)
    with pytest.raises(PolicyError, match="no policy server at ws"):
        RobotClient("ws://[foo")


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ("Traceback (most recent call last):\nValueError: no such prompt", "reports an error: ValueError: no such"),
        (msgpack.packb([1]), "answered with list, not a map"),
        (msgpack.packb({"a": 1}), "without 'actions'"),
        (msgpack.packb({"actions": "abc"}), "'actions' that are no numbers"),
        (msgpack.packb({"actions": [[1.0], [1.0, 2.0]]}), "'actions' that are no numbers"),
        (b"\xc1", "not well-formed"),
    ],
)
def test_a_server_in_trouble_is_an_error_and_never_a_command(answer: bytes | str, what: str) -> None:
    with serving(lambda _: answer) as uri:
        policy = RemotePolicy(uri)
        with pytest.raises(ActionPieceError, match=what):
            policy.act({"prompt": "lift"})
        policy.close()


def test_after_an_error_a_new_connection_is_made() -> None:
    """openpi's servers hang up when they have said what went wrong."""

    answers = ["ValueError: no such prompt", pack({"actions": np.zeros((8, 7))})]
    with serving(lambda _: answers.pop(0)) as uri:
        policy = RobotClient(uri)
        first = policy._socket
        with pytest.raises(PolicyError, match="no such prompt"):
            policy.act({"prompt": "lift"})
        assert policy.act({"prompt": "lift"}).shape == (8, 7)
        assert policy._socket is not first
        policy.close()


def test_a_token_that_cannot_be_sent_is_not_shown() -> None:

    with pytest.raises(PolicyError) as caught:
        RobotClient("ws://127.0.0.1:9", "se\ncret")
    assert "se" not in str(caught.value).split()
    assert "cret" not in str(caught.value)


def test_no_server_and_one_that_goes_away_are_said() -> None:
    with pytest.raises(ActionPieceError, match="there is no policy server at ws://127"):
        RemotePolicy("ws://127.0.0.1:9")
    with pytest.raises(ActionPieceError, match="there is no policy server at ws://"):
        RemotePolicy("ws://")

    def leave(_: Any) -> bytes:
        raise ConnectionError("gone")

    with serving(leave) as uri:
        policy = RemotePolicy(uri)
        with pytest.raises(ActionPieceError, match="went away"):
            policy.act({"prompt": "lift"})


def test_a_late_answer_is_never_taken_for_that_to_the_next_question() -> None:
    asked: list[int] = []

    def answer(observation: Any) -> bytes:
        asked.append(int(observation["number"]))
        if len(asked) == 1:
            time.sleep(1.0)
        return pack({"actions": np.full((1, 7), float(observation["number"]))})

    with serving(answer) as uri:
        policy = RemotePolicy(uri, patience=0.3)
        with pytest.raises(ActionPieceError, match="went away"):
            policy.act({"number": 0})
        for number in (1, 2):
            assert policy.act({"number": number})[0, 0] == number
        policy.close()
