"""Batches: one thread asks the policy, for all who are waiting."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from actionpiece.errors import ActionPieceError

log = logging.getLogger("actionpiece.policy")
_LONGEST = 300  # characters of an error that travel


class Served(Protocol):
    """What can be served. metadata: what clients are told when they connect."""

    metadata: dict[str, Any]

    def check(self, observation: Any) -> None:
        """Raise an `ActionPieceError` with one sentence if this observation cannot be answered. Must be quick."""
        ...

    def act_batch(self, observations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """An answer for each: "actions" (H, D) float32, and whatever else the policy has to say."""
        ...


class Acts(Protocol):
    """A policy as rollouts know it."""

    def act(self, observation: dict[str, Any]) -> np.ndarray:
        """Commands (H, D)."""
        ...


class OneByOne:
    """Makes any policy with `act(observation)` one that can be served.

    It is never told of a client's episodes: the protocol has none.
    """

    def __init__(self, policy: Acts) -> None:
        self._policy = policy
        self.metadata: dict[str, Any] = dict(getattr(policy, "metadata", None) or {})

    def check(self, observation: Any) -> None:
        """Everything is let through; the policy says what it cannot answer."""

    def act_batch(self, observations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """See `Served`."""
        return [{"actions": self._policy.act(observation)} for observation in observations]


def servable(policy: Any) -> Served:
    """The policy itself if it answers batches, else one that asks it one by one."""
    if all(callable(getattr(policy, name, None)) for name in ("check", "act_batch")) and hasattr(policy, "metadata"):
        served: Served = policy
        return served
    return OneByOne(policy)


def one_sentence(error: BaseException) -> str:
    """What a client is told of an error: no traceback, one line, not too long."""
    said = " ".join(str(error).split()).encode("utf-8", "replace").decode()
    if not isinstance(error, ActionPieceError):
        said = f"the policy failed with {type(error).__name__}" + (f": {said}" if said else "")
    return said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"


@dataclass(eq=False)
class Question:
    """An observation and the promise of an answer, which may be cancelled as long as it is waiting."""

    observation: dict[str, Any]
    arrived: float = field(default_factory=time.perf_counter)
    answer: Future[dict[str, Any]] = field(default_factory=Future)


class Batcher:
    """A thread that takes what is waiting, up to `max_batch`, and waits `max_wait_ms` at most for more to come.

    clients: how many there are; when all of them wait there is nothing to wait for. A batch that fails is asked one by
    one, so that a bad question does not spoil its neighbours' answers.
    """

    def __init__(self, served: Served, *, max_batch: int, max_wait_ms: float, clients: Callable[[], int]) -> None:
        self._served, self._wait, self._clients = served, max_wait_ms / 1000, clients
        # Those who are asked one by one should not wait for those behind them.
        self._most = 1 if isinstance(served, OneByOne) else max_batch
        self._waiting: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        # A daemon, so that a policy that never comes back does not keep the process.
        self._thread = threading.Thread(target=self._work, name="actionpiece-policy", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the policy is asked."""
        return self._thread.is_alive()

    def stop(self, patience: float) -> None:
        """Finish the batch in hand and end; a policy that takes longer than `patience` seconds is left behind."""
        self._waiting.put(None)
        self._thread.join(patience)
        if self._thread.is_alive():
            log.warning("the policy has not answered for %g s and is left behind", patience)

    def ask(self, observation: dict[str, Any]) -> Future[dict[str, Any]]:
        """The promise of an answer with "server_timing", or of an `ActionPieceError`."""
        question = Question(observation)
        self._waiting.put(question)
        return question.answer

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            if wanted := [question for question in batch if question.answer.set_running_or_notify_cancel()]:
                self._answer(wanted)

    def _next(self) -> list[Question] | None:
        first = self._waiting.get()
        if first is None:
            return None
        batch = [first]
        deadline = first.arrived + self._wait
        while len(batch) < min(self._most, self._clients()):
            try:
                one = self._waiting.get(timeout=max(0.0, deadline - time.perf_counter()))
            except queue.Empty:
                break
            if one is None:
                self._waiting.put(None)  # for the next call to find
                break
            batch.append(one)
        return batch

    def _answer(self, batch: Sequence[Question]) -> None:
        began = time.perf_counter()
        try:
            answers = self._served.act_batch([question.observation for question in batch])
            if len(answers) != len(batch):
                raise ActionPieceError(f"the policy gave {len(answers)} answers to {len(batch)} questions")
        except BaseException as error:  # nobody else would hear of it in this thread, not even of SystemExit
            if len(batch) == 1:
                log.warning("a question is answered with an error", exc_info=error)
                batch[0].answer.set_exception(ActionPieceError(one_sentence(error)))
                return
            log.warning("a batch of %d failed and is asked one by one: %s", len(batch), one_sentence(error))
            for question in batch:
                self._answer([question])
            return
        infer = 1000 * (time.perf_counter() - began)
        for question, answer in zip(batch, answers, strict=True):
            timing = {"infer_ms": infer, "queue_ms": 1000 * (began - question.arrived)}
            try:
                said = {**checked(answer), "server_timing": timing}
            except Exception as error:  # such as a tensor that does not become an array
                log.warning("a question is answered with an error", exc_info=error)
                question.answer.set_exception(ActionPieceError(one_sentence(error)))
            else:
                question.answer.set_result(said)


def checked(answer: Any) -> dict[str, Any]:
    """The answer, if a robot may be given it: finite commands (H, D)."""
    if not isinstance(answer, dict) or "actions" not in answer:
        raise ActionPieceError("the policy answered without 'actions'")
    with np.errstate(over="ignore"):  # what is too large is refused below
        actions = np.asarray(answer["actions"], np.float32)
    if actions.ndim != 2 or not actions.size:
        raise ActionPieceError(f"the policy answered with 'actions' of shape {actions.shape}, not (H, D)")
    if not np.isfinite(actions).all():
        raise ActionPieceError("the policy answered with 'actions' that are not finite")
    return {**answer, "actions": actions}
