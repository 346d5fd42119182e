"""Rows of earlier comparisons: taken as they are, refused where they are something else, and named as what they are."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actionpiece import ActionPieceError
from actionpiece.evaluation import compare as module
from actionpiece.evaluation.compare import Comparison, compare, replay_comparison, write_comparison
from actionpiece.evaluation.contenders import Contender
from actionpiece.evaluation.kept import only
from actionpiece.evaluation.known import find_known, read_known
from actionpiece.evaluation.score import Protocol, Training
from actionpiece.files import read_json, write_json
from actionpiece.tokenizers import load
from tiny import AS_PQ, fit, tiny

PROTOCOL = Protocol(n=120, k=8)
ELSEWHERE = {"data": {"name": "other", "generated": False, "fingerprint": "f" * 64}}
MINE = """
from actionpiece.tokenizers.binning import BinningConfig, BinningTokenizer

def make(chunks, space):
    return BinningTokenizer.fit(chunks, space, BinningConfig(bins=8))
"""


def run(demos: Any, training: Training, *names: str, **rest: Any) -> Comparison:
    contenders = [Contender.parse(name) for name in names]
    rest["known"] = read_known(rest.get("known", ()), demos, training, PROTOCOL)
    return compare(demos, contenders, protocol=PROTOCOL, training=training, **rest)


def row_as(row: dict[str, Any], name: str, **changes: Any) -> dict[str, Any]:
    """A row as if it were of another tokenizer, which nobody needs to train for a test."""
    contender = Contender.parse(name)
    plain = json.loads(json.dumps(dataclasses.asdict(contender.config)))
    return row | {"name": name, "kind": contender.kind, "config": plain} | changes


@pytest.fixture(scope="module")
def earlier(demos: Any, training: Training, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results.json with `binning`, and with `oat` and `best`, which take 100,000 and 20,000 steps."""
    out = tmp_path_factory.mktemp("earlier")
    comparison = run(demos, training, "binning", command="actionpiece compare --out earlier")
    rows = comparison.results["rows"]
    rows.append(row_as(rows[0], "oat", mse=0.123, encode_ms=77.0))
    best = row_as(rows[0], "best", mse=0.321)
    best["config"]["train"]["blend"] = 0.7  # chosen by the fit, among those that the recipe tries
    rows.append(best)
    write_json(out / "results.json", comparison.results)
    return out / "results.json"


def edited(earlier: Path, folder: Path, name: str = "edited.json", **changes: Any) -> Path:
    """The same file with other fields; those of `row` are of its first row."""
    results = read_json(earlier)
    results["rows"][0] |= changes.pop("row", {})
    write_json(folder / name, results | changes)
    return folder / name


def nothing_is_fitted(patch: pytest.MonkeyPatch) -> None:
    for name in ("ready", "fit_together", "score"):
        patch.setattr(module, name, lambda *rest, **more: pytest.fail("fitted or scored"))


