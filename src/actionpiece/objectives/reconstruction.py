"""Mean squared error in normalised coordinates (the paper's L_MSE)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from actionpiece.objectives.step import Step


def reconstruction(step: Step) -> Tensor:
    """Mean over chunks, steps and columns."""
    return F.mse_loss(step.decoded, step.target)
