"""Fit and score several tokenizers on the same chunks, and write what came of it."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actionpiece.arrays import check_device
from actionpiece.data import Demos
from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.contenders import (
    Contender,
    check_names,
    check_possible,
    file_name,
    fit_together,
    ready,
    unreadable,
)
from actionpiece.evaluation.kept import Scored, drawings, keep, kept, only
from actionpiece.evaluation.known import Known, find_known
from actionpiece.evaluation.replay import filmstrip, replay, replayable
from actionpiece.evaluation.score import Protocol, ScoringSet, Training, environment, score
from actionpiece.files import write_json, writing
from actionpiece.sim.make import simulator
from actionpiece.tokenizers import ActionTokenizer, load
from actionpiece.tokenizers.base import Progress
from actionpiece.tokenizers.saving import check_savable
from actionpiece.training.checkpoint import saved_step


@dataclass(frozen=True)
class Comparison:
    """What came of a comparison. results: plain data. pictures: what the report draws of them.

    made: tokenizers of the user's own code, which cannot be saved and loaded again.
    broken: contenders without a row because they could not be made, trained or scored, and why.
    waiting: those that are not trained yet.
    """

    results: dict[str, Any]
    pictures: dict[str, Any]
    made: dict[str, ActionTokenizer]
    broken: dict[str, str]
    waiting: dict[str, str]

    @property
    def absent(self) -> dict[str, str]:
        """All without a row."""
        return self.broken | self.waiting


def compare(
    demos: Demos,
    contenders: Sequence[Contender],
    *,
    protocol: Protocol,
    training: Training | None = None,
    seed: int = 0,
    command: str = "",
    save: Path | None = None,
    cells: Path | None = None,
    device: str = "cpu",
    together: int = 1,
    finished: bool = False,
    known: Sequence[Known] = (),
    progress: Progress = lambda fraction, what: None,
) -> Comparison:
    """Score every contender on the same chunks. One that fails does not take the others with it.

    training: of `demos`, where it is there already.
    save: a folder under which the contenders that were fitted here are saved.
    cells: a folder for what is finished, which is then not redone; learned contenders go on from their checkpoint.
        Those of the user's own code are made anew every time: whether it has changed is not known.
    device: where learned contenders train. together: how many of them side by side.
    finished: train none of them; those that have not come to their last step are left out.
    known: rows of earlier comparisons of the same data by the same protocol, as `read_known` finds them. Contenders to
        fit whose rows stand there, however spelled, are neither fitted nor scored again; a row of the same name that
        was made otherwise is an error. Finished cells go first.
    """
    if not contenders:
        raise ActionPieceError("there is nothing to compare")
    check_names(contenders)
    check_device(device)
    training = training or Training.of(demos, protocol.horizon)
    data = ScoringSet.of(demos, training, protocol)
    found: dict[str, Scored] = {}
    taken: dict[str, Known] = {}
    for contender in contenders:
        if cells is not None and contender.maker is None:
            cell = kept(cells / file_name(contender.name), _about(contender, demos, protocol, seed))
            if cell is not None:
                found[contender.name] = cell
                continue
        row = None if contender.kind is None else find_known(known, contender, demos, seed)
        if row is not None:
            taken[contender.name] = row
            continue
        check_possible(contender, demos, training)
        if save is not None and contender.kind is not None:
            check_savable(save / file_name(contender.name))
    before = list(found)
    made: dict[str, ActionTokenizer] = {}
    new = [contender for contender in contenders if contender.name not in found | taken]
    broken = {one.name: why for one in new if cells is not None and (why := unreadable(_run(one, cells)))}
    readable = [one for one in new if one.name not in broken]
    waiting = {one.name: why for one in readable if finished and (why := _untrained(one, cells))}

    def show(label: str, start: float, part: float, fraction: float, what: str) -> None:
        progress((start + part * fraction) / len(contenders), f"{label}: {what}")

    for group in _groups([one for one in readable if one.name not in waiting], together):
        folders = [None if cells is None else cells / file_name(contender.name) for contender in group]
        runs = [None if cells is None else _run(contender, cells) for contender in group]
        at = len(found) + len(taken) + len(broken)
        label = group[0].name if len(group) == 1 else f"{len(group)} side by side"

        # Half of a group's time is for the fits, the other half for the scores.
        half, fitting = at + len(group) / 2, functools.partial(show, label, at, len(group) / 2)
        tokenizers = _ready(group, demos, training, seed=seed, runs=runs, device=device, progress=fitting)
        for number, (contender, tokenizer, folder) in enumerate(zip(group, tokenizers, folders, strict=True)):
            name = contender.name
            scoring = functools.partial(show, name, half + number / 2, 0.5)
            try:
                if isinstance(tokenizer, ActionPieceError):
                    raise tokenizer
                if contender.kind is not None and save is not None:
                    tokenizer.save_pretrained(save / file_name(name))
                found[name] = Scored.of(score(tokenizer, data, name=name, progress=scoring))
            except ActionPieceError as error:
                broken[name] = str(error)
                continue
            if contender.maker is not None:
                made[name] = tokenizer
            elif folder is not None:
                keep(folder, _about(contender, demos, protocol, seed), found[name])
    there = {name: one.row for name, one in (found | taken).items()}
    if not there:
        raise ActionPieceError("; ".join(f"{name}: {why}" for name, why in (broken | waiting).items()))
    names = [contender.name for contender in contenders if contender.name in there]
    results: dict[str, Any] = {
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "protocol": asdict(protocol),
        "data": demos.describe(),
        "physical_scales": training.distance.to_dict(),
        "environment": environment(),
        "rows": [there[name] for name in names],
    }
    if before:
        results["finished_before"] = before
        timed_in = {name: found[name].environment for name in before}
        results["timed_in"] = {name: one for name, one in timed_in.items() if one != results["environment"]}
    if taken:
        results["known"] = [one.origin for one in taken.values()]
    pictures = drawings(data, [found[name] for name in names if name in found])
    comparison = Comparison(results, pictures, made, broken, waiting)
    if comparison.absent:
        results["missing"] = [{"table": "", "name": name, "why": why} for name, why in comparison.absent.items()]
    return comparison


def _run(contender: Contender, cells: Path) -> Path:
    """Where a contender keeps its checkpoint."""
    return cells / file_name(contender.name) / "run"


def _untrained(contender: Contender, cells: Path | None) -> str | None:
    """Why a contender cannot take part without a training; None if it can."""
    train = getattr(contender.config, "train", None)
    if train is None:
        return None
    done = None if cells is None else saved_step(_run(contender, cells))
    if done is None:
        return "it is not trained yet"
    return None if done >= train.steps else f"it is trained for {done:,} of {train.steps:,} steps"


def _groups(contenders: Sequence[Contender], together: int) -> list[list[Contender]]:
    """Who is fitted at a time: learned ones in groups, the others alone and before them."""
    learned = [contender for contender in contenders if contender.learned]
    others = [[contender] for contender in contenders if not contender.learned]
    return others + [learned[first : first + together] for first in range(0, len(learned), together)]


def _ready(
    group: Sequence[Contender],
    demos: Demos,
    training: Training,
    *,
    seed: int,
    runs: Sequence[Path | None],
    device: str,
    progress: Progress,
) -> Sequence[ActionTokenizer | ActionPieceError]:
    """The tokenizers of a group of contenders; why, in the place of one that failed."""
    where: dict[str, Any] = {"device": device, "progress": progress}
    try:
        if group[0].learned:
            return fit_together(group, [seed] * len(group), demos, training, runs=runs, draw=seed, **where)
        (contender,), (run,) = group, runs
        resume = saved_step(run) is not None
        return [ready(contender, demos, training, seed=seed, run=run, resume=resume, **where)]
    except ActionPieceError as error:
        if len(group) == 1:
            return [error]
    # One of them cannot be trained at all. Which, shows alone.
    alone = zip(group, runs, strict=True)
    return [_ready([one], demos, training, seed=seed, runs=[run], **where)[0] for one, run in alone]


def _about(contender: Contender, demos: Demos, protocol: Protocol, seed: int) -> dict[str, Any]:
    """Everything that decides a contender's row."""
    return {
        "kind": contender.kind,
        "config": None if contender.config is None else dataclasses.asdict(contender.config),
        "normalizer": contender.normalizer,
        "folder": None if contender.folder is None else load(contender.folder).fingerprint(),
        "seed": seed,
        "data": demos.describe()["fingerprint"],
        "protocol": asdict(protocol),
    }


