"""Where a policy's training stands: weights and moments in one safetensors file, whole or not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.files import read_json, write_json, writing

NAME, SHARDED, _STEP = "checkpoint.safetensors", "deepspeed", "step.json"


def save_state(
    folder: Path, accelerator: Any, model: torch.nn.Module, optimizer: Any, about: dict[str, Any], step: int
) -> None:
    """Write weights, moments and the step. DeepSpeed shares the moments among processes and writes them itself."""
    metadata = {"step": step, "about": about}
    if _sharded(accelerator):
        aside = folder / f"{SHARDED}.part"
        if accelerator.is_main_process:
            shutil.rmtree(aside, ignore_errors=True)
        accelerator.wait_for_everyone()
        accelerator.save_state(str(aside))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            write_json(aside / _STEP, metadata)
            _put_in_place(folder)
    elif accelerator.is_main_process:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _state(model, optimizer).items()}
        with writing(folder / NAME) as aside:
            save_file(tensors, aside, metadata={"json": json.dumps(metadata)})
    accelerator.wait_for_everyone()


def holds_state(folder: Path) -> bool:
    """Whether `save_state` wrote something there."""
    return (folder / NAME).is_file() or any((folder / name).is_dir() for name in (SHARDED, f"{SHARDED}.part"))


def forget_state(folder: Path) -> None:
    """Remove what `save_state` wrote."""
    (folder / NAME).unlink(missing_ok=True)
    for name in (SHARDED, f"{SHARDED}.part"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _sharded(accelerator: Any) -> bool:
    return str(accelerator.distributed_type).endswith("DEEPSPEED")


def _put_in_place(folder: Path) -> None:
    """A checkpoint of DeepSpeed that is whole takes the place of the last one; a kill may come in between."""
    aside = folder / f"{SHARDED}.part"
    if (aside / _STEP).is_file():  # written last
        shutil.rmtree(folder / SHARDED, ignore_errors=True)
        aside.rename(folder / SHARDED)


@torch.no_grad()
def load_state(folder: Path, accelerator: Any, model: torch.nn.Module, optimizer: Any, about: dict[str, Any]) -> int:
    """Put model and optimiser back where they stood; the number of steps done. Another run's state is an error."""
    path = folder / NAME
    if _sharded(accelerator):
        if accelerator.is_main_process:
            _put_in_place(folder)
        accelerator.wait_for_everyone()
        path = folder / SHARDED / _STEP
        if not path.is_file():
            raise ActionPieceError(f"there is no checkpoint in {folder} to go on from")
        step = _checked(read_json(path), about, path)
        accelerator.load_state(str(path.parent))
        return step
    try:
        with safe_open(path, "pt") as file:
            step = _checked(json.loads((file.metadata() or {}).get("json", "{}")), about, path)
            _fill_moments(optimizer)
            state = _state(model, optimizer)
            if set(file.keys()) != state.keys():
                raise ActionPieceError(f"{path} is a checkpoint of another model; start without --resume")
            for name, tensor in state.items():
                tensor.copy_(file.get_tensor(name))
    except FileNotFoundError:
        raise ActionPieceError(f"there is no checkpoint in {folder} to go on from") from None
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise ActionPieceError(f"{path} is not a whole checkpoint of this policy: {error}") from None
    return step


def _checked(found: Any, about: dict[str, Any], path: Path) -> int:
    saved, step = (found.get("about"), found.get("step")) if isinstance(found, dict) else (None, None)
    if not isinstance(saved, dict) or not isinstance(step, int):
        raise ActionPieceError(f"{path} is not a whole checkpoint of this policy: it does not say of which run it is")
    about = json.loads(json.dumps(about))  # tuples as lists, the way they come back from a file
    if different := sorted(key for key in about.keys() | saved.keys() if about.get(key) != saved.get(key)):
        raise ActionPieceError(
            f"{path} is of another run: it has another {' and '.join(different)}; start without --resume"
        )
    return step


def _fill_moments(optimizer: Any) -> None:
    """An optimiser has no moments before its first step; they are to be loaded into."""
    inner = getattr(optimizer, "optimizer", optimizer)
    for group in inner.param_groups:
        for parameter in group["params"]:
            where = parameter.device if group.get("fused") else "cpu"
            inner.state[parameter] = {
                "step": torch.zeros((), device=where),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def _state(model: torch.nn.Module, optimizer: Any) -> dict[str, Tensor]:
    inner = getattr(optimizer, "optimizer", optimizer)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tensors: dict[str, Tensor] = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
    for group in inner.param_groups:
        for parameter in group["params"]:
            for part, tensor in inner.state.get(parameter, {}).items():
                tensors[f"{part}.{names[id(parameter)]}"] = tensor
    return tensors
