"""LeRobot's statistics of a data set's columns, as they stand in meta/stats.json."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def statistics(values: npt.NDArray[Any]) -> dict[str, list[Any]]:
    """LeRobot's statistics of a column (N,) or (N, D), each a list of as many numbers as the column has."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    found = {"min": flat.min(0), "max": flat.max(0), "mean": flat.mean(0), "std": flat.std(0)}
    found |= {name: np.quantile(flat, share, axis=0) for name, share in _QUANTILES.items()}
    return {name: value.tolist() for name, value in found.items()} | {"count": [len(flat)]}


def picture_statistics(histogram: npt.NDArray[np.int64], count: int) -> dict[str, list[Any]]:
    """The same of pictures, from how often each value (0..255) occurs in each channel (3, 256); in [0, 1]."""
    levels = np.arange(256) / 255
    shares = histogram / histogram.sum(1, keepdims=True)
    mean = shares @ levels
    seen = histogram > 0
    found = {
        "min": levels[seen.argmax(1)],
        "max": levels[255 - seen[:, ::-1].argmax(1)],
        "mean": mean,
        "std": np.sqrt(np.maximum(shares @ levels**2 - mean**2, 0)),
    }
    below = shares.cumsum(1)
    found |= {name: levels[(below < share - 1e-12).sum(1)] for name, share in _QUANTILES.items()}
    return {name: value.reshape(3, 1, 1).tolist() for name, value in found.items()} | {"count": [count]}
