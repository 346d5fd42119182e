"""Attention, written out where sequences are short and the step is compiled."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_SHORT = 512  # scores of one head; longer sequences are what attention kernels are made for


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """What queries (B, heads, T, d) read from M keys and values (B, heads, M, d), where the mask (T, M) allows it.

    Attention kernels work in tiles of 64 or more, of which a chunk's few steps and slots fill a corner. Where a step is
    compiled for a GPU they are therefore left to the compiler.
    """
    short = q.shape[-2] * keys.shape[-2] <= _SHORT
    if short and q.is_cuda and torch.compiler.is_compiling():
        return written_out(q, keys, values, mask)
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:  # its kernel for these is the slower one
        with torch.autocast("cpu", enabled=False):
            read = F.scaled_dot_product_attention(q.float(), keys.float(), values.float(), mask)
        return read.to(values.dtype)
    return F.scaled_dot_product_attention(q, keys, values, mask)


def written_out(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """`attend` as products and sums of float32: no matrix product, so that a compiler makes few kernels of it."""
    scores = (q[..., :, None, :].float() * keys[..., None, :, :].float()).sum(-1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1)[..., None] * values[..., None, :, :].float()).sum(-2).to(values.dtype)
