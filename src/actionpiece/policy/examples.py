"""What a policy learns from: looks (pictures, state, instruction) with the tokens of the chunk that follows each."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from actionpiece.data import Demos
from actionpiece.data.reader import Look
from actionpiece.errors import ActionPieceError
from actionpiece.policy.model import ActionPolicy, fitted

# The part of the machine's memory for decoded pictures, of all processes; beyond, they are decoded when needed.
_SHARE = 1 / 8


@dataclass(frozen=True)
class Lookings:
    """All looks of a data set, with what belongs to each: the instruction and the chunk (H, D) that follows.

    At an episode's end the last command is repeated.
    """

    looks: list[Look]
    instructions: list[str]
    chunks: np.ndarray

    @classmethod
    def of(cls, demos: Demos, cameras: Sequence[str], horizon: int) -> Lookings:
        """Read them; pictures stay compressed."""
        if demos.tasks is None:
            raise ActionPieceError(f"{demos.name} has no instructions, which a policy reads")
        looks = list(demos.looks(cameras))
        if not looks:
            raise ActionPieceError(f"{demos.name} has no step with pictures of {', '.join(cameras)}")
        for member in demos.members:
            if member.card.ahead is not None and member.card.ahead < horizon:
                raise ActionPieceError(
                    f"{member.label} was recorded for chunks of at most {member.card.ahead} steps, not {horizon}: what"
                    f" comes later may be a mistake; record with --horizon {horizon}"
                )
        tasks, episodes = demos.tasks, {look.episode for look in looks}
        actions = {episode: demos.episode(episode) for episode in episodes}
        chunks = np.stack([_following(actions[look.episode], look.step, horizon) for look in looks])
        return cls(looks, [tasks[look.episode] for look in looks], chunks)

    def among(self, episodes: Any) -> Lookings:
        """Those of some episodes."""
        wanted = set(np.asarray(episodes).tolist())
        keep = [number for number, look in enumerate(self.looks) if look.episode in wanted]
        return Lookings([self.looks[n] for n in keep], [self.instructions[n] for n in keep], self.chunks[keep])

    def __len__(self) -> int:
        return len(self.looks)

    def side(self) -> int:
        """The side of the pictures, as a multiple of 32 pixels."""
        size: tuple[int, int] = open_picture(self.looks[0].pictures[0]).size
        return max(32, round(sum(size) / 64) * 32)

    def check_states(self) -> None:
        """An error that names the first state that is not finite."""
        for look in self.looks:
            if not np.isfinite(look.state).all():
                raise ActionPieceError(
                    f"the state at step {look.step} of episode {look.episode} holds values that are not finite (NaN or"
                    " infinity); leave the state out, or mend the data"
                )

    def state_range(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Least and largest values of the state."""
        self.check_states()
        states = np.stack([look.state for look in self.looks])
        return tuple(states.min(0).tolist()), tuple(states.max(0).tolist())


def _following(actions: np.ndarray, step: int, horizon: int) -> np.ndarray:
    return actions[np.minimum(step + np.arange(horizon), len(actions) - 1)]