def test_rows_are_taken_as_they_are_and_nothing_is_fitted_for_them(
    demos: Any, training: Training, earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[str] = []
    score = module.score

    def counting(*rest: Any, name: str, **more: Any) -> Any:
        scored.append(name)
        return score(*rest, name=name, **more)

    monkeypatch.setattr(module, "score", counting)
    monkeypatch.setattr(module, "fit_together", lambda *rest, **more: pytest.fail("something is trained"))
    told: list[float] = []
    names = ("oat", "spline", "binning", "best")
    done = run(demos, training, *names, known=[earlier], progress=lambda fraction, what: told.append(fraction))
    assert scored == ["spline"]
    there = read_json(earlier)
    by_name = {row["name"]: row for row in there["rows"]}
    assert [row["name"] for row in done.results["rows"]] == list(names)
    for row in done.results["rows"]:
        assert row["name"] == "spline" or row == by_name[row["name"]]
    origin = {key: there[key] for key in ("command", "created", "environment")}
    assert done.results["known"] == [{"name": name, **origin} for name in ("oat", "binning", "best")]
    assert told == sorted(told)
    assert max(told) == 1.0
    assert list(done.pictures["rho"]) == ["spline"]
    with pytest.raises(ActionPieceError, match="have no tokenizers here that could be replayed"):
        replay_comparison(Path("nowhere"), done, demos, [], most=1)


def test_a_comparison_without_rows_of_others_says_nothing_of_them(
    demos: Any, training: Training, earlier: Path, tmp_path: Path
) -> None:
    done = run(demos, training, "spline", known=[earlier])
    assert "known" not in done.results
    write_comparison(tmp_path, done)
    assert "earlier comparison" not in (tmp_path / "tables.md").read_text() + (tmp_path / "report.html").read_text()


def test_the_first_file_counts_and_the_origin_of_a_row_is_not_lost(
    demos: Any, training: Training, earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_is_fitted(monkeypatch)
    other = edited(earlier, tmp_path, command="the other", row={"mse": 0.5})
    for files, command, mse in (
        ([other, earlier], "the other", 0.5),
        ([earlier, other], "actionpiece compare --out earlier", read_json(earlier)["rows"][0]["mse"]),
    ):
        done = run(demos, training, "binning", "oat", known=files, command="in between")
        assert done.results["rows"][0]["mse"] == mse
        assert [one["command"] for one in done.results["known"]] == [command, command]
        write_comparison(tmp_path / "between", done)
        again = run(demos, training, "oat", known=[tmp_path / "between" / "results.json"])
        assert again.results["known"] == done.results["known"][1:]


def test_a_finished_cell_goes_before_an_earlier_row(
    demos: Any, training: Training, earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = tmp_path / "cells"
    mine = run(demos, training, "binning", cells=cells)
    nothing_is_fitted(monkeypatch)
    other = edited(earlier, tmp_path, row={"mse": 0.5})
    done = run(demos, training, "binning", "oat", cells=cells, known=[other])
    assert done.results["rows"][0] == mine.results["rows"][0]
    assert done.results["finished_before"] == ["binning"]
    assert [one["name"] for one in done.results["known"]] == ["oat"]
    assert not (cells / "oat").exists()


def test_an_earlier_row_is_there_where_only_what_is_finished_counts(
    demos: Any, training: Training, earlier: Path, tmp_path: Path
) -> None:
    done = run(demos, training, "oat", "vqbet", cells=tmp_path, finished=True, known=[earlier])
    assert [row["name"] for row in done.results["rows"]] == ["oat"]
    assert done.waiting == {"vqbet": "it is not trained yet"}


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("pq:blend=0.75:groups=balanced", "pq:groups=balanced:blend=0.75"),
        ("pq:blend=0.75", "pq:codes=512:blend=0.75"),  # its default
        ("pq:codes=512:normalizer=quantile", "pq:normalizer=quantile"),
        ("rvq:train.batch=256", "rvq:levels=1:train.batch=256"),
        ("best", "best:code_dim=0"),
    ],
)
def test_a_row_is_found_however_it_is_spelled(
    demos: Any,
    training: Training,
    earlier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: str,
    here: str,
) -> None:
    nothing_is_fitted(monkeypatch)
    row = row_as(read_json(earlier)["rows"][0], there, mse=0.5, normalizer=Contender.parse(there).normalizer)
    known = edited(earlier, tmp_path, rows=[row])
    done = run(demos, training, here, known=[known])
    assert done.results["rows"] == [row | {"name": here}]
    assert [one["name"] for one in done.results["known"]] == [here]
    write_comparison(tmp_path, done)
    again = run(demos, training, there, known=[tmp_path / "results.json"])  # and back, with its origin
    assert again.results["rows"] == [row]
    assert again.results["known"] == [done.results["known"][0] | {"name": there}]


def test_a_row_of_other_settings_or_of_other_code_is_not_found(
    demos: Any, training: Training, earlier: Path, tmp_path: Path
) -> None:
    row = read_json(earlier)["rows"][0]
    others = [
        row_as(row, "binning:bins=9"),
        row | {"name": "mine.py:make"},
        row | {"name": "a folder"},
        row_as(row, "binning:normalizer=quantile", normalizer="quantile"),
        row_as(row, "binning:bins=255", seed=1),
        row_as(row, "binning:bins=255", fitted_on=ELSEWHERE),
    ]
    done = run(demos, training, "binning", known=[edited(earlier, tmp_path, rows=others)])
    assert "known" not in done.results
    # A row of another name is the one that is asked for, though one of this name is not.
    both = edited(earlier, tmp_path, rows=[row | {"seed": 1}, row_as(row, "binning:bins=255", mse=0.5)])
    done = run(demos, training, "binning", known=[both])
    assert [(one["name"], one["mse"]) for one in done.results["rows"]] == [("binning", 0.5)]


PUBLISHED = Path(__file__).parents[1] / "docs" / "results"


@pytest.mark.parametrize("folder", ["matched_libero", "matched_teleop"])
def test_published_rows_are_found_by_their_names(folder: str) -> None:
    results = read_json(PUBLISHED / folder / "results.json")
    data: Any = SimpleNamespace(fingerprint=lambda: results["data"]["fingerprint"], name=folder)
    scales: Any = SimpleNamespace(distance=SimpleNamespace(to_dict=lambda: results["physical_scales"]))
    known = read_known([PUBLISHED / folder / "results.json"], data, scales, Protocol(**results["protocol"]))
    assert len(known) == len(results["rows"]) > 0
    for row in results["rows"]:
        found = find_known(known, Contender.parse(row["name"]), data, 0)
        assert found is not None
        assert found.row == row
    # It may have chosen otherwise than `best`, which has less to choose from.
    assert find_known(known, Contender.parse("best:groups=either"), data, 0) is None
    found = find_known(known, Contender.parse("pq:groups=balanced:codes=512:blend=0.75"), data, 0)
    assert found is not None
    assert found.row["mse"] == next(row["mse"] for row in results["rows"] if row["name"].startswith("pq:blend=0.75"))


def test_folders_and_the_users_own_code_are_never_taken(
    demos: Any, training: Training, earlier: Path, tmp_path: Path
) -> None:
    run(demos, training, "binning:bins=8", save=tmp_path)
    folder = (tmp_path / "binning_bins-8").rename(tmp_path / "binning")  # a name says nothing of what is in a folder
    (tmp_path / "mine.py").write_text(MINE)
    row = read_json(earlier)["rows"][0]
    known = edited(earlier, tmp_path, rows=[row, row | {"name": "mine.py:make"}])
    done = run(demos, training, str(folder), f"{tmp_path / 'mine.py'}:make", known=[known])
    assert [row["name"] for row in done.results["rows"]] == ["binning", "mine.py:make"]
    assert [row["vocab_size"] for row in done.results["rows"]] == [8, 8]
    assert row["vocab_size"] == 255
    assert "known" not in done.results


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"kind": "pq"}, "kind is pq there and binning here"),
        ({"config": {"bins": 16}}, r"config\.bins is 16 there and 255 here"),
        ({"normalizer": "quantile"}, "normalizer is quantile there and minmax here"),
        ({"seed": 3, "config": {}}, r"seed is 3 there and 0 here; config\.bins is None there and 255 here"),
        ({"fitted_on": ELSEWHERE}, "training data is f{64} there and [0-9a-f]{64} here"),
        ({"fitted_on": {}}, "training data is None there and [0-9a-f]{64} here"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_row_that_was_made_otherwise_is_refused(
    demos: Any,
    training: Training,
    earlier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    row: Any,
    reason: str,
) -> None:
    nothing_is_fitted(monkeypatch)
    known = edited(earlier, tmp_path, row=row)
    with pytest.raises(ActionPieceError, match=rf"edited\.json: its row of binning .*: {reason}; ask for"):
        run(demos, training, "spline", "oat", "binning", known=[known])


def test_a_seed_and_a_number_of_steps_are_asked_for_by_this_comparison(
    demos: Any, training: Training, earlier: Path
) -> None:
    with pytest.raises(ActionPieceError, match=r"its row of binning .*: seed is 0 there and 1 here;"):
        run(demos, training, "binning", known=[earlier], seed=1)
    short = Contender("oat", "oat", Contender.parse("oat:train.steps=9").config)
    with pytest.raises(ActionPieceError, match=r"its row of oat .*: config\.train\.steps is 100000 there and 9 here;"):
        compare(
            demos, [short], protocol=PROTOCOL, training=training, known=read_known([earlier], demos, training, PROTOCOL)
        )


def test_a_row_whose_figures_are_not_finite_is_refused(
    demos: Any, training: Training, earlier: Path, tmp_path: Path
) -> None:
    results = read_json(earlier)
    results["rows"][1]["groups"][0]["rmse"] = float("nan")
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(ActionPieceError, match=r"results\.json: in its row of oat groups\.0\.rmse is nan, which is no"):
        run(demos, training, "spline", known=[tmp_path / "results.json"])


@pytest.mark.parametrize(("at", "rows"), [(0, 1), (0, 2), (1, 2)])
def test_a_row_without_the_groups_of_the_action_space_is_refused(
    demos: Any, training: Training, earlier: Path, tmp_path: Path, at: int, rows: int
) -> None:
    damaged = read_json(earlier)["rows"][:rows]
    damaged[at]["groups"] = []
    with pytest.raises(ActionPieceError, match=r"lacks what a report needs .'groups'."):
        run(demos, training, "spline", "binning", known=[edited(earlier, tmp_path, rows=damaged)])


@pytest.mark.parametrize("lacking", ["position_perplexity", "perplexity", "groups"])
def test_rows_of_which_no_report_can_be_made_are_refused(
    demos: Any, training: Training, earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    nothing_is_fitted(monkeypatch)
    results = read_json(earlier)
    del results["rows"][1][lacking]
    write_json(tmp_path / "results.json", results)
    with pytest.raises(ActionPieceError, match=f"lacks what a report needs .'{lacking}'.; was it written by another"):
        run(demos, training, "spline", "binning", known=[tmp_path / "results.json"])


def test_what_a_fit_chooses_may_stand_in_a_row_and_nothing_else(
    demos: Any, training: Training, earlier: Path, tmp_path: Path
) -> None:
    results = read_json(earlier)
    results["rows"][2]["config"]["train"]["blend"] = 0.6
    write_json(tmp_path / "results.json", results)
    with pytest.raises(ActionPieceError, match=r"its row of best .*: config\.train\.blend is 0\.6 there"):
        run(demos, training, "best", known=[tmp_path / "results.json"])
    open_config = tiny({**AS_PQ, "blends": (0.3, 0.6), "groups": "either"}, steps=1)
    chosen = fit(open_config).config
    assert chosen != open_config
    assert chosen in open_config.outcomes()
    assert len(open_config.outcomes()) == 4
    closed = tiny(steps=1)
    assert closed.outcomes() == [closed]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"data": {"fingerprint": "f" * 64}}, r"is of other data than .*, or of the same with another card"),
        *[
            (
                {"protocol": dataclasses.asdict(PROTOCOL) | {key: value}},
                f"was scored by another protocol: {key} is {value} there and {getattr(PROTOCOL, key)} here$",
            )
            for key, value in {"horizon": 4, "n": 100, "k": 9, "seed": 1, "split": "all"}.items()
        ],
    ],
)
def test_a_file_of_other_data_or_another_protocol_is_refused(
    demos: Any,
    training: Training,
    earlier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Any,
    reason: str,
) -> None:
    nothing_is_fitted(monkeypatch)
    known = edited(earlier, tmp_path, **change)
    with pytest.raises(ActionPieceError, match=rf"edited\.json {reason}"):
        run(demos, training, "spline", known=[earlier, known])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "does not exist"),
        ("{", "is not readable JSON"),
        ("[1, 2]", "is no results.json of `actionpiece compare`"),
        ("{}", "is no results.json"),
        ('{"data": 3, "protocol": {}, "rows": []}', "is no results.json"),
        ('{"cells": [], "data": {"fingerprint": "f"}, "protocol": {}}', "is no results.json"),
        ('"rows"', "is no results.json"),
    ],
)
def test_what_is_no_results_json_is_said(
    demos: Any, training: Training, tmp_path: Path, text: str | None, reason: str
) -> None:
    file = tmp_path / "other.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ActionPieceError, match=rf"other\.json {re.escape(reason)}"):
        read_known([file], demos, training, PROTOCOL)


