"""PRC the plain way: a loop over anchors with scipy's Rotation, argsort and rankdata. The oracle of our own.

It knows the same rules (anchor excluded, lowest index first, average ranks, constant neighbourhoods, distances
equal when
within 1e-10 of each other) and shares no code with the package.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.spatial.transform import Rotation
from scipy.stats import rankdata


def _rotation(values: np.ndarray, form: str, order: str | None) -> Rotation:
    if form == "axis_angle":
        return Rotation.from_rotvec(values)
    if form == "euler":
        return Rotation.from_euler(order, values)
    if form == "quaternion":
        return Rotation.from_quat(values, scalar_first=order == "wxyz")
    raise ValueError(form)


def _ties(d: np.ndarray) -> np.ndarray:
    """Every distance replaced by the least of those it is equal to, going up the sorted list."""
    order = np.argsort(d, kind="stable")
    merged = d.copy()
    for last, i in itertools.pairwise(order):
        if d[i] - d[last] <= 1e-10 * d[i] or d[i] <= 1e-24:
            merged[i] = merged[last]
    return merged


class Distances:
    """Distances from one chunk to all, for the groups of an action space and given scales."""

    def __init__(self, chunks: np.ndarray, groups: list[dict], scales: dict[str, float]) -> None:
        chunks = chunks.astype(np.float64)
        self.steps = chunks.shape[1]
        self.euclidean: list[tuple[np.ndarray, float]] = []
        self.turns: list[tuple[list[Rotation], float]] = []
        for group in groups:
            x = chunks[..., group["columns"]]
            name, weight = group["name"], group.get("weight", 1.0)
            if group["kind"] == "rotation":
                x = x * group.get("unit", 1.0)
                turns = [_rotation(x[:, t], group["form"], group.get("order")) for t in range(self.steps)]
                self.turns.append((turns, weight / scales[name] ** 2))
            elif group["kind"] == "gripper":
                self.euclidean.append(((x - group["open"]) / (group["closed"] - group["open"]), weight))
            else:
                self.euclidean.append((x * group.get("unit", 1.0), weight / scales[name] ** 2))

    def row(self, i: int) -> np.ndarray:
        parts = [((x - x[i]) ** 2).sum(-1).sum(-1) * factor for x, factor in self.euclidean]
        for turns, factor in self.turns:
            parts += [(r[i].inv() * r).magnitude() ** 2 * factor for r in turns]
        return np.sum(parts, axis=0) / self.steps


def prc_scipy(
    original: np.ndarray,
    decoded: np.ndarray,
    groups: list[dict],
    scales: dict[str, float],
    k: int = 32,
    episodes: np.ndarray | None = None,
    anchors: range | None = None,
) -> dict:
    """PRC over all anchors (or the given ones). With `episodes`, neighbours of the anchor's own are not used."""
    before, after = Distances(original, groups, scales), Distances(decoded, groups, scales)
    values, left_out, collapsed = [], 0, 0
    for i in anchors if anchors is not None else range(len(original)):
        d = _ties(before.row(i))
        order = np.argsort(d, kind="stable")
        allowed = order != i if episodes is None else episodes[order] != episodes[i]
        near = order[allowed][:k]
        a, b = d[near], _ties(after.row(i)[near])
        if len(near) < k or (a == a[0]).all():
            left_out += 1
        elif (b == b[0]).all():
            collapsed += 1
            values.append(0.0)
        else:
            values.append(float(np.corrcoef(rankdata(a), rankdata(b))[0, 1]))
    return {"value": float(np.mean(values)) if values else float("nan"), "left_out": left_out, "collapsed": collapsed}
