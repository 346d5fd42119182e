"""Episodes in a simulator, by several processes, a line of JSON each. What is finished is not done again.

An episode that crashes is an error, kept apart from failures: its line says what happened, and the next run tries it
again.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from actionpiece.errors import ActionPieceError
from actionpiece.files import not_finite, read_json, write_json, writing

if TYPE_CHECKING:
    from actionpiece.sim.environment import Environment

Progress = Callable[[float, str], None]


class Job(Protocol):
    """What a process is given; it must be possible to pickle it.

    key: tells it from the others, in every run. facts: what its line says of it, whatever becomes of it.
    """

    @property
    def key(self) -> str: ...

    @property
    def facts(self) -> dict[str, Any]: ...


class Journal:
    """The lines of finished episodes, in a file that is only ever added to. None: in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.lines: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            for line in read_lines(path, mend=True):
                self.lines[line["key"]] = line

    def add(self, line: dict[str, Any]) -> None:
        """Keep a line, on disk before anything else happens."""
        self.lines[line["key"]] = line
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def has(self, key: str) -> bool:
        """Whether this episode is finished; one that ended in an error is not."""
        return key in self.lines and "error" not in self.lines[key]


def read_lines(path: Path, *, mend: bool = False) -> list[dict[str, Any]]:
    """The whole lines of a journal. mend: a last one that a kill cut short is taken out of the file."""
    whole, _, rest = path.read_bytes().rpartition(b"\n")
    if rest and mend:
        with writing(path) as aside:
            aside.write_bytes(whole + b"\n" if whole else b"")
    lines = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            value = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ActionPieceError(f"{path}: line {number} is not JSON: {error}") from None
        if not isinstance(value, dict) or not isinstance(value.get("key"), str):
            raise ActionPieceError(f"{path}: line {number} is not of an episode")
        lines.append(value)
    return lines


def claim(folder: Path, settings: dict[str, Any]) -> None:
    """Make a folder the place of episodes with these settings; an error if it holds some with others."""
    path = folder / "settings.json"
    if path.is_file():
        found = read_json(path)
        different = [name for name in settings if not isinstance(found, dict) or found.get(name) != settings[name]]
        if different:
            raise ActionPieceError(
                f"{folder} holds episodes with another {' and '.join(different)}; choose another folder or remove it"
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ActionPieceError(f"{folder} holds something else, no episodes of ours; choose another folder")
    else:
        write_json(path, settings)


def run_episodes(
    jobs: Sequence[Job],
    work: Callable[[Any], dict[str, Any]],
    *,
    journal: Journal,
    workers: int = 2,
    progress: Progress = lambda fraction, what: None,
) -> list[dict[str, Any]]:
    """The lines of all jobs, in their order; those that the journal has are not done again.

    work: a function of a module, called in another process with a job; what it returns becomes the line. Processes are
    spawned, so a script that calls this needs `if __name__ == "__main__":`.
    """
    if workers < 1:
        raise ActionPieceError(f"at least one worker is needed, not {workers}")
    if len({job.key for job in jobs}) < len(jobs):
        raise ActionPieceError("an episode is asked for twice")
    left = deque(job for job in jobs if not journal.has(job.key))

    def say() -> None:
        done = sum(journal.has(job.key) for job in jobs)
        progress(done / max(len(jobs), 1), f"{done} of {len(jobs)} episodes")

    say()
    if left:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited; an environment is one core's work

    def keep(job: Job, result: dict[str, Any]) -> None:
        journal.add({"key": job.key, **job.facts, **result})
        say()

    suspects: deque[Job] = deque()  # they were under way when a process died; alone, each shows whether it was the one
    while left or suspects:
        alone = bool(suspects)
        under_way = _pool(deque([suspects.popleft()]) if alone else left, 1 if alone else workers, work, keep)
        if len(under_way) == 1:
            keep(under_way[0], {"error": "its process died"})
        else:
            suspects.extend(under_way)
    return [journal.lines[job.key] for job in jobs]


def _pool(
    jobs: deque[Job],
    workers: int,
    work: Callable[[Any], dict[str, Any]],
    keep: Callable[[Job, dict[str, Any]], None],
) -> list[Job]:
    """Work off the jobs, so many at a time; if a process dies, stop and return those that were under way."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), context, _leave_with_parent) as pool:
        under_way: dict[Future[dict[str, Any]], Job] = {}
        try:
            while jobs or under_way:
                while jobs and len(under_way) < workers:
                    under_way[pool.submit(_guarded, work, jobs[0])] = jobs[0]
                    jobs.popleft()  # only now: submitting fails where a process has died meanwhile
                done, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    result = future.result()
                    keep(under_way.pop(future), result)
        except BrokenProcessPool:
            return list(under_way.values())
    return []


def _guarded(work: Callable[[Any], dict[str, Any]], job: Job) -> dict[str, Any]:
    try:
        result = work(job)
        if odd := not_finite(result):  # a journal is JSON, and so are results
            raise ActionPieceError(f"its {odd}")
        return result
    except (Exception, SystemExit) as error:  # noqa: BLE001  (it becomes the episode's error, never its failure)
        last = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return {"error": last, "traceback": traceback.format_exc()}


def _leave_with_parent() -> None:
    """A killed command must not leave processes behind."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        sentinel = parent.sentinel
        threading.Thread(target=lambda: (wait_for([sentinel]), os._exit(1)), daemon=True).start()


_kept: list[Environment] = []


def environment(task: str, cameras: int = 0) -> Environment:
    """This process's environment of a task; it is kept until another is asked for, since making one takes seconds."""
    from actionpiece.sim.make import make

    if _kept and (_kept[0].task.name != task or _kept[0].cameras < cameras):
        _kept.pop().close()
    if not _kept:
        _kept.append(make(task, cameras=cameras))
        atexit.unregister(_close)
        atexit.register(_close)  # what was registered last is called first: before the graphics library leaves
    return _kept[0]


def _close() -> None:
    while _kept:
        _kept.pop().close()


def check_no_errors(lines: Sequence[dict[str, Any]]) -> None:
    """Refuse to make a table of episodes some of which crashed."""
    broken = [line for line in lines if "error" in line]
    if broken:
        raise ActionPieceError(
            f"{len(broken)} of {len(lines)} episodes crashed, the first ({broken[0]['key']}) with"
            f" {broken[0]['error']}; run the command again to try them once more"
        )
