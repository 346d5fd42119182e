"""Neighbour order: the nearest chunks of the training set keep their distances to each other after decoding.

The decoded-space counterpart of physical rank preservation, and what PRC asks: pairs are mined from the whole training
set (see `TrainConfig.companions`), since within a random batch nobody is near anybody.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actionpiece.objectives.step import Step


def neighbor_order(step: Step) -> Tensor:
    """One minus the correlation of an anchor's distances to its companions before and after decoding, mean of anchors.

    Distances are to first order in every column. A neighbourhood without differences is left out.
    """
    before, after = (_distances(x * step.rates, step.companions) for x in (step.target, step.decoded))
    reach = before.square().sum(1)
    before, after = (d - d.mean(1, keepdim=True) for d in (before, after))
    left, right = (d.square().sum(1) for d in (before, after))
    has_order = left > 1e-11 * reach  # more than rounding
    kept = right > 1e-6 * left  # otherwise all were decoded to one distance, and no direction is the right one
    sizes = torch.where(has_order & kept, left * right, 1.0)
    correlation = torch.where(kept, (before * after).sum(1) / sizes.sqrt(), 0.0)
    return torch.where(has_order, 1 - correlation, 0.0).sum() / has_order.sum().clamp_min(1)


def _distances(x: Tensor, companions: int) -> Tensor:
    """(A, m) root mean square distances of A anchors (every (m + 1)-th chunk of the batch) to their m companions."""
    groups = x.flatten(1).unflatten(0, (-1, companions + 1))
    apart: Tensor = ((groups[:, 1:] - groups[:, :1]).square().sum(-1) / x.shape[1] + 1e-12).sqrt()
    return apart