@pytest.mark.parametrize("field", ["command", "created", "environment", "rows", "physical_scales"])
def test_a_results_json_has_all_that_is_taken_of_it(
    demos: Any, training: Training, earlier: Path, tmp_path: Path, field: str
) -> None:
    results = read_json(earlier)
    del results[field]
    write_json(tmp_path / "results.json", results)
    with pytest.raises(ActionPieceError, match=r"is no results\.json"):
        read_known([tmp_path / "results.json"], demos, training, PROTOCOL)


def test_what_is_written_says_whose_rows_are_older_and_draws_the_others(
    demos: Any, training: Training, earlier: Path, tmp_path: Path
) -> None:
    done = run(demos, training, "oat", "spline", "binning", known=[earlier], save=tmp_path / "tokenizers")
    write_comparison(tmp_path, done)
    day = read_json(earlier)["created"][:10]
    made = "made by {}actionpiece compare --out earlier{}, " + day
    sentence = (
        "Taken from an earlier comparison (" + made + "): oat and binning, with latencies of the machine of then."
    )
    assert sentence.format("`", "`") in (tmp_path / "tables.md").read_text()
    page = (tmp_path / "report.html").read_text()
    assert sentence.format("<code>", "</code>") in page
    assert page.count("and therefore not drawn here: oat and binning.") == 2
    assert page.count("and therefore without a curve here: oat and binning.") == 1
    assert "Worst of spline" in page
    assert "Worst of oat" not in page
    assert 'id="f-codes' in page
    assert [re.findall(r"</svg>([^<]+)</li>", key) for key in re.findall(r'<ul class="key">.*', page)] == [
        ["original", "spline"],
        ["spline"],
    ]
    assert page.count("<span>oat</span>") == 2  # both tables of scores have it
    assert [path.name for path in (tmp_path / "tokenizers").iterdir()] == ["spline"]
    assert load(tmp_path / "tokenizers" / "spline").kind == "spline"
    # A file without a command says so.
    done.results["known"][0]["command"] = ""
    write_comparison(tmp_path, done)
    assert f"(whose command was not recorded, {day}): oat, with" in (tmp_path / "tables.md").read_text()


