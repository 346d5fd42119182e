"""What the model reads: pictures first, then the instruction, as Qwen3-VL's chat has it.

    <|im_start|>user\\n<|vision_start|><|image_pad|>...<|vision_end|>... Your task is lift the cube.<|im_end|>\\n
    <|im_start|>assistant\\n<action_start>

For generation prompts are padded on the left, so that the actions' columns are the same in every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from actionpiece.policy.text import IM_END, IM_START, IMAGE, PAD, VISION_END, VISION_START

TASK = "Your task is {instruction}."
STATE = " The robot's state is {state}."
STATE_BINS = 256
COLUMNS = 32
MERGE = 2  # patches a side that Qwen3-VL merges into one token


@dataclass(frozen=True)
class Batch:
    """ids, mask: (B, L) prompts, padded; mask is True where a prompt is.

    positions: (3, B, L) time, row and column, as Qwen3-VL counts them. pictures: (B, V, side, side, 3) uint8.
    """

    ids: Tensor
    mask: Tensor
    positions: Tensor
    pictures: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """The same on a device."""
        return Batch(*(part.to(device, non_blocking=True) for part in vars(self).values()))


class Prompter:
    """Writes prompts for one text tokenizer, so many views of `side` pixels, and patches of `patch` pixels.

    task: what the user says, with {instruction} in it.
    """

    def __init__(self, text: Any, *, views: int, side: int, patch: int, task: str = TASK) -> None:
        self.text, self.views, self._task = text, views, task
        self.grid = side // patch // MERGE  # tokens a side
        token = text.convert_tokens_to_ids
        self.image, self.pad = token(IMAGE), token(PAD)
        picture = [token(VISION_START), *[self.image] * self.grid**2, token(VISION_END)]
        self._before = [token(IM_START), *self._words("user\n"), *picture * views]
        self._first = self._first_positions()
        self._after = [token(IM_END), *self._words("\n"), token(IM_START), *self._words("assistant\n")]

    def _words(self, text: str) -> list[int]:
        ids: list[int] = self.text(text, add_special_tokens=False)["input_ids"]
        return ids

    def ids(self, instruction: str, state: Sequence[int] | None = None) -> list[int]:
        """One prompt without the start token."""
        words = self._task.format(instruction=instruction)
        if state is not None:
            words += STATE.format(state=" ".join(map(str, state)))
        return [*self._before, *self.plain(words), *self._after]

    def plain(self, text: str) -> list[int]:
        """Text as ids, none of which is special whatever it says."""
        ids: list[int] = self.text(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return ids

    def positions(self, length: int) -> np.ndarray:
        """(3, length) positions of a prompt and what follows it; all pictures stand in its first part."""
        rest = self._first.max() + 1 + np.arange(length - self._first.shape[1])
        return np.concatenate((self._first, np.broadcast_to(rest, (3, len(rest)))), 1)

    def _first_positions(self) -> np.ndarray:
        """Of `_before`: text counts on in all three; a picture's tokens share a time and count rows and columns."""
        ids, at, k = self._before, 0, 0
        place = np.zeros((3, len(ids)), np.int64)
        rows, columns = (axis.ravel() for axis in np.mgrid[: self.grid, : self.grid])
        while k < len(ids):
            if ids[k] == self.image:
                step = self.grid**2
                place[:, k : k + step] = at + np.stack((np.zeros_like(rows), rows, columns))
                at, k = at + self.grid, k + step
            else:
                place[:, k] = at
                at, k = at + 1, k + 1
        return place

    def batch(self, prompts: Sequence[Sequence[int]], pictures: Tensor, *, pad: Literal["left", "right"]) -> Batch:
        """Prompts side by side, padded to a multiple of 32 columns, so that there are few shapes."""
        lengths = np.array([len(ids) for ids in prompts])
        longest = int(lengths.max())
        length = -(-longest // COLUMNS) * COLUMNS
        first = length - lengths if pad == "left" else np.zeros_like(lengths)
        place = np.arange(length) - first[:, None]  # in the prompt, (B, L)
        mask = (place >= 0) & (place < lengths[:, None])
        ids = np.full(mask.shape, self.pad, np.int64)
        ids[mask] = np.concatenate(prompts)
        positions = np.ascontiguousarray(np.where(mask, self.positions(longest)[:, place.clip(0, longest - 1)], 0))
        return Batch(torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(positions), pictures)


def learning_inputs(
    prompter: Prompter, rows: Sequence[Sequence[int]], targets: Tensor, pictures: Tensor, *, ahead: int
) -> dict[str, Tensor]:
    """What a `Learner` takes for sequences whose last tokens are to predict targets (B, T), and the targets.

    Targets that are padded in front (-100) stand anywhere. ahead: a sequence goes on for so many tokens after the one
    that predicts the last target.
    """
    batch = prompter.batch(rows, pictures, pad="right")
    ends = batch.mask.sum(1, keepdim=True) - ahead
    columns = (ends + torch.arange(-targets.shape[1], 0)).clamp_min(0)
    return {
        "ids": batch.ids,
        "positions": batch.positions,
        "pictures": batch.pictures,
        "columns": columns,
        "targets": targets,
    }


def patches(pictures: Tensor, patch: int, frames: int) -> Tensor:
    """Pictures (N, side, side, 3) uint8 as Qwen's flattened patches (N, patches, 3 * frames * patch * patch), float32.

    Values run from -1 to 1; the patches that become one token lie together; a still picture fills all frames.
    """
    count, side = pictures.shape[:2]
    blocks = side // patch // MERGE
    x = pictures.float().div(127.5).sub(1).view(count, blocks, MERGE, patch, blocks, MERGE, patch, 3)
    x = x.permute(0, 1, 4, 2, 5, 7, 3, 6)  # picture, block row and column, patch row and column, channel, y, x
    return x.unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, frames, -1, -1).reshape(count, (side // patch) ** 2, -1)


def state_words(state: np.ndarray, low: np.ndarray, high: np.ndarray) -> list[int]:
    """A state as whole numbers from 0 to 255 over its range in the training data; beyond it, the nearest."""
    share = (state - low) / np.maximum(high - low, 1e-6)
    whole: list[int] = np.clip(share * STATE_BINS, 0, STATE_BINS - 1).astype(int).tolist()
    return whole