def replay_comparison(
    out: Path,
    comparison: Comparison,
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
    results, pictures = comparison.results, comparison.pictures
    if "known" in results:
        raise ActionPieceError("rows of an earlier comparison have no tokenizers here that could be replayed")
    chosen = replayable(demos, split=results["protocol"]["split"], most=most)
    tokenizers = {
        c.name: comparison.made.get(c.name) or load(c.folder or out / "tokenizers" / file_name(c.name))
        for c in contenders
    }
    for row in results["rows"]:
        if tokenizers[row["name"]].fingerprint() != row["fingerprint"]:
            raise ActionPieceError(
                f"the tokenizer {row['name']} under {out} is not the one that was scored; compare in another folder"
            )
    replayed = replay(
        demos, tokenizers, episodes=chosen, journal=out / "replay.jsonl", workers=workers, progress=progress
    )
    results["replay"] = {"simulator": simulator(), **replayed}
    pictures["filmstrip"] = filmstrip(replayed, demos, tokenizers)
    write_comparison(out, comparison)


def write_comparison(out: Path, comparison: Comparison) -> list[Path]:
    """Write results.json, tables.md and the reports under `out`: one, or one for each table. Returns the reports."""
    from actionpiece.report import write_report
    from actionpiece.report.page import markdown_page

    results, pictures = comparison.results, comparison.pictures
    write_json(out / "results.json", results)
    with writing(out / "tables.md") as aside:
        aside.write_text(markdown_page(results), encoding="utf-8")
    if "tables" not in results:
        with writing(out / "report.html") as aside:
            write_report(aside, results, pictures)
        return [out / "report.html"]
    reports, by_name = [], {row["name"]: row for row in results["rows"]}
    for table in results["tables"]:
        rows = [by_name[name] for name in table["names"]]
        if not rows:  # the page says who is not there, and why
            continue
        with writing(out / f"{table['name']}.html") as aside:
            write_report(aside, {**results, "rows": rows, "table": table}, only(pictures, table["names"]))
        reports.append(out / f"{table['name']}.html")
    return reports
