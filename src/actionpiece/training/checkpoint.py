"""Checkpoints: one safetensors file with everything a run needs to go on bit for bit, whole or not there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.files import writing
from actionpiece.nn.fused import fast_halves
from actionpiece.training.replica import Replica

NAME = "checkpoint.safetensors"
T = TypeVar("T")


def save_checkpoint(folder: Path, replica: Replica, about: dict[str, Any]) -> None:
    """Write where a replica stands; `about` says which run this is."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _state(replica).items()}
    tensors["random"] = replica.generator.get_state()
    metadata = {"step": str(replica.done), "about": json.dumps(about, sort_keys=True)}
    metadata["stretches"] = json.dumps(_stretches(replica))
    with writing(folder / NAME) as aside:
        save_file(tensors, aside, metadata=metadata)


def saved_step(folder: Path | None) -> int | None:
    """The step of the checkpoint in a folder; None where there is none."""
    return _saved(folder, lambda metadata: int(metadata["step"]))


def saved_stretches(folder: Path | None) -> list[dict[str, Any]] | None:
    """Where the steps of the checkpoint in a folder were taken (see `_stretches`); None where there is none."""
    return _saved(folder, lambda metadata: list(json.loads(metadata.get("stretches", "[]"))))


def _saved(folder: Path | None, read: Callable[[dict[str, str]], T]) -> T | None:
    if folder is None or not (folder / NAME).is_file():
        return None
    try:
        with safe_open(folder / NAME, "pt") as file:
            return read(file.metadata() or {})
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ActionPieceError(f"{folder / NAME} is not a whole checkpoint: {error}") from None


def _stretches(replica: Replica) -> list[dict[str, Any]]:
    """Where its steps were taken: `from` one `to` another, on which device. Who scores it elsewhere can then say so.

    `products`: of a Transformer's blocks, if it has any.
    """
    device = replica.examples.device
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    products = "bfloat16" if fast_halves(device) else "float32"
    here = {"device": device.type, "gpu": gpu, "torch": torch.__version__, "products": products}
    stretches, start = list(replica.before), replica.began
    if replica.done == start:
        return stretches
    if stretches and stretches[-1].items() >= here.items():
        start = stretches.pop()["from"]
    return [*stretches, {"from": start, "to": replica.done, **here}]


@torch.no_grad()
def load_checkpoint(folder: Path, replica: Replica, about: dict[str, Any]) -> None:
    """Put a replica back where its checkpoint left it.

    A checkpoint of another run (other settings, seed or data) is an error: going on would mix two runs.
    """
    path = folder / NAME
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        saved, step = json.loads(metadata["about"]), int(metadata["step"])
        stretches = list(json.loads(metadata.get("stretches", "[]")))
    except FileNotFoundError:
        raise ActionPieceError(f"there is no checkpoint in {folder} to go on from") from None
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ActionPieceError(f"{path} is not a whole checkpoint: {error}") from None
    different = sorted(key for key in about.keys() | saved.keys() if not _alike(about.get(key), saved.get(key)))
    if different:
        raise ActionPieceError(
            f"{path} is of another run: it has another {' and '.join(different)}; move it away to start anew"
        )
    state = _state(replica)
    random = tensors.pop("random", None)
    shapes, saved_shapes = ({name: one.shape for name, one in side.items()} for side in (state, tensors))
    if random is None or shapes != saved_shapes:
        raise ActionPieceError(
            f"{path} is a checkpoint of another codec, or of another version; move it away to start anew"
        )
    if random.shape == replica.generator.get_state().shape:  # another kind of device draws in its own way
        replica.generator.set_state(random)
    for name, tensor in tensors.items():
        state[name].copy_(tensor)
    replica.done = replica.began = step
    replica.before = stretches


def _alike(one: Any, other: Any) -> bool:
    """Equal plain data, but for rounding: another machine adds up the same numbers in another order."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def _state(replica: Replica) -> dict[str, Tensor]:
    model = {f"model.{name}": tensor for name, tensor in replica.codec.state_dict().items()}
    return model | {f"optimizer.{name}": tensor for name, tensor in replica.optimizer_state().items()}
