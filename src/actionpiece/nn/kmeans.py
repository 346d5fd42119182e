"""K-means: Lloyd's iterations on a seeded start, in torch, with no empty clusters left behind."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = {"cpu": 1 << 11, "cuda": 1 << 17}  # rows at a time: what fits in a cache, what fills a GPU


def nearest(x: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of x (N, d): the nearest centroid (N,) of (K, d), and the squared distance to it."""
    half = centroids.square().sum(1) / 2
    index, score = [], []
    for block in x.split(_BLOCK[x.device.type]):
        # argmin |x - c|^2 = argmin |c|^2 / 2 - x.c, without the N x K differences
        best = torch.addmm(half, block, centroids.T, alpha=-1).min(1)
        index.append(best.indices)
        score.append(2 * best.values + block.square().sum(1))
    return torch.cat(index), torch.cat(score).clamp_min(0)


def kmeans(x: Tensor, k: int, *, iterations: int = 25, generator: torch.Generator, tolerance: float = 1e-4) -> Tensor:
    """Centroids (K, d) of rows (N, d): k-means++ and Lloyd's iterations until the error falls by less than `tolerance`.

    With fewer distinct rows than clusters, the spare centroids repeat a row.
    """
    centroids = _plus_plus(x, k, generator)
    last = torch.inf
    for _ in range(iterations):
        centroids, _, error = _step(x, centroids)
        if last - error <= tolerance * error:
            break
        last = error
    return centroids


def lloyd_step(x: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """One of Lloyd's iterations: the means of each centroid's rows, and which centroid each row was nearest to."""
    moved, index, _ = _step(x, centroids)
    return moved, index


def _step(x: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor, float]:
    index, distance = nearest(x, centroids)
    sums = torch.zeros_like(centroids).index_add_(0, index, x)
    counts = torch.bincount(index, minlength=len(centroids))
    moved = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], centroids)
    empty = torch.nonzero(counts == 0).flatten()
    if len(empty):  # move them to the rows that are farthest from their centroid
        far = distance.topk(min(len(empty), len(x))).indices
        moved[empty[: len(far)]] = x[far]
    return moved, index, float(distance.mean())


def _plus_plus(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """k-means++: each new centroid is drawn with probability proportional to the squared distance so far."""
    centroids = x[torch.randint(len(x), (1,), generator=generator).to(x.device)]
    distance = (x - centroids).square().sum(1)
    chosen = [centroids]
    for _ in range(k - 1):
        total = distance.cumsum(0)
        if total[-1] <= 0:  # every row is a centroid already
            at = torch.randint(len(x), (1,), generator=generator).to(x.device)
        else:
            drawn = torch.rand(1, generator=generator).to(total) * total[-1]
            at = torch.searchsorted(total, drawn).clamp_max(len(x) - 1)
        chosen.append(x[at])
        distance = torch.minimum(distance, (x - x[at]).square().sum(1))
    return torch.cat(chosen)
