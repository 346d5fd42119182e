"""`HalfWeights`: the weights of products in half precision, copied once a step."""

from __future__ import annotations

from types import TracebackType

import torch
from torch import nn

from actionpiece.nn.transformer import HalfProducts


class HalfWeights:
    """Within a `with` block, the linear layers of a network's `HalfProducts` have bfloat16 copies of their weights.

    Autocast would copy every weight by a kernel of its own, and every gradient back by another, and what a small
    network's step costs is its kernels. Here it is one for many of them. When the block ends, the gradients are where
    they would be, in float32, and the layers have their own weights again. The numbers are autocast's, but that a
    compiler may leave a bias unrounded there. Each layer is to be used once in a block, and with gradients: what is
    summed within it is summed in half precision.
    """

    def __init__(self, network: nn.Module) -> None:
        parts = [part for part in network.modules() if isinstance(part, HalfProducts)]
        linears = [layer for part in parts for layer in part.modules() if isinstance(layer, nn.Linear)]
        self.places = [(layer, name) for layer in linears for name, _ in layer.named_parameters(recurse=False)]
        self.whole = [layer.get_parameter(name) for layer, name in self.places]
        self.half = [
            nn.Parameter(weight.detach().to(torch.bfloat16), requires_grad=weight.requires_grad)
            for weight in self.whole
        ]
        self.gradients = [torch.zeros_like(weight) for weight in self.whole]

    def __enter__(self) -> None:
        if self.places:
            with torch.no_grad():
                torch._foreach_copy_([*self.half], [*self.whole])
        self._put(self.half)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._put(self.whole)
        if kind is not None:
            return
        arrived = [
            (whole, half, half.grad, gradient)
            for whole, half, gradient in zip(self.whole, self.half, self.gradients, strict=True)
            if half.grad is not None
        ]
        if arrived:
            torch._foreach_copy_([one[3] for one in arrived], [one[2] for one in arrived])
        for whole, half, _, gradient in arrived:
            whole.grad, half.grad = gradient, None

    def _put(self, weights: list[nn.Parameter]) -> None:
        for (layer, name), weight in zip(self.places, weights, strict=True):
            layer.register_parameter(name, weight)
