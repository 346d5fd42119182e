"""`RemotePolicy`: a policy that is served elsewhere, asked over a websocket in openpi's protocol."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from actionpiece.errors import ActionPieceError
from actionpiece.policy.wire import pack, unpack

_LARGEST = 1 << 26  # bytes of an answer; a chunk of commands has some hundred
_PATIENCE = 10.0  # seconds for a connection


class RemotePolicy:
    """Asks the server at `uri` (ws://host:port) for every chunk. metadata: what the server says of itself.

    The connection is kept. A server that answers with text reports an error, which is raised here. After any trouble
    the connection is given up, so that a late answer is never taken for that to the next question; the next question
    makes a new one.
    """

    def __init__(self, uri: str, *, patience: float = 600.0) -> None:
        try:
            from websockets.exceptions import WebSocketException
        except ImportError as error:
            raise ActionPieceError(f"{error}; pip install 'actionpiece[serve]'") from None
        self.uri, self._patience, self._line = uri, patience, ExitStack()
        self._trouble = (WebSocketException, OSError, TimeoutError)
        self._socket: Any = None
        self.metadata: dict[str, Any] = {}
        self._connect()

    def _connect(self) -> None:
        from websockets.sync.client import connect

        try:
            self._socket = self._line.enter_context(
                connect(self.uri, compression=None, max_size=_LARGEST, open_timeout=_PATIENCE, ping_interval=None)
            )
            greeting = self._socket.recv(_PATIENCE)
        except (*self._trouble, ValueError) as error:
            self.close()
            why = str(error) or type(error).__name__
            raise ActionPieceError(f"there is no policy server at {self.uri}: {why}") from None
        self.metadata = self._understood(greeting)

    def act(self, observation: dict[str, Any]) -> np.ndarray:
        """Commands (H, D) for an observation."""
        if self._socket is None:
            self._connect()
        try:
            self._socket.send(pack(observation))
            answer = self._socket.recv(self._patience)
        except self._trouble as error:
            self.close()
            why = str(error) or type(error).__name__
            raise ActionPieceError(f"the policy server at {self.uri} went away: {why}") from None
        actions = self._understood(answer).get("actions")
        if actions is None:
            raise ActionPieceError(f"the policy server at {self.uri} answered without 'actions'")
        return np.asarray(actions, np.float32)

    def close(self) -> None:
        """Hang up."""
        self._socket = None
        self._line.close()

    def _understood(self, answer: str | bytes) -> dict[str, Any]:
        if isinstance(answer, str):
            last = answer.strip().splitlines()[-1] if answer.strip() else "an empty text"
            raise ActionPieceError(f"the policy server at {self.uri} reports an error: {last}")
        value = unpack(answer)
        if not isinstance(value, dict):
            raise ActionPieceError(f"the policy server at {self.uri} answered with {type(value).__name__}, not a map")
        return value
