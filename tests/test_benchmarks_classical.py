"""The table of the classical tokenizers says how it was made, and has as many seeds as there is something random."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actionpiece import ActionPieceError
from actionpiece.data import generate
from scripts import script


@pytest.fixture
def data(tmp_path: Path) -> str:
    episodes, _ = generate(seed=3, episodes=12)
    np.savez(tmp_path / "few.npz", actions=np.concatenate(episodes), ep_len=np.array([len(one) for one in episodes]))
    card = {"space": "libero", "split": {"seed": 0, "test": 3, "validation": 2}}
    (tmp_path / "few.json").write_text(json.dumps(card))
    return str(tmp_path / "few.npz")


def test_every_row_has_its_seeds_and_the_page_its_command(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classical: Any = script("classical")
    out, small = tmp_path / "classical", "pq:tokens=2:codes=4:refine=1"
    names = f"binning, {small}"
    monkeypatch.setattr(sys, "argv", ["classical.py", "--data", data, f"--out={out}", "--tokenizers", names])
    options = classical.Options((data,), out, names, seeds=(0, 1))
    classical.main(options)
    (document,) = json.loads(out.with_suffix(".json").read_text())
    assert [(row["name"], row["seed"]) for row in document["rows"]] == [("binning", 0), (small, 0), (small, 1)]
    typed = f"python benchmarks/classical.py --data few.npz --out=classical --tokenizers '{names}'"
    assert document["command"] == typed
    assert f"Made by `{typed}`." in out.with_suffix(".md").read_text(encoding="utf-8")


def test_a_table_may_be_of_what_has_nothing_random_alone(data: str, tmp_path: Path) -> None:
    classical: Any = script("classical")
    classical.main(classical.Options((data,), tmp_path / "x", "binning"))
    (document,) = json.loads((tmp_path / "x.json").read_text())
    assert [row["name"] for row in document["rows"]] == ["binning"]
    with pytest.raises(ActionPieceError, match="at least one tokenizer and one seed"):
        classical.main(classical.Options((data,), tmp_path / "x", " ,"))
