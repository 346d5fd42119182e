"""`Replica`: one network in training. Its step is plain on a CPU; on a GPU it is compiled and captured.

A small network leaves most of a large GPU idle, and Python would be the limit: the captured step is one launch, on a
stream of its own, so that several replicas run side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.metrics.prc import prc
from actionpiece.nn.fused import GPU_OPTIONS, fast_halves
from actionpiece.nn.quantize import ResidualVQ, Standardize
from actionpiece.training.config import TrainConfig
from actionpiece.training.examples import BLOCK, Examples
from actionpiece.training.half import HalfWeights
from actionpiece.training.ranks import average_gradients, same_on_all_ranks, world_size
from actionpiece.training.trainable import Batch, Losses, Trainable

_APART = 0.3  # of a gradient that was compiled, from the plain one; half precision makes a few hundredths of it
_NO_GRADIENT = 0.1  # of a network's typical gradient: less may be rounding
_LOOKED_AT = 4096  # validation chunks decoded at a time
_SPREAD = 3  # chunks; two that are standardised are always 1 and -1
_WARM_UP = 3  # steps before the capture: what is set up on first use must not be recorded


@dataclass(frozen=True)
class Run:
    """What to train: a codec, how, by which seed, and where to keep log and checkpoint (nowhere: None).

    codec: any network between chunks and codes.
    first: codebooks of the first level to start from, (1 or S, K, d); without them k-means finds some.
    resume: go on from the checkpoint in the folder. about: what else a checkpoint must have been made with.
    """

    codec: Trainable
    config: TrainConfig
    seed: int
    folder: Path | None = None
    first: Tensor | None = None
    resume: bool = False
    about: dict[str, Any] = field(default_factory=dict)


def _check_batch(codec: Trainable, config: TrainConfig) -> None:
    own = config.batch // world_size()
    if own < _SPREAD and any(isinstance(module, Standardize) for module in codec.modules()):
        raise ActionPieceError(
            f"vectors are standardised by the spread of a batch, and {own} chunks for each process have none: no"
            f" gradient would be left; take {_SPREAD} or more, or a quantiser with deviation=0"
        )


class Replica:
    """The moving parts of one run. `captured`: record the step once and replay it; needs a GPU."""

    def __init__(self, run: Run, examples: Examples, *, captured: bool) -> None:
        self.run, self.examples, self.config = run, examples, run.config
        device = examples.device
        self.codec = run.codec.to(device)
        _check_batch(run.codec, run.config)
        self.done = 0
        self.began, self.before = 0, list[dict[str, Any]]()  # the first step taken here, and where those before were
        self.generator = torch.Generator(device).manual_seed(run.seed)  # of what objectives draw
        # The step reads its batch, its place in the block and its learning rate from tensors: a recorded one can.
        self.table = torch.zeros(BLOCK, self.config.batch // world_size(), dtype=torch.int64, device=device)
        self.rates = torch.zeros(BLOCK, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.block = -1
        self.emphasis = examples.rates.pow(self.config.blend)
        self.rate = torch.zeros((), device=device)
        self.parameters = (
            self.codec.decoding_parameters() if self.config.part == "decoder" else list(self.codec.parameters())
        )
        self.codec.requires_grad_(False).train()
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        self.settled = False
        if self.config.part == "decoder":
            self._settle()
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self.rate,
            betas=self.codec.betas,
            weight_decay=self.config.weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )
        self._create_optimizer_state()
        self.half = HalfWeights(self.codec) if fast_halves(device) else nullcontext()
        self.terms: dict[str, Tensor] = {}
        self.stream = torch.cuda.Stream(device) if captured else None
        self.graph: torch.cuda.CUDAGraph | None = None

    def _settle(self) -> None:
        """From now on codebooks stay as they are, and so do the statistics by which they are reached."""
        self.settled = True
        for module in self.codec.modules():
            if isinstance(module, ResidualVQ):
                module.eval()

    def _create_optimizer_state(self) -> None:
        """Optimisers make their state on the first step; here it must be there before, to be loaded and recorded."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for tensor in self.optimizer_state().values():
            tensor.zero_()

    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimiser's tensors by parameter number and name."""
        return {
            f"{number}.{name}": tensor
            for number, parameter in enumerate(self.parameters)
            for name, tensor in self.optimizer.state[parameter].items()
        }

    def start(self) -> None:
        """Start the codebooks from some training chunks, the same on every rank."""
        generator = torch.Generator().manual_seed(self.run.seed)
        index = torch.randperm(len(self.examples.chunks), generator=generator)[: self.config.start_chunks]
        first = None if self.run.first is None else self.run.first.to(self.examples.device)
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # one batch of this size: not worth compiling
            self.codec.start(self.examples.chunks[index.to(self.examples.device)], generator, first)
        same_on_all_ranks(self.codec)  # sums on a GPU come in any order, and k-means makes more of it

    def prepare(self) -> None:
        """Get ready for the next step: the batches of its block, its place in it, the recorded step."""
        block, at = divmod(self.done, BLOCK)
        if block != self.block:
            self.table.copy_(self.examples.batches(self.config, self.run.seed, block))
            rates = [self.config.rate_at(step) for step in range(block * BLOCK, (block + 1) * BLOCK)]
            self.rates.copy_(torch.tensor(rates))
            self.block = block
        self.at.fill_(at)
        if self.done == self.config.continuous:
            self.start()
            self.graph = None  # it was of the steps without codebooks
        if self.config.settle and not self.settled and self.done >= self.config.steps - self.config.settle:
            self._settle()
            self.graph = None  # it was of the steps in which codebooks follow
        if self.stream is not None:
            if self.graph is None:
                self._capture(self.stream)
            # The recorded step must not begin before all of this is done.
            self.stream.wait_stream(torch.cuda.current_stream(self.examples.device))

    def advance(self) -> None:
        """One step within the block that was prepared. A captured one is only launched."""
        if self.graph is None:
            self._step()
        else:
            with torch.cuda.stream(self.stream):
                self.graph.replay()
        self.done += 1

    def _step(self) -> None:
        index = self.table.index_select(0, self.at)[0]
        self.rate.copy_(self.rates.index_select(0, self.at)[0])
        x = self.examples.chunks[index]
        self.optimizer.zero_grad()
        with self.half:
            losses = self._losses(x, index)
            losses.total.backward()
        average_gradients(self.parameters)
        # What first shows that something broke.
        gradient = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.optimizer.step()
        if not self.settled:
            losses.follow()
        self.at += 1
        terms = {name: term.detach() for name, term in losses.terms.items()}
        self.terms = {"loss": losses.total.detach(), **terms, "gradient": gradient.detach()}

    def _losses(self, x: Tensor, index: Tensor) -> Losses:
        if self.done < self.config.continuous:
            return Losses(F.mse_loss(self.codec.continuous(x), x), {}, lambda: None)
        batch = Batch(x, index, self.examples, self.config, generator=self.generator, emphasis=self.emphasis)
        return self.codec.losses(batch)

    def _capture(self, stream: torch.cuda.Stream) -> None:
        """Run some steps on this replica's own stream, take them back, and record one.

        The stream matters: recorded products keep the work space of the stream they were recorded on, and replicas
        that shared one would write into each other's results.
        """
        for module in self.codec.compiled():
            module.compile(dynamic=False, options=GPU_OPTIONS)
        with self._taken_back():
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                self.check_compiled()
                at = self.at.clone()
                for _ in range(_WARM_UP):
                    self.at.copy_(at)  # the block may end here
                    self._step()
            torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        with torch.cuda.graph(self.graph, stream=stream):
            self._step()
        torch.cuda.synchronize()

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        """What happens within has not happened: the network, its optimiser and chance are as they were before."""
        state = [*self.codec.state_dict().values(), *self.optimizer_state().values(), self.at]
        kept = [tensor.clone() for tensor in state]
        random = self.generator.get_state()
        yield
        for tensor, before in zip(state, kept, strict=True):
            tensor.detach().copy_(before)
        self.generator.set_state(random)

    def check_compiled(self) -> None:
        """Refuse a network whose compiled parts have other gradients than the plain ones.

        A compiler's mistake ends no training, it makes it worse (torch 2.11 had one: `GPU_OPTIONS`). It is looked at
        without a quantiser, whose codes rounding turns over.
        """
        with torch.compiler.set_stance("force_eager"):
            plain = self._continuous_gradients()
        compiled = self._continuous_gradients()
        typical = torch.cat([value.flatten() for value in plain.values()]).square().mean().sqrt()
        for name, value in plain.items():
            # Some gradients are nothing but rounding: a shift of all keys does not change what is read.
            size = value.norm().maximum(_NO_GRADIENT * typical * value.numel() ** 0.5)
            apart = float((compiled[name] - value).norm() / size)
            if not apart < _APART:
                raise ActionPieceError(
                    f"torch {torch.__version__} compiles this network wrongly for {self.examples.device}: the gradient"
                    f" of {name} is {apart:.0%} off the plain one; try another version of torch"
                )

    def _continuous_gradients(self) -> dict[str, Tensor]:
        """Of what the next batch decodes to without a quantiser, in a random direction; by name. Nothing is changed.

        Of the error they would be rounding, where little of it is left.
        """
        x = self.examples.chunks[self.table.index_select(0, self.at)[0]]
        direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
        with self._taken_back():
            self.optimizer.zero_grad()
            with self.half:
                (self.codec.continuous(x) * direction).mean().backward()
            found = {
                name: parameter.grad.clone()
                for name, parameter in self.codec.named_parameters()
                if parameter.grad is not None
            }
            self.optimizer.zero_grad()
        return found

    def release(self) -> None:
        """Let go of the recorded step; the network is a plain module again, and runs where there is no compiler."""
        self.graph = None
        for module in self.codec.compiled():
            module._compiled_call_impl = None

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """MSE, PRC and the share of codes in use on the validation chunks; nothing when there are none."""
        chunks, normalizer = self.examples.validation, self.examples.normalizer
        if chunks is None or self.done <= self.config.continuous:
            return {}
        with torch.compiler.set_stance("force_eager"):  # another batch size: not worth compiling for
            codes = self.codec.encode_all(chunks)
            decoded = torch.cat([self.codec.decode(part) for part in codes.split(_LOOKED_AT)])
        size = self.codec.code_count
        used = torch.stack([torch.bincount(level.flatten(), minlength=size) > 0 for level in codes.unbind(-1)])
        found = {
            "val_mse": float((decoded - chunks).square().mean()),
            "codes_used": float(used.float().mean()),
        }
        k = min(32, len(chunks) - 1)
        if k >= 2 and math.isfinite(found["val_mse"]):
            raw = [normalizer.denormalize(side) for side in (chunks, decoded)]
            found["val_prc"] = prc(raw[0], raw[1], distance=self.examples.distance, k=k).value
        return found
