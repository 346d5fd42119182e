"""Rows that an earlier comparison wrote: taken as they are, so that a table grows without training the others again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actionpiece.data import Demos
from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.contenders import Contender
from actionpiece.evaluation.score import Protocol
from actionpiece.files import read_json


@dataclass(frozen=True)
class Known:
    """A row of an earlier comparison, and the file where it stands.

    made: what decided it. origin: the comparison that measured it, as plain data: the row's `name`, and the `command`,
    `created` and `environment` of that comparison.
    """

    file: Path
    row: dict[str, Any]
    made: dict[str, Any]
    origin: dict[str, Any]

    def check(self, contender: Contender, demos: Demos, seed: int) -> None:
        """An error if the row is not that of the contender, were it fitted here by the code of then."""
        shared = {"kind": contender.kind, "normalizer": contender.normalizer, "seed": seed}
        shared["training data"] = demos.fingerprint()
        # Of the configurations that a fit may end with, the one that is nearest.
        different = min(
            (_different(self.made, shared | {"config": config}) for config in _configs(contender.config)), key=len
        )
        if different:
            raise ActionPieceError(
                f"{self.file}: its row of {contender.name} differs from what is asked for: {'; '.join(different)}; ask"
                " for the same, or leave the file out"
            )


def read_known(files: Sequence[Path], demos: Demos, protocol: Protocol) -> dict[str, Known]:
    """The rows of these results.json by their names; where several have one, that of the first.

    A file of other data or of another protocol is an error.
    """
    found: dict[str, Known] = {}
    for file in files:
        results = read_json(file)
        try:
            fingerprint, theirs = results["data"]["fingerprint"], {**results["protocol"]}
            rows = _rows(file, results)
        except (KeyError, TypeError, AttributeError):
            raise ActionPieceError(f"{file} is no results.json of `actionpiece compare`") from None
        if fingerprint != demos.fingerprint():
            raise ActionPieceError(
                f"{file} is of other data than {demos.name}, or of the same with another card, --space, --action-key or"
                " --drop-idle"
            )
        different = _different(theirs, asdict(protocol))
        if different:
            raise ActionPieceError(f"{file} was scored by another protocol: {'; '.join(different)}")
        _check_drawable(file, results)
        found = rows | found
    return found


def _check_drawable(file: Path, results: dict[str, Any]) -> None:
    """An error if a report cannot be made of these rows: better known now than after the last fit."""
    from actionpiece.report.html import page

    nothing: dict[str, Any] = {key: {} for key in ("code_counts", "rho", "chunk_mse")}
    try:
        page(results, {"labels": [], "rate": None, "chunks": [], **nothing})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ActionPieceError(
            f"{file} lacks what a report needs ({error}); was it written by another version?"
        ) from None


def _different(there: Any, here: Any, within: str = "") -> list[str]:
    """What differs between plain data there and here, setting by setting."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return [] if there == here else [f"{within} is {there} there and {here} here"]
    names = {key: f"{within}.{key}" if within else key for key in {**here, **there}}
    return [one for key, name in names.items() for one in _different(there.get(key), here.get(key), name)]


def _rows(file: Path, results: dict[str, Any]) -> dict[str, Known]:
    here = {key: results[key] for key in ("command", "created", "environment")}
    before = {one["name"]: one for one in results.get("known", ())}  # what that comparison has taken itself
    rows = {}
    for row in results["rows"]:
        name, made = row["name"], {key: row[key] for key in ("kind", "config", "normalizer", "seed")}
        # The row of a folder may have a kind's name, and be fitted elsewhere.
        made["training data"] = row["fitted_on"].get("data", {}).get("fingerprint")
        rows[name] = Known(file, row, made, before.get(name, {"name": name, **here}))
    return rows


def _configs(config: Any) -> list[Any]:
    """A configuration as it may stand in a row: plain data, with what a fit chooses where that is left open."""
    outcomes = config.outcomes() if hasattr(config, "outcomes") else [config]
    plain: list[Any] = json.loads(json.dumps([asdict(one) for one in outcomes]))  # tuples as lists, as in the file
    return plain
