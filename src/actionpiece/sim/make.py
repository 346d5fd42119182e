"""One door to both simulators: tasks by name, robosuite's own and LIBERO's, and their environments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version

from actionpiece.errors import ActionPieceError, not_installed
from actionpiece.sim import libero_tasks, tasks
from actionpiece.sim.environment import Environment
from actionpiece.sim.tasks import Task


def task(name: str) -> Task:
    """A task by its name: `lift`, `libero_object/3`, or the own name of a LIBERO task."""
    return libero_tasks.task(name) if libero_tasks.is_libero(name) else tasks.task(name)


def task_names() -> tuple[str, ...]:
    """The names of all tasks: robosuite's own, then LIBERO's by suite."""
    return (*tasks.TASKS, *libero_tasks.TASKS)


def expand(names: Sequence[str]) -> list[str]:
    """Names of tasks as a person gives them: each, `all` of robosuite's own, or a whole suite of LIBERO."""
    found: list[str] = []
    for name in names:
        suite = [other for other in libero_tasks.TASKS if other.startswith(f"{name}/")]
        found += list(tasks.TASKS) if name == "all" else suite or [task(name).name]
    if not found:
        raise ActionPieceError("no task was named")
    return list(dict.fromkeys(found))


def make(name: str, *, cameras: int = 0) -> Environment:
    """The environment of a task. cameras: side of the largest square picture, in pixels; 0: no pictures."""
    found = task(name)
    if libero_tasks.is_libero(found.name):
        from actionpiece.sim.libero import LiberoEnvironment  # LIBERO need not be there for the others

        return LiberoEnvironment(found, cameras=cameras)
    return Environment(found, cameras=cameras)


def simulator() -> dict[str, str]:
    """The versions of what simulates, to be written beside results."""
    try:
        return {package: version(package) for package in ("robosuite", "mujoco")}
    except PackageNotFoundError as error:
        raise not_installed(f"{error.name} is not installed", "sim") from None


def picture_note(name: str) -> str | None:
    """What must be said beside pictures of a task, if something must: LIBERO's assets may be stand-ins."""
    if not libero_tasks.is_libero(task(name).name):
        return None
    from actionpiece.sim.libero import PICTURE_NOTE
    from actionpiece.sim.libero_files import stand_ins

    return PICTURE_NOTE if stand_ins() else None


def picture_notes(names: Iterable[str]) -> list[str]:
    """`picture_note` of several tasks, each sentence once."""
    return sorted({note for name in names if (note := picture_note(name)) is not None})
