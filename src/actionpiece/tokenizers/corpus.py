"""The tokens of a whole data set, written to parquet shards: what a policy is trained on.

A folder holds `_manifest.json` (which tokenizer, which data, how it was cut) and `tokens-00000.parquet` and so on, with
the columns `episode`, `start`, `split` and `ids`. Every shard is written aside and renamed, so an interrupted run
leaves only whole shards, and running the same command again goes on where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from actionpiece.data import Chunks, Demos
from actionpiece.data.chunks import Tail
from actionpiece.errors import ActionPieceError
from actionpiece.files import check_folder, read_json, write_json, writing
from actionpiece.tokenizers.base import ActionTokenizer

MANIFEST = "_manifest.json"  # parquet readers of a folder pass over names with an underscore


def tokenize(
    tokenizer: ActionTokenizer,
    demos: Demos,
    out: Path,
    *,
    stride: int = 1,
    tail: Tail = "repeat",
    shard: int = 100_000,
    progress: Callable[[float], None] = lambda fraction: None,
) -> dict[str, Any]:
    """Write the ids of every chunk of `demos` under `out`, `shard` chunks a file; returns the manifest.

    tail: `repeat` makes a chunk start at every step and repeats the last command at the end, as policies need it;
        `drop` leaves out windows that run past the end.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if tokenizer.space.dim != demos.dim:
        raise ActionPieceError(f"the tokenizer was fitted on {tokenizer.space.dim} columns, the data has {demos.dim}")
    space = demos.known_space
    if space is not None and (space.groups, space.rate) != (tokenizer.space.groups, tokenizer.space.rate):
        raise ActionPieceError(
            f"the tokenizer was fitted for the action space '{tokenizer.space.name}', the data is in '{space.name}'"
        )
    if shard < 1:
        raise ActionPieceError(f"a shard needs at least one chunk, not {shard}")
    chunks = Chunks(demos, np.arange(len(demos)), tokenizer.horizon, stride, tail)
    count = math.ceil(len(chunks) / shard)
    shards = [f"tokens-{i:05d}.parquet" for i in range(count)]
    manifest: dict[str, Any] = {
        "tokenizer": {
            "kind": tokenizer.kind,
            "fingerprint": tokenizer.fingerprint(),
            "vocab_size": tokenizer.vocab_size,
        },
        "data": demos.describe(tail=tail),
        "chunks": chunks.describe(),
        "shards": shards,
        "chunks_per_shard": shard,
    }
    splits = _split_names(demos)
    _claim(out, manifest)
    for number, name in enumerate(shards):
        first, last = number * shard, min((number + 1) * shard, len(chunks))
        path = out / name
        if not (path.is_file() and _rows(path) == last - first):
            index = np.arange(first, last)
            ids = tokenizer.encode(chunks[index])
            episodes = chunks.episode_of(index)
            lengths = np.array([len(row) for row in ids])
            offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
            flat = pa.array(np.concatenate(list(ids)).astype(np.int32))
            table = pa.table(
                {
                    "episode": pa.array(episodes.astype(np.int32)),
                    "start": pa.array(chunks.start_of(index).astype(np.int32)),
                    "split": pa.array(splits[episodes]).dictionary_encode(),
                    "ids": pa.ListArray.from_arrays(pa.array(offsets), flat),
                }
            )
            with writing(path) as aside:
                pq.write_table(table, aside)
        progress(last / len(chunks))
    return manifest


def _claim(out: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest, or check that the one there is of the same run."""
    check_folder(out)
    path = out / MANIFEST
    if path.is_file():
        if read_json(path) != manifest:
            raise ActionPieceError(
                f"{out} holds tokens of another tokenizer, data set or setting; choose another folder"
            )
    elif out.is_dir() and any(not file.name.endswith(".part") for file in out.iterdir()):  # a kill leaves such
        raise ActionPieceError(f"{out} is not empty and has no {MANIFEST}; choose another folder")
    else:
        write_json(path, manifest)


def _rows(path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowInvalid):
        return -1  # not a whole parquet file: it is written again


def _split_names(demos: Demos) -> np.ndarray:
    """Which split each episode belongs to; `all` where the data cannot be split."""
    names = np.full(len(demos), "all", dtype="<U10")
    try:
        split = demos.split()
    except ActionPieceError:  # the manifest says why
        return names
    for name in ("train", "validation", "test"):
        names[getattr(split, name)] = name
    return names
