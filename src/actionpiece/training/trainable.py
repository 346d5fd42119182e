"""`Trainable`: what the training loop asks of a network, whichever tokenizer it belongs to."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from actionpiece.errors import ActionPieceError
from actionpiece.nn.quantize import Quantized, ResidualVQ
from actionpiece.training.config import TrainConfig
from actionpiece.training.examples import Examples
from actionpiece.training.ranks import rank, world_size

_SCORES = 1 << 26  # numbers at once: a quarter of a gigabyte


@dataclass(frozen=True)
class Batch:
    """What a step sees. x: (B, H, D) normalised chunks. index: (B,) which of the examples they are.

    generator: for all that is drawn at random; on the device of the tensors, and alike in all processes that train
    together. emphasis: (D,) what multiplies the columns' errors.
    """

    x: Tensor
    index: Tensor
    examples: Examples
    config: TrainConfig
    generator: torch.Generator
    emphasis: Tensor

    def rand(self, *shape: int) -> Tensor:
        """Uniform numbers (B, *shape). They are of the chunk, whichever of several processes it falls to."""
        return self._own(torch.rand(self._all, *shape, generator=self.generator, device=self.x.device))

    def randint(self, low: int, high: int) -> Tensor:
        """(B,) whole numbers from low to below high, likewise."""
        return self._own(torch.randint(low, high, (self._all,), generator=self.generator, device=self.x.device))

    @property
    def _all(self) -> int:
        return len(self.x) * world_size()

    def _own(self, drawn: Tensor) -> Tensor:
        return drawn[rank() :: world_size()]  # as `Examples.batches` shares chunks out

    def extra(self, name: str) -> Tensor:
        """What came with these chunks under this name, (B, ...); see `ActionTokenizer.fit`."""
        if name not in self.examples.extras:
            raise ActionPieceError(f"this training needs '{name}' for every chunk: give it to `fit` among the extras")
        return self.examples.extras[name][self.index]


class Losses(NamedTuple):
    """total: what is minimised. terms: each objective before its weight, for the log.

    follow: what is to be done after the optimiser's step: codebooks follow the batch.
    """

    total: Tensor
    terms: dict[str, Tensor]
    follow: Callable[[], None]


class Trainable(nn.Module, abc.ABC):
    """A network between normalised chunks (B, H, D) and codes (B, S, Q): S slots in Q levels of `code_count` codes.

    Its step is recorded on a GPU: shapes are static, no value of a tensor decides what Python does, and nothing is
    random but by the generator of the batch.
    """

    #: Of AdamW.
    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)

    @property
    @abc.abstractmethod
    def code_count(self) -> int:
        """Codes of a level."""

    @abc.abstractmethod
    def losses(self, batch: Batch) -> Losses:
        """The objectives of a batch."""

    @abc.abstractmethod
    def continuous(self, x: Tensor) -> Tensor:
        """Decoded chunks as they would be without a quantiser, for the steps before there are codebooks."""

    @abc.abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """Codes (B, S, Q) of chunks."""

    @abc.abstractmethod
    def decode(self, codes: Tensor) -> Tensor:
        """Chunks of codes (B, S, Q)."""

    def encode_all(self, x: Tensor) -> Tensor:
        """`encode`, so many chunks at a time that what is between them and their codes fits in a small machine."""
        block = max(1, _SCORES // self.scores_per_chunk)
        return self.encode(x) if len(x) <= block else torch.cat([self.encode(part) for part in x.split(block)])

    @property
    def scores_per_chunk(self) -> int:
        """About how many numbers there are at once for every chunk that is encoded."""
        return 1 << 14  # a few dozen vectors of some hundred numbers

    @abc.abstractmethod
    def start(self, x: Tensor, generator: torch.Generator, first: Tensor | None) -> None:
        """Start the codebooks from chunks, where there are any. first: known codebooks of the first level."""

    @abc.abstractmethod
    def compiled(self) -> list[nn.Module]:
        """The parts that are worth compiling."""

    def decoding_parameters(self) -> list[nn.Parameter]:
        """What turns codes into chunks, the codebooks aside, where that can be trained alone."""
        raise ActionPieceError(f"{type(self).__name__} cannot train its decoder alone")


class VectorQuantized(Trainable):
    """A trainable around a `ResidualVQ`: what is left to say is how chunks come to its space, and back."""

    quantizer: ResidualVQ

    @abc.abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """Chunks in codebook space, (B, S, d)."""

    @abc.abstractmethod
    def write(self, output: Tensor) -> Tensor:
        """Chunks of the quantiser's output (B, S, W)."""

    @property
    def code_count(self) -> int:
        return self.quantizer.codebook.shape[2]

    @property
    def scores_per_chunk(self) -> int:
        return super().scores_per_chunk + self.quantizer.scores_per_chunk

    def continuous(self, x: Tensor) -> Tensor:
        return self.write(self.quantizer.project_out(self.project(x)))

    def encode(self, x: Tensor) -> Tensor:
        return self.quantizer.quantize(self.project(x)).codes

    def decode(self, codes: Tensor) -> Tensor:
        return self.write(self.quantizer.decode(codes)[1])

    def start(self, x: Tensor, generator: torch.Generator, first: Tensor | None) -> None:
        self.quantizer.start(self.project(x), generator, first)

    def follow(self, quantized: Quantized) -> Callable[[], None]:
        """What is to be done after the optimiser's step."""
        return functools.partial(self.quantizer.update, quantized)
