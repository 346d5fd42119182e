"""The one contract every tokenizer keeps.

The base class checks shapes and finiteness, converts numpy and torch, normalises, and saves. A tokenizer's own file
sees only float32 normalised chunks (B, H, D) on its device, and says how they become ids and come back; it builds on
one of the two classes of `lengths`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from actionpiece.arrays import check_device, chunks_tensor, to_tensor
from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError, DecodeError
from actionpiece.normalize import Method, Normalizer
from actionpiece.space import ActionSpace
from actionpiece.tokenizers.saving import SavedFolder

Errors = Literal["raise", "mask"]
Progress = Callable[[float, str], None]  # fraction done, what is being done
BLOCK = 16384  # chunks worked on at a time, so that a large batch does not need a large machine


@contextmanager
def as_written() -> Iterator[None]:
    """What is computed within is computed as the code says, where a caller has switched on autocast."""
    with ExitStack() as off:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                off.enter_context(torch.autocast(kind, enabled=False))
        yield


@dataclass(frozen=True)
class FitJob:
    """What `fit` hands to a tokenizer beside the training chunks; see there."""

    seed: int
    progress: Progress
    validation: Tensor | None  # normalised
    run: Path | None
    resume: bool
    device: str
    extras: dict[str, Tensor] = field(default_factory=dict)


class ActionTokenizer(SavedFolder, abc.ABC):
    """Turns action chunks into token ids and back.

    kind: the tokenizer's name in files and commands.
    config_class: its frozen configuration.
    token_order: in words, what the position of a token stands for.
    space, normalizer, distance, horizon: what it was fitted for; they travel with it.
    provenance: what it was fitted on (seed, data, versions), for people; it does not change the tokenizer.
    """

    kind: ClassVar[str]
    config_class: ClassVar[type]
    token_order: ClassVar[str]
    #: Whether `decode(ids[:, :k], prefix=True)` works: the first tokens alone give a coarse chunk.
    has_prefix: ClassVar[bool] = False
    #: The largest size of a normalised value that it can encode.
    reach: ClassVar[float] = torch.finfo(torch.float32).max
    #: What `fit` may be given for every chunk beside its actions.
    takes_extras: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, config: Any, *, space: ActionSpace, normalizer: Normalizer, distance: PhysicalDistance, horizon: int
    ) -> None:
        if not isinstance(config, self.config_class):
            raise ActionPieceError(f"{self.kind} needs a {self.config_class.__name__}, not {type(config).__name__}")
        if not isinstance(horizon, (int, np.integer)) or isinstance(horizon, bool) or horizon < 1:
            raise ActionPieceError(f"{self.kind}: horizon must be a whole number of steps, not {horizon!r}")
        if normalizer.dim != space.dim or distance.space != space:
            raise ActionPieceError(f"{self.kind}: normaliser, distance and action space do not belong together")
        super().__init__(config, space=space, normalizer=normalizer, distance=distance, horizon=int(horizon))
        self.register_buffer("_device", torch.empty(0), persistent=False)

    @classmethod
    @torch.inference_mode(False)
    @torch.enable_grad()
    @as_written()
    def fit(
        cls,
        chunks: Any,
        space: ActionSpace,
        config: Any = None,
        *,
        normalizer: Method | Normalizer = "minmax",
        distance: PhysicalDistance | None = None,
        seed: int = 0,
        validation: Any = None,
        run: Path | None = None,
        resume: bool = False,
        device: str = "cpu",
        progress: Progress | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Self:
        """Fit on training chunks (N, H, D) of raw commands.

        normalizer: a method to fit on these chunks, or one fitted before (on whole episodes, say).
        distance: the physical distance; fitted on these chunks when not given.
        progress: called with the fraction done and what is being done.

        For learned tokenizers; the others pay no attention to these:
        validation: chunks (M, H, D) of other episodes to look at while training.
        run: a folder for the training log and the checkpoint. resume: go on from the checkpoint there.
        device: where to train.
        extras: what else is known of every chunk, (N, ...) by name; `takes_extras` says what a tokenizer understands.
        """
        check_device(device)
        x = chunks_tensor(chunks, space.dim, dtype=torch.float32).detach().cpu()
        if not isinstance(normalizer, Normalizer):
            normalizer = Normalizer.fit(normalizer, x)
        distance = distance or PhysicalDistance.fit(space, x)
        config = cls.config_class() if config is None else config
        tokenizer = cls(config, space=space, normalizer=normalizer, distance=distance, horizon=x.shape[1])
        look = None
        if validation is not None:
            look = normalizer.normalize(chunks_tensor(validation, space.dim, dtype=torch.float32).detach().cpu())
            if look.shape[1] != x.shape[1]:
                raise ActionPieceError(f"validation chunks have {look.shape[1]} steps, training chunks {x.shape[1]}")
        known = cls._check_extras(extras or {}, len(x))
        for name in tokenizer.needs_extras:
            if name not in known:
                raise ActionPieceError(f"this {cls.kind} needs '{name}' for every chunk: give it to `fit` as an extra")
        job = FitJob(seed, progress or (lambda fraction, what: None), look, run, resume, device, known)
        tokenizer._fit(normalizer.normalize(x), job)
        normalizer.clipped = 0  # training values do not count as out of range in use
        tokenizer.provenance = {"seed": seed, "chunks": len(x)}
        return tokenizer

    @property
    def needs_extras(self) -> tuple[str, ...]:
        """What this configuration cannot be fitted without, of `takes_extras`."""
        return ()

    @classmethod
    def _check_extras(cls, extras: Mapping[str, Any], count: int) -> dict[str, Tensor]:
        tensors = {name: to_tensor(extra, what=name).detach().cpu() for name, extra in extras.items()}
        for name, tensor in tensors.items():
            if name not in cls.takes_extras:
                known = ", ".join(cls.takes_extras) or "no extras"
                raise ActionPieceError(f"{cls.kind} has no use for '{name}'; it takes {known}")
            if not tensor.ndim or len(tensor) != count:
                shape = tuple(tensor.shape)
                raise ActionPieceError(f"'{name}' must have a row for each of {count} chunks, not shape {shape}")
        return tensors

    # What the contract offers -------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Ids run from 0 to vocab_size - 1."""

    @property
    @abc.abstractmethod
    def tokens_per_chunk(self) -> int | None:
        """How many tokens a chunk takes, or None when it varies."""

    @abc.abstractmethod
    def vocab_at(self, position: int) -> range:
        """The ids that can stand at a position."""

    @abc.abstractmethod
    def allowed_next(self, ids: Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """A mask (vocab_size,) of the ids that may follow `ids` so that the sequence can still be decoded.

        No id is allowed after a complete sequence: that is how a generator knows it is done.
        """

    @abc.abstractmethod
    def bits_per_chunk(self, mean_tokens: float) -> float:
        """How many bits a chunk's tokens can hold, for a mean number of tokens per chunk."""

    @as_written()
    def encode(self, actions: Any, *, normalized: bool = False) -> Any:
        """Token ids of one chunk (H, D) or of many (B, H, D).

        Fixed length: (T,) or (B, T) int64. Variable length: one array, or a list of arrays. Numpy in gives numpy
        out; torch in gives torch out on the same device. `normalized` says the actions are normalised already.
        """
        is_torch = isinstance(actions, Tensor)
        x = to_tensor(actions).detach()
        if x.ndim not in (2, 3) or tuple(x.shape[-2:]) != (self.horizon, self.space.dim):
            wanted = f"({self.horizon}, {self.space.dim})"
            raise ActionPieceError(f"{self.kind} encodes chunks of shape {wanted}, not {tuple(x.shape)}")
        device = x.device
        batch = (x if x.ndim == 3 else x[None]).to(self.device)
        if not normalized:
            batch = self.normalizer.normalize(batch.to(torch.float64))
        batch = batch.float()
        if not bool((batch.abs() <= self.reach).all()):
            raise ActionPieceError(
                f"{self.kind} cannot encode actions that are more than {self.reach:.2g} once they are normalised"
            )
        with torch.no_grad():
            blocks = self._encode_all(batch) if len(batch) else []
        return self._pack_ids(blocks, single=x.ndim == 2, device=device, as_torch=is_torch)

    @as_written()
    def decode(self, ids: Any, *, prefix: bool = False, errors: Errors = "raise", normalized: bool = False) -> Any:
        """Actions (H, D) or (B, H, D), float32, of token ids as `encode` gives them.

        prefix: the ids are the first tokens of each sequence (only where `has_prefix`).
        errors: `raise` a `DecodeError` that names the sequences that stand for nothing, or `mask`: return
            (actions, valid) with NaN where a sequence is not valid. Nothing is ever decoded to a silent guess.
        normalized: return normalised actions.
        """
        if prefix and not self.has_prefix:
            raise ActionPieceError(f"{self.kind} has no coarse-to-fine order, so it cannot decode a prefix")
        if errors not in ("raise", "mask"):
            raise ActionPieceError(f"errors must be 'raise' or 'mask', not '{errors}'")
        flat, lengths, single, like = _flatten_ids(ids)
        with torch.no_grad():
            actions, reasons = self._decode_flat(flat, lengths, prefix)
        if reasons and errors == "raise":
            first = min(reasons)
            more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
            raise DecodeError(f"sequence {first} cannot be decoded: {reasons[first]}{more}", tuple(sorted(reasons)))
        out = actions if normalized else self.normalizer.denormalize(actions)
        valid = torch.ones(len(lengths), dtype=torch.bool)
        valid[sorted(reasons)] = False
        out = out.to(like.device if like is not None else "cpu")
        answer: Any = (out[0] if single else out, valid[0] if single else valid.to(out.device))
        if like is None:
            answer = tuple(part.numpy() for part in answer)
        return answer if errors == "mask" else answer[0]

    @property
    def device(self) -> torch.device:
        """Where the tokenizer computes; `tok.to("cuda")` moves it."""
        return self._device.device  # type: ignore[return-value]

    # What a tokenizer's own file fills in ---------------------------------------------------------------------------

    @abc.abstractmethod
    def _fit(self, x: Tensor, job: FitJob) -> None:
        """Learn from normalised training chunks (N, H, D)."""

    @abc.abstractmethod
    def _encode(self, x: Tensor) -> Any:
        """Ids of normalised chunks (B, H, D)."""

    def _encode_all(self, x: Tensor) -> list[Any]:
        """What `_encode` says of each block of a large batch."""
        return [self._encode(block) for block in x.split(BLOCK)]

    @abc.abstractmethod
    def _pack_ids(self, blocks: list[Any], *, single: bool, device: torch.device, as_torch: bool) -> Any:
        """Join the blocks `_encode` gave and hand them out in the caller's kind of array."""

    @abc.abstractmethod
    def _decode_flat(self, flat: Tensor, lengths: Tensor, prefix: bool) -> tuple[Tensor, dict[int, str]]:
        """Normalised actions (B, H, D) of B sequences laid end to end, and why any of them cannot be decoded."""


def _flatten_ids(ids: Any) -> tuple[Tensor, Tensor, bool, Tensor | None]:
    """Ids as (flat int64 on the CPU, lengths, whether it was one sequence, a tensor to copy the kind of, or None)."""
    like = ids if isinstance(ids, Tensor) else None
    if isinstance(ids, (Tensor, np.ndarray)):
        array = _integers(ids)
        if array.ndim not in (1, 2):
            raise ActionPieceError(f"ids must have shape (T,) or (B, T), not {array.shape}")
        single = array.ndim == 1
        table = array[None] if single else array
        lengths = torch.full((len(table),), table.shape[1], dtype=torch.int64)
        return torch.from_numpy(table.flatten()), lengths, single, like
    if not isinstance(ids, (list, tuple)):
        raise ActionPieceError(f"ids must be an array or a list, not {type(ids).__name__}")
    single = len(ids) > 0 and not isinstance(ids[0], (list, tuple, np.ndarray, Tensor))
    rows = [ids] if single else ids
    if len(rows) and isinstance(rows[0], Tensor):
        like = rows[0]
    arrays = [_integers(row) for row in rows]
    if any(row.ndim != 1 for row in arrays):
        raise ActionPieceError("a list of ids must hold one flat sequence per chunk")
    flat = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
    return torch.from_numpy(flat), torch.tensor([len(row) for row in arrays], dtype=torch.int64), single, like


def _integers(ids: Any) -> np.ndarray:
    """Ids as int64; fractions, truth values and numbers that int64 cannot hold are an error, never rounded."""
    try:
        array = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
    except (TypeError, ValueError) as error:
        raise ActionPieceError(f"ids must be integers: {error}") from None
    if array.size == 0 and isinstance(ids, (list, tuple)):
        return np.zeros(array.shape, np.int64)  # an empty list has no kind of number
    if array.dtype.kind not in "iu":
        raise ActionPieceError(f"ids must be integers that fit in 64 bits, not {array.dtype} {array.shape}")
    if array.dtype == np.uint64 and bool((array > np.iinfo(np.int64).max).any()):
        raise ActionPieceError(f"ids must be integers that fit in 64 bits, and one is {array.max()}")
    return array.astype(np.int64, copy=False)
