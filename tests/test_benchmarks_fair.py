"""The fairness table holds learned tokenizers beside product quantisers of the same tokens and codes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actionpiece import ActionPieceError, open_demos
from actionpiece.evaluation.compare import compare, write_comparison
from actionpiece.evaluation.contenders import Contender, fit
from actionpiece.evaluation.score import Protocol, ScoringSet, Training
from actionpiece.tokenizers import load
from actionpiece.tokenizers.pq import PQConfig
from scripts import script
from tiny import tiny


@pytest.fixture
def fair() -> Any:
    return script("fair")


def test_errors_stand_beside_those_of_pq_and_of_the_mean(fair: Any, tmp_path: Path) -> None:
    demos, protocol = open_demos("generated"), Protocol(n=120, k=8)
    contenders = [Contender("codec", "actionpiece", tiny()), Contender.parse("binning")]
    write_comparison(tmp_path, compare(demos, contenders, protocol=protocol, save=tmp_path / "fitted"))
    fair.main(fair.Options("generated", tmp_path / "results.json", tmp_path / "fair"))
    (row,) = json.loads((tmp_path / "fair.json").read_text())["rows"]  # binning is not learned
    assert row["unquantized"] is None
    fair.main(fair.Options("generated", tmp_path / "results.json", tmp_path / "fair", tmp_path / "fitted"))
    (row,) = json.loads((tmp_path / "fair.json").read_text())["rows"]
    config = tiny()
    assert (row["name"], row["tokens"], row["codes"]) == ("codec", config.slots * config.levels, config.codes)
    training = Training.of(demos, 8)
    data = ScoringSet.of(demos, training, protocol)
    scale = training.normalizer.scale
    plain = fit("pq", demos, training, config=PQConfig(tokens=row["tokens"], codes=row["codes"]))
    back = np.asarray(plain.decode(plain.encode(data.chunks)))
    assert row["pq"] == pytest.approx(float((((back - data.chunks) / scale) ** 2).mean()), rel=1e-5)
    mean = training.chunks.sample(10**6, 0).mean(0)
    assert row["mean_chunk"] == pytest.approx(float((((data.chunks - mean) / scale) ** 2).mean()), rel=1e-4)
    assert row["ratio"] == pytest.approx(row["mse"] / row["pq"])
    assert 0 < row["share"] <= 1
    codec: Any = load(tmp_path / "fitted/codec")
    x = training.normalizer.normalize(torch.from_numpy(data.chunks))
    with torch.no_grad():
        bare = codec.codec.decoder(codec.codec.quantizer.project_out(codec.codec.project(x)))
    assert row["unquantized"] == pytest.approx(float((bare - x).square().mean()), rel=1e-4)
    assert f"| codec | {row['tokens']} | {row['codes']} |" in (tmp_path / "fair.md").read_text()


def test_what_an_earlier_call_has_is_not_computed_again(fair: Any, tmp_path: Path) -> None:
    demos, protocol = open_demos("generated"), Protocol(n=60, k=8)
    compared = compare(demos, [Contender("codec", "actionpiece", tiny())], protocol=protocol, save=tmp_path / "fitted")
    write_comparison(tmp_path, compared)
    fair.main(fair.Options("generated", tmp_path / "results.json", tmp_path / "first", tmp_path / "fitted"))
    document = json.loads((tmp_path / "first.json").read_text())
    document["rows"][0] |= {"pq": 0.125, "unquantized": 0.25}  # nobody would compute these
    (tmp_path / "first.json").write_text(json.dumps(document))
    options = fair.Options("generated", tmp_path / "results.json", tmp_path / "again", before=tmp_path / "first.json")
    fair.main(options)
    (row,) = json.loads((tmp_path / "again.json").read_text())["rows"]
    assert (row["pq"], row["unquantized"], row["ratio"]) == (0.125, 0.25, row["mse"] / 0.125)
    document["rows"][0]["mse"] += 1e-9  # another tokenizer of the same name
    (tmp_path / "first.json").write_text(json.dumps(document))
    fair.main(options)
    (row,) = json.loads((tmp_path / "again.json").read_text())["rows"]
    assert (row["pq"], row["unquantized"]) == (0.125, None)
    with pytest.raises(ActionPieceError, match=r"results\.json was not written by this script"):
        fair.main(dataclasses.replace(options, before=tmp_path / "results.json"))
    document["protocol"]["n"] = 61
    (tmp_path / "first.json").write_text(json.dumps(document))
    with pytest.raises(ActionPieceError, match="of another protocol"):
        fair.main(options)


def test_weights_of_another_tokenizer_are_refused(fair: Any, tmp_path: Path) -> None:
    demos, contender = open_demos("generated"), Contender("codec", "actionpiece", tiny())
    for seed in (0, 1):
        made = compare(demos, [contender], protocol=Protocol(n=60, k=8), seed=seed, save=tmp_path / str(seed))
        write_comparison(tmp_path / str(seed), made)
    with pytest.raises(ActionPieceError, match="not the tokenizer that was compared"):
        fair.main(fair.Options("generated", tmp_path / "0/results.json", tmp_path / "fair", tmp_path / "1"))


def test_results_of_other_demonstrations_are_refused(fair: Any, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"data": {"fingerprint": "of others"}, "rows": []}))
    with pytest.raises(ActionPieceError, match="other demonstrations"):
        fair.main(fair.Options("generated", tmp_path / "results.json", tmp_path / "fair"))
