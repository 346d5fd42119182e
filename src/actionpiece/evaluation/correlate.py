"""Read what other commands wrote, or a plain table, and ask whether lower error or higher PRC goes with success.

Groups come from files: a file of `compare --replay` or `replay` is a group (or one for each of its tasks), rollouts of
several policies on the same tasks are one, and a table names its own. Files without success are looked through for the
error and PRC of tokenizers that others only name, and files that `correlate` wrote itself are passed over.
"""

from __future__ import annotations

import csv
import datetime
import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from actionpiece.errors import ActionPieceError
from actionpiece.files import NO_FINGERPRINT, read_json, sha256_of, write_json, writing
from actionpiece.metrics.correlation import LEAST, Group, correlate, normalized_ranks

By = Literal["file", "task"]
_COLUMNS = ("group", "tokenizer", "mse", "prc")
_SETTINGS = ("seed", "execute", "size", "published")  # by which rollouts of one group may not differ
_OURS = {"fidelity", "prc", "difference", "left_out"}  # what a file of `write_correlation` has, and no other
_KINDS = "what compare, replay, rollout or ablate writes, nor a table with the columns group, tokenizer, mse and prc"


@dataclass(frozen=True)
class Evaluation:
    """One tokenizer in one group; None is what a file does not say. key: its fingerprint, where that is known."""

    group: str
    tokenizer: str
    mse: float | None
    prc: float | None
    success: float | None
    key: str | None = None


@dataclass(frozen=True)
class _File:
    """A file to read. tokenizer: that of a rollout, as it was named. content: the rows of CSV, or what JSON holds."""

    path: Path
    tokenizer: str | None
    content: Any
    sha256: str


@dataclass
class _Scores:
    """Error and PRC of tokenizers, by fingerprint and by name; a name that stands for several values is no answer.

    rollouts: of each group of rollouts those that were read, with their settings.
    """

    found: list[tuple[str | None, str | None, tuple[float, float]]] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    rollouts: dict[str, list[tuple[Path, dict[str, Any]]]] = field(default_factory=dict)

    def group(self, name: str, path: Path) -> str:
        """A group's name; a file of the same name as an earlier one is a group of its own."""
        own = f"{name} ({path})" if name in self.groups else name
        self.groups.add(own)
        return own

    def join(self, group: str, path: Path, settings: dict[str, Any]) -> None:
        """Take a rollout into a group, where all must have met the same starts and looked alike."""
        others = self.rollouts.setdefault(group, [])
        for other, theirs in others:
            different = [key for key in settings if key in theirs and settings[key] != theirs[key]]
            if different:
                raise ActionPieceError(
                    f"{path} was rolled out with another {' and '.join(different)} than {other}, so they are no group"
                )
        others.append((path, settings))

    def add(self, what: str, row: dict[str, Any], key: str | None, name: str | None) -> None:
        """Take the figures of a row. key, name: the tokenizer's, where known."""
        mse, prc = (_number(row.get(figure), f"{what}: {figure}") for figure in ("mse", "prc"))
        if mse is not None and prc is not None:
            self.found.append((key, name, (mse, prc)))

    def fill(self, one: Evaluation) -> Evaluation:
        """The evaluation with the error and PRC that other files give for it."""
        if one.mse is not None and one.prc is not None:
            return one
        known = {figures for key, _, figures in self.found if one.key is not None and key == one.key}
        if not known:  # a name is an answer unless both sides have a fingerprint: then it is another of that name
            named = ((key, figures) for key, name, figures in self.found if name == one.tokenizer)
            known = {figures for key, figures in named if key is None or one.key is None}
        if len(known) > 1:
            raise ActionPieceError(
                f"the files give several errors for the tokenizer '{one.tokenizer}'; name only those of one data set"
            )
        for mse, prc in known:
            return Evaluation(one.group, one.tokenizer, mse, prc, one.success, one.key)
        return one


def read(files: Sequence[str], *, success: str = "success", by: By = "file") -> list[Evaluation]:
    """The evaluations in these files, grouped. A rollout is named with its tokenizer: `pq=runs/pq/results.json`."""
    return _evaluations(_open(files), success, by)


def _open(files: Sequence[str]) -> list[_File]:
    found: list[_File] = []
    for text in files:
        name, equals, place = text.partition("=")
        path = Path(place if equals and not Path(text).exists() else text)
        content = _csv(path) if path.suffix == ".csv" else read_json(path)
        if isinstance(content, dict) and content.keys() >= _OURS:
            continue  # --out may be the folder of what is read
        one = _File(path, name if path != Path(text) else None, content, sha256_of([path]))
        for other in found:
            if other.sha256 == one.sha256:  # one experiment would count as two
                same = other.path.resolve() == path.resolve()
                raise ActionPieceError(f"{path} is named twice" if same else f"{path} is a copy of {other.path}")
        found.append(one)
    if files and not found:
        raise ActionPieceError("these files are what correlate wrote itself; name those that it is to read")
    return found


