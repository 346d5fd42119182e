"""Convolutions over time for the baselines that have them, and what they do where steps do not divide."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def repeat_last(x: Tensor, multiple: int) -> Tensor:
    """Chunks (B, H, D) with the last command repeated until their steps divide by `multiple`."""
    missing = -x.shape[1] % multiple
    return torch.cat((x, x[:, -1:].expand(-1, missing, -1)), 1) if missing else x


class CausalConv(nn.Conv1d):
    """A convolution over time (B, C, T) to T / stride outputs; output i sees no step after those it stands for."""

    def forward(self, x: Tensor) -> Tensor:
        (kernel,), (stride,) = self.kernel_size, self.stride
        return super().forward(F.pad(x, (kernel - stride, 0)))
