"""Physical rank preservation (PRP): representations keep the near-to-far order of physical motions."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from actionpiece.objectives.step import Step, root

MARGIN = 0.1  # the paper's m_r


def physical_rank(step: Step) -> Tensor:
    """Softplus of how much farther the physically near chunk is in representation space than the far one."""
    near, far = step.near_and_far
    gap = root(step.representation_distance(near)) - root(step.representation_distance(far))
    return F.softplus(gap + MARGIN).mean()
