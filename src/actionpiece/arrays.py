"""The door between callers' arrays and ours: numpy or torch in, float tensors inside, the same kind out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from actionpiece.errors import ActionPieceError


def to_tensor(values: Any, *, dtype: torch.dtype | None = None, what: str = "actions") -> Tensor:
    """A finite floating-point tensor of `values` (numpy, torch or nested lists); NaN and infinity are an error."""
    if not isinstance(values, Tensor):
        try:
            if isinstance(values, list | tuple):  # numpy knows neither bfloat16 nor gradients
                values = [one.detach().cpu().double().numpy() if isinstance(one, Tensor) else one for one in values]
            array = np.ascontiguousarray(values)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ActionPieceError(f"{what} must be one rectangular array: {error}") from None
        if array.dtype.kind not in "fiub":
            raise ActionPieceError(f"{what} must be numbers, not {array.dtype}")
        # torch takes neither foreign byte orders nor extended precision, read-only memory or negative strides.
        native = np.float64 if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
        usable = array.dtype == native and array.flags.writeable and min(array.strides, default=0) >= 0
        values = torch.from_numpy(array if usable else array.astype(native, order="C", copy=True))
    tensor: Tensor = values
    if tensor.is_complex():
        raise ActionPieceError(f"{what} must be numbers, not {tensor.dtype}")
    if dtype is not None or not tensor.is_floating_point():
        tensor = tensor.to(torch.float64 if dtype is None else dtype)
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise ActionPieceError(f"{what} hold {bad} values that are not finite (NaN or infinity)")
    return tensor


def chunks_tensor(values: Any, dim: int, *, dtype: torch.dtype | None = None, what: str = "chunks") -> Tensor:
    """Action chunks (N, H, D) as a finite tensor with D checked."""
    tensor = to_tensor(values, dtype=dtype, what=what)
    if tensor.ndim != 3:
        raise ActionPieceError(f"{what} must have shape (chunks, steps, {dim}), not {tuple(tensor.shape)}")
    if tensor.shape[-1] != dim:
        raise ActionPieceError(f"{what} have {tensor.shape[-1]} columns, but the action space has {dim}")
    if tensor.shape[0] == 0 or tensor.shape[1] == 0:
        raise ActionPieceError(f"{what} are empty: shape {tuple(tensor.shape)}")
    return tensor


def check_device(name: str) -> None:
    """Say so in one sentence if there is no such device to compute on."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ActionPieceError(f"'{name}' is no device; there are cpu, cuda and cuda:0, cuda:1, ...") from None
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if device.type not in ("cpu", "cuda") or (device.index or 0) >= count:
        raise ActionPieceError(f"there is no device '{name}' here; cpu always works")
