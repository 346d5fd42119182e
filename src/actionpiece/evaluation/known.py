"""Rows that an earlier comparison wrote: taken as they are, so that a table grows without training the others again."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from actionpiece.data import Demos
from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.contenders import Contender
from actionpiece.evaluation.score import Protocol, Training
from actionpiece.files import not_finite, read_json
from actionpiece.tokenizers import KINDS, RECIPES


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

    def asked_alike(self, contender: Contender) -> bool:
        """Whether its name asked for the contender in other words.

        A user's own code may do otherwise with the same settings, and where a fit chooses, what it came to does not
        say among what.
        """
        name = self.row["name"]
        if name.partition(":")[0] not in {*KINDS, *RECIPES}:
            return False
        try:
            asked = Contender.parse(name)
        except ActionPieceError:
            return False  # it asks for what is not there in this version
        return asked.kind == contender.kind and _untrained(asked.config) == _untrained(contender.config)

    def different(self, contender: Contender, demos: Demos, seed: int) -> list[str]:
        """How the row differs from that of the contender, were it fitted here by the code of then."""
        shared = {"kind": contender.kind, "normalizer": contender.normalizer, "seed": seed}
        shared["training data"] = demos.fingerprint()
        # Of the configurations that a fit may end with, the one that is nearest.
        return min(
            (_different(self.made, shared | {"config": config}) for config in _configs(contender.config)), key=len
        )

    def named(self, name: str) -> Known:
        """The same by another name."""
        return replace(self, row=self.row | {"name": name}, origin=self.origin | {"name": name})


def find_known(known: Sequence[Known], contender: Contender, demos: Demos, seed: int) -> Known | None:
    """The first of these rows that is the contender's, however it was spelled, by the contender's name.

    Where there is none, a row of that name is an error: it was made otherwise.
    """
    otherwise: str | None = None
    for one in known:
        same_name = one.row["name"] == contender.name
        if not same_name and not one.asked_alike(contender):
            continue
        different = one.different(contender, demos, seed)
        if not different:
            return one.named(contender.name)
        if same_name and otherwise is None:
            otherwise = (
                f"{one.file}: its row of {contender.name} differs from what is asked for: {'; '.join(different)}"
            )
    if otherwise is not None:
        raise ActionPieceError(f"{otherwise}; ask for the same, or leave the file out")
    return None


def read_known(files: Sequence[Path], demos: Demos, training: Training, protocol: Protocol) -> list[Known]:
    """The rows of these results.json. A file of other data, another protocol or other physical scales is an error."""
    found: list[Known] = []
    for file in files:
        results = read_json(file)
        try:
            fingerprint, theirs = results["data"]["fingerprint"], {**results["protocol"]}
            scales = {**results["physical_scales"]}
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
        different = _different(scales, training.distance.to_dict())
        if different:
            raise ActionPieceError(f"{file} was scored with other physical scales: {'; '.join(different)}")
        _check_drawable(file, results)
        found += rows
    return found


def check_same_comparison(
    file: Path, contenders: Sequence[Contender], demos: Demos, protocol: Protocol, *, seed: int, overwrite: bool
) -> None:
    """An error if something were lost by writing this results.json anew.

    That is, if it is no comparison's; and, without `overwrite`, if it has rows that this comparison does not make
    again.
    """
    if not file.exists():
        return
    here = {contender.name: contender for contender in contenders}
    try:
        results = read_json(file)
        alike = results["data"]["fingerprint"] == demos.fingerprint() and results["protocol"] == asdict(protocol)
        alike = (
            alike
            and results["seed"] == seed
            and all(
                (contender := here.get(one.row["name"])) is not None
                and (contender.kind is None or not one.different(contender, demos, seed))
                for one in _rows(file, results)
            )
        )
    except (ActionPieceError, KeyError, TypeError, AttributeError):
        raise ActionPieceError(f"{file} is no comparison's, so it is not overwritten; choose another folder") from None
    if not (alike or overwrite):
        raise ActionPieceError(
            f"{file} is of another comparison ({results['command'] or 'made in Python'}): choose another folder, or"
            " --overwrite replaces it"
        )


def _check_drawable(file: Path, results: dict[str, Any]) -> None:
    """An error if a report cannot be made of these rows: better known now than after the last fit."""
    from actionpiece.report.html import page

    nothing: dict[str, Any] = {key: {} for key in ("code_counts", "rho", "chunk_mse")}
    try:
        for row in results["rows"]:
            if {group["name"] for group in row["groups"]} != results["physical_scales"].keys():
                raise KeyError("groups")  # of the action space
        page(results, {"labels": [], "rate": None, "chunks": [], **nothing})
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ActionPieceError(
            f"{file} lacks what a report needs ({error}); was it written by another version?"
        ) from None


def _different(there: Any, here: Any, within: str = "") -> list[str]:
    """What differs between plain data there and here, setting by setting."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        alike = there == here
        if isinstance(there, float) and isinstance(here, float):
            alike = math.isclose(there, here, rel_tol=1e-9)  # another machine adds up in another order
        return [] if alike else [f"{within} is {there} there and {here} here"]
    names = {key: f"{within}.{key}" if within else key for key in {**here, **there}}
    return [one for key, name in names.items() for one in _different(there.get(key), here.get(key), name)]


def _rows(file: Path, results: dict[str, Any]) -> list[Known]:
    here = {key: results[key] for key in ("command", "created", "environment")}
    timed_in = results.get("timed_in", {})
    before = {one["name"]: one for one in results.get("known", ())}  # what that comparison has taken itself
    rows = []
    for row in results["rows"]:
        if odd := not_finite(row):
            raise ActionPieceError(f"{file}: in its row of {row['name']} {odd}, which is no figure")
        name, made = row["name"], {key: row[key] for key in ("kind", "config", "normalizer", "seed")}
        # The row of a folder may have a kind's name, and be fitted elsewhere.
        made["training data"] = row["fitted_on"].get("data", {}).get("fingerprint")
        origin = {"name": name, **here, "environment": timed_in.get(name, here["environment"])}
        rows.append(Known(file, row, made, before.get(name, origin)))
    return rows


def _untrained(config: Any) -> dict[str, Any]:
    """The settings but for those of the training, which options of the command change."""
    return {key: value for key, value in asdict(config).items() if key != "train"}


def _configs(config: Any) -> list[Any]:
    """A configuration as it may stand in a row: plain data, with what a fit chooses where that is left open."""
    outcomes = config.outcomes() if hasattr(config, "outcomes") else [config]
    plain: list[Any] = json.loads(json.dumps([asdict(one) for one in outcomes]))  # tuples as lists, as in the file
    return plain
