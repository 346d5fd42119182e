"""`FastProcessor`: FAST's interface in front of any tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from actionpiece.compat import FastProcessor
from actionpiece.errors import ActionPieceError, DecodeError
from actionpiece.space import ActionSpace
from actionpiece.tokenizers.base import FitJob
from actionpiece.tokenizers.fast import FastConfig, FastTokenizer
from actionpiece.tokenizers.lengths import FixedLengthTokenizer

H, D = 4, 2
SPACE = ActionSpace.of_joints(D)


@dataclass(frozen=True)
class RoundingConfig:
    """No settings."""


class RoundingTokenizer(FixedLengthTokenizer):
    """The smallest fixed-length tokenizer: every value of [-1, 1] in tenths."""

    kind = "rounding"
    config_class = RoundingConfig
    token_order = "step-major"
    vocab_size = 21
    tokens_per_chunk = H * D

    def _fit(self, x: Tensor, job: FitJob) -> None:
        pass

    def _encode(self, x: Tensor) -> Tensor:
        return (x.clamp(-1, 1) * 10).round().long().flatten(1) + 10

    def _decode(self, ids: Tensor) -> Tensor:
        return (ids.reshape(-1, H, D) - 10) / 10.0


def raw_chunks() -> np.ndarray:
    return (np.random.default_rng(0).uniform(-1, 1, (200, H, D)) * 5 + 3).astype(np.float32)


@pytest.fixture(params=[FastTokenizer, RoundingTokenizer])
def processor(request: pytest.FixtureRequest) -> FastProcessor:
    config = FastConfig(vocab_size=150) if request.param is FastTokenizer else RoundingConfig()
    return FastProcessor(request.param.fit(raw_chunks(), SPACE, config))


def normal_chunks(processor: FastProcessor) -> np.ndarray:
    normal: np.ndarray = processor.tokenizer.normalizer.normalize(torch.from_numpy(raw_chunks())).numpy()
    return normal


def test_normalised_chunks_give_the_ids_that_raw_ones_give_the_tokenizer(processor: FastProcessor) -> None:
    tokens = processor(normal_chunks(processor))
    assert isinstance(tokens, list)
    assert isinstance(tokens[0], list)
    assert isinstance(tokens[0][0], int)
    assert tokens == [row.tolist() for row in processor.tokenizer.encode(raw_chunks())]


def test_chunks_may_be_a_tensor_of_any_precision(processor: FastProcessor) -> None:
    chunks = torch.from_numpy(normal_chunks(processor)).bfloat16()
    assert processor(chunks) == processor(chunks.float().numpy())
    assert processor(list(chunks.requires_grad_())) == processor(chunks)
    assert processor([]) == processor(chunks[:0]) == []
    with pytest.raises(ActionPieceError, match="rectangular"):
        processor([[1, 2], [3]])


def test_what_comes_back_is_normalised_and_close(processor: FastProcessor) -> None:
    chunks = normal_chunks(processor)
    decoded = processor.decode(processor(chunks), time_horizon=H, action_dim=D)
    assert decoded.shape == chunks.shape
    assert isinstance(decoded, np.ndarray)
    assert np.sqrt(np.mean((decoded - chunks) ** 2)) < 0.05


def test_one_chunk_is_a_batch_of_one(processor: FastProcessor) -> None:
    chunk = normal_chunks(processor)[0]
    tokens = processor(chunk)
    assert tokens == processor(chunk[None]) == processor(torch.from_numpy(chunk))
    assert processor.decode(tokens).shape == (1, H, D)
    np.testing.assert_array_equal(processor.decode(tokens[0]), processor.decode(tokens))
    np.testing.assert_array_equal(processor.decode(torch.tensor(tokens)), processor.decode(tokens))


def test_a_shape_the_tokenizer_does_not_have_is_refused(processor: FastProcessor) -> None:
    tokens = processor(normal_chunks(processor)[:2])
    with pytest.raises(ActionPieceError, match="time_horizon 5 was asked for"):
        processor.decode(tokens, time_horizon=5)
    with pytest.raises(ActionPieceError, match="action_dim 7 was asked for"):
        processor.decode(tokens, action_dim=7)
    with pytest.raises(ActionPieceError, match="encodes chunks of shape"):
        processor(np.zeros((2, H + 1, D)))


def test_shapes_never_stick_from_an_earlier_call(processor: FastProcessor) -> None:
    tokens = processor(normal_chunks(processor)[:2])
    with pytest.raises(ActionPieceError):
        processor.decode(tokens, time_horizon=1)
    assert processor.decode(tokens).shape == (2, processor.time_horizon, processor.action_dim) == (2, H, D)
    assert processor.vocab_size == processor.tokenizer.vocab_size


def test_a_sequence_that_stands_for_nothing_is_an_error_and_not_zeros(processor: FastProcessor) -> None:
    tokens = processor(normal_chunks(processor)[:3])
    tokens[1].pop()
    with pytest.raises(DecodeError) as caught:
        processor.decode(tokens)
    assert caught.value.items == (1,)
