"""Records demonstrations: attempts by several processes in, a LeRobot v3.0 data set out.

Attempts at a task are numbered, and each has its own seed; the data set keeps the first N that succeed, in order. No
attempt is begun unless it is needed whatever becomes of those under way. So the result depends on the settings alone,
not on the number of workers, nor on interruptions: every finished attempt lies whole in OUT.recording/ until the data
set is put together there and renamed to OUT.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from actionpiece import __version__
from actionpiece.data.lerobot import SIM_SEED, SIM_TASK
from actionpiece.data.lerobot_layout import INFO
from actionpiece.data.lerobot_writer import About, Episode, write_lerobot
from actionpiece.errors import ActionPieceError
from actionpiece.files import read_json, write_json
from actionpiece.sim.attempts import Attempt, Demonstration
from actionpiece.sim.environment import CAMERAS, RATE
from actionpiece.sim.make import picture_notes, simulator, task
from actionpiece.sim.rendering import choose_backend
from actionpiece.sim.workers import Job, supervise

Images = Literal["none", "chunks", "all"]
CARD = "actionpiece.json"
ACTION = ("x", "y", "z", "rx", "ry", "rz", "gripper")
STATE = ("x", "y", "z", "rx", "ry", "rz", "finger_left", "finger_right")
_FORMAT = 2
_HOPELESS = 30  # attempts after which a success rate below a tenth means that something is wrong


@dataclass(frozen=True)
class Settings:
    """What decides a recording, to the byte.

    tasks: in this order. episodes: per task. seed: of the starts and the demonstrators. images: none, every so many
    steps (the other rows are null), or at all steps. size: of the pictures, in pixels. horizon: steps of an action
    chunk. every: steps between pictures; 0: the horizon. mistakes: the share of the delicate movements that first go
    astray and are mended; looks that a mistake follows within the horizon have no pictures.
    """

    tasks: tuple[str, ...]
    episodes: int
    seed: int = 0
    images: Images = "none"
    size: int = 128
    horizon: int = 8
    every: int = 0
    mistakes: float = 0.0

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ActionPieceError("no task was named")
        for name in self.tasks:
            task(name)  # an error that lists what there is
        if len(set(self.tasks)) != len(self.tasks):
            raise ActionPieceError(f"a task is named twice in {', '.join(self.tasks)}")
        for name, least in (("episodes", 1), ("seed", 0), ("horizon", 1), ("every", 0), ("size", 16)):
            if getattr(self, name) < least:
                raise ActionPieceError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 0 <= self.mistakes <= 1:
            raise ActionPieceError(f"mistakes must lie between 0 and 1, not {self.mistakes}")
        if self.images not in get_args(Images):
            raise ActionPieceError(f"images must be {', '.join(get_args(Images))}, not '{self.images}'")

    def decisive(self) -> dict[str, Any]:
        """The settings that the result depends on."""
        values = dataclasses.asdict(self) | {"tasks": list(self.tasks)}
        chunks = self.images == "chunks"
        unused = {
            "size": self.images == "none",
            "horizon": not self.mistakes and not (chunks and not self.every),
            "every": not chunks or not self.every,
            "mistakes": not self.mistakes,
        }
        return {name: value for name, value in values.items() if not unused.get(name)}

    def command(self) -> str:
        """The command that makes this recording again."""
        words = ["actionpiece", "record", "--env", *self.tasks, "--episodes", str(self.episodes)]
        for name, value in self.decisive().items():
            if name not in ("tasks", "episodes"):
                words += [f"--{name}", str(value)]
        return shlex.join([*words, "--out", "DIR"])


@dataclass(frozen=True)
class Recording:
    """A finished recording. fresh: made now, not found. discarded: failed attempts of each task."""

    folder: Path
    fresh: bool
    episodes: int
    steps: int
    discarded: dict[str, int]

    @property
    def nbytes(self) -> int:
        """The size of the data set on disk."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


Progress = Callable[[int, int, str], None]


