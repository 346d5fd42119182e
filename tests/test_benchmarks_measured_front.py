"""The published front is of the points that no other beats in both figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actionpiece.errors import ActionPieceError
from scripts import script


@pytest.fixture
def measured_front() -> Any:
    return script("measured_front")


def written(folder: Path, data: str) -> tuple[Path, Path]:
    rows = [
        {"name": "binning", "bits_per_chunk": 448, "mse": 1e-6, "prc": 0.99},
        {"name": "pq", "bits_per_chunk": 144, "mse": 2e-5, "prc": 0.96},
        {"name": "pq", "bits_per_chunk": 144, "mse": 4e-5, "prc": 0.94},
        {"name": "pq:blend=1.0", "bits_per_chunk": 144, "mse": 6e-5, "prc": 0.97},
    ]
    table = [
        {"row": "rvq", "label": "Standard RVQ", "mse": 9e-5, "prc": 0.9, "seeds": [0, 1]},
        {"row": "best", "label": "best", "mse": 1e-5, "prc": 0.96, "seeds": [0]},
        {"row": "pq", "label": "pq", "mse": 1.0, "prc": 0.0, "seeds": [0]},
    ]
    (folder / "classical.json").write_text(json.dumps([{"data": {"name": "libero", "fingerprint": "f"}, "rows": rows}]))
    (folder / "ablation.json").write_text(json.dumps({"data": {"name": data}, "table": table}))
    return folder / "classical.json", folder / "ablation.json"


def test_points_are_means_and_the_front_is_unbeaten(measured_front: Any, tmp_path: Path) -> None:
    classical, ablation = written(tmp_path, "libero")
    measured_front.main(measured_front.Options(classical, (ablation,), tmp_path / "front"))
    points = json.loads((tmp_path / "front.json").read_text())["points"]["libero"]
    assert {point["name"]: point["front"] for point in points} == {
        "pq": False,
        "pq:blend=1.0": True,
        "Standard RVQ": False,
        "best": True,
    }
    assert points[0] == {
        "name": "pq", "kind": "classical", "mse": pytest.approx(3e-5), "prc": pytest.approx(0.95), "seeds": 2,
        "bits_per_chunk": 144, "front": False,
    }  # fmt: skip
    between = [
        {"name": f"{kind} least_error 0.5", "blend": 0.5, "groups_of": "least_error", "mse": mse, "prc": 0.965}
        for kind, mse in (("pq", 1e-5), ("codec", 1.5e-5))
    ]
    (tmp_path / "fronts.json").write_text(json.dumps({"data": {"name": "libero"}, "rows": between}))
    cells = [{"row": {"mse": mse, "prc": 0.5}} for mse in (1e-6, 3e-6)]
    (tmp_path / "before.json").write_text(json.dumps({"cells": cells}))
    further = {"before": tmp_path / "before.json", "fronts": (tmp_path / "fronts.json",)}
    measured_front.main(measured_front.Options(classical, (ablation,), tmp_path / "more", **further))
    more = json.loads((tmp_path / "more.json").read_text())
    assert "--before" in more["command"]
    assert "--fronts" in more["command"]
    assert [p["mse"] for p in more["points"]["libero"] if "earlier" in p["name"]] == [pytest.approx(2e-6)]
    assert {**more["points"]["libero"][-1], "name": ""} == {
        "name": "", "kind": "blend", "mse": 1.5e-5, "prc": 0.965, "seeds": 1, "bits_per_chunk": 144, "front": True
    }  # fmt: skip
    assert more["points"]["libero"][-1]["name"] == "blend 0.5, least error"  # the codec, not the quantiser before it
    drawn = (tmp_path / "front.svg").read_text()
    assert drawn.startswith("<?xml")
    measured_front.main(measured_front.Options(classical, (ablation,), tmp_path / "again"))
    assert (tmp_path / "again.svg").read_text() == drawn


def test_other_works_are_beside_us_as_far_as_their_bits_come_near(measured_front: Any, tmp_path: Path) -> None:
    classical, ablation = written(tmp_path, "libero")
    rows = [
        {"name": "fast:scale=30", "kind": "fast", "bits_per_chunk": 128.2, "mse": 5e-6, "prc": 0.5},
        {"name": "vqbet:levels=36", "kind": "vqbet", "bits_per_chunk": 144.0, "mse": 3e-3, "prc": 0.94},
        {"name": "quest:downsample=1", "kind": "quest", "bits_per_chunk": 79.7, "mse": 1e-3, "prc": 0.8},
        {"name": "fastervq", "kind": "fastervq", "bits_per_chunk": 216.0, "mse": 1e-9, "prc": 0.999},
        {"name": "rvq", "kind": "actionpiece", "bits_per_chunk": 144.0, "mse": 1e-9, "prc": 0.999},
    ]
    (tmp_path / "results.json").write_text(json.dumps({"data": {"name": "libero"}, "rows": rows}))
    options = measured_front.Options(classical, (ablation,), tmp_path / "front", compared=(tmp_path / "results.json",))
    measured_front.main(options)
    document = json.loads((tmp_path / "front.json").read_text())
    assert f"--compared {tmp_path / 'results.json'}" in document["command"]
    others = [(p["name"], p["front"]) for p in document["points"]["libero"] if p["kind"] == "other"]
    assert others == [("fast:scale=30", True), ("vqbet:levels=36", False)]
    drawn = (tmp_path / "front.svg").read_text()
    assert "fast (128 bits)" in drawn
    assert "further right: vqbet (144 bits) 30" in drawn  # named, not drawn: it would press the others together


def test_an_ablation_of_other_data_is_refused(measured_front: Any, tmp_path: Path) -> None:
    classical, ablation = written(tmp_path, "teleop")
    with pytest.raises(ActionPieceError, match=r"classical\.json has no rows of teleop"):
        measured_front.points(measured_front.Options(classical, (ablation,), tmp_path / "front"))
