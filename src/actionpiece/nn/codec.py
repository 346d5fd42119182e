"""The codec of the paper: a chunk to S slots, a residual quantiser, a chunk from slots in one pass."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from actionpiece.nn.quantize import Quantized, ResidualVQ
from actionpiece.nn.transformer import SlotEncoder, StepDecoder


class Codec(nn.Module):
    """Encoder, quantiser and decoder for normalised chunks (B, H, D).

    encoder_depth: 0 leaves the Transformer encoder out; a linear path then has to do its work.
    linear: adds a linear path from the chunk to the codebook space (`analysis`) and from the codewords to the chunk
    (`synthesis`), to which the Transformers are corrections. `start_linear` makes it a quantiser that works before any
    training.
    """

    def __init__(
        self,
        horizon: int,
        dim: int,
        *,
        slots: int,
        levels: int,
        codes: int,
        code_dim: int,
        codebook: Literal["shared", "per_slot"],
        width: int,
        encoder_depth: int,
        decoder_depth: int,
        heads: int,
        deviation: float,
        decay: float,
        dead_share: float,
        linear: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = (
            SlotEncoder(horizon, dim, slots, width=width, depth=encoder_depth, heads=heads) if encoder_depth else None
        )
        self.quantizer = ResidualVQ(
            width,
            slots=slots,
            levels=levels,
            codes=codes,
            dim=code_dim,
            sharing=codebook,
            deviation=deviation,
            decay=decay,
            dead_share=dead_share,
        )
        self.decoder = StepDecoder(horizon, dim, slots, width=width, depth=decoder_depth, heads=heads)
        self.shape, self.slots, self.width = (horizon, dim), slots, width
        self.analysis = nn.Linear(horizon * dim, slots * code_dim) if linear else None
        self.synthesis = nn.Linear(slots * code_dim, horizon * dim) if linear else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Quantized]:
        """Decoded chunks (B, H, D), encoder features (B, S, W), and what the quantiser did."""
        features = self._features(x)
        quantized = self.quantizer(features, self._shift(x))
        return self._write(quantized.hard, quantized.output), features, quantized

    def continuous(self, x: Tensor) -> Tensor:
        """Decoded chunks as they would be without a quantiser."""
        u = self.project(x)
        return self._write(u, self.quantizer.project_out(u))

    def project(self, x: Tensor) -> Tensor:
        """What is quantised: chunks in codebook space, (B, S, d)."""
        return self.quantizer.project(self._features(x), self._shift(x))

    def encode(self, x: Tensor) -> Tensor:
        """Codes (B, S, Q)."""
        quantized: Quantized = self.quantizer(self._features(x), self._shift(x))
        return quantized.codes

    def decode(self, codes: Tensor) -> Tensor:
        """Chunks (B, H, D) of codes (B, S, Q)."""
        return self._write(*self.quantizer.decode(codes))

    def _features(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), self.slots, self.width) if self.encoder is None else self.encoder(x)

    def decoding_parameters(self) -> list[nn.Parameter]:
        """What turns codes into chunks, the codebooks aside."""
        modules = (self.quantizer.project_out, self.decoder, self.synthesis)
        return [parameter for module in modules if module is not None for parameter in module.parameters()]

    def _shift(self, x: Tensor) -> Tensor | None:
        return None if self.analysis is None else self.analysis(x.flatten(1)).unflatten(1, (self.slots, -1))

    def _write(self, hard: Tensor, output: Tensor) -> Tensor:
        decoded: Tensor = self.decoder(output)
        return decoded if self.synthesis is None else decoded + self.synthesis(hard.flatten(1)).unflatten(1, self.shape)

    @torch.no_grad()
    def start_linear(self, analysis: tuple[Tensor, Tensor], synthesis: tuple[Tensor, Tensor]) -> None:
        """Set weight and bias of the linear paths, and the Transformers' corrections to zero."""
        assert self.analysis is not None
        assert self.synthesis is not None
        for layer, (weight, bias) in ((self.analysis, analysis), (self.synthesis, synthesis)):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        for layer in (self.quantizer.project_in, self.decoder.command):
            layer.weight.zero_()
            layer.bias.zero_()
