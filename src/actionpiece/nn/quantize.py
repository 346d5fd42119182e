"""A projected residual vector quantiser with codebooks that follow their data by exponential moving averages.

Features of width W are projected to a low-dimensional codebook space, quantised there in Q levels, each level coding
what the one before left over, and projected back. The codebooks are buffers: no gradient reaches them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from actionpiece.nn.fused import fused, products
from actionpiece.nn.kmeans import kmeans

_STRIDE = 997  # a prime, so that neighbouring codewords are replaced from different chunks and slots


class Level(NamedTuple):
    """What one residual level did.

    residual: (B, S, d) what it was given, with gradient. distances: (B, S, K) squared distances of the residual to
    every codeword, the paper's Delta, with gradient. codes: (B, S). chosen: (B, S, d) the selected codewords.
    codebook: (1 or S, K, d).
    """

    residual: Tensor
    distances: Tensor
    codes: Tensor
    chosen: Tensor
    codebook: Tensor


class Quantized(NamedTuple):
    """levels: Q of them. hard: (B, S, d) the sum of the selected codewords, with an identity straight-through gradient.

    output: (B, S, W) the same after the output projection, for the decoder.
    """

    levels: tuple[Level, ...]
    hard: Tensor
    output: Tensor

    @property
    def codes(self) -> Tensor:
        """(B, S, Q) int64."""
        return torch.stack([level.codes for level in self.levels], -1)


class Standardize(nn.Module):
    """Every slot's vectors (B, S, d) with mean 0 and one deviation, by moving averages.

    Slots that share a codebook can then share all of it, and the weight of the commitment term means something.
    """

    mean: Tensor  # (S, d)
    variance: Tensor  # (S, d)

    def __init__(self, slots: int, dim: int, *, deviation: float, decay: float) -> None:
        super().__init__()
        self.deviation, self.decay = deviation, decay
        self.register_buffer("mean", torch.zeros(slots, dim))
        self.register_buffer("variance", torch.ones(slots, dim))

    def forward(self, u: Tensor) -> Tensor:
        if not (self.training and torch.is_grad_enabled()):
            return (u - self.mean) * (self.deviation * (self.variance + 1e-8).rsqrt())
        self._follow(u.detach())
        return _renormalized(u, self.mean.clone(), self.variance.clone(), self.deviation)

    def _follow(self, u: Tensor) -> None:
        self.mean.lerp_(_mean_over_ranks(u.mean(0)), 1 - self.decay)
        self.variance.lerp_(_mean_over_ranks(_variance_about(u, self.mean)), 1 - self.decay)


@fused
def _variance_about(u: Tensor, mean: Tensor) -> Tensor:
    # Differences first: a mean far from zero must not cancel the digits away.
    return (u - mean).square().mean(0)


@fused
def _renormalized(u: Tensor, mean: Tensor, variance: Tensor, deviation: float) -> Tensor:
    """(u - mean) / sqrt(variance), times the deviation, with the gradient of the batch's own mean and variance.

    That is batch renormalisation (Ioffe 2017): nothing is gained by moving or stretching a slot, and none drifts away.
    """
    scale = deviation * (variance + 1e-8).rsqrt()
    own_mean, own_variance = u.mean(0), u.var(0, correction=0)
    own = (u - own_mean) * (own_variance + 1e-8).rsqrt()
    stretch, shift = (own_variance + 1e-8).sqrt() * scale, (own_mean - mean) * scale
    return own * stretch.detach() + shift.detach()


class ResidualVQ(nn.Module):
    """Q levels of K codewords of dimension d, one codebook for all slots (`shared`, the paper) or one for each.

    deviation: what each slot's vectors are standardised to before they are quantised; 0: they are not. decay: of the
    moving averages. dead_share: a codeword used less than this share of the average is replaced by a
    vector of the batch. Statistics are summed over ranks under distributed training, so every rank has the same
    codebooks.
    """

    codebook: Tensor  # (Q, C, K, d) with C = 1 or S
    count: Tensor  # (Q, C, K) moving average of how often each codeword is chosen
    total: Tensor  # (Q, C, K, d) moving average of the sum of what chose it

    def __init__(
        self,
        width: int,
        *,
        slots: int,
        levels: int,
        codes: int,
        dim: int,
        sharing: Literal["shared", "per_slot"] = "shared",
        deviation: float = 0.0,
        decay: float = 0.99,
        dead_share: float = 0.03,
    ) -> None:
        super().__init__()
        self.decay, self.dead_share, self.slots = decay, dead_share, slots
        books = 1 if sharing == "shared" else slots
        self.project_in = nn.Linear(width, dim)
        self.standardize = Standardize(slots, dim, deviation=deviation, decay=decay) if deviation else None
        self.project_out = nn.Linear(dim, width)
        self.register_buffer("codebook", torch.randn(levels, books, codes, dim))
        self.register_buffer("count", torch.ones(levels, books, codes))
        self.register_buffer("total", self.codebook.clone())

    @property
    def scores_per_chunk(self) -> int:
        """How many distances to codewords are known at once for every chunk that is quantised."""
        levels, _, size, _ = self.codebook.shape
        return self.slots * levels * size

    def forward(self, features: Tensor, shift: Tensor | None = None) -> Quantized:
        """Quantise slot features (B, S, W); see `project`."""
        return self.quantize(self.project(features, shift))

    def quantize(self, u: Tensor, keep: Tensor | None = None, *, levels: int | None = None) -> Quantized:
        """Quantise vectors in codebook space (B, S, d).

        keep: (Q, B) with 0 where a chunk goes without a level. levels: how many of the first are used; None: all.
        """
        residual, done = u, []
        for book in self.codebook[:levels]:
            distances, codes = _nearest(residual, book)
            chosen = _pick(book, codes)
            done.append(Level(residual, distances, codes, chosen, book))
            residual = residual - chosen
        # u - u.detach() is exactly zero and carries the gradient, so that `decode` gives the same bits.
        chosen = torch.stack([level.chosen for level in done])
        if keep is not None:
            chosen = chosen * keep[..., None, None]
        hard = chosen.sum(0) + (u - u.detach())
        return Quantized(tuple(done), hard, self.project_out(hard))

    def project(self, features: Tensor, shift: Tensor | None = None) -> Tensor:
        """Slot features (B, S, W) in codebook space, (B, S, d), where `shift` is added to them."""
        u: Tensor = self.project_in(features)
        if shift is not None:
            u = u + shift
        return u if self.standardize is None else self.standardize(u)

    def decode(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Codewords (B, S, d) and the decoder's input (B, S, W) of codes (B, S, q) for the first q <= Q levels."""
        chosen = [_pick(book, codes[..., level]) for level, book in enumerate(self.codebook[: codes.shape[-1]])]
        hard = torch.stack(chosen).sum(0)
        return hard, self.project_out(hard)

    def update(self, quantized: Quantized) -> None:
        """Let the codebooks follow a batch, and replace codewords that died. Shapes are static, as capture needs."""
        books, size, dim = self.codebook.shape[1:]
        for number, level in enumerate(quantized.levels):
            vectors = level.residual.detach().to(self.codebook.dtype)
            place = level.codes if books == 1 else level.codes + size * torch.arange(self.slots, device=vectors.device)
            seen = _seen(vectors.reshape(-1, dim), place.flatten(), books * size).view(books, size, dim + 1)
            fresh = _fresh(vectors.reshape(1, -1, dim) if books == 1 else vectors.transpose(0, 1), size)
            _sum_over_ranks(seen)
            _from_first_rank(fresh)
            averages = self.count[number], self.total[number]
            _follow(seen, fresh, *averages, self.codebook[number], self.decay, self.dead_share)

    @torch.no_grad()
    def start(self, u: Tensor, generator: torch.Generator, first: Tensor | None = None) -> None:
        """Start the codebooks from k-means on vectors (N, S, d) of training chunks, level by level.

        first: (1 or S, K, d) codebooks of the first level, where they are known.
        """
        residual = u
        books, size, dim = self.codebook.shape[1:]
        for number in range(len(self.codebook)):
            pool = residual.reshape(1, -1, dim) if books == 1 else residual.transpose(0, 1)
            if number == 0 and first is not None:
                centroids = first
            else:
                centroids = torch.stack([kmeans(rows, size, generator=generator) for rows in pool])
            self.codebook[number] = centroids
            self.count[number] = 1.0
            self.total[number] = centroids
            residual = residual - _pick(centroids, _nearest(residual, centroids)[1])


