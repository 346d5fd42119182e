"""Recipes: comparisons with a name, whose tables hold what they say."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actionpiece import ActionPieceError
from actionpiece.evaluation import recipes
from actionpiece.evaluation.contenders import Contender, fit, unfitted
from actionpiece.evaluation.recipes import BITS, COMPARISONS, Entry, Knob, Table, resolve, resolve_once
from actionpiece.evaluation.score import Training
from actionpiece.tokenizers import KINDS, RECIPES
from actionpiece.tokenizers.fast import FastConfig

SMALL = (
    Table("native", "As they are.", (Entry("binning"), Entry("oat_of_the_future"))),
    Table(
        "within-144-bits",
        "As large as fits.",
        (
            Entry("binning", (Knob("bins"),)),
            Entry("fast", (Knob("scale", (2, 5, 10, 20, 40)),)),
            Entry("spline", (Knob("bins"),)),
            Entry("pq", (Knob("no_such"), Knob("codes"))),
            Entry("actionpiece", (Knob("codes"),)),
            Entry("binning:bins=300"),
            Entry("oat_of_the_future", (Knob("tokens"),)),
        ),
        144,
    ),
)


def test_within_a_number_of_bits_every_tokenizer_is_as_large_as_fits(demos: Any, training: Training) -> None:
    found = resolve(SMALL, demos, training)
    native, within = found.tables
    assert native["names"] == ["binning"]
    assert within["names"][0] == f"binning:bins={math.floor(2 ** (144 / 56))}"
    assert within["names"][2] == f"spline:bins={math.floor(2 ** (144 / 35))}"
    assert within["names"][3:] == ["pq", "actionpiece"]  # as they are
    scale = Contender.parse(within["names"][1]).config.scale
    look = training.validation.sample(2000, 0)

    def bits(scale: float) -> float:
        fast = fit("fast", demos, training, config=FastConfig(scale=scale))
        return fast.bits_per_chunk(float(np.mean([len(row) for row in fast.encode(look)])))

    finer = {2: 5, 5: 10, 10: 20, 20: 40}[scale]
    assert bits(scale) <= 144 < bits(finer)
    assert [(one["table"], one["name"]) for one in found.missing] == [
        ("native", "oat_of_the_future"),
        ("within-144-bits", "binning:bins=300"),
        ("within-144-bits", "oat_of_the_future"),
    ]
    assert found.missing[0]["why"] == "not in this version"
    assert "not within 144 bits" in found.missing[1]["why"]


def test_further_contenders_join_the_tables_into_which_they_fit(demos: Any, training: Training) -> None:
    found = resolve((SMALL[0], dataclasses.replace(SMALL[1], entries=())), demos, training)
    joined = found.joined({"small": 100.0, "large": 200.0, "just": 144.3})
    assert [table["names"] for table in joined.tables] == [["binning", "small", "large", "just"], ["small"]]
    assert joined.missing[-2] == {"table": "within-144-bits", "name": "large", "why": "it takes 200 bits"}
    assert joined.missing[-1]["why"] == "it takes 144.3 bits"


def test_a_recipe_is_looked_for_once(
    demos: Any, training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMPARISONS, "small", (SMALL[0],))
    file = tmp_path / "recipe.json"
    first = resolve_once(file, "small", demos, training)
    with monkeypatch.context() as patch:
        patch.setattr(recipes, "resolve", lambda *rest, **more: pytest.fail("looked for again"))
        assert resolve_once(file, "small", demos, training) == first
    monkeypatch.setitem(KINDS, "oat_of_the_future", KINDS["binning"])  # a later version has it
    again = resolve_once(file, "small", demos, training)
    assert again.tables[0]["names"] == ["binning", "oat_of_the_future"]
    with pytest.raises(ActionPieceError, match="there is no recipe 'none'; there are matched, classical"):
        resolve_once(file, "none", demos, training)


def test_what_short_chunks_do_not_allow_is_missing_and_a_damaged_file_is_made_anew(demos: Any, tmp_path: Path) -> None:
    short = Training.of(demos, 4)
    (tmp_path / "recipe.json").write_text("[]")
    found = resolve_once(tmp_path / "recipe.json", "classical", demos, short)
    assert "spline" not in found.tables[0]["names"]
    assert {"binning", "pq"} <= set(found.tables[0]["names"])
    assert ("native", "spline") in [(one["table"], one["name"]) for one in found.missing]


def test_the_recipes_name_every_tokenizer_there_is_and_only_settings_that_exist() -> None:
    named = {entry.name.partition(":")[0] for table in COMPARISONS["matched"] for entry in table.entries}
    assert named >= {*KINDS, *RECIPES} - {"small"}
    assert BITS == 144
    for entry in COMPARISONS["matched"][1].entries:
        config = Contender.parse(entry.name).config
        assert {knob.setting for knob in entry.knobs} <= {field.name for field in dataclasses.fields(config)}, (
            entry.name
        )
        if hasattr(config, "train") and entry.name != "best":
            train = config.train
            assert (train.steps, train.batch, train.learning_rate) == (100_000, 128, 1e-4), entry.name


def test_learned_contenders_fill_the_bits(demos: Any, training: Training) -> None:
    within = COMPARISONS["matched"][1]
    learned = [entry for entry in within.entries if Contender.parse(entry.name).learned]
    found = resolve((dataclasses.replace(within, entries=tuple(learned)),), demos, training)
    assert [one["name"] for one in found.missing] == ["actioncodec-48"]  # `actioncodec` has 16 tokens of it
    for name in found.names:
        tokenizer = unfitted(Contender.parse(name), demos, training)
        bits = tokenizer.bits_per_chunk(tokenizer.tokens_per_chunk)
        least = 79 if name.startswith("quest") else 126
        assert least < bits <= BITS, (name, bits)


def test_what_broke_off_is_missing_from_the_tables_that_had_it(demos: Any, training: Training) -> None:
    found = resolve(SMALL, demos, training)
    left = found.without({"binning": "it fell"})
    assert [table["names"] for table in left.tables] == [
        [name for name in table["names"] if name != "binning"] for table in found.tables
    ]
    new = [one for one in left.missing if one not in found.missing]
    assert new == [{"table": "native", "name": "binning", "why": "it fell"}]
    # One that was to join the tables, and would have no row to do so, is missing from all of them.
    new = [one for one in found.without({"mine": "it fell"}).missing if one not in found.missing]
    assert [one["table"] for one in new] == ["native", "within-144-bits"]
