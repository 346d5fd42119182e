"""The paper's codec as the loop trains it: by the objectives of `objectives`, which see physical distances."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from actionpiece.nn.codec import Codec
from actionpiece.objectives import Step, combine
from actionpiece.training.trainable import Batch, Losses, Trainable


class PhysicalCodec(Codec, Trainable):
    """`Codec` with its training; `TrainConfig.weights` names the objectives."""

    @property
    def code_count(self) -> int:
        return self.quantizer.codebook.shape[2]

    @property
    def scores_per_chunk(self) -> int:
        return super().scores_per_chunk + self.quantizer.scores_per_chunk

    def losses(self, batch: Batch) -> Losses:
        decoded, features, quantized = self(batch.x)
        examples = batch.examples
        step = Step(
            target=batch.x,
            decoded=decoded,
            features=features,
            quantized=quantized,
            quantizer=self.quantizer,
            distance=examples.distance,
            physical=examples.physical[batch.index],
            offset=examples.offset,
            scale=examples.scale,
            rates=examples.rates,
            emphasis=batch.emphasis,
            companions=batch.config.companions,
            generator=batch.generator,
        )
        return Losses(*combine(step, batch.config.weights), functools.partial(self.quantizer.update, quantized))

    def start(self, x: Tensor, generator: torch.Generator, first: Tensor | None) -> None:
        self.quantizer.start(self.project(x), generator, first)

    def compiled(self) -> list[nn.Module]:
        return [self.decoder] if self.encoder is None else [self.encoder, self.decoder]
