"""`binning`: every value of every step falls into one of uniform bins over [-1, 1], as in RT-2 and OpenVLA."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.tokenizers.base import FitJob
from actionpiece.tokenizers.lengths import FixedLengthTokenizer


@dataclass(frozen=True)
class BinningConfig:
    """Uniform binning.

    Attributes:
        bins: how many bins span [-1, 1]. 255 is OpenVLA's 256 edges; RT-2 has 256 bins.
    """

    bins: int = 255

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ActionPieceError(f"binning needs at least 2 bins, not {self.bins}")


class BinningTokenizer(FixedLengthTokenizer):
    """One token per value; a value beyond [-1, 1] falls into the outermost bin, and a bin decodes to its centre."""

    kind = "binning"
    config_class = BinningConfig
    token_order = "step-major: all columns of the first step, then of the next"
    config: BinningConfig

    @property
    def vocab_size(self) -> int:
        return self.config.bins

    @property
    def tokens_per_chunk(self) -> int:
        return self.horizon * self.space.dim

    def _fit(self, x: Tensor, job: FitJob) -> None:
        job.progress(1.0, "nothing to learn")

    def _encode(self, x: Tensor) -> Tensor:
        bins = self.config.bins
        return ((x.flatten(1) + 1) * (bins / 2)).floor().clamp(0, bins - 1).long()

    def _decode(self, ids: Tensor) -> Tensor:
        centres = (ids.float() + 0.5) * (2 / self.config.bins) - 1
        chunks: Tensor = centres.unflatten(1, (self.horizon, self.space.dim))
        return chunks
