"""`pq`: a rotated product quantiser. No network: principal components, balanced groups, one k-means codebook each.

It is the plain baseline a learned codec has to beat, and it is strong: 16 tokens of 512 codes reach a tenth of the
error of a codec trained from scratch for the same budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.nn.kmeans import kmeans, nearest
from actionpiece.tokenizers.base import Progress
from actionpiece.tokenizers.lengths import FixedLengthTokenizer


@dataclass(frozen=True)
class PQConfig:
    """Rotated product quantiser.

    Attributes:
        tokens: groups of components, one token each.
        codes: size of each group's codebook.
        blend: the coordinates in which it is fitted. 0 is normalised coordinates (lowest MSE), 1 is those of the
            physical distance (highest PRC), and values between blend the columns' scales geometrically.
        rows: training chunks used for clustering, drawn by the seed.
        iterations: of k-means, at most.
    """

    tokens: int = 16
    codes: int = 512
    blend: float = 0.0
    rows: int = 131_072
    iterations: int = 25

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.codes < 2 or self.rows < 1 or self.iterations < 1:
            raise ActionPieceError("pq needs at least 1 token, 2 codes, 1 row and 1 iteration")
        if not 0 <= self.blend <= 1:
            raise ActionPieceError(f"blend runs from 0 (normalised) to 1 (physical), and is {self.blend}")


class PQTokenizer(FixedLengthTokenizer):
    """Tokens are ordered by energy, so that the first k of them decode to a coarse chunk.

    Buffers, with N = H * D values and components padded to the widest group:
    weight (N,): the coordinates; mean (N,): of training chunks in them; basis (N, tokens, width): the rotation, its
    columns laid out by group; codebooks (tokens, codes, width).
    """

    kind = "pq"
    config_class = PQConfig
    token_order = "groups of principal components by falling energy"
    has_prefix = True
    config: PQConfig
    weight: Tensor
    mean: Tensor
    basis: Tensor
    codebooks: Tensor

    def __init__(self, config: PQConfig, **rest: Any) -> None:
        super().__init__(config, **rest)
        values = self.horizon * self.space.dim
        if config.tokens > values:
            raise ActionPieceError(f"pq has {values} values to share among tokens, so it cannot make {config.tokens}")
        self.register_buffer("weight", torch.ones(values))
        self.register_buffer("mean", torch.zeros(values))
        self.register_buffer("basis", torch.zeros(values, config.tokens, 0))
        self.register_buffer("codebooks", torch.zeros(config.tokens, config.codes, 0))

    @property
    def vocab_size(self) -> int:
        return self.config.codes

    @property
    def tokens_per_chunk(self) -> int:
        return self.config.tokens

    def _fit(self, x: Tensor, seed: int, progress: Progress) -> None:
        config, generator = self.config, torch.Generator().manual_seed(seed)
        rates = self.distance.column_rates() * torch.as_tensor(self.normalizer.scale)
        # A group of weight 0 does not count in the distance, but its columns still have to come back.
        rates = rates.clamp_min(1e-3 * max(float(rates.max()), 1e-30))
        self.weight = rates.pow(config.blend).float().repeat(self.horizon)
        z = x.flatten(1) * self.weight
        self.mean = z.double().mean(0).float()
        z = z - self.mean
        covariance = (z.T.double() @ z.double()) / len(z)
        energy, vectors = torch.linalg.eigh(covariance)
        energy, vectors = energy.flip(0), vectors.flip(1).float()
        groups = balanced_groups(energy.tolist(), config.tokens, config.codes)
        width = max(len(group) for group in groups)
        self.basis = torch.zeros(len(energy), config.tokens, width)
        self.codebooks = torch.zeros(config.tokens, config.codes, width)
        rows = z[torch.randperm(len(z), generator=generator)[: config.rows]]
        for number, group in enumerate(groups):
            progress(number / len(groups), f"codebook {number + 1} of {len(groups)}")
            self.basis[:, number, : len(group)] = vectors[:, group]
            projected = rows @ vectors[:, group]
            centroids = kmeans(projected, config.codes, iterations=config.iterations, generator=generator)
            self.codebooks[number, :, : len(group)] = centroids
        progress(1.0, "codebooks")

    def _load_tensors(self, tensors: dict[str, Tensor]) -> None:
        # The width of the widest group is known only from the file.
        basis, codebooks = tensors.get("basis"), tensors.get("codebooks")
        if basis is not None and codebooks is not None and basis.ndim == codebooks.ndim == 3:
            self.basis = self.basis.new_zeros(*self.basis.shape[:2], basis.shape[2])
            self.codebooks = self.codebooks.new_zeros(*self.codebooks.shape[:2], basis.shape[2])
        super()._load_tensors(tensors)

    def _encode(self, x: Tensor) -> Tensor:
        z = x.flatten(1) * self.weight - self.mean
        return torch.stack(
            [nearest(z @ self.basis[:, g], self.codebooks[g])[0] for g in range(self.config.tokens)], dim=1
        )

    def _decode(self, ids: Tensor) -> Tensor:
        count = ids.shape[1]  # groups that are not there stay at their mean
        picked = self.codebooks[torch.arange(count, device=ids.device), ids]  # (B, count, width)
        z = picked.flatten(1) @ self.basis[:, :count].flatten(1).T + self.mean
        chunks: Tensor = (z / self.weight).unflatten(1, (self.horizon, self.space.dim))
        return chunks


def balanced_groups(energy: list[float], count: int, codes: int) -> list[list[int]]:
    """Components shared out so that equal codebooks lose the least, each group ordered by falling energy.

    A codebook of `codes` entries on d components with variances v leaves an error of about
    d (prod v)^(1/d) codes^(-2/d). Components go, largest first, where they raise the sum least; then single moves and
    swaps are made while they lower it.
    """
    floor = 1e-9 * max(max(energy), 1e-30)
    logs = [math.log(max(value, floor)) for value in energy]
    shrink = 2 * math.log(codes)

    def cost(size: int, total: float) -> float:
        return size * math.exp((total - shrink) / size) if size else 0.0

    groups: list[list[int]] = [[i] for i in range(count)]  # no group stays empty
    totals = [logs[i] for i in range(count)]
    for i in range(count, len(logs)):
        rises = [cost(len(g) + 1, t + logs[i]) - cost(len(g), t) for g, t in zip(groups, totals, strict=True)]
        best = rises.index(min(rises))
        groups[best].append(i)
        totals[best] += logs[i]

    def improve(a: int, b: int) -> bool:
        now = cost(len(groups[a]), totals[a]) + cost(len(groups[b]), totals[b])
        for i in groups[a]:
            for j in (None, *groups[b]):
                if j is None and len(groups[a]) == 1:
                    continue
                out, back, shift = logs[i], (logs[j] if j is not None else 0.0), int(j is None)
                then = cost(len(groups[a]) - shift, totals[a] - out + back)
                then += cost(len(groups[b]) + shift, totals[b] + out - back)
                if then < now * (1 - 1e-9):
                    groups[a] = [x for x in groups[a] if x != i] + ([j] if j is not None else [])
                    groups[b] = [x for x in groups[b] if x != j] + [i]
                    totals[a], totals[b] = totals[a] - out + back, totals[b] + out - back
                    return True
        return False

    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    while sum(improve(a, b) for a, b in pairs):  # a sum, not any(): every pair gets its turn
        pass
    groups = [sorted(group) for group in groups]
    return sorted(groups, key=lambda group: -sum(energy[i] for i in group))
