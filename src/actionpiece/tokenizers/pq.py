"""`pq`: a rotated product quantiser. No network: principal components shared among tokens, a k-means codebook for each.

It is the plain baseline that a learned codec at the same number of bits has to beat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.nn.kmeans import kmeans, lloyd_step, nearest
from actionpiece.tokenizers.base import FitJob
from actionpiece.tokenizers.lengths import FixedLengthTokenizer


@dataclass(frozen=True)
class PQConfig:
    """Rotated product quantiser.

    Attributes:
        tokens: groups of components, one token each.
        codes: size of each group's codebook.
        blend: the coordinates in which it is fitted. 0 is normalised coordinates, 1 is those of the physical distance,
            values between blend the columns' scales geometrically.
        groups: how components are shared among tokens. `least_error` expects the lowest error in these coordinates;
            `balanced` gives every token the same product of variances, which spends more on the largest components and
            keeps the order of neighbours better.
        refine: rounds in which the rotation is fitted to the codebooks and they to it.
        rows: training chunks used, drawn by the seed.
        iterations: of k-means before that, at most.
    """

    tokens: int = 16
    codes: int = 512
    blend: float = 0.0
    groups: Literal["least_error", "balanced"] = "least_error"
    refine: int = 15
    rows: int = 131_072
    iterations: int = 15

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.codes < 2 or self.rows < 1 or self.iterations < 1 or self.refine < 0:
            raise ActionPieceError("pq needs at least 1 token, 2 codes, 1 row, 1 iteration and no negative rounds")
        if not 0 <= self.blend <= 1:
            raise ActionPieceError(f"blend runs from 0 (normalised) to 1 (physical), and is {self.blend}")
        if self.groups not in GROUPINGS:
            raise ActionPieceError(f"groups must be {' or '.join(GROUPINGS)}, not '{self.groups}'")


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

    def _fit(self, x: Tensor, job: FitJob) -> None:
        config, generator = self.config, torch.Generator().manual_seed(job.seed)
        x = x.to(job.device)
        self.to(job.device)
        rates = self.distance.column_rates() * torch.as_tensor(self.normalizer.scale)
        # A group of weight 0 does not count in the distance, but its columns still have to come back.
        rates = rates.clamp_min(1e-3 * max(float(rates.max()), 1e-30))
        self.weight = rates.pow(config.blend).float().repeat(self.horizon).to(x.device)
        z = x.flatten(1) * self.weight
        self.mean = z.double().mean(0).float()
        z = z - self.mean
        covariance = (z.T.double() @ z.double()) / len(z)
        energy, vectors = torch.linalg.eigh(covariance)
        energy, vectors = energy.flip(0), vectors.flip(1).float()
        groups = GROUPINGS[config.groups](energy.tolist(), config.tokens, config.codes)
        width = max(len(group) for group in groups)
        self.basis = torch.zeros(len(energy), config.tokens, width, device=x.device)
        self.codebooks = torch.zeros(config.tokens, config.codes, width, device=x.device)
        rows = z[torch.randperm(len(z), generator=generator)[: config.rows].to(x.device)]
        sample = rows[: 64 * config.codes]  # enough for a start; the rounds below see all rows
        steps = config.tokens + config.refine + 1
        for number, group in enumerate(groups):
            job.progress(number / steps, f"codebook {number + 1} of {config.tokens}")
            self.basis[:, number, : len(group)] = vectors[:, group]
            start = kmeans(sample @ vectors[:, group], config.codes, iterations=config.iterations, generator=generator)
            self.codebooks[number, :, : len(group)] = start
        for number in range(config.refine):
            job.progress((config.tokens + number) / steps, f"rotation, round {number + 1} of {config.refine}")
            self._refine(rows)
        job.progress(1 - 1 / steps, "codebooks")
        self._refine(rows, rotate=False)
        spread = torch.stack([(rows @ self.basis[:, g]).square().sum(1).mean() for g in range(config.tokens)])
        order = spread.argsort(descending=True, stable=True)  # refining may have moved energy between groups
        self.basis, self.codebooks = self.basis[:, order].contiguous(), self.codebooks[order].contiguous()
        self.cpu()

    def _refine(self, rows: Tensor, *, rotate: bool = True) -> None:
        """One round: codebooks move to the means of their rows, then the rotation to the nearest one of the result.

        Lloyd's step and the orthogonal Procrustes problem (Ge et al., 2013); neither can raise the training error.
        """
        decoded = torch.empty(len(rows), self.config.tokens, self.basis.shape[2], device=rows.device)
        for g in range(self.config.tokens):
            self.codebooks[g], index = lloyd_step(rows @ self.basis[:, g], self.codebooks[g])
            decoded[:, g] = self.codebooks[g][index]
        if not rotate:
            return
        real = self.basis.abs().sum(0) > 0  # padding is no component
        u, _, vh = torch.linalg.svd(rows.T.double() @ decoded[:, real].double())
        self.basis[:, real] = (u @ vh).float()

    def _load_tensors(self, tensors: dict[str, Tensor]) -> None:
        # The width of the widest group is known only from the file.
        basis, codebooks = tensors.get("basis"), tensors.get("codebooks")
        if basis is not None and codebooks is not None and basis.ndim == codebooks.ndim == 3:
            self.basis = self.basis.new_empty(*self.basis.shape[:2], basis.shape[2])
            if codebooks.shape[:2] == self.codebooks.shape[:2]:  # otherwise the comparison of shapes says so
                self.codebooks = self.codebooks.new_empty(*codebooks.shape[:2], basis.shape[2])
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


def _error(variances: list[float], codes: int) -> tuple[float, int]:
    """What a codebook of `codes` entries leaves of components with these (falling) variances, at best.

    Reverse water-filling: the m largest components share the bits and keep an error D each, the rest keep all of
    theirs; m is as large as D stays below every one of the m. Returns the error and m.
    """
    total, rest = 0.0, sum(variances)
    best, active = rest, 0
    for m, variance in enumerate(variances, 1):
        total += math.log(variance)
        rest -= variance
        level = math.exp((total - 2 * math.log(codes)) / m)
        if level > variance:
            break
        best, active = m * level + rest, m
    return best, active


def least_error_groups(energy: list[float], count: int, codes: int) -> list[list[int]]:
    """Components shared out so that equal codebooks should lose the least.

    Components go, largest first, where they raise the expected error least; then moves and swaps between two groups
    are made while they lower it. No group is empty or takes more than its share, rounded up.
    """
    largest = max(max(energy), 1e-30)
    variances = [max(value, 1e-9 * largest) for value in energy]
    most = math.ceil(len(energy) / count)

    def error(group: list[int]) -> tuple[float, int]:
        return _error([variances[i] for i in group], codes)

    groups = [[i] for i in range(count)]
    errors = [error(group) for group in groups]
    for i in range(count, len(energy)):
        rises = [
            error([*group, i])[0] - now if len(group) < most else math.inf
            for group, (now, _) in zip(groups, errors, strict=True)
        ]
        best = rises.index(min(rises))
        groups[best].append(i)
        errors[best] = error(groups[best])

    def improve(a: int, b: int) -> bool:
        # A component below the water is lost wherever it is, so only those above it (and one more) are worth moving.
        for i in groups[a][: errors[a][1] + 1]:
            for j in (None, *groups[b][: errors[b][1] + 1]):
                if j is None and (len(groups[a]) == 1 or len(groups[b]) == most):
                    continue
                left = sorted([x for x in groups[a] if x != i] + ([j] if j is not None else []))
                right = sorted([x for x in groups[b] if x != j] + [i])
                then = error(left), error(right)
                if then[0][0] + then[1][0] < (errors[a][0] + errors[b][0]) * (1 - 1e-9):
                    groups[a], groups[b] = left, right
                    errors[a], errors[b] = then
                    return True
        return False

    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    while sum(improve(a, b) for a, b in pairs):
        pass
    return _by_energy(groups, energy)


def balanced_groups(energy: list[float], count: int, codes: int) -> list[list[int]]:
    """Components shared out so that the products of variances are alike: each goes to the group with the least.

    No group takes more than its share, rounded up, so the largest components end up alone or nearly so.
    """
    largest = max(max(energy), 1e-30)
    most = math.ceil(len(energy) / count)
    groups: list[list[int]] = [[] for _ in range(count)]
    totals = [-math.inf] * count
    for i, value in enumerate(energy):
        open_groups = [g for g in range(count) if len(groups[g]) < most]
        g = min(open_groups, key=lambda g: totals[g])
        totals[g] = math.log(max(value, 1e-9 * largest)) + (totals[g] if groups[g] else 0.0)
        groups[g].append(i)
    return _by_energy(groups, energy)


def _by_energy(groups: list[list[int]], energy: list[float]) -> list[list[int]]:
    return sorted((sorted(group) for group in groups), key=lambda group: -sum(energy[i] for i in group))


GROUPINGS = {"least_error": least_error_groups, "balanced": balanced_groups}
