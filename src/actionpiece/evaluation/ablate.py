"""The ablation of the paper's appendix: training objectives on one codec, several seeds; `best` and `pq` beside them.

Every cell (a row of the table with a seed) has a folder of its own. A finished one holds `cell.json` and is not redone;
an unfinished one goes on from its checkpoint. Learned cells train side by side.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from actionpiece.arrays import check_device
from actionpiece.data import Demos
from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.contenders import Contender, fit, fit_together, unreadable, with_steps
from actionpiece.evaluation.score import Protocol, ScoringSet, Training, environment, score
from actionpiece.files import read_json, write_json, writing
from actionpiece.tokenizers import ActionTokenizer
from actionpiece.tokenizers.actionpiece import ActionPieceConfig, best, rvq
from actionpiece.tokenizers.base import Progress
from actionpiece.tokenizers.pq import PQConfig

CELL = "cell.json"


@dataclass(frozen=True)
class Row:
    """A row of the table. paper: its MSE and PRC there, where it has the row."""

    label: str
    kind: str
    config: Any
    paper: tuple[float, float] | None = None


def _with(**weights: float) -> ActionPieceConfig:
    """Standard RVQ with further objectives."""
    plain = rvq()
    return replace(plain, train=replace(plain.train, weights=plain.train.weights | weights))


#: The paper gives the weights of PRP and QR. The others' are ours: of 1e-3, 1e-2 and 1e-1 (for Neighborhood 6.25e-4,
#: 6.25e-3 and 6.25e-2), after 8,000 steps on LIBERO, seed 0, the one with the least error on 10,000 validation chunks.
ROWS: dict[str, Row] = {
    "rvq": Row("Standard RVQ", "actionpiece", rvq(), (4.06e-4, 0.902)),
    "sigreg": Row("+ SIGReg", "actionpiece", _with(sigreg=1e-2), (3.77e-4, 0.950)),
    "neighborhood": Row("+ Neighborhood", "actionpiece", _with(neighborhood=6.25e-3), (5.09e-4, 0.889)),
    "temporal": Row("+ Temporal", "actionpiece", _with(temporal=1e-2), (3.83e-4, 0.924)),
    "prp": Row("+ PRP", "actionpiece", _with(physical_rank=6.25e-4), (3.63e-4, 0.947)),
    "qr": Row("+ QR", "actionpiece", _with(quantization_order=6.25e-4), (3.92e-4, 0.916)),
    "actionpiece": Row("ActionPiece (PRP + QR)", "actionpiece", ActionPieceConfig(), (3.32e-4, 0.953)),
    "actionpiece-q2": Row("ActionPiece, Q=2, S=8", "actionpiece", ActionPieceConfig(slots=8, levels=2)),
    "best": Row("best", "actionpiece", best()),
    "pq": Row("pq", "pq", PQConfig()),
}


@dataclass(frozen=True)
class _Cell:
    row: Row
    seed: int
    folder: Path
    about: dict[str, Any]

    @property
    def contender(self) -> Contender:
        return Contender(self.row.label, self.row.kind, self.row.config)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def finished(self) -> bool:
        return (self.folder / CELL).is_file()

    def failed(self, why: str) -> str:
        return f"{self.row.label}, seed {self.seed}: {why}"


def ablate(
    demos: Demos,
    out: Path,
    *,
    rows: Sequence[str] = tuple(ROWS),
    seeds: Sequence[int] = (0,),
    protocol: Protocol | None = None,
    steps: int | None = None,
    device: str = "cpu",
    together: int = 8,
    finished: bool = False,
    command: str = "",
    progress: Progress = lambda fraction, what: None,
) -> dict[str, Any]:
    """Train and score every cell that is not finished, and write the table; returns it.

    steps: of the learned rows, where it is not to be their recipe's.
    together: learned cells that train side by side.
    finished: train nothing, write the table of the cells that are finished.
    """
    unknown = [name for name in rows if name not in ROWS]
    if unknown:
        raise ActionPieceError(f"there is no row '{unknown[0]}'; there are {', '.join(ROWS)}")
    check_device(device)
    if not rows or not seeds:
        raise ActionPieceError("an ablation needs at least one row and one seed")
    for what, given in (("row", rows), ("seed", seeds)):
        twice = [one for number, one in enumerate(given) if one in given[:number]]
        if twice:  # the same cell would count as several, and make a deviation look small
            raise ActionPieceError(f"the {what} {twice[0]} is named twice")
    if together < 1 or (steps is not None and steps < 1):
        raise ActionPieceError("at least one step and one cell at a time are needed")
    protocol = protocol or Protocol()
    training = Training.of(demos, protocol.horizon)
    data = ScoringSet.of(demos, training, protocol)
    cells = [_cell(out, name, seed, steps, demos, protocol) for name in rows for seed in seeds]
    if finished:
        cells = [cell for cell in cells if cell.finished]
        if not cells:
            raise ActionPieceError(f"no cell of these rows and seeds is finished in {out}")
    for cell in cells:
        _check_same(cell)
    waiting, broken = list[_Cell](), list[str]()
    for cell in cells:
        if not cell.finished:
            why = unreadable(cell.run)
            broken += [cell.failed(why)] if why else []
            waiting += [] if why else [cell]
    learned = [cell for cell in waiting if cell.contender.learned]
    groups = [[cell] for cell in waiting if not cell.contender.learned]
    groups += [learned[i : i + together] for i in range(0, len(learned), together)]
    for number, group in enumerate(groups):

        def show(fraction: float, what: str, number: int = number, group: list[_Cell] = group) -> None:
            names = group[0].row.label if len(group) == 1 else f"{len(group)} side by side"
            progress((number + fraction) / len(groups), f"{names}: {what}")

        for cell, tokenizer in zip(group, _fit(group, demos, training, device, show), strict=True):
            if isinstance(tokenizer, ActionPieceError):
                broken.append(cell.failed(str(tokenizer)))
                continue
            tokenizer.save_pretrained(cell.folder / "tokenizer")
            row = score(tokenizer, data, name=cell.row.label).row
            write_json(cell.folder / CELL, {"about": cell.about, "row": row})
    if broken:  # what came to its end is kept; a table without the rest would look whole
        raise ActionPieceError(
            f"{'; '.join(broken)}. Cells that are finished are kept; --finished makes a table of them"
        )
    results: dict[str, Any] = {
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "protocol": dataclasses.asdict(protocol),
        "data": demos.describe(),
        "physical_scales": training.distance.to_dict(),
        "environment": environment(),
        "cells": [read_json(cell.folder / CELL) for cell in cells],
    }
    results["table"] = table(results["cells"])
    write_json(out / "ablation.json", results)
    with writing(out / "ablation.md") as aside:
        aside.write_text(page(results), encoding="utf-8")
    from actionpiece.report.ablation import draw

    with writing(out / "ablation.svg") as aside:
        draw(results["table"], aside)
    return results


def _cell(out: Path, name: str, seed: int, steps: int | None, demos: Demos, protocol: Protocol) -> _Cell:
    row = ROWS[name]
    if steps is not None and row.kind == "actionpiece":
        row = replace(row, config=with_steps(row.config, steps))
    about = {
        "row": name,
        "label": row.label,
        "paper": row.paper,
        "seed": seed,
        "config": dataclasses.asdict(row.config),
        "data": demos.describe()["fingerprint"],
        "protocol": dataclasses.asdict(protocol),
    }
    plain: dict[str, Any] = json.loads(json.dumps(about))  # tuples as lists, the way they come back from a file
    return _Cell(row, seed, out / "cells" / f"{name}-{seed}", plain)


def _check_same(cell: _Cell) -> None:
    if not cell.finished:
        return
    saved = read_json(cell.folder / CELL)["about"]
    different = [key for key in cell.about if saved.get(key) != cell.about[key]]
    if different:
        raise ActionPieceError(
            f"{cell.folder} was not made with the same {' and '.join(different)}; write to another folder or remove it"
        )


def _fit(
    group: list[_Cell], demos: Demos, training: Training, device: str, progress: Progress
) -> Sequence[ActionTokenizer | ActionPieceError]:
    if group[0].contender.learned:
        return fit_together(
            [cell.contender for cell in group],
            [cell.seed for cell in group],
            demos,
            training,
            runs=[cell.run for cell in group],
            device=device,
            progress=progress,
        )
    (cell,) = group
    kind, config = cell.row.kind, cell.row.config
    return [fit(kind, demos, training, config=config, seed=cell.seed, draw=0, device=device, progress=progress)]


def table(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per row: means and (sample) standard deviations over its seeds, the paper's figures beside them."""
    entries = []
    for name in dict.fromkeys(cell["about"]["row"] for cell in cells):
        mine = [cell for cell in cells if cell["about"]["row"] == name]
        entry: dict[str, Any] = {"row": name, "label": mine[0]["about"]["label"], "paper": mine[0]["about"]["paper"]}
        entry["seeds"] = [cell["about"]["seed"] for cell in mine]
        for key in ("mse", "prc", "prc_across_episodes", "codes_used"):
            values = [cell["row"][key] for cell in mine if cell["row"][key] is not None]
            entry[key] = statistics.mean(values) if values else None
            entry[f"{key}_spread"] = statistics.stdev(values) if len(values) > 1 else None
        entries.append(entry)
    return entries


