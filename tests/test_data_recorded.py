"""The demonstrations that come with the package: whole, small, honest about where they are from, and replayable."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from actionpiece import ActionPieceError, open_demos
from actionpiece.data import Demos
from actionpiece.data.lerobot_layout import check_layout
from actionpiece.sim.tasks import TASKS


@pytest.fixture(scope="module")
def demos() -> Demos:
    return open_demos("recorded")


def test_they_are_a_whole_lerobot_data_set_of_at_most_three_megabytes(demos: Demos) -> None:
    (folder,) = demos.paths
    assert check_layout(folder) == []
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 3e6


def test_every_task_is_there_and_every_start_is_known(demos: Demos) -> None:
    starts = [start for start in demos.starts if start is not None]
    assert len(starts) == len(demos) == 320
    assert Counter(start.task for start in starts) == dict.fromkeys(TASKS, 40)
    assert len(set(starts)) == 320
    assert demos.tasks is not None
    assert all(text in TASKS[start.task].instructions for text, start in zip(demos.tasks, starts, strict=True))


def test_their_card_says_how_they_were_made(demos: Demos) -> None:
    assert not demos.generated
    assert "scripted" in demos.note
    (folder,) = demos.paths
    card = json.loads((folder / "actionpiece.json").read_text())
    assert card["command"].startswith("actionpiece record --env lift stack can")
    assert set(card["made_with"]) >= {"actionpiece", "robosuite", "mujoco"}
    assert demos.space.name == "libero"


def test_commands_are_in_range_and_no_two_episodes_are_alike(demos: Demos) -> None:
    first = [demos.episode(index) for index in range(0, 320, 20)]
    assert all(np.abs(actions).max() <= 1 for actions in first)
    assert len({actions.tobytes() for actions in first}) == len(first)
    assert all(set(np.unique(actions[:, 6])) <= {-1.0, 1.0} for actions in first)


def test_they_cannot_be_named_twice() -> None:
    with pytest.raises(ActionPieceError, match="was named twice"):
        open_demos("recorded", "recorded")


def test_data_without_starts_has_none() -> None:
    assert set(open_demos("generated").starts) == {None}
