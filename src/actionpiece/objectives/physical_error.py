"""Physical error: how far the decoded chunk is from its target for the robot, to first order."""

from __future__ import annotations

from torch import Tensor

from actionpiece.objectives.step import Step


def physical_error(step: Step) -> Tensor:
    """Squared error of every column at its rate in the physical distance, summed over columns, mean over steps."""
    return ((step.decoded - step.target) * step.rates).square().sum(-1).mean()
