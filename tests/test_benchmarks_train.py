"""The training benchmark times what is trained, however its steps lie in blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actionpiece import ActionPieceError
from scripts import script


@pytest.fixture
def train() -> Any:
    return script("train")


def test_eager_steps_are_timed_beyond_a_block(train: Any, tmp_path: Path) -> None:
    out = tmp_path / "train.json"
    train.main(train.Options("generated", ("vqbet:width=8",), out, eager_steps=95))  # ten come before
    (row,) = [row for row in json.loads(out.read_text())["rows"] if row["how"] == "eager"]
    assert row["tokenizers"] == ["vqbet:width=8"]
    assert row["ms_per_step"] > 0
    assert 0 < row["launching"] <= 1


def test_a_cpu_with_halves_is_timed_with_and_without_them(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(train.fused, "CPU_HALVES", True)
    seen = []
    measure = train.Timing.measure
    monkeypatch.setattr(
        train.Timing, "measure", lambda *args, **rest: (seen.append(train.fused.CPU_HALVES), measure(*args, **rest))
    )
    out = tmp_path / "train.json"
    train.main(train.Options("generated", ("quest:width=8:heads=2",), out, eager_steps=2))
    assert [row["how"] for row in json.loads(out.read_text())["rows"]] == ["eager", "eager, products of float32"]
    assert seen == [True, False]
    assert train.fused.CPU_HALVES


def test_threads_do_the_steps_that_one_does(train: Any) -> None:
    timing = train.Timing(train.Options("generated"), "cpu")
    one, *others = [timing.replica("vqbet:width=8", seed, captured=False) for seed in (0, 0, 1)]
    train.run([one], 30)
    train.run(others, 30, threads=True)
    assert [replica.done for replica in (one, *others)] == [30, 30, 30]
    same, different = ([a.equal(b) for a, b in pairs(one, other)] for other in others)
    assert all(same)
    assert not all(different)
    train.run([], 30)  # one copy of a tokenizer has no others


def pairs(one: Any, other: Any) -> Any:
    return zip(one.codec.state_dict().values(), other.codec.state_dict().values(), strict=True)


@pytest.mark.parametrize("name", ["pq", "libero"])
def test_what_has_no_steps_is_refused(train: Any, name: str) -> None:
    with pytest.raises(ActionPieceError, match=f"{name} is not trained step by step"):
        train.main(train.Options("generated", (name,), eager_steps=1))
