"""Commitment: features stay near the codewords they select."""

from __future__ import annotations

import torch
from torch import Tensor

from actionpiece.objectives.step import Step


def commitment(step: Step) -> Tensor:
    """Mean square per element in codebook space, averaged over residual levels; the codewords are constants."""
    terms = [(level.residual - level.chosen.detach()).square().mean() for level in step.quantized.levels]
    return torch.stack(terms).mean()
