"""Physical rank consistency (PRC): does a chunk's neighbourhood keep its order after tokenization?

For every chunk (the anchor), take its k physically nearest other chunks in the original data and correlate, by
Spearman's rho, their distances to the anchor before and after decoding. PRC is the mean over anchors.

The result is exact and deterministic:
- the anchor is excluded, and among equal k-th distances the lowest index wins;
- ties get average ranks;
- an anchor whose original neighbourhood is constant (idle duplicates) has no order to keep: it is left out and counted;
- an anchor whose decoded neighbourhood is constant lost all order: it scores 0, and is counted as collapsed;
- sorted distances closer together than 1e-10 of their size (or below 1e-24) are equal, so that rounding errors do not
  break a tie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actionpiece.arrays import chunks_tensor
from actionpiece.distance import Features, PhysicalDistance
from actionpiece.errors import ActionPieceError
from actionpiece.space import ActionSpace

_SPARE = 16  # candidates taken beyond k before the bound is checked
_PAIRS = 1 << 20  # exact distances worked on at a time
_ROW_BYTES = {"cpu": 1 << 27, "cuda": 1 << 32}  # work space of one block of anchors


@dataclass(frozen=True)
class Anchor:
    """One anchor and its neighbourhood, for a person to look at.

    `neighbors` are in order of `original` distance; `decoded` are the distances of the same pairs after decoding.
    """

    index: int
    rho: float
    neighbors: tuple[int, ...]
    original: tuple[float, ...]
    decoded: tuple[float, ...]

    def __str__(self) -> str:
        return f"chunk {self.index}: rho {self.rho:.3f} over its {len(self.neighbors)} neighbours"


@dataclass(frozen=True, repr=False)
class PRCResult:
    """PRC@k of N chunks.

    value: the mean of `per_anchor` over the anchors that have an order to keep; NaN when there is none.
    per_anchor: (N,) Spearman correlations, NaN where the anchor is left out.
    left_out: anchors with a constant original neighbourhood, or with fewer than k chunks to choose from.
    collapsed: anchors with a constant decoded neighbourhood, which count as 0.
    quantiles: of `per_anchor`: 0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.
    worst: the anchors with the lowest correlation, lowest first.
    across_episodes: the same measure without neighbours from the anchor's own episode, when episodes were given.
    """

    value: float
    k: int
    n: int
    left_out: int
    collapsed: int
    per_anchor: np.ndarray
    quantiles: dict[str, float]
    worst: tuple[Anchor, ...]
    across_episodes: PRCResult | None = None

    def __repr__(self) -> str:
        across = f", across episodes {self.across_episodes.value:.4f}" if self.across_episodes else ""
        counts = f"{self.left_out} left out, {self.collapsed} collapsed"
        return f"PRC@{self.k} {self.value:.4f} over {self.n} chunks ({counts}{across})"


def prc(
    original: Any,
    decoded: Any,
    *,
    space: ActionSpace | None = None,
    distance: PhysicalDistance | None = None,
    k: int = 32,
    episodes: Any = None,
    worst: int = 16,
    progress: Callable[[float], None] | None = None,
) -> PRCResult:
    """Physical rank consistency of `decoded` against `original`, both (N, H, D) raw commands, numpy or torch.

    space: what the columns mean; not needed when `distance` is given.
    distance: the physical distance with scales fitted on training actions. Without it the scales are fitted on
        `original`, which is fine for a look and not for a published figure.
    k: neighbours per anchor.
    episodes: (N,) episode numbers; with them the result also has `across_episodes`.
    worst: how many of the worst anchors to keep.
    progress: called with the fraction done.

    Runs in float64 on the device of `original`, in blocks: 100,000 chunks need less than 4 GiB.
    """
    if distance is None and space is None:
        raise ActionPieceError("prc needs the action space, or a physical distance fitted on training actions")
    if distance is not None and space is not None and distance.space != space:
        raise ActionPieceError(f"the distance was fitted for '{distance.space.name}', not for '{space.name}'")
    action_space = distance.space if distance is not None else space
    assert action_space is not None
    x = chunks_tensor(original, action_space.dim, dtype=torch.float64, what="original chunks").detach()
    y = chunks_tensor(decoded, action_space.dim, dtype=torch.float64, what="decoded chunks").detach().to(x.device)
    if x.shape != y.shape:
        raise ActionPieceError(f"original {tuple(x.shape)} and decoded {tuple(y.shape)} chunks differ in shape")
    if not 2 <= k <= len(x) - 1:
        raise ActionPieceError(f"PRC@{k} needs k of at least 2 and at least k + 1 chunks; there are {len(x)}")
    labels = None
    if episodes is not None:
        listed = episodes.cpu() if isinstance(episodes, Tensor) else episodes
        labels = torch.as_tensor(np.unique(np.asarray(listed), return_inverse=True)[1]).to(x.device)
        if labels.shape != (len(x),):
            raise ActionPieceError(f"episodes must be one number per chunk ({len(x)}), not {tuple(labels.shape)}")
    search = _Search(distance or PhysicalDistance.fit(action_space, x), x, y, k, labels)
    everywhere, elsewhere = search.run(progress or (lambda fraction: None))
    across = _result(*elsewhere, k, worst, None) if elsewhere is not None else None
    return _result(*everywhere, k, worst, across)


class _Found:
    """Neighbourhoods of all anchors, filled block by block."""

    def __init__(self, n: int, k: int) -> None:
        self.neighbors = torch.zeros(n, k, dtype=torch.int64)
        self.original = torch.zeros(n, k, dtype=torch.float64)
        self.decoded = torch.zeros(n, k, dtype=torch.float64)
        self.enough = torch.ones(n, dtype=torch.bool)  # False: fewer than k chunks to choose from


class _Search:
    """Finds each anchor's k nearest chunks exactly.

    A matrix product gives a lower bound of every distance (rotation chords are shorter than angles). The k + spare
    chunks with the lowest bounds get their exact distance; its k-th value bounds what can still matter, and wherever
    a chunk beyond the candidates could, all that could are looked at.
    """

    def __init__(self, distance: PhysicalDistance, x: Tensor, y: Tensor, k: int, labels: Tensor | None) -> None:
        self.distance, self.k, self.labels = distance, k, labels
        self.x, self.y = distance.features(x), distance.features(y)
        chord = distance.chord_features(self.x)
        self.chord = chord - chord.mean(0)  # centred, so that the expanded square cancels fewer digits
        self.norm = self.chord.square().sum(1)
        # A dot product of F terms errs by F eps |x||y| at most; ten times that is a safe margin.
        eps = torch.finfo(chord.dtype).eps
        self.slack = 10 * (chord.shape[1] + 8) * eps * (self.norm + self.norm.max())
        # Before centring, an entry is off by eps times its size; small turns about one orientation feel that.
        self.slack += 40 * eps * (self.norm.max() * chord.square().sum(1).max()).sqrt()
        self.copies = _group_equal(x)

    def run(self, progress: Callable[[float], None]) -> tuple[tuple[_Found, int], tuple[_Found, int] | None]:
        n = len(self.x)
        everywhere = _Found(n, self.k)
        elsewhere = _Found(n, self.k) if self.labels is not None else None
        rows = max(1, min(1024, _ROW_BYTES["cuda" if self.chord.is_cuda else "cpu"] // (8 * n)))
        bound = torch.empty(rows, n, dtype=torch.float64, device=self.chord.device)
        for start in range(0, n, rows):
            stop = min(start + rows, n)
            at = torch.arange(start, stop, device=self.chord.device)
            # |x - y|^2 up to the anchor's own norm, which does not change its order.
            block = torch.addmm(self.norm, self.chord[start:stop], self.chord.T, alpha=-2, out=bound[: stop - start])
            block[torch.arange(stop - start), at] = torch.inf
            self._block(at, block, everywhere, None)
            if elsewhere is not None:
                assert self.labels is not None
                own = self.labels[at][:, None] == self.labels
                self._block(at, block.masked_fill_(own, torch.inf), elsewhere, own)
            progress(stop / n)
        return (everywhere, n), ((elsewhere, n) if elsewhere is not None else None)

    def _block(self, at: Tensor, bound: Tensor, found: _Found, own: Tensor | None) -> None:
        k, n = self.k, bound.shape[1]
        top = bound.topk(min(k + _SPARE, n), largest=False, sorted=False)
        enough = torch.isfinite(top.values).sum(1) >= k
        distances = self._exact(self.x, at[:, None], top.indices)
        distances = distances.masked_fill(torch.isinf(top.values), torch.inf)
        near, order = _nearest(distances, top.indices, k)
        # Whatever could still be as near as the k-th candidate, in the units of `bound`.
        limit = near[:, -1] * (1 + 1e-8) + self.slack[at] - self.norm[at]
        open_rows = (top.values.amax(1) <= limit) & enough
        # k or more copies of the anchor itself: its neighbourhood is constant and its distances are 0.
        copies = (self.copies == self.copies[at][:, None]) if bool(open_rows.any()) else None
        if copies is not None:
            if own is not None:
                copies = copies & ~own
            copies[torch.arange(len(at)), at] = False
            duplicated = open_rows & (copies.sum(1) >= k)
            for row in torch.nonzero(duplicated).flatten().tolist():
                order[row], near[row] = torch.nonzero(copies[row]).flatten()[:k], 0.0
            open_rows &= ~duplicated
        for row_group in _groups((bound <= limit[:, None]).sum(1), open_rows):
            picked = torch.nonzero(bound[row_group] <= limit[row_group, None])
            row, column = picked.unbind(1)
            exact = self._exact(self.x, at[row_group[row]], column)
            order[row_group], near[row_group] = _first_per_row(row, column, exact, k, len(row_group))
        found.neighbors[at.cpu()] = order.cpu()
        found.original[at.cpu()] = near.cpu()
        after, rank = self._exact(self.y, at[:, None], order).sort(dim=1)
        found.decoded[at.cpu()] = torch.empty_like(after).scatter_(1, rank, _merge_ties(after)).cpu()
        found.enough[at.cpu()] = enough.cpu()

    def _exact(self, features: Features, left: Tensor, right: Tensor) -> Tensor:
        left, right = torch.broadcast_tensors(left, right)
        pairs = zip(left.flatten().split(_PAIRS), right.flatten().split(_PAIRS), strict=True)
        parts = [self.distance.between(features[a], features[b]) for a, b in pairs]
        exact: Tensor = torch.cat(parts).reshape(left.shape)
        return exact


def _merge_ties(ordered: Tensor, starts: Tensor | None = None) -> Tensor:
    """Ascending distances (last axis) with every run of equal ones replaced by its first.

    Two neighbours in the order are equal when they differ by less than 1e-10 of their size, or are below 1e-24.
    `starts` marks places where a new list begins.
    """
    new = torch.ones_like(ordered, dtype=torch.bool)
    later, earlier = ordered[..., 1:], ordered[..., :-1]
    # In this form infinity, the distance of what is not allowed, is not equal to anything finite.
    new[..., 1:] = (later * (1 - 1e-10) > earlier) & (later > 1e-24)
    if starts is not None:
        new |= starts
    place = torch.arange(ordered.shape[-1], device=ordered.device).expand_as(ordered)
    first = torch.where(new, place, torch.zeros_like(place)).cummax(-1).values
    return ordered.gather(-1, first)


def _group_equal(x: Tensor) -> Tensor:
    """A group number for each chunk; equal chunks share one."""
    groups: Tensor = torch.unique(x.flatten(1), dim=0, return_inverse=True)[1]
    return groups


def _nearest(distances: Tensor, indices: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest distances of each row and their indices, by distance and then by index."""
    values, order = distances.sort(dim=1)
    values, indices = _merge_ties(values), indices.gather(1, order)
    # Within a run of equal distances, by index: sort by index first, then stably by distance.
    by_index = indices.argsort(1)
    values, indices = values.gather(1, by_index), indices.gather(1, by_index)
    values, order = values.sort(dim=1, stable=True)
    return values[:, :k].clone(), indices.gather(1, order[:, :k])


