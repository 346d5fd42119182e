"""LIBERO's tasks by name, and the published way to evaluate on them. Needs nothing installed.

Four suites of ten tasks: `libero_object/3` or the task's own name. Instructions are those of LIBERO's benchmark, which
reads them off the names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from actionpiece.errors import ActionPieceError
from actionpiece.sim.tasks import Task


@dataclass(frozen=True)
class Protocol:
    """How LIBERO results are published, and how they are comparable.

    seed: of the placement of fixtures. idle: the command of the first `idle_steps` steps, in which objects dropped by
    the initial state come to rest. Pictures are rendered with `render` pixels a side as OpenGL has them (bottom row
    first), rotated by half a turn and resized to `resize`. trials: episodes per task, one per initial state.
    """

    seed: int = 7
    idle_steps: int = 10
    idle: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)  # stay, fingers open
    render: int = 256
    rotate_degrees: int = 180
    resize: int = 224
    trials: int = 50


PROTOCOL = Protocol()

# The longest published episode of each suite, in steps of 20 Hz after the idle ones.
MAX_STEPS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520}

_BOWL = "pick_up_the_black_bowl_{}_and_place_it_on_the_plate"
_BASKET = "pick_up_the_{}_and_place_it_in_the_basket"

# In LIBERO's order, which decides the numbers.
_NAMES: dict[str, tuple[str, ...]] = {
    "libero_spatial": tuple(
        _BOWL.format(where)
        for where in (
            "between_the_plate_and_the_ramekin",
            "next_to_the_ramekin",
            "from_table_center",
            "on_the_cookie_box",
            "in_the_top_drawer_of_the_wooden_cabinet",
            "on_the_ramekin",
            "next_to_the_cookie_box",
            "on_the_stove",
            "next_to_the_plate",
            "on_the_wooden_cabinet",
        )
    ),
    "libero_object": tuple(
        _BASKET.format(what)
        for what in (
            "alphabet_soup",
            "cream_cheese",
            "salad_dressing",
            "bbq_sauce",
            "ketchup",
            "tomato_sauce",
            "butter",
            "milk",
            "chocolate_pudding",
            "orange_juice",
        )
    ),
    "libero_goal": (
        "open_the_middle_drawer_of_the_cabinet",
        "put_the_bowl_on_the_stove",
        "put_the_wine_bottle_on_top_of_the_cabinet",
        "open_the_top_drawer_and_put_the_bowl_inside",
        "put_the_bowl_on_top_of_the_cabinet",
        "push_the_plate_to_the_front_of_the_stove",
        "put_the_cream_cheese_in_the_bowl",
        "turn_on_the_stove",
        "put_the_bowl_on_the_plate",
        "put_the_wine_bottle_on_the_rack",
    ),
    "libero_10": (
        "LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_the_tomato_sauce_in_the_basket",
        "LIVING_ROOM_SCENE2_put_both_the_cream_cheese_box_and_the_butter_in_the_basket",
        "KITCHEN_SCENE3_turn_on_the_stove_and_put_the_moka_pot_on_it",
        "KITCHEN_SCENE4_put_the_black_bowl_in_the_bottom_drawer_of_the_cabinet_and_close_it",
        "LIVING_ROOM_SCENE5_put_the_white_mug_on_the_left_plate_and_put_the_yellow_and_white_mug_on_the_right_plate",
        "STUDY_SCENE1_pick_up_the_book_and_place_it_in_the_back_compartment_of_the_caddy",
        "LIVING_ROOM_SCENE6_put_the_white_mug_on_the_plate_and_put_the_chocolate_pudding_to_the_right_of_the_plate",
        "LIVING_ROOM_SCENE1_put_both_the_alphabet_soup_and_the_cream_cheese_box_in_the_basket",
        "KITCHEN_SCENE8_put_both_moka_pots_on_the_stove",
        "KITCHEN_SCENE6_put_the_yellow_and_white_mug_in_the_microwave_and_close_it",
    ),
}


def _instruction(name: str) -> str:
    return re.sub(r"^[A-Z_]+_SCENE\d+_", "", name).replace("_", " ")


# Task.environment: where LIBERO's files of the task are, without ending.
TASKS: dict[str, Task] = {
    f"{suite}/{number}": Task(f"{suite}/{number}", f"{suite}/{name}", (_instruction(name),), MAX_STEPS[suite])
    for suite, names in _NAMES.items()
    for number, name in enumerate(names)
}
_BY_OWN_NAME = {task.environment.split("/")[1]: task for task in TASKS.values()}


def suites() -> dict[str, tuple[Task, ...]]:
    """The suites by name, each with its ten tasks in LIBERO's order."""
    return {suite: tuple(TASKS[f"{suite}/{number}"] for number in range(len(names))) for suite, names in _NAMES.items()}


def suite_of(task: Task) -> str:
    """The suite a LIBERO task is of."""
    return task.name.split("/")[0]


def is_libero(name: str) -> bool:
    """Whether this name is meant as a LIBERO task's, be it right or wrong."""
    return name.startswith("libero_") or name in _BY_OWN_NAME


def task(name: str) -> Task:
    """A LIBERO task: `libero_object/3`, or its own name."""
    found = TASKS.get(name) or _BY_OWN_NAME.get(name)
    if found is None:
        suite = name.split("/")[0]
        there = f"{suite} has the tasks 0 to 9" if suite in _NAMES else f"the suites are {', '.join(_NAMES)}"
        raise ActionPieceError(f"there is no LIBERO task '{name}'; {there}, named as in libero_object/3")
    return found
