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
        """An error if the row is not that of the contender, were it fitted here."""
        wanted = {
            "kind": [contender.kind],
            "config": _configs(contender.config),
            "normalizer": [contender.normalizer],
            "seed": [seed],
            "training data": [demos.fingerprint()],
        }
        different = [key for key, values in wanted.items() if self.made[key] not in values]
        if different:
            raise ActionPieceError(
                f"{self.file}: its row of {contender.name} differs in {' and '.join(different)} from what is asked for;"
                " ask for the same, or leave the file out"
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
            raise ActionPieceError(f"{file} is of other data than {demos.name}, or of the same with another card")
        ours = asdict(protocol)
        different = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
        if different:
            said = "; ".join(f"{key} is {theirs.get(key)} there and {ours.get(key)} here" for key in different)
            raise ActionPieceError(f"{file} was scored by another protocol: {said}")
        found = rows | found
    return found


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
