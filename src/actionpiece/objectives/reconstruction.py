"""Mean squared error (the paper's L_MSE)."""

from __future__ import annotations

from torch import Tensor

from actionpiece.objectives.step import Step


def reconstruction(step: Step) -> Tensor:
    """Mean over chunks, steps and columns: in normalised coordinates, or as `Step.emphasis` stretches them."""
    return ((step.decoded - step.target) * step.emphasis).square().mean()