def record(
    tasks: Sequence[str],
    episodes: int,
    out: str | Path,
    *,
    workers: int = 2,
    seed: int = 0,
    images: Images = "none",
    size: int = 128,
    horizon: int = 8,
    every: int = 0,
    mistakes: float = 0.0,
    progress: Progress | None = None,
) -> Recording:
    """Record so many successful demonstrations of each task into a LeRobot v3.0 data set at `out`.

    Run it again with the same settings to go on after an interrupt. progress: is told the episodes done, all that are
    wanted, and a few words. Processes are spawned, so a script that calls this needs `if __name__ == "__main__":`.
    """
    names = tuple(task(name).name for name in tasks)
    settings = Settings(names, episodes, seed, images, size, horizon, every, mistakes)
    if workers < 1:
        raise ActionPieceError(f"workers must be at least 1, not {workers}")
    out = Path(out).resolve()
    staging = out.with_name(f"{out.name}.recording")
    if (found := _finished(out, settings)) is not None:
        _clear(staging)  # of a run that was stopped between the last two steps
        return found
    backend = choose_backend().name if images != "none" else ""
    with _staging(staging, settings, backend):
        spacing = (every or horizon) if images == "chunks" else 1
        job = Job(staging, 0 if images == "none" else size, spacing, horizon, mistakes)
        ledger = _Ledger(settings, staging, progress or (lambda done, total, what: None))
        supervise(workers, job, ledger.next, ledger.finished)
        ledger.say("putting the data set together")
        made = _assemble(settings, staging, ledger, backend)
        if out.is_dir():
            out.rmdir()  # it is empty: _finished has looked
        os.replace(staging / _DATASET, out)
    _clear(staging)
    return dataclasses.replace(made, folder=out)


def _clear(staging: Path) -> None:
    """Remove the folder of finished attempts if it is one; last of all what says that it is."""
    if not (staging / _SETTINGS).is_file():
        return
    for path in staging.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _SETTINGS:
            path.unlink()
    shutil.rmtree(staging)


class _Ledger:
    """Which attempts have been made, how they ended, and which is next."""

    def __init__(self, settings: Settings, folder: Path, progress: Progress) -> None:
        self._settings, self._progress = settings, progress
        self.kept: dict[str, set[int]] = {}
        self.failed: dict[str, set[int]] = {}
        self._under_way: dict[str, set[int]] = {name: set() for name in settings.tasks}
        for name in settings.tasks:
            place = Attempt(name, 0, 0).kept(folder).parent
            place.mkdir(exist_ok=True)
            self.kept[name] = {int(file.stem) for file in place.glob("[0-9]*.npz")}
            self.failed[name] = {int(file.stem) for file in place.glob("[0-9]*.failed")}
        self.say("starting")

    def next(self) -> Attempt | None:
        """The first attempt that is needed even if all those under way succeed."""
        for name in self._settings.tasks:
            hoped = self.kept[name] | self._under_way[name]
            if len(hoped) < self._settings.episodes:
                tried = hoped | self.failed[name]
                number = next(number for number in range(len(tried) + 1) if number not in tried)
                self._under_way[name].add(number)
                return Attempt.of(self._settings.seed, name, number)
        return None

    def finished(self, attempt: Attempt, success: bool) -> None:
        self._under_way[attempt.task].remove(attempt.number)
        (self.kept if success else self.failed)[attempt.task].add(attempt.number)
        good, bad = len(self.kept[attempt.task]), len(self.failed[attempt.task])
        if good + bad >= _HOPELESS and good < 0.1 * (good + bad):
            raise ActionPieceError(f"only {good} of {good + bad} attempts at {attempt.task} succeeded; giving up")
        self.say(attempt.task)

    def say(self, what: str) -> None:
        done = sum(len(kept) for kept in self.kept.values())
        failures = sum(len(failed) for failed in self.failed.values())
        total = self._settings.episodes * len(self._settings.tasks)
        self._progress(done, total, f"{what}: {done} succeeded, {failures} failed")


