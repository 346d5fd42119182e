"""`Step`: one batch on its way through a codec, with what several objectives share computed once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from actionpiece.distance import Features, PhysicalDistance
from actionpiece.nn.fused import fused
from actionpiece.nn.quantize import Quantized, ResidualVQ
from actionpiece.nn.selection import code_probabilities, cumulative_codewords

NEAR, FAR = 0.05, 0.95  # percentiles of the others, the paper's
ENCODER_SHARE, QUANTIZED_SHARE = 0.25, 0.75  # of the squared representation distance, the paper's


@dataclass
class Step:
    """target, decoded: (B, H, D) normalised. features: (B, S, W) encoder output before the input projection.

    physical: the batch's `PhysicalDistance.features`. scale, offset: of the normaliser, (D,), to go back to commands.
    rates: (D,) how much a normalised unit of each column moves the root of a step's distance, to first order.
    emphasis: (D,) what multiplies the columns' errors before they are squared; 1 is the plain mean squared error.
    companions: every chunk at a multiple of companions + 1 is an anchor, those after it are near it in training data.
    generator: for objectives that draw at random; on the device of the tensors.
    """

    target: Tensor
    decoded: Tensor
    features: Tensor
    quantized: Quantized
    quantizer: ResidualVQ
    distance: PhysicalDistance
    physical: Features
    offset: Tensor
    scale: Tensor
    rates: Tensor
    emphasis: Tensor
    companions: int = 0
    generator: torch.Generator | None = None

    @cached_property
    def distances(self) -> Tensor:
        """(B, B) physical distances within the batch; infinite on the diagonal."""
        return _distances(self.physical.flat, self.physical.turns, self.distance)

    @cached_property
    def near_and_far(self) -> tuple[Tensor, Tensor]:
        """For each anchor, the others at the 5th and the 95th percentile of its distances, (B,) each."""
        order = self.distances.argsort(dim=1, stable=True)
        others = order.shape[1] - 1
        return order[:, nearest_rank(NEAR, others)], order[:, nearest_rank(FAR, others)]

    @cached_property
    def probabilities(self) -> list[Tensor]:
        """For each residual level, the soft probabilities of its codewords, (B, S, K) each."""
        return [code_probabilities(level.distances) for level in self.quantized.levels]

    @cached_property
    def codewords(self) -> list[Tensor]:
        """For each residual level, the sum of codewords so far in the decoder's space, (B, S, W) each."""
        return cumulative_codewords(self.quantizer, self.quantized, self.probabilities)

    def representation_distance(self, other: Tensor) -> Tensor:
        """Squared distance (B, ...) of each anchor's representation to those of the batch members `other` (B, ...)."""
        return representation_distance(self.features, self.codewords, other)


@fused
def representation_distance(features: Tensor, codewords: list[Tensor], other: Tensor) -> Tensor:
    """The paper's: encoder features and cumulative codewords on the unit sphere, averaged over slots and levels."""
    levels = torch.stack([_slot_distance(_on_sphere(q), other) for q in codewords]).mean(0)
    return ENCODER_SHARE * _slot_distance(_on_sphere(features), other) + QUANTIZED_SHARE * levels


@fused
def _distances(flat: Tensor, turns: Tensor, distance: PhysicalDistance) -> Tensor:
    with torch.no_grad():
        pairs = distance.pairwise(Features(flat, turns))
        return pairs.masked_fill(torch.eye(len(pairs), dtype=torch.bool, device=pairs.device), torch.inf)


def nearest_rank(share: float, count: int) -> int:
    """The 0-based nearest-rank percentile: 6 and 120 for 5 % and 95 % of 127 others."""
    return max(math.ceil(share * count), 1) - 1


def _on_sphere(x: Tensor) -> Tensor:
    return F.normalize(F.layer_norm(x, x.shape[-1:]), dim=-1)


def _slot_distance(x: Tensor, other: Tensor) -> Tensor:
    anchors = x.reshape(len(x), *(1,) * (other.ndim - 1), *x.shape[1:])
    # index_select, not x[other]: its gradient adds rows up instead of sorting them first.
    others = x.index_select(0, other.flatten()).view(*other.shape, *x.shape[1:])
    return (anchors - others).square().sum(-1).mean(-1)


def root(squared: Tensor) -> Tensor:
    """A square root with a finite gradient at zero: identical chunks in a batch must not break training."""
    return (squared + 1e-12).sqrt()
