"""`ActionSpace`: what the columns of a robot command mean.

An action is a row of numbers. Which of them are metres, which turn the wrist and which close the gripper decides
what "similar" means, so nothing here is guessed: a space is a preset, a JSON file, or written out in full.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from actionpiece.errors import ActionPieceError
from actionpiece.files import read_json

Kind = Literal["translation", "rotation", "gripper", "joints", "other"]
Form = Literal["axis_angle", "euler", "quaternion", "rotation_6d", "matrix"]

FORM_WIDTHS: dict[str, int] = {"axis_angle": 3, "euler": 3, "quaternion": 4, "rotation_6d": 6, "matrix": 9}
_ORDERS: dict[str, tuple[str, ...]] = {
    "quaternion": ("wxyz", "xyzw"),
    "rotation_6d": ("columns", "rows"),
    "matrix": ("rows", "columns"),
}


@dataclass(frozen=True)
class Group:
    """A set of columns with one meaning.

    kind: translation, rotation, gripper, joints or other.
    columns: positions in the action row.
    name: unique in the space; the kind when left empty.
    unit: physical size of one raw unit: metres for translation, radians for joints and for axis-angle and Euler
        rotations. Other kinds have none.
    delta: whether a command is a change (True) or a target (False). A gripper's is always a target.
    form, order: how a rotation is written. Euler orders are scipy's: lower case turns about fixed axes, upper case
        about moving ones. Quaternions are wxyz or xyzw. 6D and matrix forms list their columns or their rows.
    open, closed: the raw gripper values of an open and a closed gripper; their order is its polarity.
    weight: the paper's alpha, the group's share in the physical distance.
    """

    kind: Kind
    columns: tuple[int, ...]
    name: str = ""
    unit: float | None = None
    delta: bool | None = None
    form: Form | None = None
    order: str | None = None
    open: float | None = None
    closed: float | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "columns", tuple(operator.index(c) for c in self.columns))
        except TypeError:
            raise ActionPieceError(
                f"action group '{self.name or self.kind}': columns must be whole numbers, not {self.columns}"
            ) from None
        if not self.name:
            object.__setattr__(self, "name", self.kind)
        if self.kind in ("gripper", "other") and self.delta is None:
            object.__setattr__(self, "delta", False)
        problem = self._problem()
        if problem:
            raise ActionPieceError(f"action group '{self.name}': {problem}")

    def _problem(self) -> str | None:
        if self.kind not in get_args(Kind):
            return f"kind must be one of {', '.join(get_args(Kind))}, not '{self.kind}'"
        if not self.columns:
            return "it has no columns"
        if not isinstance(self.delta, bool):
            return "say whether its commands are changes (delta: true) or targets (delta: false)"
        if not 0 <= self.weight < math.inf:
            return f"weight must be finite and not negative, and is {self.weight}"
        if self.kind == "rotation" and self.form not in FORM_WIDTHS:  # whether a unit has a meaning depends on it
            return f"rotation form must be one of {', '.join(FORM_WIDTHS)}, not '{self.form}'"
        needs_unit = self.kind in ("translation", "joints") or self.form in ("axis_angle", "euler")
        if needs_unit and not (self.unit is not None and 0 < self.unit < math.inf):
            return f"unit must say how many {'metres' if self.kind == 'translation' else 'radians'} one raw value is"
        if not needs_unit and self.unit is not None:
            return "a unit has no meaning here; leave it out"
        if self.kind == "translation" and len(self.columns) > 3:
            return "translation has at most three columns; give each arm a group of its own"
        return self._rotation_problem() or self._gripper_problem()

    def _rotation_problem(self) -> str | None:
        if self.kind != "rotation":
            return "only rotations have a form and an order" if self.form or self.order else None
        assert self.form is not None
        if len(self.columns) != FORM_WIDTHS[self.form]:
            return f"{self.form} needs {FORM_WIDTHS[self.form]} columns, not {len(self.columns)}"
        if self.form == "euler":
            order = self.order or ""
            if len(order) != 3 or order not in (order.lower(), order.upper()) or set(order.lower()) - set("xyz"):
                return f"Euler order must be three of xyz (fixed axes) or XYZ (moving axes), not '{order}'"
            if order[0] == order[1] or order[1] == order[2]:
                return f"Euler order '{order}' turns twice about the same axis in a row"
        elif self.form in _ORDERS and self.order not in _ORDERS[self.form]:
            return f"{self.form} order must be {' or '.join(_ORDERS[self.form])}, not '{self.order}'"
        elif self.form == "axis_angle" and self.order:
            return "axis_angle has no order"
        return None

    def _gripper_problem(self) -> str | None:
        if self.kind != "gripper":
            return "only grippers are open or closed" if (self.open, self.closed) != (None, None) else None
        if self.open is None or self.closed is None or not 0 < abs(self.closed - self.open) < math.inf:
            return "open and closed must be two different raw values"
        if self.delta:
            return "a gripper's command is a target, never a change"
        return None

    @property
    def labels(self) -> tuple[str, ...]:
        """A short name for each column, for tables and plots."""
        if self.kind == "translation":
            short = "xyz"[: len(self.columns)]
        elif self.kind == "rotation" and self.form == "euler":
            return tuple(f"{self.name}.{axis}" for axis in (self.order or "").lower())
        elif self.kind == "rotation" and self.form == "axis_angle":
            return tuple(f"{self.name}.{axis}" for axis in ("rx", "ry", "rz"))
        elif self.kind == "rotation" and self.form == "quaternion":
            return tuple(f"{self.name}.q{axis}" for axis in self.order or "")
        elif len(self.columns) == 1:
            return (self.name,)
        else:
            return tuple(f"{self.name}.{i}" for i in range(len(self.columns)))
        return tuple(f"{self.name}.{axis}" for axis in short)


@dataclass(frozen=True)
class ActionSpace:
    """The groups that make up one action row, and the rate at which rows are executed.

    name: how the space is called in files and reports.
    groups: together they name every column exactly once.
    rate: control rate in Hz, or None when it is not known.
    note: a sentence for people.
    """

    name: str
    groups: tuple[Group, ...]
    rate: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        columns = sorted(c for group in self.groups for c in group.columns)
        if columns != list(range(len(columns))) or not columns:
            raise ActionPieceError(
                f"action space '{self.name}': its groups must name every column from 0 on exactly once, not {columns}"
            )
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise ActionPieceError(f"action space '{self.name}': group names must differ, not {', '.join(names)}")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ActionPieceError(f"action space '{self.name}': rate must be positive and finite, not {self.rate}")

    @property
    def dim(self) -> int:
        """Number of columns of an action row."""
        return sum(len(group.columns) for group in self.groups)

    @property
    def labels(self) -> tuple[str, ...]:
        """A short name for each column, in column order."""
        by_column = {c: label for group in self.groups for c, label in zip(group.columns, group.labels, strict=True)}
        return tuple(by_column[c] for c in range(self.dim))

    def of_kind(self, kind: Kind) -> tuple[Group, ...]:
        """The groups of one kind, in order."""
        return tuple(group for group in self.groups if group.kind == kind)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as written to JSON; fields that do not apply are left out."""
        groups = [
            {k: (list(v) if k == "columns" else v) for k, v in dataclasses.asdict(group).items() if v is not None}
            for group in self.groups
        ]
        return {"name": self.name, "rate": self.rate, "note": self.note, "groups": groups}

    @classmethod
    def from_dict(cls, value: Any) -> ActionSpace:
        """The inverse of `to_dict`; unknown or missing fields are an error, not ignored."""
        if not isinstance(value, dict) or not isinstance(value.get("groups"), list):
            raise ActionPieceError("an action space is a JSON object with a list of groups")
        try:
            keys = {field.name for field in dataclasses.fields(Group)}
            unknown = next((key for group in value["groups"] for key in group if key not in keys), None)
            if unknown is not None:
                raise ActionPieceError(
                    f"action space '{value.get('name', '?')}': a group has no key '{unknown}'; it may have"
                    f" {', '.join(sorted(keys))}"
                )
            groups = tuple(Group(**{**group, "columns": tuple(group["columns"])}) for group in value["groups"])
            rest = {k: v for k, v in value.items() if k != "groups"}
            return cls(groups=groups, **rest)
        except (TypeError, KeyError, AttributeError) as error:
            raise ActionPieceError(f"action space '{value.get('name', '?')}' does not fit: {error}") from None

    def to_json(self) -> str:
        """The space as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_json(cls, text: str | Path) -> ActionSpace:
        """A space from JSON text, or from the file at a `Path`."""
        if isinstance(text, Path):
            return cls.from_dict(read_json(text))
        try:
            return cls.from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise ActionPieceError(f"the action space is not valid JSON: {error}") from None

    @classmethod
    def preset(cls, name: str) -> ActionSpace:
        """A space that ships with the package; `PRESETS` lists them."""
        if name not in PRESETS:
            raise ActionPieceError(f"there is no action space preset '{name}'; there are {', '.join(PRESETS)}")
        return PRESETS[name]()

    @classmethod
    def of_joints(cls, count: int, *, unit: float = 1.0, delta: bool = False, rate: float | None = None) -> ActionSpace:
        """A robot commanded by `count` joint values, radians unless `unit` says otherwise."""
        group = Group("joints", tuple(range(count)), unit=unit, delta=delta)
        return cls(f"joints:{count}", (group,), rate, "joint targets in radians, as asked for; no gripper is known")

    @classmethod
    def resolve(cls, text: str) -> ActionSpace:
        """What a user types: a preset's name, `joints:N`, or the path of a JSON file."""
        if text in PRESETS:
            return cls.preset(text)
        if text.startswith("joints:") and text[7:].isdecimal() and int(text[7:]) > 0:
            return cls.of_joints(int(text[7:]))
        if Path(text).is_file():
            return cls.from_json(Path(text))
        raise ActionPieceError(
            f"'{text}' is no action space: give a preset ({', '.join(PRESETS)}), joints:N, or the path of a JSON file"
        )