def _groups(counts: Tensor, open_rows: Tensor) -> list[Tensor]:
    """The open rows, in groups whose candidates together stay within one block of pairs."""
    rows = torch.nonzero(open_rows).flatten()
    if not len(rows):
        return []
    number = counts[rows].cumsum(0) // _PAIRS
    return [rows[number == value] for value in torch.unique(number)]


def _first_per_row(row: Tensor, column: Tensor, distances: Tensor, k: int, rows: int) -> tuple[Tensor, Tensor]:
    """For pairs sorted by row and column: the k nearest columns of each row, and their distances."""
    begins = torch.searchsorted(row, torch.arange(rows, device=row.device))
    order = distances.argsort()
    order = order[row[order].argsort(stable=True)]  # by row, then distance; rows still begin at `begins`
    starts = torch.zeros_like(row, dtype=torch.bool)
    starts[begins] = True
    merged = torch.empty_like(distances)
    merged[order] = _merge_ties(distances[order], starts)
    order = merged.argsort(stable=True)  # stable: equal distances stay in order of their column
    order = order[row[order].argsort(stable=True)]
    take = order[begins[:, None] + torch.arange(k, device=row.device)]
    return column[take], merged[take]


def average_ranks(values: Tensor) -> Tensor:
    """Ranks from 1 along the last axis; equal values share the mean of their ranks."""
    a, b = values[..., :, None], values[..., None, :]
    return (b < a).sum(-1).double() + ((b == a).sum(-1).double() + 1) / 2