def _evaluations(files: Sequence[_File], success: str, by: By) -> list[Evaluation]:
    scores = _Scores()
    found = [one for file in files for one in _read(file, success, by, scores)]
    filled = [scores.fill(one) for one in found]
    seen = set()
    for one in filled:
        if (one.group, one.tokenizer) in seen:
            raise ActionPieceError(f"the tokenizer '{one.tokenizer}' is twice in the group '{one.group}'")
        seen.add((one.group, one.tokenizer))
    return filled


def _read(file: _File, column: str, by: By, scores: _Scores) -> Iterator[Evaluation]:
    path, document = file.path, file.content
    if path.suffix == ".csv":
        yield from _table(path, document, column)
        return
    if isinstance(document, list) and document and all(isinstance(row, dict) and "group" in row for row in document):
        yield from _table(path, document, column)
        return
    for part in document if isinstance(document, list) else [document]:
        if not isinstance(part, dict):
            raise ActionPieceError(f"{path} is neither {_KINDS}")
        try:
            if "overall" in part and "tasks" in part:
                yield from _rollout(file, part, column, by, scores)
            elif "cells" in part and "table" in part:
                yield from _ablation(path, part, column, scores)
            elif "rows" in part and all(isinstance(row, dict) and "name" in row for row in part["rows"]):
                yield from _compared(path, part, column, by, scores)
            else:
                raise ActionPieceError(f"{path} is neither {_KINDS}")
        except (KeyError, TypeError, AttributeError, ValueError) as error:  # a file that only looks like ours
            raise ActionPieceError(f"{path} is neither {_KINDS}: {type(error).__name__} {error}") from None


