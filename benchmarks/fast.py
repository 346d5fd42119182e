"""How fast `fast` encodes and decodes, beside a plain implementation in the manner of FAST's own processor.

    python benchmarks/fast.py --data ../shared/data/libero_4suite_bspline_recon.npz

Prints one JSON document. The data is an npz of `actions` and `ep_len`, with its card (same name, .json) beside it
where there is one. Both contenders are fitted on the same chunks and timed on the same held-out ones.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import tokenizers
import torch

sys.path.insert(0, str(Path(__file__).parent))
from actionpiece import ActionSpace
from actionpiece.files import sha256_of
from actionpiece.tokenizers.fast import FastConfig, FastTokenizer
from baselines.fast_plain import PlainFast


def read_chunks(path: Path, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out chunks (N, H, D): a tenth of the episodes, drawn by seed 0, is held out."""
    card_path = path.with_suffix(".json")
    card: dict[str, Any] = json.loads(card_path.read_text()) if card_path.exists() else {}
    with np.load(path) as data:
        actions = data["actions"]
        if "clip" in card:
            actions = np.clip(actions, -np.array(card["clip"]), np.array(card["clip"]))
        keep = data[card["keep"]].astype(bool) if "keep" in card else np.ones(len(data["ep_len"]), bool)
        episodes = np.split(actions, np.cumsum(data["ep_len"])[:-1])
    windows = [
        np.lib.stride_tricks.sliding_window_view(episode, horizon, axis=0).swapaxes(1, 2)
        for episode, kept in zip(episodes, keep, strict=True)
        if kept and len(episode) >= horizon
    ]
    order = np.random.default_rng(0).permutation(len(windows))
    held = len(windows) // 10
    parts = (order[held:], order[:held])
    train, test = (np.concatenate([windows[i] for i in part]).astype(np.float32) for part in parts)
    return train, test


def best_of(times: int, run: Callable[[], Any]) -> tuple[float, Any]:
    """The shortest of several wall-clock times, and the last answer."""
    seconds, answer = float("inf"), None
    for _ in range(times):
        start = time.perf_counter()
        answer = run()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds, answer


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--horizon", type=int, default=8)
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--normalizer", default="minmax", choices=("minmax", "quantile", "meanstd", "identity"))
    asked = parser.parse_args()
    train, test = read_chunks(asked.data, asked.horizon)
    test = test[np.random.default_rng(0).permutation(len(test))[: asked.chunks]]
    n = len(test)

    space = ActionSpace.of_joints(train.shape[2])  # what the columns mean makes no difference to speed
    fit_seconds, tok = best_of(1, lambda: FastTokenizer.fit(train, space, FastConfig(), normalizer=asked.normalizer))
    encode_seconds, ids = best_of(3, lambda: tok.encode(test))
    decode_seconds, _ = best_of(3, lambda: tok.decode(ids))
    one_encode, _ = best_of(200, lambda: tok.encode(test[0]))
    one_decode, _ = best_of(200, lambda: tok.decode(ids[0]))

    normal = tok.normalizer.normalize(torch.from_numpy(train)).numpy()
    drawn = np.random.default_rng(0).permutation(len(normal))[: tok.config.fit_chunks]
    plain_fit, plain = best_of(1, lambda: PlainFast(normal[drawn]))
    test_normal = tok.normalizer.normalize(torch.from_numpy(test)).numpy()
    plain_encode, plain_ids = best_of(3, lambda: [plain.encode(chunk) for chunk in test_normal])
    plain_decode, _ = best_of(3, lambda: [plain.decode(row) for row in plain_ids])

    result = {
        "data": asked.data.name,
        "sha256": sha256_of([asked.data]),
        "seed": 0,
        "n": n,
        "shape": list(test.shape[1:]),
        "normalizer": asked.normalizer,
        "ours": {
            "vocab_size": tok.vocab_size,
            "fit_s": round(fit_seconds, 2),
            "tokens_per_chunk": round(sum(map(len, ids)) / n, 3),
            "encode_chunks_per_s": round(n / encode_seconds),
            "decode_chunks_per_s": round(n / decode_seconds),
            "encode_one_us": round(one_encode * 1e6, 1),
            "decode_one_us": round(one_decode * 1e6, 1),
        },
        "plain": {
            "fit_s": round(plain_fit, 2),
            "tokens_per_chunk": round(sum(map(len, plain_ids)) / n, 3),
            "encode_chunks_per_s": round(n / plain_encode),
            "decode_chunks_per_s": round(n / plain_decode),
        },
        "times_faster": {
            "encode": round(plain_encode / encode_seconds, 2),
            "decode": round(plain_decode / decode_seconds, 2),
        },
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
            "scipy": scipy.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "device": f"CPU, {len(os.sched_getaffinity(0))} cores, {platform.machine()}",
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
