"""What takes part in a comparison: tokenizers by name, by folder, or made by a user's own code; fitted or loaded."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actionpiece.data import Demos
from actionpiece.errors import ActionPieceError, BrokenRunsError
from actionpiece.evaluation.score import Training, environment
from actionpiece.makers import find_maker, make, names_maker
from actionpiece.normalize import Normalizer, parse_way
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
from actionpiece.tokenizers.learned import LearnedTokenizer, fit_side_by_side
from actionpiece.training.checkpoint import saved_step, saved_stretches

FIT_CHUNKS, _FIT_VALUES = 300_000, 1 << 25  # more say nothing new, and would not fit in small machines
LOOK_CHUNKS = 2_000  # validation chunks that learned tokenizers look at while training


@dataclass(frozen=True)
class Contender:
    """What a user names: a kind to fit, with settings (`pq:blend=0.5`, `rvq:train.steps=5000`), one fitted before, or a
    maker.

    folder: of the fitted one, or the name of one that comes with the package.
    normalizer: how its columns are scaled before tokenizing; for kinds to fit.
    maker: `path/to/file.py:make` or `package.module:make`.
    """

    name: str
    kind: str | None = None
    config: Any = None
    folder: Path | None = None
    normalizer: str = "minmax"
    maker: str | None = None

    @property
    def learned(self) -> bool:
        """Whether it is to be trained here, in the coordinates in which all are scored: `fit_together` can."""
        return (
            self.kind is not None
            and self.normalizer == "minmax"
            and issubclass(tokenizer_class(self.kind), LearnedTokenizer)
        )

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Read one entry of `--tokenizers`."""
        name, *settings = text.split(":")
        if name not in KINDS and name not in RECIPES:
            folder = Path(text)
            if folder.is_dir() or text in trained():
                return cls(folder.resolve().name, folder=folder)
            if names_maker(text):
                place, _, function = text.rpartition(":")
                return cls(f"{Path(place).name}:{function}", maker=text)
            known = ", ".join([*KINDS, *RECIPES, *trained()])
            raise ActionPieceError(
                f"'{text}' is neither a tokenizer ({known}) nor a folder with one, nor spelled file.py:maker"
            )
        values = {}
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals:
                raise ActionPieceError(f"'{text}': settings are written key=value, as in pq:blend=0.5, not '{setting}'")
            values[key] = _literal(value)
        normalizer = str(values.pop("normalizer", "minmax"))
        parse_way(normalizer)
        kind, config = recipe(name)
        plain = dataclasses.asdict(config)
        for key, value in values.items():
            *outer, last = key.split(".")  # train.steps is a setting within a setting
            inner: Any = plain
            for part in outer:
                inner = inner.get(part)
                if not isinstance(inner, dict):
                    raise ActionPieceError(f"'{text}': {name} has no settings within '{part}'")
            inner[last] = value
        return cls(text, kind, build_config(type(config), plain, f"'{text}'"), normalizer=normalizer)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return text  # a plain word


def check_names(contenders: Sequence[Contender]) -> None:
    """An error if two contenders go by the same name, or would be kept in the same folder."""
    taken: dict[str, str] = {}
    for name in (contender.name for contender in contenders):
        other = taken.get(file_name(name))
        if other is not None:
            said = (
                f"'{name}' is named twice" if other == name else f"'{other}' and '{name}' would be kept in one folder"
            )
            raise ActionPieceError(f"{said}; give each its own settings or folder name")
        taken[file_name(name)] = name


def file_name(name: str) -> str:
    """A contender's name as a folder's."""
    return name.replace(":", "_").replace("=", "-").replace("/", "_")


def check_possible(contender: Contender, demos: Demos, training: Training) -> None:
    """An error if a contender cannot work: better known before the first fit than after the last."""
    if contender.maker is not None:
        _arguments(contender.maker, find_maker(contender.maker, "tokenizer"))
    elif contender.folder is not None:
        load(contender.folder)
    elif needed := unfitted(contender, demos, training).needs_extras:
        raise ActionPieceError(
            f"{contender.name} needs '{needed[0]}' for every chunk, which a comparison has not: fit it in Python, "
            "and name its folder here"
        )


