"""What is kept of a contender that was scored: its row, and what the report draws of it; so that it is not redone."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.score import Score, ScoringSet, environment
from actionpiece.files import read_json, write_json, writing

CELL, _ARRAYS = "cell.json", "cell.npz"


@dataclass(frozen=True)
class Scored:
    """A contender's row, its decoded chunks (n, H, D), the error (n,) and rank correlation (n,) of each, and how often
    each code occurs (vocab_size,).

    environment: in which it was scored.
    """

    row: dict[str, Any]
    decoded: np.ndarray
    errors: np.ndarray
    rho: np.ndarray
    counts: np.ndarray
    environment: dict[str, Any]

    @classmethod
    def of(cls, score: Score) -> Scored:
        """The part of a score that is kept."""
        errors = score.fidelity.per_chunk.cpu().numpy()
        decoded = np.asarray(score.decoded)
        return cls(score.row, decoded, errors, score.prc.per_anchor, score.use.counts, environment())


def keep(folder: Path, about: dict[str, Any], scored: Scored) -> None:
    """Write a finished cell; its JSON comes last and says that it is whole."""
    with writing(folder / _ARRAYS) as aside, aside.open("wb") as file:
        np.savez(file, decoded=scored.decoded, errors=scored.errors, rho=scored.rho, counts=scored.counts)
    write_json(folder / CELL, {"about": about, "row": scored.row, "environment": scored.environment})


def kept(folder: Path, about: dict[str, Any]) -> Scored | None:
    """A finished cell, or None where there is none; one that was made otherwise is an error."""
    if not (folder / CELL).is_file():
        return None
    saved = read_json(folder / CELL)
    if not isinstance(saved, dict) or not isinstance(saved.get("about"), dict):
        raise ActionPieceError(f"{folder / CELL} is not what a comparison keeps; remove {folder}")
    wanted = json.loads(json.dumps(about))  # tuples as lists, the way they come back from a file
    different = [key for key in wanted if saved["about"].get(key) != wanted[key]]
    if different:
        raise ActionPieceError(
            f"{folder} was not made with the same {' and '.join(different)}; write to another folder or remove it"
        )
    try:
        with np.load(folder / _ARRAYS, allow_pickle=False) as arrays:
            there = {name: arrays[name] for name in ("decoded", "errors", "rho", "counts")}
            return Scored(saved["row"], **there, environment=saved["environment"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ActionPieceError(f"{folder / _ARRAYS} cannot be read ({error}); remove {folder}") from None


def drawings(data: ScoringSet, scores: Sequence[Scored]) -> dict[str, Any]:
    """What the report draws beyond the rows: example chunks with everyone's reconstruction, and distributions.

    chunks: each with `why` it is shown, whose worst it is (`of`, None for the typical one), `original` (H, D) and
        `decoded` {name: (H, D)}, in raw units.
    code_counts: {name: how often each code occurs, most frequent first}.
    rho: {name: Spearman correlations of all anchors}. chunk_mse: {name: mean squared error of each chunk}.

    Rows of a comparison that were not scored in it are in none of these; where nobody was, all are empty.
    """
    errors = {s.row["name"]: s.errors for s in scores}
    chunks = [
        {
            "why": why,
            "of": of,
            "index": index,
            "original": data.chunks[index].tolist(),
            "decoded": {s.row["name"]: s.decoded[index].tolist() for s in scores},
            "mse": {name: float(row[index]) for name, row in errors.items()},
        }
        for index, of, why in _picks(data, errors)
    ]
    return {
        "labels": list(data.distance.space.labels),
        "rate": data.rate,
        "chunks": chunks,
        "code_counts": {s.row["name"]: np.sort(s.counts)[::-1].tolist() for s in scores},
        "rho": {s.row["name"]: s.rho for s in scores},
        "chunk_mse": errors,
    }


def _picks(data: ScoringSet, errors: dict[str, np.ndarray]) -> list[tuple[int, str | None, str]]:
    """The chunks to show: index, whose worst it is, and why."""
    if not errors:
        return []
    stacked = np.stack(list(errors.values()))
    # Typical: near the middle of every contender's own ranking, and not a chunk that stands still.
    ranks = stacked.argsort(1).argsort(1) / (stacked.shape[1] - 1)
    moving = np.ptp(data.chunks, axis=1).max(1)
    off = np.abs(ranks - 0.5).max(0) + np.where(moving < np.median(moving), 1.0, 0.0)
    worst = [
        (int(row.argmax()), name, f"worst of {name}: its largest error of all {len(row)} chunks")
        for name, row in errors.items()
    ]
    return [(int(off.argmin()), None, "typical: close to the median error of every tokenizer that was scored"), *worst]


def only(pictures: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The drawings of some contenders: those of one table, as far as they are there."""
    names = [name for name in names if name in pictures["rho"]]
    part = {key: {name: pictures[key][name] for name in names} for key in ("code_counts", "rho", "chunk_mse")}
    chunks = [
        chunk | {key: {name: chunk[key][name] for name in names} for key in ("decoded", "mse")}
        for chunk in pictures["chunks"]
        if names and (chunk["of"] is None or chunk["of"] in names)
    ]
    return {**pictures, **part, "chunks": chunks}
