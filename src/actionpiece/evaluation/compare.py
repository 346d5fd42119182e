"""Fit and score several tokenizers on the same chunks, and write what came of it."""

from __future__ import annotations

import ast
import dataclasses
import datetime
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actionpiece.data import Demos
from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.replay import filmstrip, replay, replayable
from actionpiece.evaluation.score import Protocol, Score, ScoringSet, Training, environment, score
from actionpiece.files import write_json, writing
from actionpiece.sim.make import simulator
from actionpiece.tokenizers import (
    KINDS,
    RECIPES,
    ActionTokenizer,
    build_config,
    load,
    recipe,
    tokenizer_class,
    trained,
)

FIT_CHUNKS, _FIT_VALUES = 300_000, 1 << 25  # more say nothing new, and would not fit in small machines
LOOK_CHUNKS = 2_000  # validation chunks that learned tokenizers look at while training

Progress = Callable[[str, float, str], None]  # contender, fraction done, what is being done


@dataclass(frozen=True)
class Contender:
    """What a user names: a kind to fit, with settings (`pq:blend=0.5:codes=256`), or one fitted before.

    folder: of the fitted one, or the name of one that comes with the package.
    """

    name: str
    kind: str | None
    config: Any
    folder: Path | None

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Read one entry of `--tokenizers`."""
        name, *settings = text.split(":")
        if name not in KINDS and name not in RECIPES:
            folder = Path(text)
            if not folder.is_dir() and text not in trained():
                known = ", ".join([*KINDS, *RECIPES, *trained()])
                raise ActionPieceError(f"'{text}' is neither a tokenizer ({known}) nor a folder with one")
            return cls(folder.resolve().name, None, None, folder)
        values = {}
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals:
                raise ActionPieceError(f"'{text}': settings are written key=value, as in pq:blend=0.5, not '{setting}'")
            values[key] = _literal(value)
        kind, config = recipe(name)
        plain = dataclasses.asdict(config) | values
        return cls(text, kind, build_config(type(config), plain, f"'{text}'"), None)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a plain word


def fit(
    kind: str,
    demos: Demos,
    training: Training,
    *,
    config: Any = None,
    normalizer: str = "minmax",
    seed: int = 0,
    run: Path | None = None,
    resume: bool = False,
    device: str = "cpu",
    progress: Callable[[float, str], None] | None = None,
) -> ActionTokenizer:
    """Fit a tokenizer on the training episodes, and write down what it was fitted on.

    run, resume, device: for learned tokenizers, as in `ActionTokenizer.fit`.
    """
    began = time.perf_counter()
    room = _FIT_VALUES // (training.chunks.horizon * demos.dim)
    chunks = training.chunks.sample(min(FIT_CHUNKS, room), seed)
    tokenizer = tokenizer_class(kind).fit(
        chunks,
        demos.space,
        config,
        normalizer=training.normalizer if normalizer == "minmax" else normalizer,  # type: ignore[arg-type]
        distance=training.distance,
        seed=seed,
        validation=training.validation.sample(LOOK_CHUNKS, seed),
        run=run,
        resume=resume,
        device=device,
        progress=progress,
    )
    note_fit(tokenizer, demos, time.perf_counter() - began, device)
    return tokenizer


def check_names(contenders: Sequence[Contender]) -> None:
    """An error if two contenders go by the same name."""
    if len({contender.name for contender in contenders}) < len(contenders):
        raise ActionPieceError("a tokenizer is named twice; give each its own settings or folder name")


def ready(
    contender: Contender,
    demos: Demos,
    training: Training,
    *,
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
) -> ActionTokenizer:
    """A contender's tokenizer: loaded, or fitted on the training episodes."""
    if contender.folder is not None:
        return load(contender.folder)
    assert contender.kind is not None
    return fit(contender.kind, demos, training, config=contender.config, seed=seed, progress=progress)


def note_fit(tokenizer: ActionTokenizer, demos: Demos, seconds: float, device: str, *, side_by_side: int = 1) -> None:
    """Add to a tokenizer what it was fitted on, where and in what time."""
    data = demos.describe()
    tokenizer.provenance |= {
        "data": {key: data[key] for key in ("name", "generated", "fingerprint", "split", "idle", "licence", "note")},
        "fit_seconds": round(seconds, 3),
        "fit_device": device,
        "side_by_side": side_by_side,
        "environment": environment(),
    }