def with_steps(config: Any, steps: int) -> Any:
    """A learned tokenizer's configuration with so many training steps; others stay as they are."""
    train = getattr(config, "train", None)
    if train is None:
        return config
    # What comes before and after the real thing stays within a tenth of it.
    names = ("warmup", "continuous", "settle")
    short = {key: min(getattr(train, key), steps // 10) for key in names if hasattr(train, key)}
    return dataclasses.replace(config, train=dataclasses.replace(train, steps=steps, **short))


def fitting_chunks(training: Training, seed: int) -> np.ndarray:
    """The training chunks (N, H, D) that tokenizers are fitted on."""
    room = _FIT_VALUES // (training.chunks.horizon * training.chunks.demos.dim)
    chunks: np.ndarray = training.chunks.sample(min(FIT_CHUNKS, room), seed)
    return chunks


def fit(
    kind: str,
    demos: Demos,
    training: Training,
    *,
    config: Any = None,
    normalizer: str = "minmax",
    seed: int = 0,
    draw: int | None = None,
    run: Path | None = None,
    resume: bool = False,
    device: str = "cpu",
    progress: Callable[[float, str], None] | None = None,
) -> ActionTokenizer:
    """Fit a tokenizer on the training episodes, and write down what it was fitted on.

    normalizer: see `normalize.Way`. draw: the seed by which the chunks are drawn, where it is not that of the fit.
    run, resume, device: for learned tokenizers, as in `ActionTokenizer.fit`.
    """
    began = time.perf_counter()
    draw = seed if draw is None else draw
    chunks = fitting_chunks(training, draw)
    own = run if issubclass(tokenizer_class(kind), LearnedTokenizer) else None  # others have no checkpoint
    before = saved_step(own) if resume else None
    # Min-max is that of whole episodes, in which everybody is scored; other ways are fitted on the chunks.
    scaled = training.normalizer if normalizer == "minmax" else Normalizer.fit(*_way(normalizer, chunks))
    tokenizer = tokenizer_class(kind).fit(
        chunks,
        demos.space,
        config,
        normalizer=scaled,
        distance=training.distance,
        seed=seed,
        validation=training.validation.sample(LOOK_CHUNKS, draw),
        run=run,
        resume=resume,
        device=device,
        progress=progress,
    )
    note_fit(tokenizer, demos, time.perf_counter() - began, device, run=own, before=before)
    return tokenizer


def fit_together(
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    demos: Demos,
    training: Training,
    *,
    runs: Sequence[Path | None],
    draw: int = 0,
    device: str = "cpu",
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> list[ActionTokenizer | ActionPieceError]:
    """Fit learned contenders side by side in one process, each by its seed, and write down what they were fitted on.

    In the place of one whose training broke off or could not go on there is the reason. One that went on from a
    checkpoint says from which step: up to there it was trained elsewhere, perhaps.
    runs: where each keeps its log and its checkpoint, from which it goes on. draw: the seed by which the chunks that
    they share are drawn.
    """
    began = time.perf_counter()
    chunks = torch.from_numpy(fitting_chunks(training, draw))
    tokenizers: list[Any] = [unfitted(contender, demos, training) for contender in contenders]
    normalize = training.normalizer.normalize
    before = [saved_step(run) for run in runs]
    broken: dict[int, ActionPieceError] = {}
    try:
        fit_side_by_side(
            tokenizers,
            seeds,
            normalize(chunks),
            runs,
            validation=normalize(torch.from_numpy(training.validation.sample(LOOK_CHUNKS, draw))),
            resumed=[step is not None for step in before],
            device=device,
            progress=progress,
        )
    except BrokenRunsError as error:
        broken = error.errors
    for tokenizer, seed, step, run in zip(tokenizers, seeds, before, runs, strict=True):
        tokenizer.provenance = {"seed": seed, "chunks": len(chunks)}
        seconds = time.perf_counter() - began
        note_fit(tokenizer, demos, seconds, device, run=run, before=step, side_by_side=len(tokenizers))
    return [broken.get(number, tokenizer) for number, tokenizer in enumerate(tokenizers)]


def unreadable(run: Path) -> str | None:
    """Why a training cannot go on from its checkpoint, as far as that shows before; None if it can, or begins anew."""
    try:
        saved_step(run)
    except ActionPieceError as error:
        return str(error)
    return None


def unfitted(contender: Contender, demos: Demos, training: Training) -> ActionTokenizer:
    """A contender's tokenizer before it is fitted."""
    assert contender.kind is not None
    return tokenizer_class(contender.kind)(
        contender.config,
        space=demos.space,
        normalizer=training.normalizer,
        distance=training.distance,
        horizon=training.chunks.horizon,
    )


def _way(text: str, chunks: np.ndarray) -> tuple[Any, np.ndarray, Any]:
    method, out_of_range = parse_way(text)
    return method, chunks, out_of_range


def ready(
    contender: Contender,
    demos: Demos,
    training: Training,
    *,
    seed: int = 0,
    run: Path | None = None,
    resume: bool = False,
    device: str = "cpu",
    progress: Callable[[float, str], None] | None = None,
) -> ActionTokenizer:
    """A contender's tokenizer: loaded, made by the user's code, or fitted on the training episodes (see `fit`)."""
    if contender.folder is not None:
        return load(contender.folder)
    if contender.maker is not None:
        return _made(contender.maker, demos, training, seed)
    assert contender.kind is not None
    return fit(
        contender.kind,
        demos,
        training,
        config=contender.config,
        normalizer=contender.normalizer,
        seed=seed,
        run=run,
        resume=resume,
        device=device,
        progress=progress,
    )


def _made(text: str, demos: Demos, training: Training, seed: int) -> ActionTokenizer:
    began = time.perf_counter()
    maker = find_maker(text, "tokenizer")
    chunks = fitting_chunks(training, seed) if _arguments(text, maker) else None
    tokenizer = make(text, "tokenizer", *(() if chunks is None else (chunks, demos.space)), maker=maker)
    if not isinstance(tokenizer, ActionTokenizer):
        raise ActionPieceError(
            f"'{text}' made no tokenizer but a {type(tokenizer).__name__}; actionpiece.wrap makes one of two functions"
        )
    if chunks is not None:
        tokenizer.provenance |= {"seed": seed, "chunks": len(chunks)}
        note_fit(tokenizer, demos, time.perf_counter() - began, "cpu")
    return tokenizer


def _arguments(text: str, maker: Callable[..., Any]) -> int:
    """How many arguments a maker must be given: none, or training chunks and the action space."""
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (ValueError, TypeError):  # some built-in functions do not say
        raise ActionPieceError(f"'{text}' must take no argument, or two: (train_chunks, space)") from None
    needed = [
        one for one in parameters if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if len(needed) not in (0, 2) or any(one.kind is one.KEYWORD_ONLY for one in needed):
        raise ActionPieceError(f"'{text}' must take no argument, or two: (train_chunks, space)")
    return len(needed)


def note_fit(
    tokenizer: ActionTokenizer,
    demos: Demos,
    seconds: float,
    device: str,
    *,
    run: Path | None = None,
    before: int | None = None,
    side_by_side: int = 1,
) -> None:
    """Add to a tokenizer what it was fitted on, where and in what time.

    run: where it kept its checkpoint, which knows of stretches of the training that were elsewhere. before: the step
    from which it went on.
    """
    data = demos.describe()
    tokenizer.provenance |= {
        "data": {key: data[key] for key in ("name", "generated", "fingerprint", "split", "idle", "licence", "note")},
        "fit_seconds": round(seconds, 3),
        "fit_device": device,
        "side_by_side": side_by_side,
        "environment": environment(),
    }
    if before is not None:
        tokenizer.provenance["went_on_from_step"] = before
    if stretches := saved_stretches(run):
        tokenizer.provenance["stretches"] = stretches
