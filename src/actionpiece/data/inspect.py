"""`info`: a look at a data set before anything is fitted on it, one pass over the raw actions."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from actionpiece.data.demos import Demos
from actionpiece.data.idle import idle_steps
from actionpiece.data.reader import Actions, Indices
from actionpiece.space import ActionSpace

IDLE = 1e-3
CLIPPED_SHARE = 0.01
CHUNK = 8  # steps of a chunk where nobody asks for another length
_QUANTILE_VALUES = 1_000_000


def info(demos: Demos) -> dict[str, Any]:
    """Facts about demonstrations as plain data for JSON: sizes, ranges, and whatever looks suspicious.

    Values are taken as stored: before a card's clipping, idle steps included, NaN and infinities counted and left
    out of the ranges. Quantiles are of a seeded sample when there is much data. `suspicious` is a list of sentences.
    """
    columns = _Columns(demos.dim)
    space = demos.known_space
    grippers = _Grippers(space)
    lengths = np.array([len(demos.raw(i)) for i in range(len(demos))]) if demos.drop_idle is not None else demos.lengths
    share = min(1.0, _QUANTILE_VALUES / max(1, demos.dim * int(lengths.sum())))
    rng = np.random.default_rng(0)
    idle = repeated = 0
    seen: set[bytes] = set()
    for index in range(len(demos)):
        actions = demos.raw(index)
        columns.add(actions, actions if share == 1.0 else actions[rng.random(len(actions)) < share])
        grippers.add(actions)
        with np.errstate(invalid="ignore"):  # infinity minus infinity is not idle, and not worth a warning
            idle += int((idle_steps(actions, space, IDLE) if space else ~actions.any(1)).sum())
        repeated += int((actions[1:] == actions[:-1]).all(1).sum())
        if len(actions):
            seen.add(hashlib.sha256(actions.tobytes()).digest())
    total = int(lengths.sum())
    duplicates = int((lengths > 0).sum()) - len(seen)
    rows = columns.rows(space)
    split = demos.describe_split() | {"by_card": any(member.card.split is not None for member in demos.members)}
    return {
        "name": demos.name,
        "generated": demos.generated,
        "episodes": len(demos),
        "steps": total,
        "length": {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        "dim": demos.dim,
        "rate": demos.rate,
        "space": space.name if space else None,
        "tasks": len(set(demos.tasks)) if demos.tasks is not None else 0,
        "split": split,
        "licence": demos.licence,
        "note": demos.note,
        "files": [member.describe() for member in demos.members],
        "idle_share": idle / max(1, total),
        "idle_rule": f"within {IDLE:g} of rest" if space else "all columns zero",
        "repeated_share": repeated / max(1, total),
        "duplicate_episodes": duplicates,
        "non_finite": sum(row["non_finite"] for row in rows),
        "columns": rows,
        "suspicious": [
            *_suspicions(rows),
            *grippers.suspicions(len(demos)),
            *_of_whole(idle / max(1, total), duplicates),
            *_splits(split, lengths),
            *_rates(demos),
        ],
    }


class _Columns:
    """Running figures per column; everything but the quantiles is exact."""

    def __init__(self, dim: int) -> None:
        self.count = np.zeros(dim, np.int64)
        self.bad = np.zeros(dim, np.int64)
        self.total = np.zeros(dim)
        self.squares = np.zeros(dim)
        self.shift: npt.NDArray[np.float64] | None = None
        self.low, self.high = np.full(dim, np.inf), np.full(dim, -np.inf)
        self.at_low, self.at_high = np.zeros(dim, np.int64), np.zeros(dim, np.int64)
        self.values: list[set[float]] = [set() for _ in range(dim)]
        self.sample: list[Actions] = []

    def add(self, actions: Actions, sampled: Actions) -> None:
        """Take in one episode."""
        if not len(actions):
            return
        good = np.isfinite(actions)
        x = np.where(good, actions, 0.0).astype(np.float64)
        if self.shift is None:  # sums of squares about a value of the data keep their digits
            self.shift = x[0]
        self.count += good.sum(0)
        self.bad += (~good).sum(0)
        about = np.where(good, x - self.shift, 0.0)
        self.total += about.sum(0)
        self.squares += (about**2).sum(0)
        self._extremes(np.where(good, x, np.inf).min(0), np.where(good, x, -np.inf).max(0), x, good)
        for c, known in enumerate(self.values):
            if len(known) <= 2:  # a third value settles that a column is not binary
                known.update(np.unique(x[good[:, c], c])[:3].tolist())
        self.sample.append(sampled)

    def _extremes(self, low: Any, high: Any, x: Any, good: Any) -> None:
        self.at_low = np.where(low < self.low, 0, self.at_low) + np.where(
            low <= self.low, ((x == low) & good).sum(0), 0
        )
        self.at_high = np.where(high > self.high, 0, self.at_high) + np.where(
            high >= self.high, ((x == high) & good).sum(0), 0
        )
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)

    def rows(self, space: ActionSpace | None) -> list[dict[str, Any]]:
        """One plain dict per column."""
        sample = np.concatenate(self.sample) if self.sample else np.empty((0, len(self.count)), np.float32)
        gripper = {c for group in space.of_kind("gripper") for c in group.columns} if space else set()
        rows = []
        for c in range(len(self.count)):
            n, finite = int(self.count[c]), sample[np.isfinite(sample[:, c]), c]
            row: dict[str, Any] = {"index": c, "label": space.labels[c] if space else str(c)}
            if n == 0 or self.shift is None:
                row |= dict.fromkeys(("min", "max", "mean", "std", "q01", "q99")) | {"flags": []}
            else:
                off = self.total[c] / n
                low, high = np.quantile(finite, (0.01, 0.99)) if len(finite) else (np.nan, np.nan)
                row |= {
                    "min": float(self.low[c]),
                    "max": float(self.high[c]),
                    "mean": float(self.shift[c] + off),
                    "std": float(np.sqrt(max(0.0, self.squares[c] / n - off**2))),
                    "q01": float(low) if len(finite) else None,
                    "q99": float(high) if len(finite) else None,
                    "flags": self._flags(c, n, c in gripper),
                }
            row["non_finite"] = int(self.bad[c])
            if row["non_finite"]:
                row["flags"].append("non-finite")
            rows.append(row)
        return rows

    def _flags(self, c: int, n: int, gripper: bool) -> list[str]:
        if self.low[c] == self.high[c]:
            return ["constant"]
        if len(self.values[c]) == 2:
            return ["binary"]
        if self.at_low[c] + self.at_high[c] >= 0.9 * n:  # a switch with a few values on the way, not a limit
            return ["nearly binary"]
        piled = max(self.at_low[c], self.at_high[c]) >= max(2, CLIPPED_SHARE * n)
        return ["clipped"] if piled and not gripper else []


class _Grippers:
    """Whether gripper columns look as their action space says."""

    def __init__(self, space: ActionSpace | None) -> None:
        self.groups = space.of_kind("gripper") if space else ()
        self.outside = [0] * len(self.groups)
        self.start_closed = [0] * len(self.groups)

    def add(self, actions: Actions) -> None:
        """Take in one episode."""
        for g, group in enumerate(self.groups):
            if not len(actions):
                continue
            assert group.open is not None
            assert group.closed is not None
            share = (actions[:, group.columns] - group.open) / (group.closed - group.open)  # 0 open .. 1 closed
            with np.errstate(invalid="ignore"):
                self.outside[g] += int(((share < -1e-4) | (share > 1 + 1e-4)).any(1).sum())
                self.start_closed[g] += int((share[0] > 0.5).all())

    def suspicions(self, episodes: int) -> list[str]:
        """Sentences about what does not fit."""
        said = []
        for group, outside, closed in zip(self.groups, self.outside, self.start_closed, strict=True):
            if outside:
                said.append(
                    f"{group.name}: {outside} steps lie outside {group.open:g} (open) .. {group.closed:g} (closed)"
                )
            if 2 * closed > episodes:
                said.append(
                    f"{group.name}: {closed} of {episodes} episodes start closed;"
                    " is the polarity of the action space inverted?"
                )
        return said


def _suspicions(rows: list[dict[str, Any]]) -> list[str]:
    said = []
    for row in rows:
        name = f"column {row['label']}"
        if row["non_finite"]:
            said.append(f"{name}: {row['non_finite']} values are not finite (NaN or infinity)")
        if "constant" in row["flags"]:
            said.append(f"{name} is constant at {row['min']:g}")
        if "clipped" in row["flags"]:
            said.append(
                f"{name} looks clipped: at least {CLIPPED_SHARE:.0%} of its values"
                f" sit exactly at {row['min']:g} or at {row['max']:g}"
            )
    return said


def _rates(demos: Demos) -> list[str]:
    """A file that knows its rate and an action space that knows another."""
    space = demos.known_space
    if space is None or space.rate is None or demos.rate is None or space.rate == demos.rate:
        return []
    return [f"the data runs at {demos.rate:g} Hz, the action space '{space.name}' says {space.rate:g} Hz"]


def _splits(split: dict[str, Any], lengths: Indices) -> list[str]:
    found = [split["problem"]] if "problem" in split else []
    if short := int((lengths < CHUNK).sum()):
        found.append(f"{short:,} of {len(lengths):,} episodes are shorter than a chunk of {CHUNK} steps and give none")
    return found


def _of_whole(idle: float, duplicates: int) -> list[str]:
    said = []
    if idle > 0.1:
        said.append(f"{idle:.0%} of the steps are idle; --drop-idle leaves them out")
    if duplicates:
        said.append(f"{duplicates} episodes are exact copies of others")
    return said
