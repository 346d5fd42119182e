"""SIGReg: encoder features look like an isotropic Gaussian along random directions (LeJEPA, appendix)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from actionpiece.objectives.step import Step

DIRECTIONS, KNOTS, LIMIT = 256, 17, 5.0  # our choice


def sigreg(step: Step) -> Tensor:
    """Epps-Pulley statistic of random projections, averaged over directions drawn anew at every step.

    Each slot of each chunk is one sample. Unlike LeJEPA's, the statistic is not multiplied by their number, so that a
    weight means the same for every batch size.
    """
    samples = step.features.flatten(0, 1)
    drawn = torch.empty(samples.shape[-1], DIRECTIONS, dtype=samples.dtype, device=samples.device)
    directions = F.normalize(drawn.normal_(generator=step.generator), dim=0)
    return epps_pulley(samples @ directions).mean()


def epps_pulley(x: Tensor) -> Tensor:
    """For each column of x (N, M): the weighted squared distance of its characteristic function to a normal one's.

    The weight is the normal characteristic function itself; the integral is a trapezoid over [-5, 5].
    """
    t = torch.linspace(-LIMIT, LIMIT, KNOTS, dtype=x.dtype, device=x.device)
    normal = torch.exp(-t.square() / 2)
    phase = x[..., None] * t
    error = (phase.cos().mean(0) - normal).square() + phase.sin().mean(0).square()
    return torch.trapezoid(error * normal, t, dim=-1)