def test_rows_that_were_scored_with_other_physical_scales_are_refused(
    demos: Any, training: Training, earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_is_fitted(monkeypatch)
    scales = read_json(earlier)["physical_scales"]
    rounded = {name: scale * (1 + 1e-13) for name, scale in scales.items()}
    assert run(demos, training, "binning", known=[edited(earlier, tmp_path, physical_scales=rounded)]).results["known"]
    for other, what in (
        ({"rotation": 0.5}, rf"rotation is 0\.5 there and {scales['rotation']} here"),
        ({"arm": 1.0}, r"arm is 1\.0 there and None here"),
    ):
        known = edited(earlier, tmp_path, physical_scales=scales | other)
        with pytest.raises(ActionPieceError, match=rf"edited\.json was scored with other physical scales: {what}$"):
            run(demos, training, "spline", known=[known])


def test_another_version_of_the_package_is_named_where_older_rows_are(
    demos: Any, training: Training, earlier: Path, tmp_path: Path
) -> None:
    here = read_json(earlier)["environment"]
    older = edited(earlier, tmp_path, environment=here | {"actionpiece": "0.0.9"})
    write_comparison(tmp_path, run(demos, training, "oat", "spline", known=[older]))
    said = f", with actionpiece 0.0.9 where this is {here['actionpiece']}): oat, with latencies"
    for file in ("tables.md", "report.html"):
        assert said in (tmp_path / file).read_text()
    write_comparison(tmp_path, run(demos, training, "oat", "spline", known=[earlier]))
    assert "where this is" not in (tmp_path / "tables.md").read_text()


def test_a_comparison_may_consist_of_earlier_rows_alone(
    demos: Any, training: Training, earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_is_fitted(monkeypatch)
    done = run(demos, training, "oat", "binning", known=[earlier])
    write_comparison(tmp_path, done)
    page = (tmp_path / "report.html").read_text()
    assert page.count("and therefore not drawn here: oat and binning.") == 2
    assert "<summary>Typical" not in page
    assert 'id="f-used' in page
    assert 'id="f-codes' not in page
    assert read_json(tmp_path / "results.json")["rows"] == read_json(earlier)["rows"][1::-1]


def test_every_table_draws_what_it_can(demos: Any, training: Training, earlier: Path, tmp_path: Path) -> None:
    done = run(demos, training, "oat", "spline", "binning", known=[earlier])
    done.results["tables"] = [
        {"name": "mixed", "about": "", "bits": None, "names": ["spline", "oat"]},
        {"name": "older", "about": "", "bits": None, "names": ["binning"]},
    ]
    assert [chunk["of"] for chunk in only(done.pictures, ["spline", "oat"])["chunks"]] == [None, "spline"]
    assert only(done.pictures, ["binning"])["chunks"] == []
    mixed, older = (path.read_text() for path in write_comparison(tmp_path, done))
    assert "Worst of spline" in mixed
    assert "): oat, with latencies" in mixed
    assert "): binning, with latencies" in older
    assert "<summary>" not in older.partition('<section id="chunks"')[2].partition("</section>")[0]
    assert "): oat and binning, with latencies" in (tmp_path / "tables.md").read_text()