def _spearman(original: Tensor, decoded: Tensor) -> tuple[Tensor, Tensor]:
    """Row-wise Spearman correlations, NaN where the original is constant, and which rows decoding made constant."""
    flat = (original == original[:, :1]).all(1)
    collapsed = (decoded == decoded[:, :1]).all(1) & ~flat
    a, b = average_ranks(original), average_ranks(decoded)
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    power = (a.square().sum(1) * b.square().sum(1)).sqrt()
    rho = (a * b).sum(1) / torch.where(power > 0, power, torch.ones_like(power))
    return torch.where(flat, torch.nan, rho.masked_fill(collapsed, 0.0)), collapsed


def _result(found: _Found, n: int, k: int, worst: int, across: PRCResult | None) -> PRCResult:
    rows = max(1, (1 << 22) // k**2)  # ranks compare all pairs of a neighbourhood
    parts = [_spearman(a, b) for a, b in zip(found.original.split(rows), found.decoded.split(rows), strict=True)]
    rho, collapsed = (torch.cat(part) for part in zip(*parts, strict=True))
    rho = rho.masked_fill(~found.enough, torch.nan)
    scored = ~torch.isnan(rho)
    levels = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    values = rho[scored].numpy()
    spread = np.quantile(values, levels) if len(values) else np.full(len(levels), np.nan)
    lowest = torch.where(scored, rho, torch.inf).sort(stable=True)[1][: min(worst, len(values))]
    return PRCResult(
        value=float(values.mean()) if len(values) else float("nan"),
        k=k,
        n=n,
        left_out=int((~scored).sum()),
        collapsed=int((collapsed & scored).sum()),
        per_anchor=rho.numpy(),
        quantiles={str(level): float(value) for level, value in zip(levels, spread, strict=True)},
        worst=tuple(
            Anchor(
                index=int(i),
                rho=float(rho[i]),
                neighbors=tuple(found.neighbors[i].tolist()),
                original=tuple(found.original[i].tolist()),
                decoded=tuple(found.decoded[i].tolist()),
            )
            for i in lowest
        ),
        across_episodes=across,
    )
