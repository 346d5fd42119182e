"""The tasks: which environment, how a person would ask for it, how long it may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from actionpiece.errors import ActionPieceError


@dataclass(frozen=True)
class Task:
    """One task of the simulator.

    name: in commands and data. environment: robosuite's name, `settings` its further arguments.
    instructions: phrasings of the same request; an episode is given one of them.
    max_steps: at 20 Hz, after which an episode has failed.
    """

    name: str
    environment: str
    instructions: tuple[str, ...]
    max_steps: int
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def _place(what: str, article: str = "the") -> tuple[str, ...]:
    return (
        f"put {article} {what} into its bin",
        f"pick up {article} {what} and place it in the matching bin",
        f"move {article} {what} over to its compartment",
        f"sort {article} {what} into the right bin",
    )


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "lift",
            "Lift",
            (
                "lift the red cube",
                "pick up the cube",
                "raise the red block off the table",
                "grasp the cube and lift it",
            ),
            150,
        ),
        Task(
            "stack",
            "Stack",
            (
                "stack the red cube on the green cube",
                "put the red block on top of the green one",
                "place the small red cube onto the green cube",
                "set the red cube on the green block",
            ),
            250,
        ),
        Task("can", "PickPlaceCan", _place("can"), 300),
        Task("milk", "PickPlaceMilk", _place("milk carton"), 300),
        Task("cereal", "PickPlaceCereal", _place("cereal box"), 300),
        Task(
            "square_nut",
            "NutAssemblySquare",
            (
                "put the square nut on the square peg",
                "fit the square nut over its peg",
                "thread the square ring onto the square post",
                "place the square nut onto the matching peg",
            ),
            350,
        ),
        Task(
            "round_nut",
            "NutAssemblyRound",
            (
                "put the round nut on the round peg",
                "fit the round nut over its peg",
                "thread the ring onto the round post",
                "place the round nut onto the matching peg",
            ),
            350,
        ),
        Task(
            "door",
            "Door",
            (
                "open the door",
                "press the handle down and open the door",
                "turn the handle and pull the door open",
                "use the handle to open the door",
            ),
            300,
        ),
    )
}


def task(name: str) -> Task:
    """A task by its name."""
    if name not in TASKS:
        raise ActionPieceError(f"there is no task '{name}'; there are {', '.join(TASKS)}")
    return TASKS[name]
