"""Comparisons: contenders of all sorts side by side, and what is finished is kept."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actionpiece import ActionPieceError
from actionpiece.evaluation import compare as module
from actionpiece.evaluation import kept as kept_module
from actionpiece.evaluation.compare import Comparison, compare, write_comparison
from actionpiece.evaluation.contenders import Contender, fit, fit_together, with_steps
from actionpiece.evaluation.known import read_known
from actionpiece.evaluation.score import Protocol, ScoringSet, Training
from actionpiece.report.page import timed_alike
from actionpiece.tokenizers import load
from actionpiece.tokenizers.actionpiece import ActionPieceConfig
from actionpiece.tokenizers.fast import FastConfig
from actionpiece.training.checkpoint import saved_step
from actionpiece.training.replica import Replica
from baselines import config as baseline
from tiny import StopError, stop_at, tiny

PROTOCOL = Protocol(n=120, k=8)
MAKERS = """
import numpy as np
import actionpiece

def wrapped(space, horizon, low, high):
    size = np.where(high > low, high - low, 1.0)
    encode = lambda x: np.round((x - low) / size * 63).clip(0, 63).astype(int).reshape(len(x), -1)
    decode = lambda ids: ids.reshape(len(ids), horizon, space.dim) / 63 * size + low
    return actionpiece.wrap(
        encode, decode, space=space, horizon=horizon, vocab_size=64, tokens_per_chunk=horizon * space.dim, name="mine"
    )

def fitted(train_chunks, space):
    return wrapped(space, train_chunks.shape[1], train_chunks.min((0, 1)), train_chunks.max((0, 1)))

def ready(horizon=8):
    return wrapped(actionpiece.ActionSpace.preset("libero"), horizon, -np.ones(7), np.ones(7))

