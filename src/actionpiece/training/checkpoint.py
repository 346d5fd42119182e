"""Checkpoints: one safetensors file with everything a run needs to go on bit for bit, whole or not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from actionpiece.errors import ActionPieceError
from actionpiece.files import writing

NAME = "checkpoint.safetensors"


def save_checkpoint(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    about: dict[str, Any],
) -> None:
    """Write model, optimiser and random states after `step` steps; `about` says which run this is."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    tensors["random.batches"] = generator.get_state()
    tensors["random.global"] = torch.get_rng_state()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with writing(folder / NAME) as aside:
        save_file(tensors, aside, metadata={"step": str(step), "about": json.dumps(about, sort_keys=True)})


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    about: dict[str, Any],
) -> int:
    """Put a run back where its checkpoint left it; returns the number of steps done.

    A checkpoint of another run (other settings, seed or data) is an error: going on would mix two runs.
    """
    path = folder / NAME
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise ActionPieceError(f"there is no checkpoint in {folder} to go on from") from None
    except (SafetensorError, OSError) as error:
        raise ActionPieceError(f"{path} is not a whole checkpoint: {error}") from None
    saved = json.loads(metadata.get("about", "{}"))
    different = sorted(key for key in about.keys() | saved.keys() if about.get(key) != saved.get(key))
    if different:
        raise ActionPieceError(f"{path} is of another run: {', '.join(different)} differ; start without --resume")
    model.load_state_dict({name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")})
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    generator.set_state(tensors["random.batches"])
    torch.set_rng_state(tensors["random.global"])
    return int(metadata["step"])
