"""The front's codecs start from the quantisers beside them, and go on from their checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actionpiece.data import generate
from scripts import script


@pytest.fixture
def front() -> Any:
    return script("front")


def test_every_codec_stands_beside_its_quantiser_and_is_trained_once(front: Any, tmp_path: Path) -> None:
    episodes, _ = generate(seed=3, episodes=16)
    lengths = np.array([len(episode) for episode in episodes])
    np.savez(tmp_path / "few.npz", actions=np.concatenate(episodes), ep_len=lengths)
    card = {"space": "libero", "split": {"seed": 0, "test": 3, "validation": 2}}
    (tmp_path / "few.json").write_text(json.dumps(card))

    def rows(out: str) -> Any:
        front.main(
            front.Options(
                str(tmp_path / "few.npz"),
                tmp_path / out,
                blends=(0.5,),
                groups=("balanced",),
                steps=2,
                runs=tmp_path / "runs",
                n=120,
            )
        )
        return json.loads((tmp_path / f"{out}.json").read_text())["rows"]

    first = rows("first")
    assert [row["name"] for row in first] == ["pq balanced 0.5", "codec balanced 0.5"]
    assert all(row["bits_per_chunk"] == 144 for row in first)
    assert all("went_on_from_step" not in row["fitted_on"] for row in first)
    plain, codec = first
    assert codec["mse"] == pytest.approx(plain["mse"], rel=0.2)  # two steps from where it started
    again = rows("again")
    assert [(row["mse"], row["prc"]) for row in again] == [(row["mse"], row["prc"]) for row in first]
    assert [row["fitted_on"].get("went_on_from_step") for row in again] == [None, 2]
    (stretch,) = again[1]["fitted_on"]["stretches"]
    assert (stretch["from"], stretch["to"], stretch["device"]) == (0, 2, "cpu")
    page = (tmp_path / "again.md").read_text()
    assert f"| balanced | 0.5 | {1e4 * plain['mse']:.3f} | {plain['prc']:.4f} | {1e4 * codec['mse']:.3f} |" in page
    assert (tmp_path / "again.svg").read_text().startswith("<?xml")
