"""Generation of action tokens: only action ids, as many as a chunk has, chosen on the device.

A `Plan` is generation for one batch size and one prompt length: its buffers, its cache, what it does first (read the
prompt, choose the first tokens) and what it does again and again (read them, choose the next). On a GPU both are
recorded once as CUDA graphs and replayed; on a CPU the same functions run as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.policy.constraint import constraint
from actionpiece.policy.prompt import Batch
from actionpiece.policy.qwen3vl import Forward
from actionpiece.policy.vocabulary import ActionVocabulary
from actionpiece.tokenizers.base import ActionTokenizer

_WARM_UP = 2  # runs before a recording: what is set up on first use must not be recorded
_LOOK_EVERY = 8  # steps between looks at whether all sequences of a variable length are over


@dataclass(frozen=True)
class Sampling:
    """temperature: 0 takes the likeliest token. top_k: draw among so many; 0: among all. seed: of the draw."""

    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if type(self.top_k) is not int or type(self.seed) is not int or not -(2**63) <= self.seed < 2**63:
            raise ActionPieceError("top_k and seed must be whole numbers, a seed one of 64 bits")
        if self.top_k < 0 or not (self.temperature == 0 or 1e-3 <= self.temperature <= 1e3):
            raise ActionPieceError("temperature must be 0 or from 0.001 to 1,000, and top_k not negative")


@dataclass(frozen=True)
class Generated:
    """ids: (B, T) local to the tokenizer; a list of (T,) where lengths differ, without the end token.

    log_probs: of each token among those that were allowed, the same shape; the end token's is included.
    """

    ids: Any
    log_probs: Any


class Plan:
    """Generation for one shape. block: tokens that are chosen at once, from the block before them."""

    def __init__(
        self,
        forward: Forward,
        vocabulary: ActionVocabulary,
        tokenizer: ActionTokenizer,
        batch: Batch,
        *,
        block: int,
        draws: bool,
        top_k: int,
        recorded: bool,
    ) -> None:
        self.forward, self.vocabulary, self.block, self.top_k = forward, vocabulary, block, top_k
        device = forward.table.device
        size, self.prompt = batch.ids.shape
        self.inputs = Batch(*(torch.empty_like(part, device=device) for part in vars(batch).values()))
        self.rules = constraint(tokenizer, device, size)
        steps = self.rules.longest
        self.cache = forward.cache(size, self.prompt + steps)
        self.at = torch.zeros(block, dtype=torch.int64, device=device)  # positions in the chunk that come next
        self.last = torch.zeros(size, block, dtype=torch.int64, device=device)  # what is read next
        self.ids = torch.zeros(size, steps, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(size, steps, device=device)
        self.temperature = torch.ones((), device=device)
        self.generator = torch.Generator(device) if draws else None
        self._moving = [self.at, self.last, self.ids, self.log_probs, *self.rules.state]
        self._first: Callable[[], None] = self._begin
        self._again: Callable[[], None] = self._go_on
        if recorded:
            self._copy_in(batch)
            pool = torch.cuda.graph_pool_handle()
            self._first, self._again = (self._record(step, pool) for step in (self._begin, self._go_on))

    def _copy_in(self, batch: Batch) -> None:
        for here, there in zip(vars(self.inputs).values(), vars(batch).values(), strict=True):
            here.copy_(there, non_blocking=True)

    def run(self, batch: Batch, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor | None]:
        """Ids and log-probabilities (B, longest), and which positions count, where lengths differ."""
        self._copy_in(batch)
        if self.generator is not None:
            self.temperature.fill_(sampling.temperature)
            self.generator.manual_seed(sampling.seed)
        self._first()
        for number, _ in enumerate(range(self.block, self.rules.longest, self.block)):
            over = self.rules.finished()
            if over is not None and number % _LOOK_EVERY == _LOOK_EVERY - 1 and bool(over.all()):
                break
            self._again()
        if not self.vocabulary.ends:
            return self.ids.clone(), self.log_probs.clone(), None
        end = (self.ids == self.vocabulary.size).long()
        return self.ids.clone(), self.log_probs.clone(), end.cumsum(1) - end == 0  # the first end token counts

    @torch.no_grad()
    def _begin(self) -> None:
        for tensor in self._moving:
            tensor.zero_()
        self.at += torch.arange(self.block, device=self.at.device)
        inputs = self.inputs
        self.forward.prefill(inputs.ids, inputs.mask, inputs.positions, inputs.pictures, self.cache)
        self.last.fill_(self.vocabulary.start)
        self._go_on()

    @torch.no_grad()
    def _go_on(self) -> None:
        # Positions go on after the prompt's largest, which is less than its length where there are pictures.
        next_position = self.inputs.positions.amax((0, 2)) + 1
        positions = (next_position[:, None] + self.at).expand(3, -1, -1)
        hidden = self.forward.step(self.last, positions, self.prompt + self.at, self.cache)
        logits = self.forward.logits(hidden, self.vocabulary.rows)
        logits = logits.masked_fill(~self.rules.allowed(self.at), -torch.inf)
        tokens = self._choose(logits)
        chosen = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        self.rules.advance(tokens)
        self.ids.index_copy_(1, self.at, tokens)
        self.log_probs.index_copy_(1, self.at, chosen)
        self.last.copy_(tokens + self.vocabulary.first)
        self.at += self.block

    def _choose(self, logits: Tensor) -> Tensor:
        if self.generator is None:
            return logits.argmax(-1)
        if 0 < self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        # Gumbel's way to draw: no sums that a recording would have to hand to the CPU.
        noise = torch.empty_like(logits).exponential_(generator=self.generator).clamp_min(1e-20).log()
        return (logits / self.temperature - noise).argmax(-1)

    def _record(self, step: Callable[[], None], pool: Any) -> Callable[[], None]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self.at.zero_().add_(torch.arange(self.block, device=self.at.device))  # stay within the chunk
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self.at.zero_().add_(torch.arange(self.block, device=self.at.device))
        graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph, pool=pool):
            step()
        return graph.replay
