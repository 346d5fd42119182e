"""The ablation: finished cells are kept, unfinished ones go on, and the table says what the cells say."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path

import pytest

from actionpiece import ActionPieceError, open_demos
from actionpiece.evaluation import ablate as module
from actionpiece.evaluation.ablate import ROWS, Row, ablate
from actionpiece.evaluation.score import Protocol
from actionpiece.tokenizers import load
from actionpiece.tokenizers.actionpiece import ActionPieceConfig
from actionpiece.tokenizers.pq import PQConfig
from actionpiece.training import TrainConfig, replica

PROTOCOL = Protocol(n=200, k=8)
WEIGHTS = {"reconstruction": 1.0, "commitment": 0.25}


def tiny(**weights: float) -> ActionPieceConfig:
    train = TrainConfig(
        steps=12, batch=32, warmup=2, continuous=2, start_chunks=64, checkpoint_every=4, weights=WEIGHTS | weights
    )
    return ActionPieceConfig(slots=4, codes=8, width=16, heads=2, encoder_depth=1, decoder_depth=1, train=train)


@pytest.fixture
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        "rvq": Row("Standard RVQ", "actionpiece", tiny(), (4.06e-4, 0.902)),
        "sigreg": Row("+ SIGReg", "actionpiece", tiny(sigreg=0.1)),
        "pq": Row("pq", "pq", PQConfig(tokens=4, codes=8, refine=1)),
    }
    monkeypatch.setattr(module, "ROWS", rows)


def run(out: Path, **changes: object) -> dict:
    settings = {"rows": ("rvq", "sigreg", "pq"), "seeds": (0, 1), "protocol": PROTOCOL, "together": 3, **changes}
    return ablate(open_demos("generated"), out, **settings)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_rows")
def test_finished_cells_are_not_redone_and_others_go_on_from_their_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole")
    advance = replica.Replica.advance

    def stop(self: replica.Replica) -> None:
        # The first three learned cells finish; the other is interrupted after its first checkpoint.
        if self.done == 6 and self.run.seed == 1 and "sigreg" in self.config.weights:
            raise KeyboardInterrupt
        advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(replica.Replica, "advance", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut")
    cells = tmp_path / "cut" / "cells"
    done = sorted(path.parent.name for path in cells.glob("*/cell.json"))
    assert done == ["pq-0", "pq-1", "rvq-0", "rvq-1", "sigreg-0"]
    assert not (tmp_path / "cut" / "ablation.json").exists()
    before = {name: (cells / name / "cell.json").stat().st_mtime_ns for name in done}

    steps: list[int] = []

    def count(self: replica.Replica) -> None:
        steps.append(self.done)
        advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(replica.Replica, "advance", count)
        resumed = run(tmp_path / "cut")
    assert steps == list(range(4, 12))  # one cell, from its checkpoint
    assert {name: (cells / name / "cell.json").stat().st_mtime_ns for name in done} == before
    assert resumed["table"] == whole["table"]


@pytest.mark.usefixtures("small_rows")
def test_a_cell_that_breaks_off_is_said_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny()
    wild = dataclasses.replace(config, train=dataclasses.replace(config.train, learning_rate=1e30, clip=1e30))
    monkeypatch.setitem(module.ROWS, "sigreg", Row("+ SIGReg", "actionpiece", wild))
    with pytest.raises(ActionPieceError, match=r"\+ SIGReg, seed 0: the loss is not finite"):
        run(tmp_path, seeds=(0,))
    assert sorted(path.parent.name for path in tmp_path.glob("cells/*/cell.json")) == ["pq-0", "rvq-0"]
    assert not (tmp_path / "ablation.json").exists()


@pytest.mark.usefixtures("small_rows")
def test_an_unreadable_checkpoint_costs_its_own_cell_alone(tmp_path: Path) -> None:
    checkpoint = tmp_path / "cells" / "rvq-0" / "run" / "checkpoint.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"half")
    with pytest.raises(ActionPieceError, match=r"Standard RVQ, seed 0: .*not a whole checkpoint.*are kept"):
        run(tmp_path, seeds=(0,))
    assert sorted(path.parent.name for path in tmp_path.glob("cells/*/cell.json")) == ["pq-0", "sigreg-0"]
    assert checkpoint.read_bytes() == b"half"


@pytest.mark.usefixtures("small_rows")
def test_the_table_holds_means_and_deviations_over_seeds_beside_the_papers_figures(tmp_path: Path) -> None:
    results = run(tmp_path, command="actionpiece ablate --data \udce9.npz")  # a name that is not UTF-8
    rvq = results["table"][0]
    values = [cell["row"]["mse"] for cell in results["cells"] if cell["about"]["row"] == "rvq"]
    assert rvq["mse"] == pytest.approx(statistics.mean(values))
    assert rvq["mse_spread"] == pytest.approx(statistics.stdev(values))
    assert values[0] != values[1]
    assert rvq["paper"] == [4.06e-4, 0.902]
    assert rvq["seeds"] == [0, 1]
    page = (tmp_path / "ablation.md").read_text()
    assert "Made by `actionpiece ablate --data ·.npz`." in page
    assert f"| Standard RVQ | {1e4 * rvq['mse']:.3f} ± {1e4 * rvq['mse_spread']:.3f} |" in page
    assert "| 4.06 | 0.902 |" in page
    assert json.loads((tmp_path / "ablation.json").read_text())["table"] == results["table"]
    drawing = (tmp_path / "ablation.svg").read_text()
    assert drawing.startswith("<?xml")
    tokenizer = load(tmp_path / "cells" / "rvq-1" / "tokenizer")
    assert tokenizer.provenance["seed"] == 1
    assert tokenizer.provenance["side_by_side"] == 3
    assert tokenizer.fingerprint() == results["cells"][1]["row"]["fingerprint"]


@pytest.mark.usefixtures("small_rows")
def test_a_table_of_what_is_finished_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(ActionPieceError, match="no cell of these rows and seeds is finished"):
        run(tmp_path, finished=True)
    run(tmp_path, rows=("pq",))
    run(tmp_path, rows=("rvq",), seeds=(1,))
    results = run(tmp_path, finished=True)
    assert [(entry["row"], entry["seeds"]) for entry in results["table"]] == [("rvq", [1]), ("pq", [0, 1])]
    assert not (tmp_path / "cells" / "rvq-0").exists()


@pytest.mark.usefixtures("small_rows")
def test_cells_of_another_ablation_are_refused(tmp_path: Path) -> None:
    run(tmp_path, rows=("rvq",), seeds=(0,))
    with pytest.raises(ActionPieceError, match="not made with the same protocol"):
        run(tmp_path, rows=("rvq",), seeds=(0,), protocol=dataclasses.replace(PROTOCOL, n=100))
    with pytest.raises(ActionPieceError, match="not made with the same config"):
        run(tmp_path, rows=("rvq",), seeds=(0,), steps=20)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rows": ("rvq", "x")}, "no row 'x'"),
        ({"rows": ()}, "at least one row"),
        ({"seeds": ()}, "one seed"),
        ({"rows": ("pq", "rvq", "pq")}, "the row pq is named twice"),
        ({"seeds": (0, 1, 0)}, "the seed 0 is named twice"),
        ({"together": 0}, "one cell at a time"),
        ({"steps": 0}, "at least one step"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, changes: dict, what: str) -> None:
    with pytest.raises(ActionPieceError, match=what):
        run(tmp_path, **changes)
    assert not list(tmp_path.iterdir())


def test_the_rows_are_the_papers_with_its_weights_and_figures() -> None:
    learned = {name: row.config.train.weights for name, row in ROWS.items() if row.kind == "actionpiece"}
    plain = {"reconstruction": 1.0, "commitment": 0.25}
    assert learned["rvq"] == plain
    assert learned["prp"] == plain | {"physical_rank": 6.25e-4}
    assert learned["qr"] == plain | {"quantization_order": 6.25e-4}
    assert learned["actionpiece"] == learned["actionpiece-q2"] == learned["prp"] | learned["qr"]
    for name in ("sigreg", "neighborhood", "temporal"):
        assert learned[name].keys() == plain.keys() | {name}
    assert (ROWS["actionpiece-q2"].config.slots, ROWS["actionpiece-q2"].config.levels) == (8, 2)
    assert ROWS["actionpiece"].paper == (3.32e-4, 0.953)
