"""`ActionSpace`: presets mean what they say, JSON comes back the same, and nothing is guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actionpiece.errors import ActionPieceError
from actionpiece.space import FORM_WIDTHS, PRESETS, ActionSpace, Group

ROTATION: dict[str, Any] = {"kind": "rotation", "columns": (0, 1, 2), "delta": True}


def hand() -> ActionSpace:
    """An arm with an absolute quaternion pose and a hand of four fingers."""
    groups = (
        Group("translation", (0, 1, 2), "wrist", unit=1.0, delta=False),
        Group("rotation", (3, 4, 5, 6), "turn", delta=False, form="quaternion", order="xyzw"),
        Group("joints", (7, 8, 9, 10), "fingers", unit=1.0, delta=False, weight=0.5),
        Group("other", (11,), "torso"),
    )
    return ActionSpace("hand", groups, 30.0, "an arm with a hand")


@pytest.mark.parametrize(("name", "rate"), [("libero", 20.0), ("vla_arena", 10.0), ("robosuite", 20.0)])
def test_osc_pose_presets_are_5_cm_half_a_radian_and_a_gripper_that_opens_at_minus_one(name: str, rate: float) -> None:
    space = ActionSpace.preset(name)
    translation, rotation, gripper = space.groups
    assert (space.name, space.rate, space.dim) == (name, rate, 7)
    assert (translation.kind, translation.columns, translation.unit, translation.delta) == (
        "translation",
        (0, 1, 2),
        0.05,
        True,
    )
    assert (rotation.columns, rotation.unit, rotation.form, rotation.delta) == ((3, 4, 5), 0.5, "axis_angle", True)
    assert (gripper.columns, gripper.open, gripper.closed, gripper.delta) == ((6,), -1.0, 1.0, False)
    assert all(group.weight == 1 for group in space.groups)


def test_bridge_has_metres_and_roll_pitch_yaw_about_fixed_axes_and_opens_at_one() -> None:
    translation, rotation, gripper = ActionSpace.preset("bridge").groups
    assert translation.unit == 1.0
    assert (rotation.form, rotation.order, rotation.unit, rotation.delta) == ("euler", "xyz", 1.0, True)
    assert (gripper.open, gripper.closed) == (1.0, 0.0)
    assert ActionSpace.preset("bridge").rate == 5.0


def test_droid_has_seven_joint_velocities_and_closes_at_one() -> None:
    joints, gripper = ActionSpace.preset("droid").groups
    assert (joints.kind, joints.columns, joints.unit, joints.delta) == ("joints", tuple(range(7)), 0.2, True)
    assert (gripper.columns, gripper.open, gripper.closed) == ((7,), 0.0, 1.0)


def test_aloha_has_two_arms_of_six_joint_targets_and_a_gripper_each() -> None:
    space = ActionSpace.preset("aloha")
    assert space.dim == 14
    assert [group.name for group in space.groups] == ["left_joints", "left_gripper", "right_joints", "right_gripper"]
    assert [group.columns for group in space.of_kind("gripper")] == [(6,), (13,)]
    assert space.of_kind("joints")[1].columns == (7, 8, 9, 10, 11, 12)
    assert all(group.delta is False and group.unit == 1.0 for group in space.of_kind("joints"))


@pytest.mark.parametrize("space", [*(make() for make in PRESETS.values()), hand(), ActionSpace.of_joints(26)])
def test_a_space_comes_back_from_json_the_same(space: ActionSpace, tmp_path: Path) -> None:
    assert ActionSpace.from_json(space.to_json()) == space
    assert ActionSpace.from_dict(json.loads(json.dumps(space.to_dict()))) == space
    (tmp_path / "space.json").write_text(space.to_json())
    assert ActionSpace.from_json(tmp_path / "space.json") == space
    assert ActionSpace.resolve(str(tmp_path / "space.json")) == space
    assert hash(space) == hash(ActionSpace.from_json(space.to_json()))


@pytest.mark.parametrize("name", list(PRESETS))
def test_labels_name_every_column_once(name: str) -> None:
    labels = ActionSpace.preset(name).labels
    assert len(set(labels)) == len(labels) == ActionSpace.preset(name).dim


def test_labels_follow_the_columns_and_not_the_groups() -> None:
    space = ActionSpace(
        "swapped", (Group("gripper", (0,), open=0, closed=1), Group("translation", (2, 1), unit=1, delta=True))
    )
    assert space.labels == ("gripper", "translation.y", "translation.x")
    assert hand().labels[3:8] == ("turn.qx", "turn.qy", "turn.qz", "turn.qw", "fingers.0")
    assert ActionSpace.preset("bridge").labels[3:6] == ("rotation.x", "rotation.y", "rotation.z")
    assert ActionSpace.preset("libero").labels[3] == "rotation.rx"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"kind": "wheel", "columns": (0,), "delta": True}, "kind must be one of"),
        ({"kind": "other", "columns": ()}, "it has no columns"),
        ({"kind": "other", "columns": (0.5,)}, "columns must be whole numbers"),
        ({"kind": "other", "columns": ("0",)}, "columns must be whole numbers"),
        ({"kind": "other", "columns": 3}, "columns must be whole numbers"),
        ({"kind": "translation", "columns": (0,), "unit": 1.0}, "changes .* or targets"),
        ({"kind": "joints", "columns": (0,), "unit": 1.0}, "changes .* or targets"),
        ({**ROTATION, "delta": None, "form": "axis_angle", "unit": 1.0}, "changes .* or targets"),
        ({"kind": "joints", "columns": (0,), "unit": 1.0, "delta": "false"}, "changes .* or targets"),
        ({"kind": "translation", "columns": (0,), "delta": True}, "how many metres"),
        ({"kind": "translation", "columns": (0,), "delta": True, "unit": 0.0}, "how many metres"),
        ({"kind": "translation", "columns": (0,), "delta": True, "unit": float("nan")}, "how many metres"),
        ({"kind": "translation", "columns": (0,), "delta": True, "unit": float("inf")}, "how many metres"),
        ({"kind": "joints", "columns": (0,), "delta": True}, "how many radians"),
        ({**ROTATION, "form": "axis_angle"}, "how many radians"),
        ({**ROTATION, "form": "euler", "order": "xyz"}, "how many radians"),
        ({"kind": "other", "columns": (0,), "unit": 1.0}, "unit has no meaning"),
        ({"kind": "gripper", "columns": (0,), "open": 0, "closed": 1, "unit": 1.0}, "unit has no meaning"),
        ({**ROTATION, "columns": range(4), "form": "quaternion", "order": "wxyz", "unit": 1.0}, "unit has no meaning"),
        ({"kind": "translation", "columns": range(6), "delta": True, "unit": 1.0}, "at most three columns"),
        ({"kind": "other", "columns": (0,), "weight": -1.0}, "weight must be finite and not negative"),
        ({"kind": "other", "columns": (0,), "weight": float("nan")}, "weight must be finite and not negative"),
        ({"kind": "other", "columns": (0,), "weight": float("inf")}, "weight must be finite and not negative"),
        ({"kind": "other", "columns": (0,), "order": "xyz"}, "only rotations have a form"),
        ({"kind": "other", "columns": (0,), "form": "matrix"}, "only rotations have a form"),
        ({**ROTATION}, "rotation form must be one of"),
        ({**ROTATION, "form": "rpy"}, "rotation form must be one of"),
        ({**ROTATION, "form": "axisangle", "unit": 0.5}, "rotation form must be one of"),
        ({**ROTATION, "form": "quaternion", "order": "wxyz"}, "quaternion needs 4 columns, not 3"),
        ({**ROTATION, "form": "euler", "unit": 1.0}, "Euler order must be three of"),
        ({**ROTATION, "form": "euler", "unit": 1.0, "order": "xYz"}, "Euler order must be three of"),
        ({**ROTATION, "form": "euler", "unit": 1.0, "order": "rpy"}, "Euler order must be three of"),
        ({**ROTATION, "form": "euler", "unit": 1.0, "order": "xxy"}, "twice about the same axis"),
        ({**ROTATION, "columns": range(4), "form": "quaternion"}, "quaternion order must be wxyz or xyzw"),
        ({**ROTATION, "columns": range(6), "form": "rotation_6d"}, "rotation_6d order must be columns or rows"),
        ({**ROTATION, "columns": range(9), "form": "matrix", "order": "xyz"}, "matrix order must be rows or columns"),
        ({**ROTATION, "form": "axis_angle", "unit": 1.0, "order": "xyz"}, "axis_angle has no order"),
        ({"kind": "other", "columns": (0,), "open": 1.0}, "only grippers are open or closed"),
        ({"kind": "gripper", "columns": (0,)}, "two different raw values"),
        ({"kind": "gripper", "columns": (0,), "open": 1.0}, "two different raw values"),
        ({"kind": "gripper", "columns": (0,), "open": 1.0, "closed": 1.0}, "two different raw values"),
        ({"kind": "gripper", "columns": (0,), "open": float("nan"), "closed": 1.0}, "two different raw values"),
        ({"kind": "gripper", "columns": (0,), "open": 0, "closed": 1, "delta": True}, "target, never a change"),
    ],
)
def test_every_mistake_in_a_group_gets_its_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ActionPieceError, match=sentence):
        Group(**wrong)


@pytest.mark.parametrize(
    ("columns", "names", "rate", "sentence"),
    [
        ([(0,), (2,)], ["a", "b"], None, "every column from 0 on exactly once"),
        ([(0, 1), (1,)], ["a", "b"], None, "every column from 0 on exactly once"),
        ([(-1,), (0,)], ["a", "b"], None, "every column from 0 on exactly once"),
        ([], [], None, "every column from 0 on exactly once"),
        ([(0,), (1,)], ["a", "a"], None, "group names must differ"),
        ([(0,)], ["a"], 0.0, "rate must be positive"),
        ([(0,)], ["a"], float("nan"), "rate must be positive"),
    ],
)
def test_every_mistake_in_a_space_gets_its_sentence(
    columns: list[tuple[int, ...]], names: list[str], rate: float | None, sentence: str
) -> None:
    groups = tuple(Group("other", c, name) for c, name in zip(columns, names, strict=True))
    with pytest.raises(ActionPieceError, match=sentence):
        ActionSpace("wrong", groups, rate)


@pytest.mark.parametrize("form", list(FORM_WIDTHS))
def test_every_rotation_form_has_its_width(form: str) -> None:
    order = {"euler": "ZYX", "quaternion": "wxyz", "rotation_6d": "rows", "matrix": "columns"}.get(form)
    unit = 1.0 if form in ("axis_angle", "euler") else None
    group = Group("rotation", tuple(range(FORM_WIDTHS[form])), unit=unit, delta=False, form=form, order=order)  # type: ignore[arg-type]
    assert len(group.labels) == FORM_WIDTHS[form]


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        "{}",
        '{"groups": 3}',
        '{"groups": [3], "name": "a"}',
        '{"groups": [{"kind": "other"}], "name": "a"}',
        '{"groups": [{"kind": "other", "columns": [0]}]}',
        '{"groups": [{"kind": "other", "columns": [0], "colour": 1}], "name": "a"}',
        '{"groups": [{"kind": "other", "columns": [0]}], "name": "a", "units": "m"}',
        '{"groups": [{"kind": "other", "columns": 0}], "name": "a"}',
        '{"groups": [{"kind": "other", "columns": ["x"]}], "name": "a"}',
        '{"groups": [{"kind": "joints", "columns": [0], "delta": true, "unit": "1"}], "name": "a"}',
        '{"groups": [{"kind": "other", "columns": [0]}], "name": "a", "rate": "20"}',
        '{"groups": [{"kind": ["other"], "columns": [0]}], "name": "a"}',
    ],
)
def test_json_that_is_no_space_is_a_clear_error(text: str) -> None:
    with pytest.raises(ActionPieceError):
        ActionSpace.from_json(text)


def test_resolve_knows_presets_joints_and_files_and_refuses_the_rest(tmp_path: Path) -> None:
    assert ActionSpace.resolve("libero") == ActionSpace.preset("libero")
    assert ActionSpace.resolve("joints:26").dim == 26
    for text in ("joints:0", "joints:-3", "joints:x", "joints:²", "joints", "Libero", "", str(tmp_path)):
        with pytest.raises(ActionPieceError, match="is no action space"):
            ActionSpace.resolve(text)
    with pytest.raises(ActionPieceError, match="no action space preset 'nope'"):
        ActionSpace.preset("nope")
    with pytest.raises(ActionPieceError, match="does not exist"):
        ActionSpace.from_json(tmp_path / "missing.json")


def test_a_key_that_a_group_has_not_is_named() -> None:
    group = {"kind": "joints", "columns": [0], "units": 1.0, "delta": True}
    with pytest.raises(ActionPieceError, match=r"action space 'mine': a group has no key 'units'; it may have .*unit"):
        ActionSpace.from_dict({"name": "mine", "groups": [group]})