def short(): return ready(4)
def nothing(): return 3
def fails(chunks, space): raise KeyError("no codebook")
def odd(): return wrapped(actionpiece.ActionSpace.preset("libero"), 8, -np.ones(7), np.full(7, np.inf))
def one(chunks): return None
"""


@pytest.fixture
def makers(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MAKERS)
    return path


def run(demos: Any, training: Training, *names: str, **rest: Any) -> Comparison:
    contenders = [Contender.parse(name) for name in names]
    return compare(demos, contenders, protocol=PROTOCOL, training=training, **rest)


def test_a_contender_may_have_a_normaliser_of_its_own(demos: Any, training: Training, tmp_path: Path) -> None:
    names = ("fast:vocab_size=300", "fast:vocab_size=300:normalizer=quantile", "binning:normalizer=symmetric+clip")
    comparison = run(demos, training, *names, save=tmp_path / "tokenizers")
    plain, quantile, clipped = comparison.results["rows"]
    assert [row["normalizer"] for row in (plain, quantile, clipped)] == ["minmax", "quantile", "symmetric+clip"]
    assert [row["name"] for row in comparison.results["rows"]] == list(names)
    assert plain["mse"] != quantile["mse"]
    assert "normalizer" not in quantile["config"]
    saved = load(tmp_path / "tokenizers" / "fast_vocab_size-300_normalizer-quantile")
    assert saved.normalizer.method == "quantile"
    # The error is in min-max coordinates for everybody.
    chunks = ScoringSet.of(demos, training, PROTOCOL).chunks
    by_hand = ((saved.decode(saved.encode(chunks)) - chunks) / training.normalizer.scale) ** 2
    assert quantile["mse"] == pytest.approx(float(by_hand.mean()), rel=1e-5)
    write_comparison(tmp_path, comparison)
    assert "<td>symmetric+clip</td>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fast:normalizer=none", "'none' is no way to normalise; there are minmax, quantile"),
        ("fast:normalizer=meanstd+clip", "no way to normalise"),
        ("nope", "neither a tokenizer"),
        ("nope:blend=0.5", "neither a tokenizer"),
        ("fast:scale", "written key=value"),
        ("fast:scale.fine=1", "fast has no settings within 'scale'"),
        ("rvq:train.pace=1", "'rvq:train.pace=1': train has no setting 'pace'"),
        ("rvq:train.weights=5", "weights must be numbers by the names"),
        ("rvq:train.weights.commitment=abc", "the weight of commitment must be a number, zero or more, not 'abc'"),
        ("rvq:train.weights.commitment=-1", "the weight of commitment"),
        ("rvq:train.clip=1e999", "learning_rate and clip must be positive and finite"),
        ("pq:codes={[]}", "codes must be a whole number"),
        ("rvq:train.tensorboard=no", "tensorboard must be True or False, not 'no'"),
    ],
)
def test_what_is_no_contender_is_said(text: str, reason: str) -> None:
    with pytest.raises(ActionPieceError, match=reason):
        Contender.parse(text)


def test_settings_within_settings_are_written_with_dots() -> None:
    plain, changed = (Contender.parse(f"rvq{more}").config for more in ("", ":codes=64:train.weights.commitment=0.5"))
    weights = {**plain.train.weights, "commitment": 0.5}
    expected = dataclasses.replace(plain.train, weights=weights)
    assert changed == dataclasses.replace(plain, codes=64, train=expected)


def test_a_users_own_tokenizers_stand_beside_the_others(
    demos: Any, training: Training, makers: Path, tmp_path: Path
) -> None:
    comparison = run(demos, training, "binning:bins=64", f"{makers}:fitted", f"{makers}:ready", save=tmp_path / "t")
    rows = {row["name"]: row for row in comparison.results["rows"]}
    assert list(rows) == ["binning:bins=64", "mine.py:fitted", "mine.py:ready"]
    mine = rows["mine.py:fitted"]
    assert (mine["tokens_per_chunk"], mine["bits_per_chunk"], mine["kind"]) == (56, 56 * 6, "wrapped")
    assert mine["config"]["name"] == "mine"
    assert mine["encode_ms"] > 0
    assert mine["fitted_on"]["chunks"] > 1000
    assert "chunks" not in rows["mine.py:ready"]["fitted_on"]
    # 64 levels from end to end and 64 bins are about as fine.
    moved = {name: row["groups"][0]["rmse"] for name, row in rows.items()}
    assert moved["mine.py:fitted"] == pytest.approx(moved["binning:bins=64"], rel=0.1)
    assert sorted(comparison.made) == ["mine.py:fitted", "mine.py:ready"]
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["binning_bins-64"]
    write_comparison(tmp_path, comparison)
    assert "mine.py:ready" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing", "made no tokenizer but a int"),
        ("one", "must take no argument, or two"),
        ("short", "fitted for 4 steps and cannot encode 8"),
        ("gone", "cannot be loaded"),
    ],
)
def test_what_a_maker_may_not_make_is_said(
    demos: Any, training: Training, makers: Path, name: str, reason: str
) -> None:
    with pytest.raises(ActionPieceError, match=reason):
        run(demos, training, f"{makers}:{name}")


def test_one_that_cannot_be_made_or_scored_leaves_the_others_their_rows(
    demos: Any, training: Training, makers: Path, tmp_path: Path
) -> None:
    run(demos, training, "binning:bins=9", save=tmp_path)
    elsewhere = tmp_path / "binning_bins-9" / "config.json"  # of other chunks than these
    text = elsewhere.read_text().replace('"libero"', '"kitchen"').replace('"rate": 20.0', '"rate": 5.0')
    elsewhere.write_text(text.replace('"fingerprint"', '"old_fingerprint"'))
    bad = ("fails", "short", "odd", "nothing")
    names = [f"{makers}:{bad[0]}", "binning", *(f"{makers}:{name}" for name in bad[1:]), f"{makers}:ready"]
    done = run(demos, training, *names, str(elsewhere.parent), cells=tmp_path / "cells", save=tmp_path / "new")
    assert [row["name"] for row in done.results["rows"]] == ["binning", "mine.py:ready"]
    assert list(done.made) == ["mine.py:ready"]
    why = {name.removeprefix("mine.py:"): reason for name, reason in done.broken.items()}
    assert why["fails"].endswith("mine.py:fails' cannot be made: KeyError: 'no codebook'")
    assert why["short"] == "mine.py:short was fitted for 4 steps and cannot encode 8"
    assert "mine has no chunk for it" in why["odd"]
    assert why["nothing"].endswith("made no tokenizer but a int; actionpiece.wrap makes one of two functions")
    assert "was fitted for the action space 'kitchen'" in why["binning_bins-9"]
    assert [one["name"] for one in done.results["missing"]] == list(done.broken)


@pytest.mark.parametrize("together", [1, 3])
def test_one_that_cannot_even_begin_its_training_leaves_the_others_theirs(
    demos: Any, training: Training, tmp_path: Path, together: int
) -> None:
    narrow = Contender("narrow", "actionpiece", tiny(batch=1))
    contenders = [Contender("codec", "actionpiece", tiny()), narrow, Contender("next", "actionpiece", tiny(steps=3))]
    shared: dict[str, Any] = {"protocol": PROTOCOL, "training": training, "together": together, "cells": tmp_path}
    done = compare(demos, contenders, **shared)
    assert [row["name"] for row in done.results["rows"]] == ["codec", "next"]
    assert "1 chunks for each process have none: no gradient" in done.broken["narrow"]


def test_finished_contenders_are_neither_fitted_nor_scored_again(
    demos: Any, training: Training, makers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("binning", "fast:vocab_size=300", f"{makers}:ready", "spline")
    whole = run(demos, training, *names)
    readied: list[str] = []
    ready = module.ready

    def stopping(contender: Contender, *rest: Any, **more: Any) -> Any:
        if contender.name == "spline" and "spline" not in readied:
            readied.append("spline")
            raise KeyboardInterrupt
        readied.append(contender.name)
        return ready(contender, *rest, **more)

    monkeypatch.setattr(module, "ready", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(demos, training, *names, cells=tmp_path / "cells")
    readied.remove("binning")
    resumed = run(demos, training, *names, cells=tmp_path / "cells")
    # The interrupted one, and the user's own, of which nobody knows whether it has changed.
    assert readied == ["fast:vocab_size=300", "mine.py:ready", "spline", "mine.py:ready", "spline"]
    assert resumed.results["finished_before"] == ["binning", "fast:vocab_size=300"]
    steady = ("name", "mse", "prc", "perplexity", "valid_changed", "overlap", "bits_per_chunk")
    for key in steady:
        assert [row[key] for row in resumed.results["rows"]] == [row[key] for row in whole.results["rows"]]
    for key in ("rho", "chunk_mse"):
        for name, values in whole.pictures[key].items():
            np.testing.assert_array_equal(resumed.pictures[key][name], values)
    assert resumed.pictures["chunks"] == whole.pictures["chunks"]
    with pytest.raises(ActionPieceError, match="binning was not made with the same seed; write to another folder"):
        run(demos, training, "binning", cells=tmp_path / "cells", seed=1)
    other = dataclasses.replace(PROTOCOL, n=100)
    with pytest.raises(ActionPieceError, match="not made with the same protocol"):
        compare(demos, [Contender.parse("binning")], protocol=other, training=training, cells=tmp_path / "cells")
    arrays = tmp_path / "cells" / "binning" / "cell.npz"
    for damaged in (b"PK", arrays.read_bytes()[:-100]):
        arrays.write_bytes(damaged)
        with pytest.raises(ActionPieceError, match=r"cell\.npz cannot be read"):
            run(demos, training, "binning", cells=tmp_path / "cells")
    for damaged in ({}, [], None):
        (arrays.parent / "cell.json").write_text(json.dumps(damaged))
        with pytest.raises(ActionPieceError, match=r"cell\.json is not what a comparison keeps; remove"):
            run(demos, training, "binning", cells=tmp_path / "cells")


def test_a_cell_remembers_where_it_was_timed(
    demos: Any, training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = tmp_path / "cells"
    here = kept_module.environment()
    monkeypatch.setattr(kept_module, "environment", lambda: here | {"cores": 999})
    run(demos, training, "binning", cells=cells)
    monkeypatch.undo()
    run(demos, training, "spline", cells=cells)
    done = run(demos, training, "binning", "spline", cells=cells)
    assert done.results["finished_before"] == ["binning", "spline"]
    assert done.results["timed_in"] == {"binning": here | {"cores": 999}}
    assert not timed_alike(done.results, ["binning", "spline"])
    assert timed_alike(done.results, ["spline"])
    write_comparison(tmp_path / "done", done)
    known = read_known([tmp_path / "done" / "results.json"], demos, training, PROTOCOL)
    assert [one.origin["environment"]["cores"] for one in known] == [999, here["cores"]]


def test_where_a_single_fit_was_trained_is_told_of_learned_ones_alone(
    demos: Any, training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a classical one is fitted into a folder in which a learned one was, whole or not."""
    run_folder = tmp_path / "tok.run"
    stop_at(monkeypatch, 5)
    with pytest.raises(StopError):
        fit("actionpiece", demos, training, config=tiny(), run=run_folder)
    monkeypatch.undo()
    codec = fit("actionpiece", demos, training, config=tiny(), run=run_folder, resume=True)
    assert codec.provenance["went_on_from_step"] == 3
    assert [(one["from"], one["to"]) for one in codec.provenance["stretches"]] == [(0, 12)]
    anew = fit("actionpiece", demos, training, config=tiny(steps=3), run=run_folder)
    assert "went_on_from_step" not in anew.provenance
    assert [(one["from"], one["to"]) for one in anew.provenance["stretches"]] == [(0, 3)]
    for damage in (False, True):
        if damage:
            (run_folder / "checkpoint.safetensors").write_bytes(b"nothing")
        classical = fit("binning", demos, training, run=run_folder)
        assert not {"stretches", "went_on_from_step"} & classical.provenance.keys()


