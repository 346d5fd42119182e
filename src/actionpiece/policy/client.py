"""`RemotePolicy`: a policy that is served elsewhere, asked over a websocket in openpi's protocol."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from actionpiece.errors import ActionPieceError
from actionpiece.policy.wire import robot_client

TOKEN = "ACTIONPIECE_POLICY_TOKEN"  # the environment variable that holds a token, for commands that take an address


class RemotePolicy:
    """Asks the server at `uri` (ws://host:port) for every chunk.

    token: what the server asks for, if it does; otherwise that of the environment variable ACTIONPIECE_POLICY_TOKEN.
    The rest is `RobotClient`'s: the connection is kept, and given up after any trouble.
    """

    def __init__(self, uri: str, token: str | None = None, *, patience: float = 600.0) -> None:
        self._robot = robot_client()
        try:
            self._line = self._robot.RobotClient(uri, token or os.environ.get(TOKEN), timeout=patience)
        except self._robot.PolicyError as error:
            raise ActionPieceError(str(error)) from None
        self.uri = uri

    @property
    def metadata(self) -> dict[str, Any]:
        """What the server says of itself."""
        said: dict[str, Any] = self._line.metadata
        return said

    def act(self, observation: dict[str, Any]) -> np.ndarray:
        """Commands (H, D) for an observation."""
        try:
            actions: np.ndarray = self._line.act(observation)
        except self._robot.PolicyError as error:
            raise ActionPieceError(str(error)) from None
        return actions

    def close(self) -> None:
        """Hang up."""
        self._line.close()
