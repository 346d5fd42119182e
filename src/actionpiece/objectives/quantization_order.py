"""Quantization regularization (QR): codeword probabilities keep the near-to-far order of physical motions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from actionpiece.nn.fused import fused
from actionpiece.objectives.step import Step

MARGIN = 0.1  # the paper's m_q


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence of distributions along the last axis, in nats."""
    return (_negentropy(p) + _negentropy(q)) / 2 - _negentropy((p + q) / 2)


def _negentropy(p: Tensor) -> Tensor:
    # Not xlogy: its gradient is not a number where a probability has underflowed to zero.
    return (p * p.clamp_min(torch.finfo(p.dtype).tiny).log()).sum(-1)


def quantization_order(step: Step) -> Tensor:
    """Softplus of how much more the near chunk's code probabilities diverge than the far one's.

    The divergence is averaged over slots and, for several residual levels, over levels.
    """
    near, far = step.near_and_far
    gaps = torch.stack([divergence_gap(pi, near, far) for pi in step.probabilities])
    return F.softplus(gaps.mean(0) + MARGIN).mean()


@fused
def divergence_gap(pi: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """(B,) how much more each chunk's probabilities (B, S, K) diverge from its near one's than from its far one's."""
    # index_select, not pi[near]: its gradient adds rows up instead of sorting them first.
    apart = [jensen_shannon(pi, pi.index_select(0, other)) for other in (near, far)]
    return (apart[0] - apart[1]).mean(-1)