class PolicyExamples:
    """Lookings as a policy reads them: prompts and token ids made once, pictures decoded."""

    def __init__(self, lookings: Lookings, policy: ActionPolicy) -> None:
        if not len(lookings):
            raise ActionPieceError("there are episodes of a split, held-out ones perhaps, without any picture")
        self.lookings, self.policy, self.side = lookings, policy, policy.config.side
        for text in set(lookings.instructions):
            policy.check_instruction(text)
        if policy.config.state:
            lookings.check_states()
            looks = zip(lookings.looks, lookings.instructions, strict=True)
            self.prompts = [policy.prompt(text, look.state) for look, text in looks]
        else:
            written = {text: policy.prompt(text, None) for text in set(lookings.instructions)}
            self.prompts = [written[text] for text in lookings.instructions]
        self.ids: Any = policy.tokenizer.encode(lookings.chunks)  # (n, T), or a list where lengths differ
        self._pool = ThreadPoolExecutor(8)
        size = len(lookings) * len(policy.config.views) * self.side**2 * 3
        self._kept = self._decode(range(len(lookings))) if size <= _room() else None

    def __len__(self) -> int:
        return len(self.lookings)

    def pictures(self, index: Sequence[int]) -> Tensor:
        """(n, V, side, side, 3) uint8."""
        if self._kept is None:
            return self._decode(index)
        return torch.from_numpy(self._kept.numpy()[np.asarray(index)])  # torch would go byte by byte, ten times slower

    def _decode(self, index: Sequence[int]) -> Tensor:
        shots = [shot for number in index for shot in self.lookings.looks[number].pictures]
        decoded = np.empty((len(shots), self.side, self.side, 3), np.uint8)
        for place, picture in enumerate(self._pool.map(lambda shot: decode_picture(shot, self.side), shots)):
            decoded[place] = picture
        return torch.from_numpy(decoded).unflatten(0, (len(index), -1))  # type: ignore[no-any-return]

    def digest(self) -> str:
        """sha256 of prompts, commands and where the pictures are from."""
        places = [(look.episode, look.step) for look in self.lookings.looks]
        return hashlib.sha256(json.dumps([self.prompts, places]).encode() + self.lookings.chunks.tobytes()).hexdigest()

    def inputs(self, index: Sequence[int]) -> dict[str, Tensor]:
        """What `ActionPolicy.loss` takes, on the CPU."""
        targets = self.policy.targets([self.ids[n] for n in index] if isinstance(self.ids, list) else self.ids[index])
        return self.policy.training_inputs([self.prompts[n] for n in index], targets, self.pictures(index))


def _room() -> int:
    """Bytes that this process may keep."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(memory * _SHARE) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def open_picture(data: bytes, name: str = "a picture") -> Any:
    """PNG or JPEG bytes as a Pillow image that is not decoded yet. name: for errors."""
    from PIL import Image

    with _decodable(name):
        return Image.open(io.BytesIO(data))


def decode_picture(data: bytes, side: int, name: str = "a picture") -> np.ndarray:
    """PNG or JPEG bytes as (side, side, 3) uint8."""
    with _decodable(name):
        return fitted(np.array(open_picture(data, name).convert("RGB")), side)


@contextmanager
def _decodable(name: str) -> Iterator[None]:
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except UnidentifiedImageError:  # it says where in memory the bytes are
        raise ActionPieceError(f"{name} cannot be decoded: it is no picture") from None
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise ActionPieceError(f"{name} cannot be decoded: {error}") from None


@dataclass(frozen=True)
class Changes:
    """How n pictures are changed. shift: (n, 2), a side goes from -1 to 1. bright, stark: (n, 1, 1, 1) factors."""

    shift: Tensor
    bright: Tensor
    stark: Tensor

    @classmethod
    def draw(cls, count: int, seed: int) -> Changes:
        """By the seed, on the CPU, so that they are the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        shift = torch.rand(count, 2, generator=generator) * 0.16 - 0.08
        bright, stark = (torch.rand(count, 1, 1, 1, generator=generator) * 0.4 + 0.8 for _ in range(2))
        return cls(shift, bright, stark)

    def part(self, number: int, parts: int) -> Changes:
        """Those of one of several processes that share a batch."""
        size = len(self.shift) // parts
        place = slice(number * size, (number + 1) * size)
        return Changes(self.shift[place], self.bright[place], self.stark[place])


def augmented(pictures: Tensor, changes: Changes) -> Tensor:
    """Pictures (B, V, side, side, 3) uint8, each moved by up to 4 %, made brighter or darker, flatter or starker."""
    flat = pictures.flatten(0, 1).permute(0, 3, 1, 2).float()
    shift, bright, stark = (part.to(flat.device) for part in vars(changes).values())
    turn = torch.eye(2, device=flat.device).expand(len(flat), 2, 2)
    grid = F.affine_grid(torch.cat((turn, shift[..., None]), -1), list(flat.shape), align_corners=False)
    flat = F.grid_sample(flat, grid, padding_mode="border", align_corners=False) * bright
    mean = flat.mean((1, 2, 3), keepdim=True)
    flat = ((flat - mean) * stark + mean).clamp(0, 255)
    changed: Tensor = flat.round().byte().permute(0, 2, 3, 1).view_as(pictures)
    return changed
