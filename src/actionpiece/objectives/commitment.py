"""Commitment: features stay near the codewords they select."""

from __future__ import annotations

import torch
from torch import Tensor

from actionpiece.nn.quantize import Quantized
from actionpiece.objectives.step import Step


def commitment(step: Step) -> Tensor:
    """Mean square per element in codebook space, averaged over residual levels; the codewords are constants."""
    return committed(step.quantized)


def committed(quantized: Quantized) -> Tensor:
    """The same of what any quantiser did."""
    terms = [(level.residual - level.chosen.detach()).square().mean() for level in quantized.levels]
    return torch.stack(terms).mean()
