"""The codec of the paper: a chunk to S slots, a residual quantiser, a chunk from slots in one pass."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from actionpiece.nn.quantize import Quantized, ResidualVQ
from actionpiece.nn.transformer import SlotEncoder, StepDecoder


class Codec(nn.Module):
    """Encoder, quantiser and decoder for normalised chunks (B, H, D)."""

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
        decay: float,
        dead_share: float,
    ) -> None:
        super().__init__()
        self.encoder = SlotEncoder(horizon, dim, slots, width=width, depth=encoder_depth, heads=heads)
        self.quantizer = ResidualVQ(
            width,
            slots=slots,
            levels=levels,
            codes=codes,
            dim=code_dim,
            sharing=codebook,
            decay=decay,
            dead_share=dead_share,
        )
        self.decoder = StepDecoder(horizon, dim, slots, width=width, depth=decoder_depth, heads=heads)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Quantized]:
        """Decoded chunks (B, H, D), encoder features (B, S, W), and what the quantiser did."""
        features = self.encoder(x)
        quantized = self.quantizer(features)
        return self.decoder(quantized.output), features, quantized

    def encode(self, x: Tensor) -> Tensor:
        """Codes (B, S, Q)."""
        quantized: Quantized = self.quantizer(self.encoder(x))
        return quantized.codes

    def decode(self, codes: Tensor) -> Tensor:
        """Chunks (B, H, D) of codes (B, S, Q)."""
        out: Tensor = self.decoder(self.quantizer.decode(codes))
        return out