@fused
def _seen(vectors: Tensor, place: Tensor, count: int) -> Tensor:
    """(count, d + 1) what vectors (N, d) add to the statistics at their places (N,): their totals, their numbers."""
    ones = torch.ones_like(vectors[:, :1])
    return vectors.new_zeros(count, vectors.shape[1] + 1).index_add(0, place, torch.cat((vectors, ones), 1))


@fused
def _fresh(pool: Tensor, size: int) -> Tensor:
    """(C, K, d) a vector of the pool (C, N, d) for every codeword, should it have died.

    A batch is in random order already: which of its vectors a codeword gets need not be drawn again.
    """
    return pool[:, torch.arange(size, device=pool.device) * _STRIDE % pool.shape[1]]


@fused
def _follow(
    seen: Tensor, fresh: Tensor, count: Tensor, total: Tensor, codebook: Tensor, decay: float, dead_share: float
) -> None:
    """Let moving averages (C, K) and (C, K, d), and the codewords that they are of, follow what a batch has `seen`.

    Codewords that died start again as a `fresh` vector (C, K, d) with an average count.
    """
    followed = count.lerp(seen[..., -1], 1 - decay)
    mean = followed.mean(-1, keepdim=True)
    dead = followed < dead_share * mean
    count.copy_(torch.where(dead, mean, followed))
    total.copy_(torch.where(dead[..., None], fresh * mean[..., None], total.lerp(seen[..., :-1], 1 - decay)))
    # With dead_share 0 an average may come to nothing; it must not divide by zero.
    codebook.copy_(total / count.clamp_min(1e-6)[..., None])


def _nearest(u: Tensor, book: Tensor) -> tuple[Tensor, Tensor]:
    """(B, S, K) squared distances of (B, S, d) to the codewords (1 or S, K, d), and the nearest one, (B, S)."""
    with products("highest"):  # ten bits of mantissa would decide between near codewords at random
        cross = (u.transpose(0, 1) @ book.transpose(-1, -2)).transpose(0, 1)
    return _completed(u, cross, book)


@fused
def _completed(u: Tensor, cross: Tensor, book: Tensor) -> tuple[Tensor, Tensor]:
    distances = u.square().sum(-1, keepdim=True) - 2 * cross + book.square().sum(-1)
    return distances, distances.argmin(-1)


def _pick(book: Tensor, codes: Tensor) -> Tensor:
    """Codewords (B, S, d) of codes (B, S) from (1 or S, K, d)."""
    if len(book) == 1:
        return book[0][codes]
    return book[torch.arange(len(book), device=codes.device), codes]


def _sum_over_ranks(tensor: Tensor) -> None:
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(tensor)


def _mean_over_ranks(tensor: Tensor) -> Tensor:
    _sum_over_ranks(tensor)
    return tensor / (dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1)


def _from_first_rank(tensor: Tensor) -> None:
    if dist.is_available() and dist.is_initialized():
        dist.broadcast(tensor, src=0)
