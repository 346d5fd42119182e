"""Several processes on one training, as `torchrun` or `accelerate launch` start them, sharing every batch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


def join(device: str) -> str:
    """Join the other processes, if a launcher started any; returns this one's device.

    They stay together for all that is trained, since groups that are left and joined again can miss each other; the
    program that was launched calls `leave` when it is done.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return device
    if device == "cuda":  # one GPU for each process of a machine
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return device


def leave() -> None:
    """Leave the other processes, once and for all; nothing happens where there are none."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()  # nobody hangs up on one who is still talking
        dist.destroy_process_group()


def end() -> None:
    """End this process if it was one of several, without tidying up: all it had to do is done.

    A thread of gloo's that wakes while Python is being taken down aborts the process, and the launcher then reports a
    training as failed that was finished and saved.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def is_first() -> bool:
    """Whether this is the process that writes files and talks."""
    return os.environ.get("RANK", "0") == "0"


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def same_on_all_ranks(module: nn.Module) -> None:
    """Every process gets the first one's parameters and buffers."""
    if world_size() > 1:
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, src=0)


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Every process gets the mean gradient. One call for all: a codec is small, and calls are what costs."""
    if world_size() == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world_size()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