def page(results: dict[str, Any]) -> str:
    """The Markdown page of an ablation."""
    from actionpiece.report.text import plain

    data, protocol = results["data"], results["protocol"]
    count = results["cells"][0]["row"]["n"]
    note = f" ({plain(data['note'])})" if data["note"] else ""
    lines = [
        f"# Ablation on {plain(data['name'])}{note}",
        "",
        f"Made by `{plain(results['command'])}`.",
        "Every cell with its settings, versions and device is in the JSON file beside this page.",
        f"{count:,} chunks of {protocol['horizon']} steps of the {protocol['split']} episodes,"
        f" PRC@{protocol['k']}; mean ± standard deviation over seeds.",
        "The paper's figures are from other data and are marked as its.",
        "",
        "| row | MSE x1e-4 | PRC | PRC across episodes | codes used % | seeds | paper's MSE x1e-4 | paper's PRC |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for entry in results["table"]:
        theirs = (f"{1e4 * entry['paper'][0]:.2f}", f"{entry['paper'][1]:.3f}") if entry["paper"] else ("-", "-")
        cells = [
            _figure(entry, "mse", 1e4, 3),
            _figure(entry, "prc", 1, 4),
            _figure(entry, "prc_across_episodes", 1, 4),
            _figure(entry, "codes_used", 100, 1),
            str(len(entry["seeds"])),
            *theirs,
        ]
        lines.append(f"| {entry['label']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _figure(entry: dict[str, Any], key: str, factor: float, digits: int) -> str:
    if entry[key] is None:
        return "-"
    spread = entry[f"{key}_spread"]
    text = f"{factor * entry[key]:.{digits}f}"
    return text if spread is None or math.isnan(spread) else f"{text} ± {factor * spread:.{digits}f}"
