"""Convolutions over time for the baselines that have them, and what they do where steps do not divide."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def repeat_last(x: Tensor, multiple: int) -> Tensor:
    """Chunks (B, H, D) with the last command repeated until their steps divide by `multiple`."""
    missing = -x.shape[1] % multiple
    return torch.cat((x, x[:, -1:].expand(-1, missing, -1)), 1) if missing else x


class TimeConv(nn.Conv1d):
    """A convolution over the steps of (B, T, C), as one product of all its windows: there are few of them.

    around: steps of zeros on each side.
    """

    def __init__(self, channels: int, width: int, kernel: int, *, stride: int = 1, around: int = 0) -> None:
        super().__init__(channels, width, kernel, stride=stride)
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, (self.around, self.around))

    def _convolve(self, x: Tensor, padding: tuple[int, int]) -> Tensor:
        windows = F.pad(x, (0, 0, *padding)).unfold(1, self.kernel_size[0], self.stride[0])
        return F.linear(windows.flatten(2), self.weight.flatten(1), self.bias)


class CausalConv(TimeConv):
    """A convolution over time (B, T, C) to T / stride outputs; output i sees no step after those it stands for."""

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, (self.kernel_size[0] - self.stride[0], 0))


class TimeSpread(nn.ConvTranspose1d):
    """The way back from patches (B, T, C) to their steps (B, T * patch, width)."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        assert self.bias is not None
        # One product of all rows: of a batch of matrices torch makes one where there are gradients and many where there
        # are none, and a network that was loaded is to give the same bits as the one that was saved.
        rows = x.flatten(0, 1) @ self.weight.flatten(1)
        steps = rows.view(*x.shape[:2], *self.weight.shape[1:])
        out: Tensor = steps.transpose(-1, -2).flatten(1, 2) + self.bias
        return out
