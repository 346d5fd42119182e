"""Neighborhood: attract the ten physically nearest chunks of the batch, the nearer the more (appendix)."""

from __future__ import annotations

import torch
from torch import Tensor

from actionpiece.objectives.step import Step

NEIGHBORS = 10  # the paper's


def neighborhood(step: Step) -> Tensor:
    """Weighted mean of squared representation distances to the neighbours.

    The weights are our choice: exp(-d / mean d of the anchor's neighbours), so that scale does not matter.
    """
    count = min(NEIGHBORS, len(step.target) - 1)
    nearest = step.distances.topk(count, dim=1, largest=False)
    scale = nearest.values.mean(1, keepdim=True).clamp_min(1e-12)
    weights = torch.exp(-nearest.values / scale).to(step.features.dtype)
    attraction = (weights * step.representation_distance(nearest.indices)).sum()
    return attraction / weights.sum().clamp_min(1e-12)  # a batch of one has no neighbours: 0