def test_a_learned_contender_goes_on_from_its_checkpoint(
    demos: Any, training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contender = Contender("tiny", "actionpiece", tiny())

    def scored(folder: Path) -> Any:
        (row,) = compare(demos, [contender], protocol=PROTOCOL, training=training, cells=folder).results["rows"]
        return row["fingerprint"]

    whole = scored(tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, 7)
        with pytest.raises(StopError):
            scored(tmp_path / "cut")
    steps: list[int] = []
    advance = Replica.advance

    def count(self: Replica) -> None:
        steps.append(self.done)
        advance(self)

    monkeypatch.setattr(Replica, "advance", count)
    assert scored(tmp_path / "cut") == whole
    assert steps == list(range(6, 12))


def test_side_by_side_learned_contenders_are_what_they_are_alone(
    demos: Any, training: Training, tmp_path: Path
) -> None:
    contenders = [
        Contender("codec", "actionpiece", tiny()),
        Contender.parse("binning"),
        Contender("baseline", "oat", baseline("oat")),
        Contender("third", "actionpiece", tiny(steps=9)),
    ]
    assert [one.learned for one in contenders] == [True, False, True, True]
    told: list[tuple[float, str]] = []

    def rows(together: int, cells: Path | None = None) -> Any:
        done = compare(
            demos,
            contenders,
            protocol=PROTOCOL,
            training=training,
            together=together,
            cells=cells,
            progress=lambda *now: told.append(now),
        )
        return [(row["name"], row["fingerprint"], row["mse"]) for row in done.results["rows"]]

    alone = rows(1)
    told.clear()
    assert rows(2, tmp_path) == alone
    assert "2 side by side: " in " ".join(what for _, what in told)
    assert [fraction for fraction, _ in told] == sorted(fraction for fraction, _ in told)
    assert {file.parent.name for file in tmp_path.glob("*/cell.json")} == {"codec", "binning", "baseline", "third"}


@pytest.mark.parametrize("when", [{}, {"validate_every": 1}, {"steps": 3}], ids=str)
@pytest.mark.parametrize("together", [1, 2])
def test_a_contender_whose_training_breaks_off_leaves_the_others_their_rows(
    demos: Any, training: Training, tmp_path: Path, together: int, when: dict[str, int]
) -> None:
    wild = Contender("wild", "actionpiece", tiny(learning_rate=1e30, clip=1e30, **when))
    whole = [Contender("codec", "actionpiece", tiny()), Contender.parse("binning")]
    shared: dict[str, Any] = {"protocol": PROTOCOL, "training": training, "together": together}
    done = compare(demos, [wild, *whole], cells=tmp_path, **shared)
    assert [row["name"] for row in done.results["rows"]] == ["codec", "binning"]
    assert [row["mse"] for row in done.results["rows"]] == [
        row["mse"] for row in compare(demos, whole, **shared).results["rows"]
    ]
    assert done.broken.keys() == {"wild"}
    assert not (tmp_path / "wild" / "cell.json").exists()
    write_comparison(tmp_path / "out", done)
    for file in ("tables.md", "report.html"):
        assert "Not there: wild (the loss is not finite" in (tmp_path / "out" / file).read_text()
    with pytest.raises(ActionPieceError, match="wild: the loss is not finite"):
        compare(demos, [wild], **shared)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("together", [1, 2])
def test_a_checkpoint_that_does_not_fit_costs_its_own_contender_alone(
    demos: Any, training: Training, tmp_path: Path, together: int, finished: bool
) -> None:
    stale, damaged, codec = (Contender(name, "actionpiece", tiny(steps=3)) for name in ("stale", "damaged", "codec"))
    runs = {name: tmp_path / name / "run" for name in ("stale", "damaged", "codec")}
    other = dataclasses.replace(stale, config=tiny(steps=3, learning_rate=0.5))
    for contender in (other, codec):
        fit_together([contender], [0], demos, training, runs=[runs[contender.name]])
    runs["damaged"].mkdir(parents=True)
    (runs["damaged"] / "checkpoint.safetensors").write_bytes(b"half")
    before = {file: file.read_bytes() for name in ("stale", "damaged") for file in runs[name].iterdir()}
    assert {file.name for file in before} == {"checkpoint.safetensors", "log.jsonl"}
    done = compare(
        demos,
        [stale, damaged, codec, Contender.parse("binning")],
        protocol=PROTOCOL,
        training=training,
        cells=tmp_path,
        together=together,
        finished=finished,
    )
    assert [row["name"] for row in done.results["rows"]] == ["codec", "binning"]
    assert done.waiting == {}
    assert done.broken.keys() == {"stale", "damaged"}
    path = runs["stale"] / "checkpoint.safetensors"
    assert done.broken["stale"] == f"{path} is of another run: it has another config; move it away to start anew"
    assert "damaged/run/checkpoint.safetensors is not a whole checkpoint" in done.broken["damaged"]
    assert {file: file.read_bytes() for file in before} == before


def test_a_checkpoint_of_another_normaliser_costs_its_own_contender_alone(
    demos: Any, training: Training, tmp_path: Path
) -> None:
    stale = Contender("stale", "actionpiece", tiny(steps=3), normalizer="quantile")  # fitted alone
    fit_together([dataclasses.replace(stale, normalizer="minmax")], [0], demos, training, runs=[tmp_path / "stale/run"])
    contenders = [stale, Contender.parse("binning")]
    done = compare(demos, contenders, protocol=PROTOCOL, training=training, cells=tmp_path)
    assert [row["name"] for row in done.results["rows"]] == ["binning"]
    assert "stale/run/checkpoint.safetensors is of another run" in done.broken["stale"]


@pytest.mark.parametrize("text", ["actioncodec:embodiments=2", "xtokenizer:teacher=4:train.weights.teacher=0.1"])
def test_what_needs_more_than_chunks_is_refused_before_anything_is_fitted(
    demos: Any, training: Training, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(module, "_ready", lambda *args, **rest: pytest.fail("something was fitted"))
    contenders = [Contender.parse("pq"), Contender.parse(text)]
    with pytest.raises(ActionPieceError, match=r"needs '\w+' for every chunk, which a comparison has not"):
        compare(demos, contenders, protocol=PROTOCOL, training=training)


def test_two_that_would_be_kept_in_one_folder_are_refused(demos: Any, training: Training, tmp_path: Path) -> None:
    kept = tmp_path / "tokenizers"
    run(demos, training, "binning:bins=16", save=kept)
    folder = kept / "binning_bins-16"
    before = (folder / "config.json").read_bytes()
    with pytest.raises(ActionPieceError, match="'binning:bins=16' and 'binning_bins-16' would be kept in one folder"):
        run(demos, training, "binning:bins=16", str(folder), save=kept)
    with pytest.raises(ActionPieceError, match="'pq' is named twice"):
        run(demos, training, "pq", "pq")
    (folder / "README.md").write_text("mine")
    with pytest.raises(ActionPieceError, match=r"also holds README\.md, so it is not replaced; move it away"):
        run(demos, training, "binning:bins=16", save=kept)  # before anything is fitted
    assert (folder / "config.json").read_bytes() == before


def test_those_that_are_not_trained_yet_can_be_left_out(demos: Any, training: Training, tmp_path: Path) -> None:
    codec, longer = (Contender(name, "actionpiece", tiny(steps=steps)) for name, steps in (("codec", 3), ("longer", 6)))
    contenders = [codec, longer, Contender("never", "actionpiece", tiny()), Contender.parse("binning")]
    shared: dict[str, Any] = {"protocol": PROTOCOL, "training": training, "cells": tmp_path, "finished": True}
    first = compare(demos, contenders, **shared)
    assert [row["name"] for row in first.results["rows"]] == ["binning"]
    assert first.waiting == dict.fromkeys(("codec", "longer", "never"), "it is not trained yet")
    # One is trained to its end, one is not.
    fit_together([codec], [0], demos, training, runs=[tmp_path / "codec" / "run"])
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 4)
        with pytest.raises(StopError):
            fit_together([longer], [0], demos, training, runs=[tmp_path / "longer" / "run"])
    done = compare(demos, contenders, **shared)
    assert [row["name"] for row in done.results["rows"]] == ["codec", "binning"]
    assert done.waiting == {"longer": "it is trained for 3 of 6 steps", "never": "it is not trained yet"}
    assert not done.broken
    assert [one["name"] for one in done.results["missing"]] == ["longer", "never"]
    assert saved_step(tmp_path / "longer" / "run") == 3
    with pytest.raises(ActionPieceError, match="never: it is not trained yet"):
        compare(demos, contenders[2:3], **shared)


def test_an_n_that_is_too_small_is_told_from_a_split_that_is(demos: Any, training: Training) -> None:
    with pytest.raises(ActionPieceError, match="n = 10 is too few for PRC@32, which needs 33 chunks or more"):
        Protocol(n=10)
    with pytest.raises(ActionPieceError, match=r"the test split has \d+ chunks of 8 steps, and PRC@9999 needs"):
        ScoringSet.of(demos, training, Protocol(n=10_000, k=9_999))


def test_only_training_is_shortened() -> None:
    assert with_steps(FastConfig(), 5) == FastConfig()
    assert with_steps(None, 5) is None
    short = with_steps(ActionPieceConfig(), 50)
    assert (short.train.steps, short.train.warmup, short.train.continuous) == (50, 5, 5)
    assert dataclasses.replace(short, train=ActionPieceConfig().train) == ActionPieceConfig()


def test_two_tables_have_a_report_each_and_one_page(demos: Any, training: Training, tmp_path: Path) -> None:
    comparison = run(demos, training, "binning", "binning:bins=5", "spline")
    comparison.results["tables"] = [
        {"name": "native", "about": "As they are, but `spline`.", "bits": None, "names": ["spline", "binning"]},
        {"name": "within", "about": "As large as fits.", "bits": 144, "names": ["binning:bins=5"]},
    ]
    absent = [{"table": "within", "name": name, "why": "not in this version"} for name in ("oat", "quest")]
    comparison.results["missing"] = absent
    reports = write_comparison(tmp_path, comparison)
    assert [path.name for path in reports] == ["native.html", "within.html"]
    native, within = (path.read_text() for path in reports)
    assert "binning:bins=5</span>" not in native
    assert "<p>As they are, but <code>spline</code>.</p>" in native
    assert native.index(">spline</span>") < native.index(">binning</span>")
    assert "Not there: oat and quest (not in this version)." in within
    assert "Not there" not in native
    page = (tmp_path / "tables.md").read_text()
    assert page.index("## native") < page.index("| spline |") < page.index("## within") < page.index("Not there: oat")
    head = next(line for line in page.splitlines() if line.startswith("| tokenizer"))
    asked = "tokens, bits, MSE, translation, rotation, gripper flips, PRC, PRC across episodes, perplexity, overlap"
    for column in [*asked.split(", "), "valid, changed", "encode [ms]", "decode [ms]"]:
        assert f"| {column}" in head, column
    assert json.loads((tmp_path / "results.json").read_text())["tables"] == comparison.results["tables"]
