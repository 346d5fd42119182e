"""`PolicyServer`: policies for robots elsewhere, over a websocket in openpi's protocol.

On connecting, a client is sent the policy's metadata; after that every message is one question and gets one answer. All
messages are msgpack; text is an error, in one sentence, and the connection goes on. `GET /healthz` answers "OK".
A client waits for its answer before it asks again: one that sends ahead is read no further, not even its signs of life.

Two threads: one speaks with the clients and never waits for the policy; the other, in `batching.py`, asks the policy.
"""

from __future__ import annotations

import asyncio
import hmac
import http
import logging
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from actionpiece.errors import ActionPieceError, not_installed
from actionpiece.policy.batching import Batcher, OneByOne, Served, one_sentence, servable
from actionpiece.policy.wire import pack, unpack

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request, Response

__all__ = ["OneByOne", "PolicyServer", "Served", "ServerConfig", "Status", "servable"]

log = logging.getLogger("actionpiece.policy")
_LONGEST_WAIT = 60_000  # ms


@dataclass(frozen=True)
class ServerConfig:
    """How to serve.

    port: 0 is any free one. token: what clients must send as `Authorization: Bearer …` or, as openpi's do, `Api-Key …`.
    max_bytes: of a message. max_batch: questions that the policy gets at once; max_wait_ms: how long one waits for
    others to join it. Seconds: for a handshake, for a client to take an answer, between pings and for their answer,
    and for what is in hand when the server stops.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    max_clients: int = 32
    max_bytes: int = 1 << 24
    max_batch: int = 8
    max_wait_ms: float = 3.0
    open_seconds: float = 10.0
    send_seconds: float = 10.0
    ping_seconds: float = 20.0
    stop_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name in ("max_clients", "max_bytes", "max_batch"):
            if getattr(self, name) < 1:
                raise ActionPieceError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.max_wait_ms <= _LONGEST_WAIT:
            raise ActionPieceError(f"max_wait_ms must be from 0 to {_LONGEST_WAIT}, not {self.max_wait_ms}")
        if not 0 <= self.port < 65536:
            raise ActionPieceError(f"port must be from 0 to 65535, not {self.port}")
        if self.token is not None and (not self.token or self.token != self.token.strip()):
            raise ActionPieceError("the token is empty, or begins or ends with a blank")


@dataclass(frozen=True)
class Status:
    """What a server has done so far. mean_ms: from question to answer, of the last hundred."""

    clients: int
    answered: int
    refused: int
    mean_ms: float

    def __str__(self) -> str:
        times = f"{self.mean_ms:.1f} ms an answer"
        return f"{self.clients} clients, {self.answered:,} answers, {self.refused:,} refused, {times}"


class PolicyServer:
    """Serves a policy from `start()` to `stop()`, or inside a `with` block. `uri` says where.

    policy: a `Served`, or anything with `act(observation)`.
    """

    def __init__(self, policy: Any, config: ServerConfig | None = None) -> None:
        self.config = config or ServerConfig()
        self.port = self.config.port
        self._served = servable(policy)
        self._greeting = pack(self._served.metadata)
        self._batcher = Batcher(
            self._served,
            max_batch=self.config.max_batch,
            max_wait_ms=self.config.max_wait_ms,
            clients=lambda: len(self._clients),
        )
        self._clients: set[ServerConnection] = set()
        self._in_hand = 0
        self._answered, self._refused = 0, 0
        self._took: deque[float] = deque(maxlen=100)
        self._thread = threading.Thread(target=self._run, name="actionpiece-server", daemon=True)
        self._ready: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def uri(self) -> str:
        """Where clients find it."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"ws://{host}:{self.port}"

    @property
    def status(self) -> Status:
        """What it has done so far."""
        took = list(self._took)
        return Status(len(self._clients), self._answered, self._refused, sum(took) / len(took) if took else 0.0)

    @property
    def running(self) -> bool:
        """Whether clients are served."""
        return self._thread.is_alive() and self._batcher.running

    def start(self) -> None:
        """Listen; returns when clients can connect. A server starts once."""
        self._thread.start()
        try:
            self._ready.result()
        except (OSError, OverflowError, UnicodeError) as error:
            self._thread.join()
            where = f"{self.config.host}:{self.config.port}"
            raise ActionPieceError(f"{where} cannot be listened on: {error}") from None

    def stop(self) -> None:
        """Answer what is in hand, hang up, and end both threads. May be called twice."""
        if self._loop is not None and self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._stopping.set)
            except RuntimeError:  # it ended by itself between the two lines
                log.debug("the server had stopped already")
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # whoever waits for the start hears of it
            if self._ready.done():
                log.exception("the policy server broke down")
            else:
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        try:
            from websockets.asyncio.server import serve
        except ImportError as error:
            raise not_installed(error, "serve") from None
        config = self.config
        self._loop, self._stopping, self._idle = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._idle.set()
        async with serve(
            self._converse,
            config.host,
            config.port,
            process_request=self._at_the_door,
            origins=[None],  # browsers name the page they act for; no page may drive a robot
            compression=None,  # pictures gain little, and small messages cannot become huge ones
            max_size=config.max_bytes,
            max_queue=1,  # a client that sends ahead is read no further
            open_timeout=config.open_seconds,
            ping_interval=config.ping_seconds,
            ping_timeout=config.ping_seconds,
            close_timeout=min(2.0, config.stop_seconds),
            logger=log,
        ) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            self._batcher.start()
            self._ready.set_result(None)
            await self._stopping.wait()
            try:
                async with asyncio.timeout(config.stop_seconds):
                    await self._idle.wait()
            except TimeoutError:
                log.warning("stopping with %d questions unanswered", self._in_hand)
        await asyncio.to_thread(self._batcher.stop, config.stop_seconds)

    def _at_the_door(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path.partition("?")[0] == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        if not self._admitted(request):
            response = connection.respond(http.HTTPStatus.UNAUTHORIZED, "the token is missing or wrong\n")
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        if self._stopping.is_set():
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping\n")
        if len(self._clients) >= self.config.max_clients:
            full = f"all {self.config.max_clients} places are taken; try again later\n"
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, full)
        return None

    def _admitted(self, request: Request) -> bool:
        if self.config.token is None:
            return True
        given = request.headers.get_all("Authorization")
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(" ")
        # websockets reads headers as ASCII and keeps other bytes as surrogates
        sent = token.strip().encode("utf-8", "surrogateescape")
        return hmac.compare_digest(sent, self.config.token.encode()) and scheme.lower() in ("bearer", "api-key")

    async def _converse(self, connection: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        self._clients.add(connection)
        gone = asyncio.ensure_future(connection.wait_closed())
        try:
            await self._send(connection, self._greeting)
            async for message in connection:
                self._in_hand += 1
                self._idle.clear()
                try:
                    reply = await self._reply(message, gone)
                    if reply is not None:
                        await self._send(connection, reply)
                finally:
                    self._in_hand -= 1
                    if not self._in_hand:
                        self._idle.set()
        except ConnectionClosed as why:
            log.debug("a client went away: %s", why)
        finally:
            gone.cancel()
            self._clients.discard(connection)

    async def _send(self, connection: ServerConnection, reply: bytes | str) -> None:
        try:
            async with asyncio.timeout(self.config.send_seconds):
                await connection.send(reply)
        except TimeoutError:
            log.warning("a client did not take its answer within %g s and is let go", self.config.send_seconds)
            connection.transport.abort()

    async def _reply(self, message: bytes | str, gone: asyncio.Future[None]) -> bytes | str | None:
        """The answer to a message; none to one who has gone."""
        try:
            observation = self._question(message)
        except ActionPieceError as error:
            self._refused += 1
            return one_sentence(error)
        answer = asyncio.wrap_future(self._batcher.ask(observation))
        either: set[asyncio.Future[Any]] = {answer, gone}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()  # nobody wants it any more; if it is still waiting, the policy is not asked
            return None
        try:
            said = answer.result()
            reply = pack(said)
        except ActionPieceError as error:
            self._refused += 1
            return one_sentence(error)
        self._answered += 1
        self._took.append(said["server_timing"]["infer_ms"] + said["server_timing"]["queue_ms"])
        return reply

    def _question(self, message: bytes | str) -> dict[str, Any]:
        if self._stopping.is_set():
            raise ActionPieceError("the server is stopping")
        if isinstance(message, str):
            raise ActionPieceError("a question is msgpack in a binary message, not text")
        observation = unpack(message)
        if not isinstance(observation, dict):
            raise ActionPieceError(f"a question is a map of names to values, not {type(observation).__name__}")
        try:
            self._served.check(observation)
        except ActionPieceError:
            raise
        except Exception as error:  # a check that stumbles over an odd question must not cost the connection
            log.warning("the policy's check stumbled", exc_info=error)
            raise ActionPieceError(one_sentence(error)) from None
        return observation