def _arm(
    *, unit_p: float, unit_r: float, form: Form, order: str | None, opened: float, closed: float
) -> tuple[Group, ...]:
    return (
        Group("translation", (0, 1, 2), unit=unit_p, delta=True),
        Group("rotation", (3, 4, 5), unit=unit_r, delta=True, form=form, order=order),
        Group("gripper", (6,), open=opened, closed=closed),
    )


def _osc_pose(name: str, rate: float, note: str) -> ActionSpace:
    # robosuite's OSC_POSE controller: [-1, 1] is 5 cm and half a radian per step; the gripper opens at -1.
    groups = _arm(unit_p=0.05, unit_r=0.5, form="axis_angle", order=None, opened=-1.0, closed=1.0)
    return ActionSpace(name, groups, rate, note)


def _aloha() -> ActionSpace:
    groups = []
    for side, first in (("left", 0), ("right", 7)):
        groups.append(Group("joints", tuple(range(first, first + 6)), f"{side}_joints", unit=1.0, delta=False))
        groups.append(Group("gripper", (first + 6,), f"{side}_gripper", open=1.0, closed=0.0))
    return ActionSpace(
        "aloha", tuple(groups), 50.0, "two arms of six joint targets in radians, grippers 1 open / 0 closed"
    )


def _bridge() -> ActionSpace:
    groups = _arm(unit_p=1.0, unit_r=1.0, form="euler", order="xyz", opened=1.0, closed=0.0)
    return ActionSpace("bridge", groups, 5.0, "delta metres, delta roll-pitch-yaw, gripper 1 open / 0 closed")


def _droid() -> ActionSpace:
    groups = (
        Group("joints", tuple(range(7)), unit=0.2, delta=True),  # a raw velocity of 1 moves a joint by 0.2 rad a step
        Group("gripper", (7,), open=0.0, closed=1.0),
    )
    return ActionSpace("droid", groups, 15.0, "seven joint velocities (x0.2 rad a step), gripper 0 open / 1 closed")


PRESETS: dict[str, Callable[[], ActionSpace]] = {
    "libero": lambda: _osc_pose("libero", 20.0, "LIBERO: OSC_POSE deltas at 20 Hz, gripper -1 open / +1 close"),
    "vla_arena": lambda: _osc_pose("vla_arena", 10.0, "VLA-Arena: OSC_POSE deltas, demonstrations at 10 Hz"),
    "robosuite": lambda: _osc_pose("robosuite", 20.0, "robosuite OSC_POSE deltas at 20 Hz, gripper -1 open / +1 close"),
    "bridge": _bridge,
    "droid": _droid,
    "aloha": _aloha,
}