def compare(
    demos: Demos,
    contenders: list[Contender],
    *,
    protocol: Protocol,
    seed: int = 0,
    command: str = "",
    save: Path | None = None,
    progress: Progress = lambda name, fraction, what: None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Score every contender on the same chunks. Returns the results and what the report draws of them.

    save: a folder under which the contenders that were fitted here are saved.
    """
    check_names(contenders)
    training = Training.of(demos, protocol.horizon)
    data = ScoringSet.of(demos, training, protocol)
    for contender in contenders:  # what cannot work is better known before the first fit than after the last
        if contender.folder is not None:
            load(contender.folder)
        else:
            assert contender.kind is not None
            tokenizer_class(contender.kind)(
                contender.config,
                space=demos.space,
                normalizer=training.normalizer,
                distance=training.distance,
                horizon=protocol.horizon,
            )
    scores: list[Score] = []
    for contender in contenders:
        show = functools.partial(progress, contender.name)
        tokenizer = ready(
            contender,
            demos,
            training,
            seed=seed,
            progress=lambda fraction, what, show=show: show(fraction / 2, what),  # type: ignore[misc]
        )
        if contender.folder is None and save is not None:
            tokenizer.save_pretrained(save / _file_name(contender.name))
        scores.append(
            score(
                tokenizer,
                data,
                name=contender.name,
                progress=lambda fraction, what, show=show: show(0.5 + fraction / 2, what),  # type: ignore[misc]
            )
        )
    results = {
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "protocol": asdict(protocol),
        "data": demos.describe(),
        "physical_scales": training.distance.to_dict(),
        "environment": environment(),
        "rows": [scored.row for scored in scores],
    }
    return results, drawings(data, scores)


def replay_comparison(
    out: Path,
    results: dict[str, Any],
    pictures: dict[str, Any],
    demos: Demos,
    contenders: Sequence[Contender],
    *,
    most: int,
    workers: int = 2,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> None:
    """Add to a comparison that was written to `out` what its tokenizers do in the simulator, and write it again.

    most: episodes of each task, of the split that was scored. Episodes that were replayed before an interrupt are kept.
    """
    chosen = replayable(demos, split=results["protocol"]["split"], most=most)
    tokenizers = {c.name: load(c.folder or out / "tokenizers" / _file_name(c.name)) for c in contenders}
    replayed = replay(
        demos, tokenizers, episodes=chosen, journal=out / "replay.jsonl", workers=workers, progress=progress
    )
    results["replay"] = {"simulator": simulator(), **replayed}
    pictures["filmstrip"] = filmstrip(replayed, demos, tokenizers)
    write_comparison(out, results, pictures)


def write_comparison(out: Path, results: dict[str, Any], pictures: dict[str, Any]) -> None:
    """Write results.json and report.html under `out`."""
    from actionpiece.report import write_report

    write_json(out / "results.json", results)
    with writing(out / "report.html") as aside:
        write_report(aside, results, pictures)


def _file_name(name: str) -> str:
    return name.replace(":", "_").replace("=", "-").replace("/", "_")


def drawings(data: ScoringSet, scores: list[Score]) -> dict[str, Any]:
    """What the report draws beyond the rows: example chunks with everyone's reconstruction, and distributions.

    chunks: each with `why` it is shown, `original` (H, D) and `decoded` {name: (H, D)}, in raw units.
    code_counts: {name: how often each code occurs, most frequent first}.
    rho: {name: Spearman correlations of all anchors}. chunk_mse: {name: mean squared error of each chunk}.
    """
    errors = np.stack([s.fidelity.per_chunk.cpu().numpy() for s in scores])
    # Typical: near the middle of every contender's own ranking, and not a chunk that stands still.
    ranks = errors.argsort(1).argsort(1) / (errors.shape[1] - 1)
    moving = np.ptp(data.chunks, axis=1).max(1)
    off = np.abs(ranks - 0.5).max(0) + np.where(moving < np.median(moving), 1.0, 0.0)
    picks = [(int(off.argmin()), "typical: close to every tokenizer's median error")]
    picks += [
        (int(row.argmax()), f"worst of {scored.row['name']}: its largest error of all {len(row)} chunks")
        for row, scored in zip(errors, scores, strict=True)
    ]
    chunks = [
        {
            "why": why,
            "index": index,
            "original": data.chunks[index].tolist(),
            "decoded": {s.row["name"]: s.decoded[index].tolist() for s in scores},
            "mse": {s.row["name"]: float(row[index]) for row, s in zip(errors, scores, strict=True)},
        }
        for index, why in picks
    ]
    names = [s.row["name"] for s in scores]
    return {
        "labels": list(data.distance.space.labels),
        "rate": data.rate,
        "chunks": chunks,
        "code_counts": {n: np.sort(s.use.counts)[::-1].tolist() for n, s in zip(names, scores, strict=True)},
        "rho": {n: s.prc.per_anchor for n, s in zip(names, scores, strict=True)},
        "chunk_mse": dict(zip(names, errors, strict=True)),
    }
