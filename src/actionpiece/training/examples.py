"""`Examples`: the training chunks on their device with all that does not change, and the batches drawn from them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError
from actionpiece.normalize import Normalizer
from actionpiece.training.config import TrainConfig
from actionpiece.training.ranks import rank, world_size

BLOCK = 100  # steps whose batches are drawn together
_CROWD = 10_000  # chunks among which neighbours are sought: as many as PRC looks at
_NEIGHBORS = 32


def _sum(rows: Tensor) -> float:
    """A number that tells rows (N, ...) from others, and from the same in another order."""
    place = torch.arange(1, len(rows) + 1, dtype=torch.float64, device=rows.device)
    return float(rows.double().reshape(len(rows), -1).sum(1) @ place)


class Examples:
    """Normalised training chunks (N, H, D) and validation chunks; several runs may share them.

    physical: their features for the physical distance, made once: a batch is then two gathers.
    extras: what else some tokenizers know of every training chunk, (N, ...) by name.
    """

    def __init__(
        self,
        chunks: Tensor,
        validation: Tensor | None,
        distance: PhysicalDistance,
        normalizer: Normalizer,
        device: str | torch.device,
        extras: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.distance, self.normalizer = distance, normalizer
        self.fingerprint: dict[str, Any] = {
            "chunks": list(chunks.shape),
            "sum": _sum(chunks),
            "distance": distance.to_dict(),
        }
        self.extras = {name: extra.to(device) for name, extra in (extras or {}).items()}
        if self.extras:
            self.fingerprint["extras"] = {name: _sum(extra) for name, extra in self.extras.items()}
        self.chunks = chunks.to(device)
        self.validation = validation.to(device) if validation is not None else None
        self.physical = distance.features(normalizer.denormalize(self.chunks), dtype=torch.float32)
        self.offset = torch.as_tensor(normalizer.offset, dtype=torch.float32, device=device)
        self.scale = torch.as_tensor(normalizer.scale, dtype=torch.float32, device=device)
        rates = distance.column_rates().to(self.scale) * self.scale
        # A group of weight 0 does not count in the distance, but its columns still have to come back.
        self.rates = rates.clamp_min(1e-3 * max(float(rates.max()), 1e-30))

    @property
    def device(self) -> torch.device:
        return self.chunks.device

    def batches(self, config: TrainConfig, seed: int, block: int) -> Tensor:
        """Which chunks the steps of a block see, (BLOCK, batch), by the seed and nothing else.

        Under several processes every one gets its share of the same batches.
        """
        world, group = world_size(), config.companions + 1
        anchors = config.batch // group
        if anchors % world:
            raise ActionPieceError(f"a batch of {config.batch} cannot be shared by {world} processes")
        generator = torch.Generator().manual_seed((seed * 1_000_003 + block) % 2**63)
        index = torch.randint(len(self.chunks), (BLOCK, anchors), generator=generator)
        picks = torch.rand(BLOCK, anchors, _NEIGHBORS, generator=generator) if config.companions else None
        index = index[:, rank() :: world].to(self.device)
        if picks is None:
            return index
        known = self.neighbors.shape[1]
        if config.companions > known:
            raise ActionPieceError(f"there are {known} neighbours to choose {config.companions} companions from")
        chosen = picks[:, rank() :: world, :known].argsort(-1)[..., : config.companions].to(self.device)
        return torch.cat((index[..., None], self.neighbors[index].gather(-1, chosen)), -1).flatten(1)

    @cached_property
    def following(self) -> Tensor:
        """(N,) which chunk is the window one step later: it begins as this one goes on. -1 where there is none."""
        chunks = self.chunks.cpu().numpy()
        if chunks.shape[1] == 1:  # one step overlaps with nothing
            return torch.full((len(chunks),), -1, device=self.device)
        heads, rests = (np.ascontiguousarray(part).reshape(len(chunks), -1) for part in (chunks[:, :-1], chunks[:, 1:]))
        begins = {head.tobytes(): number for number, head in enumerate(heads)}
        return torch.tensor([begins.get(rest.tobytes(), -1) for rest in rests], device=self.device)

    @cached_property
    def neighbors(self) -> Tensor:
        """(N, 32) the nearest chunks of every chunk within a crowd of 10,000, near to far.

        Crowds, because that is how dense the chunks lie that PRC is measured on; among all chunks the nearest would
        be the same motion a step later.
        """
        order = torch.randperm(len(self.chunks), generator=torch.Generator().manual_seed(0)).to(self.device)
        count = max(1, round(len(order) / _CROWD))
        found = torch.empty(len(order), min(_NEIGHBORS, len(order) // count - 1), dtype=torch.int64, device=self.device)
        for crowd in order.tensor_split(count):
            chords = self.distance.chord_features(self.physical[crowd])
            for part in torch.arange(len(crowd), device=self.device).split(1024):
                apart = torch.cdist(chords[part], chords)
                apart[torch.arange(len(part), device=self.device), part] = torch.inf
                found[crowd[part]] = crowd[apart.topk(found.shape[1], largest=False).indices]
        return found
