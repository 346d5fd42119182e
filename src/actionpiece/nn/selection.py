"""Differentiable codeword selection: the appendix's straight-through estimator with soft probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from actionpiece.nn.fused import fused
from actionpiece.nn.quantize import Quantized, ResidualVQ


@fused
def code_probabilities(distances: Tensor, temperature: float = 1.0) -> Tensor:
    """The paper's pi: softmax over codewords of -Delta over its own (detached, population) deviation.

    distances: (B, S, K) squared distances. The deviation is at least 1e-6.
    """
    deviation = distances.detach().std(-1, correction=0, keepdim=True).clamp_min(1e-6)
    return torch.softmax(-distances / (deviation * temperature), -1)


def cumulative_codewords(quantizer: ResidualVQ, quantized: Quantized, probabilities: list[Tensor]) -> list[Tensor]:
    """For each level r, the sum of the first r selected codewords after the output projection, (B, S, W) each.

    Forward it is the hard selection; backward it is the average of the codebook under the soft probabilities. The
    projection's bias is added once, not per level. probabilities: of each level, by `code_probabilities`.
    """
    sums, total = [], torch.zeros_like(quantized.levels[0].chosen)
    for level, pi in zip(quantized.levels, probabilities, strict=True):
        soft, hard = (pi.transpose(0, 1) @ level.codebook).transpose(0, 1), level.chosen
        # The projection is linear, so the estimator may be formed before it; soft - soft.detach() is exactly zero.
        total = total + hard + (soft - soft.detach())
        sums.append(quantizer.project_out(total))
    return sums