def _assemble(settings: Settings, staging: Path, ledger: _Ledger, backend: str) -> Recording:
    about = About(
        int(RATE), "panda", ACTION, STATE, dict.fromkeys(CAMERAS, settings.size) if settings.images != "none" else {}
    )
    discarded = {name: len(failed) for name, failed in ledger.failed.items()}
    count = settings.episodes * len(settings.tasks)
    note = f"{count} scripted demonstrations; {sum(discarded.values())} failed attempts were left out."
    if settings.images != "none":
        note = " ".join([note, *picture_notes(settings.tasks)])
    card = {
        "name": f"simulated demonstrations: {', '.join(settings.tasks)}",
        "space": "libero",
        "rate": RATE,
        "note": note,
        **({"ahead": settings.horizon} if settings.mistakes else {}),
        "command": settings.command(),
        "recording": settings.decisive(),
        "discarded": discarded,
        "made_with": _versions(settings, backend),
    }

    def episodes() -> Iterator[Episode]:
        for name in settings.tasks:
            for number in sorted(ledger.kept[name]):
                attempt = Attempt.of(settings.seed, name, number)
                yield _episode(Demonstration.load(attempt.kept(staging)), attempt)

    shutil.rmtree(staging / _DATASET, ignore_errors=True)  # of a run that was stopped here
    written = write_lerobot(staging / _DATASET, episodes(), about, more={CARD: card})
    return Recording(staging / _DATASET, True, written.episodes, written.frames, discarded)


def _episode(done: Demonstration, attempt: Attempt) -> Episode:
    pictures: dict[str, list[bytes | None]] = {}
    for camera, shots in done.pictures.items():
        at = dict(zip(done.shown, shots, strict=True))
        pictures[camera] = [at.get(step) for step in range(len(done.actions))]
    more: dict[str, int | float | str] = {SIM_TASK: attempt.task, SIM_SEED: attempt.seed}
    return Episode(done.actions, done.states, done.instruction, pictures, more)


_SETTINGS, _DATASET, _LOCK = "settings.json", "dataset", "lock"


def _finished(out: Path, settings: Settings) -> Recording | None:
    """The recording at `out` if it is this one; None if nothing is there; an error if something else is."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    card = read_json(out / CARD) if out.is_dir() and (out / CARD).is_file() else None
    if not isinstance(card, dict) or "recording" not in card:
        raise ActionPieceError(f"{out} is there already and is no recording; choose another folder")
    found = {**card["recording"], "format": card["made_with"]["format"]}
    _same(found, {**settings.decisive(), "format": _FORMAT}, f"{out} holds a recording")
    info = read_json(out / INFO)
    return Recording(out, False, info["total_episodes"], info["total_frames"], card["discarded"])


@contextlib.contextmanager
def _staging(folder: Path, settings: Settings, backend: str) -> Iterator[None]:
    """The folder of finished attempts, for this process alone; an error if it belongs to other settings."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    wanted = settings.decisive() | {"made_with": _versions(settings, backend)}
    with (folder / _LOCK).open("wb") as lock:  # given back when the process ends, however it does
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ActionPieceError(f"another process is recording into {folder}") from None
        if (folder / _SETTINGS).is_file():
            _same(read_json(folder / _SETTINGS), wanted, f"{folder} holds an unfinished recording")
        elif any(file.name != _LOCK and not file.name.endswith(".part") for file in folder.iterdir()):
            raise ActionPieceError(f"{folder} is not an unfinished recording; move it away or choose another folder")
        else:
            write_json(folder / _SETTINGS, wanted)
        yield


def _same(found: Any, wanted: dict[str, Any], what: str) -> None:
    if found == wanted:
        return
    found = found if isinstance(found, dict) else {}
    names = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    differ = "; ".join(f"{name} is {found.get(name)}, not {wanted.get(name)}" for name in names)
    raise ActionPieceError(f"{what} with other settings ({differ}); choose another folder or remove it")


def _versions(settings: Settings, backend: str) -> dict[str, Any]:
    """What the bytes depend on besides the settings."""

    names = {"actionpiece": __version__, **simulator()}
    return {"format": _FORMAT, **names} | ({"pictures": backend} if backend else {})
