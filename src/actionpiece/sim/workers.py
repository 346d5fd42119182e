"""Processes that make attempts, and the one that watches over them.

A worker that dies or raises is never taken for a failed attempt: recording stops and says which attempt it was.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from actionpiece.errors import ActionPieceError
from actionpiece.sim.attempts import Attempt, perform
from actionpiece.sim.environment import Environment
from actionpiece.sim.make import make


@dataclass(frozen=True)
class Job:
    """What is the same for all attempts: where they are kept, and the rest as `attempts.perform` has it."""

    folder: Path
    size: int = 0
    every: int = 1
    horizon: int = 8
    mistakes: float = 0.0


@dataclass
class _Worker:
    process: Any
    connection: Connection
    attempt: Attempt | None = None


def supervise(
    workers: int,
    job: Job,
    next_attempt: Callable[[], Attempt | None],
    finished: Callable[[Attempt, bool], None],
) -> None:
    """Keep so many processes busy until nothing is left to do.

    next_attempt: what to do next, None if nothing is to be done before something else has finished. finished: is told
    of each attempt whether it succeeded; what it brought is in `job.folder` by then.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited; a worker is one core's work
    context = multiprocessing.get_context("spawn")
    crew: list[_Worker] = []
    try:
        while True:
            _hand_out(crew, workers, job, context, next_attempt)
            busy = {worker.connection: worker for worker in crew if worker.attempt is not None}
            if not busy:
                return
            for ready in wait(list(busy)):
                worker = busy[ready]  # type: ignore[index]
                attempt, worker.attempt = worker.attempt, None
                assert attempt is not None
                finished(attempt, _result(worker, attempt, job))
    finally:
        for worker in crew:
            worker.connection.close()
            worker.process.terminate()
        for worker in crew:
            worker.process.join()


def _hand_out(
    crew: list[_Worker], most: int, job: Job, context: Any, next_attempt: Callable[[], Attempt | None]
) -> None:
    while True:
        idle = next((worker for worker in crew if worker.attempt is None), None)
        if idle is None and len(crew) >= most:
            return
        attempt = next_attempt()
        if attempt is None:
            return
        if idle is None:  # processes are started when there is work for them
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, job), daemon=True)
            process.start()
            theirs.close()
            idle = _Worker(process, ours)
            crew.append(idle)
        idle.attempt = attempt
        try:
            idle.connection.send(attempt)
        except OSError:  # it died while it was idle
            raise _ended(idle, attempt) from None


def _result(worker: _Worker, attempt: Attempt, job: Job) -> bool:
    name = _name(attempt)
    try:
        answer = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        raise _ended(worker, attempt) from None
    if isinstance(answer, bool):
        return answer
    if isinstance(answer, ActionPieceError):  # a mistake in what was given, which only shows when it is tried
        raise ActionPieceError(f"{name}: {answer}")
    log = job.folder / f"crash-{attempt.task.replace('/', '.')}-{attempt.number:06d}.txt"
    log.write_text(answer, encoding="utf-8", errors="backslashreplace")
    raise ActionPieceError(f"{name} crashed: {answer.strip().splitlines()[-1]} (all of it is in {log})")


def _name(attempt: Attempt) -> str:
    return f"attempt {attempt.number} at {attempt.task} (seed {attempt.seed})"


def _ended(worker: _Worker, attempt: Attempt) -> ActionPieceError:
    worker.process.join()
    return ActionPieceError(
        f"{_name(attempt)} ended its process with code {worker.process.exitcode}; run the command again to go on"
    )


def _work(connection: Connection, job: Job) -> None:
    """What a worker does: an attempt at a time, until it is told no more or the watching process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the watching one decides
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    env: Environment | None = None
    while True:
        try:
            attempt = connection.recv()
        except EOFError:
            return
        try:
            if env is None or env.task.name != attempt.task:
                if env is not None:
                    env.close()  # one at a time: each holds some 100 MB, and tasks come one after the other
                env = make(attempt.task, cameras=job.size)
            done = perform(env, attempt, size=job.size, every=job.every, horizon=job.horizon, mistakes=job.mistakes)
            if done is None:
                attempt.discarded(job.folder).touch()
            else:
                done.save(attempt.kept(job.folder))
        except ActionPieceError as error:
            connection.send(error)
            return
        except Exception:  # noqa: BLE001  (whatever it is, the watching process reports it and stops)
            connection.send(traceback.format_exc())
            return
        connection.send(done is not None)


def _leave_with_parent() -> None:
    """A killed recorder must not leave workers behind that write into a folder which is being resumed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
