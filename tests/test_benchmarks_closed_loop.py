"""The closed loop's table takes rollouts that are matched, and no others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from actionpiece.errors import ActionPieceError
from scripts import script

SCORE = {"tokens_per_chunk": 16, "bits_per_chunk": 144, "mse": 1e-4, "prc": 0.9, "fingerprint": "f"}


@pytest.fixture
def closed_loop() -> Any:
    return script("closed_loop")


def made(folder: Path, successes: dict[str, list[bool]], **settings: Any) -> None:
    folder.mkdir()
    said = {"execute": 8, "size": 96, "published": False, "seed": 7, **settings}
    (folder / "settings.json").write_text(json.dumps(said))
    lines = [
        {"key": f"{task} {n}", "task": task, "category": "robosuite", "success": done, "steps": 9, "cost": None}
        for task, row in successes.items()
        for n, done in enumerate(row)
    ]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def options(module: Any, folder: Path, *names: str) -> Any:
    rows = [{"name": name, **SCORE} for name in names]
    facts = {"rows": rows, "data": {}, "protocol": {"split": "test"}, "environment": {}}
    (folder / "results.json").write_text(json.dumps(facts))
    rollouts = tuple(f"{name}={folder / name}" for name in names)
    return module.Options(folder / "results.json", rollouts, folder / "out")


def test_the_table_counts_and_pairs(closed_loop: Any, tmp_path: Path) -> None:
    made(tmp_path / "pq", {"lift": [True, True, False], "door": [False, True, True]})
    made(tmp_path / "fast", {"lift": [True, False, False], "door": [False, False, True]})
    closed_loop.main(options(closed_loop, tmp_path, "pq", "fast"))
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["overall"]["successes"] for row in rows] == [4, 2]
    assert rows[0]["paired_with_first"] is None
    assert (rows[1]["paired_with_first"]["only_first"], rows[1]["paired_with_first"]["only_second"]) == (0, 2)
    assert "| `fast` | 16 | 1 | 0.9000 | 1/3 | 1/3 | 33.3%" in (tmp_path / "out.md").read_text()
    assert (tmp_path / "out.svg").read_text().startswith("<?xml")


def test_what_the_policies_did_on_episodes_held_out_stands_beside(closed_loop: Any, tmp_path: Path) -> None:
    for name, accuracy in (("pq", 0.25), ("fast", 0.5)):
        made(tmp_path / name, {"lift": [True, False]})
        looks = [{"step": 10, "loss": 1.0}]
        looks += [
            {"step": step, "val_accuracy": share, "val_translation_mm": 12.34, "val_rotation_deg": 4.0}
            for step, share in ((20, 0.9), (30, accuracy))
        ]
        looks.append({"step": 31, "loss": 0.5})
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(look) + "\n" for look in looks))
    matched = options(closed_loop, tmp_path, "pq", "fast")
    logs = tuple(f"{name}={tmp_path / name}.jsonl" for name in ("pq", "fast"))
    closed_loop.main(dataclasses.replace(matched, logs=logs))
    assert "| `fast` | 16 | 1 | 0.9000 | 50% | 12.3 | 4.0 | 1/2 |" in (tmp_path / "out.md").read_text()
    with pytest.raises(ActionPieceError, match="--logs has no fast"):
        closed_loop.gather(dataclasses.replace(matched, logs=logs[:1]))
    with pytest.raises(ActionPieceError, match="'pq' is not of the form NAME=PLACE"):
        closed_loop.gather(dataclasses.replace(matched, logs=("pq",)))
    with pytest.raises(ActionPieceError, match="a log of oat, but no rollout"):
        closed_loop.gather(dataclasses.replace(matched, logs=(*logs, "oat=x")))


@pytest.mark.parametrize(
    ("successes", "settings", "sentence"),
    [
        ({"lift": [True]}, {}, "fast and pq have not finished the same starts"),
        ({"lift": [True, True]}, {"execute": 4}, "was rolled out with"),
        ({"lift": [True, True]}, {"published": True}, "was rolled out with"),
    ],
)
def test_rollouts_that_are_not_matched_are_refused(
    closed_loop: Any, tmp_path: Path, successes: dict[str, list[bool]], settings: dict[str, Any], sentence: str
) -> None:
    made(tmp_path / "pq", {"lift": [True, False]})
    made(tmp_path / "fast", successes, **settings)
    with pytest.raises(ActionPieceError, match=sentence):
        closed_loop.gather(options(closed_loop, tmp_path, "pq", "fast"))
