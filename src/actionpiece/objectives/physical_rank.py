"""Physical rank preservation (PRP): representations keep the near-to-far order of physical motions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from actionpiece.objectives.step import Step, root

MARGIN = 0.1  # the paper's m_r


def physical_rank(step: Step) -> Tensor:
    """Softplus of how much farther the physically near chunk is in representation space than the far one."""
    near, far = root(step.representation_distance(torch.stack(step.near_and_far, 1))).unbind(1)
    return F.softplus(near - far + MARGIN).mean()