def _csv(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ActionPieceError(f"{path} is not a readable CSV file: {error}") from None


def _table(path: Path, rows: Sequence[dict[str, Any]], column: str) -> Iterator[Evaluation]:
    for number, row in enumerate(rows, 1):
        lacking = [name for name in (*_COLUMNS, column) if name not in row]
        if lacking:
            raise ActionPieceError(f"{path}, row {number}: there is no column '{lacking[0]}'")
        mse, prc, success = (_number(row[key], f"{path}, row {number}: {key}") for key in ("mse", "prc", column))
        yield Evaluation(str(row["group"]), str(row["tokenizer"]), mse, prc, success)


def _key(one: dict[str, Any]) -> str | None:
    """What names a tokenizer beyond doubt; those of code from elsewhere have nothing of the kind."""
    found = one.get("fingerprint")
    return None if found == NO_FINGERPRINT else found


def _number(value: Any, what: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ActionPieceError(f"{what} must be a finite number, not {value!r}")
    return number


def _rollout(file: _File, part: dict[str, Any], column: str, by: By, scores: _Scores) -> Iterator[Evaluation]:
    path = file.path
    if file.tokenizer is None:
        raise ActionPieceError(f"{path} is a rollout, which does not say its tokenizer: write TOKENIZER={path}")
    if part.get("errors"):
        raise ActionPieceError(f"{path}: {part['errors']} episodes crashed; run that rollout once more first")
    shares = dict(part["tasks"]) if by == "task" else {", ".join(sorted(part["tasks"])): part["overall"]}
    beside = path.with_name("settings.json")  # where the rollout was made
    said = part["settings"] if "settings" in part else read_json(beside) if beside.is_file() else {}
    settings = {key: said[key] for key in _SETTINGS if key in said}
    for task, share in shares.items():
        value = _number((share or {}).get(column), f"{path}: {column}")
        scores.join(f"rollouts of {task}", path, settings)
        yield Evaluation(f"rollouts of {task}", file.tokenizer, None, None, value, part.get("tokenizer"))


def _ablation(path: Path, part: dict[str, Any], column: str, scores: _Scores) -> Iterator[Evaluation]:
    for cell in part["cells"]:
        scores.add(str(path), cell["row"], _key(cell["row"]), None)
    for entry in part["table"]:
        scores.add(str(path), entry, None, entry["row"])
    if any(column in entry for entry in part["table"]):
        group = scores.group(f"ablation on {part['data']['name']}", path)
        for entry in part["table"]:
            mse, prc, value = (_number(entry.get(key), f"{path}: {key}") for key in ("mse", "prc", column))
            yield Evaluation(group, entry["row"], mse, prc, value)


def _compared(path: Path, part: dict[str, Any], column: str, by: By, scores: _Scores) -> Iterator[Evaluation]:
    """Rows of compare, with a replay or a column of success; or of replay, whose tokenizers are scored elsewhere."""
    rows = {row["name"]: row for row in part["rows"]}
    for name, row in rows.items():
        scores.add(f"{path}: {name}", row, _key(row), name)
    prints = {name: _key(one) for name, one in part.get("tokenizers", {}).items()}
    if "pairs" in part:  # a replay: the raw commands are no tokenizer
        rows = {name: row for name, row in rows.items() if name in prints}
    replayed = {row["name"]: row for row in part.get("replay", {}).get("rows", ())}
    if not any(column in row for row in (*rows.values(), *replayed.values())):
        return
    group = scores.group(part.get("data", {}).get("name") or path.stem, path)
    for name, row in rows.items():
        source = row if column in row else replayed.get(name, {})
        values = {group: source.get(column)}
        if by == "task" and "tasks" in source:
            values = {f"{group}: {task}": share.get(column) for task, share in source["tasks"].items()}
        for label, value in values.items():
            success = _number(value, f"{path}: {column} of {name}")
            mse, prc = (_number(row.get(key), f"{path}: {key} of {name}") for key in ("mse", "prc"))
            yield Evaluation(label, name, mse, prc, success, prints.get(name))


def analyse(
    files: Sequence[str],
    *,
    success: str = "success",
    by: By = "file",
    resamples: int = 10_000,
    seed: int = 0,
    command: str = "",
) -> dict[str, Any]:
    """Correlate within-group ranks of error and PRC with those of success; plain results."""
    if resamples < 100:
        raise ActionPieceError(f"an interval needs at least 100 resamples, not {resamples}")
    opened = _open(files)
    evaluations = _evaluations(opened, success, by)
    whole = [one for one in evaluations if None not in (one.mse, one.prc, one.success)]
    groups = []
    for name in dict.fromkeys(one.group for one in evaluations):
        mine = [one for one in whole if one.group == name]
        columns = (np.array([getattr(one, key) for one in mine], float) for key in ("mse", "prc", "success"))
        groups.append(Group(name, tuple(one.tokenizer for one in mine), *columns))
    if not any(group.unusable is None for group in groups):
        why = (
            "; ".join(f"{group.name}: {group.unusable}" for group in groups)
            or f"none has a column '{success}' (compare --replay and rollout write one)"
        )
        raise ActionPieceError(f"no group of {LEAST} or more tokenizers differs in error, PRC and {success} ({why})")
    result = correlate(groups, resamples=resamples, seed=seed)
    from actionpiece import __version__

    return {
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "files": [{"name": str(one.path), "sha256": one.sha256} for one in opened],
        "success": success,
        "by": by,
        "evaluations": result.evaluations,
        **{key: asdict(getattr(result, key)) for key in ("fidelity", "prc", "difference")},
        "groups": [_group(group, result.within[group.name]) for group in result.groups],
        "left_out": [{"group": name, "why": why} for name, why in result.left_out.items()],
        "incomplete": [
            {
                "group": one.group,
                "tokenizer": one.tokenizer,
                "lacks": [key for key in ("mse", "prc", "success") if getattr(one, key) is None],
            }
            for one in evaluations
            if one not in whole
        ],
        "resamples": result.resamples,
        "seed": seed,
        "environment": {"actionpiece": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }


def _group(group: Group, within: tuple[float, float]) -> dict[str, Any]:
    ranks = [normalized_ranks(values).tolist() for values in (-group.mse, group.prc, group.success)]
    columns = zip(group.tokenizers, group.mse, group.prc, group.success, *ranks, strict=True)
    keys = ("tokenizer", "mse", "prc", "success", "rank_fidelity", "rank_prc", "rank_success")
    rows = [dict(zip(keys, (name, *map(float, figures)), strict=True)) for name, *figures in columns]
    return {"name": group.name, "fidelity": within[0], "prc": within[1], "rows": rows}


def write_correlation(out: Path, results: dict[str, Any]) -> None:
    """Write correlation.json, correlation.md and correlation.svg under `out`."""
    from actionpiece.report.correlation import draw, page

    write_json(out / "correlation.json", results)
    with writing(out / "correlation.md") as aside:
        aside.write_text(page(results), encoding="utf-8")
    with writing(out / "correlation.svg") as aside:
        draw(results, aside)
