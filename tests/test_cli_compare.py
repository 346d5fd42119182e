"""`compare` as a user types it: what it prints, what it writes, and what it does not overwrite."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from actionpiece.evaluation.contenders import Contender
from actionpiece.options import names_in
from commands import run
from tiny import tiny

ROW_KEYS = {
    "name",
    "tokens_per_chunk",
    "bits_per_chunk",
    "mse",
    "l1",
    "prc",
    "prc_left_out",
    "prc_collapsed",
    "seed",
    "n",
}


def test_compare_prints_rows_and_writes_a_report(
    small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "binning:bins=16,fast,pq:tokens=4:codes=16:refine=1"
    command = ["compare", "--data", small_npz, "--tokenizers", names, "--out", tmp_path / "out", "--n", 200, "--json"]
    assert run(command, monkeypatch) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in printed["rows"]] == names.split(",")
    assert all(row.keys() >= ROW_KEYS for row in printed["rows"])
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == printed
    report = (tmp_path / "out" / "report.html").read_text()
    assert all(name in report for name in names.split(","))
    # The fitted tokenizers can be compared again without fitting, and score the same.
    folder = tmp_path / "out" / "tokenizers" / "binning_bins-16"
    again = ["compare", "--data", small_npz, "--tokenizers", folder, "--out", tmp_path / "again", "--n", 200, "--json"]
    assert run(again, monkeypatch) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["mse"], row["prc"]) == (printed["rows"][0]["mse"], printed["rows"][0]["prc"])


def test_json_stands_alone_whatever_a_users_code_prints(small_npz: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, sys, actionpiece\n"
        "from actionpiece.tokenizers.binning import BinningConfig, BinningTokenizer\n"
        "print('imported')\n"
        "def make(chunks, space):\n"
        "    os.system('echo a process')\n"
        "    print('made', file=sys.__stdout__)\n"
        "    return BinningTokenizer.fit(chunks, space, BinningConfig(bins=8))\n"
    )
    command = [
        sys.executable,
        "-m",
        "actionpiece",
        "compare",
        "--data",
        small_npz,
        "--tokenizers",
        "mine.py:make,binning",
    ]
    command += ["--out", tmp_path / "out", "--n", "60", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert [row["name"] for row in json.loads(done.stdout)["rows"]] == ["mine.py:make", "binning"]
    assert sorted(done.stderr.split("\n")) == ["", "a process", "imported", "made"]


def test_a_tokenizer_whose_training_breaks_off_costs_nothing_but_its_row(
    small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from actionpiece.tokenizers import actionpiece as codec

    wild = tiny(learning_rate=1e30, clip=1e30)
    monkeypatch.setattr(codec, "small", lambda: wild)
    command = ["compare", "--data", small_npz, "--tokenizers", "small,binning", "--out", tmp_path, "--n", 100]
    assert run(command, monkeypatch) == 2
    said = capsys.readouterr()
    told = " ".join(said.err.split())
    assert "small could not be fitted or scored, the rest is there. small: the loss is not finite" in told
    assert [row["name"] for row in json.loads((tmp_path / "results.json").read_text())["rows"]] == ["binning"]
    assert (tmp_path / "report.html").is_file()
    assert "Not there: small" in " ".join(said.out.split())


def test_a_recipe_has_two_tables_and_goes_on_where_it_was(
    small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from actionpiece.evaluation import recipes

    entries = (recipes.Entry("binning", (recipes.Knob("bins"),)), recipes.Entry("not_yet"))
    monkeypatch.setitem(recipes.COMPARISONS, "classical", recipes._tables(entries))
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import actionpiece\n"
        "from actionpiece.tokenizers.binning import BinningConfig, BinningTokenizer\n"
        "def make(chunks, space):\n"
        "    inside = BinningTokenizer.fit(chunks, space, BinningConfig(bins=8))\n"
        "    return actionpiece.wrap(inside.encode, inside.decode, space=space, horizon=8, vocab_size=8, name='mine')\n"
    )
    out = tmp_path / "out"
    command = ["compare", "--recipe", "classical", "--data", small_npz, "--out", out, "--n", 100]
    command += ["--tokenizers", f"{mine}:make,binning:normalizer=quantile", "--json"]
    assert run(command, monkeypatch) == 0
    printed = json.loads(capsys.readouterr().out)
    extra = ["mine.py:make", "binning:normalizer=quantile"]
    assert [table["names"] for table in printed["tables"]] == [["binning", *extra], ["binning:bins=5"]]
    assert [one["name"] for one in printed["missing"]] == ["not_yet", "not_yet", *extra]
    assert sorted(path.name for path in out.glob("*.*")) == [
        "native.html",
        "recipe.json",
        "results.json",
        "tables.md",
        "within-144-bits.html",
    ]
    assert "finished_before" not in printed
    assert run(command[:-1], monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "Not there: not_yet (not in this version)." in shown
    again = json.loads((out / "results.json").read_text())
    assert again["finished_before"] == ["binning", "binning:bins=5", "binning:normalizer=quantile"]
    assert [row["mse"] for row in again["rows"]] == [row["mse"] for row in printed["rows"]]
    before = (out / "results.json").read_bytes()
    assert run(["compare", "--data", small_npz, "--tokenizers", "binning", "--out", out, "--n", 100], monkeypatch) == 2
    assert "holds a comparison by recipe, which is not overwritten; choose" in capsys.readouterr().err
    assert (out / "results.json").read_bytes() == before


def test_a_comparison_is_not_lost_to_another_one(
    small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is made again, and perhaps more, may be written over it; anything else takes --overwrite."""
    out = tmp_path / "out"
    command = ["compare", "--data", small_npz, "--out", out, "--n", 60, "--tokenizers"]
    assert run([*command, "binning,spline"], monkeypatch) == 0
    assert run([*command, "binning,spline"], monkeypatch) == 0
    assert run([*command, "binning,binning:bins=9,spline"], monkeypatch) == 0
    before = (out / "results.json").read_bytes()
    others = [["binning"], ["binning,binning:bins=9,spline", "--k", 5], ["binning,binning:bins=9,spline", "--seed", 1]]
    others += [["binning,binning:bins=9,spline", "--split", "validation"], ["binning", "--recipe", "classical"]]
    capsys.readouterr()
    for other in others:
        assert run([*command, *other], monkeypatch) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "another comparison" in told or "something else" in told, told
    assert (out / "results.json").read_bytes() == before
    assert run([*command, "binning", "--overwrite"], monkeypatch) == 0
    assert [row["name"] for row in json.loads((out / "results.json").read_text())["rows"]] == ["binning"]

    (out / "results.json").write_text('{"mine": 1}')  # no comparison's: not even with --overwrite
    assert run([*command, "binning", "--overwrite"], monkeypatch) == 2
    assert "is no comparison's, so it is not overwritten" in " ".join(capsys.readouterr().err.split())
    assert (out / "results.json").read_text() == '{"mine": 1}'


def test_a_folder_with_the_name_of_a_recipes_tokenizer_is_not_passed_over(
    small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from actionpiece.evaluation import recipes

    monkeypatch.setitem(recipes.COMPARISONS, "classical", recipes._tables((recipes.Entry("binning"),)))
    mine = tmp_path / "mine" / "binning"
    assert run(["fit", "binning", "--bins", 4, "--data", small_npz, "--out", mine], monkeypatch) == 0
    command = ["compare", "--recipe", "classical", "--data", small_npz, "--out", tmp_path / "out", "--n", 100]
    assert run([*command, "--tokenizers", mine], monkeypatch) == 2
    assert "'binning' is named twice" in " ".join(capsys.readouterr().err.split())
    assert run([*command, "--tokenizers", "binning"], monkeypatch) == 0  # the very same


def test_a_recipe_can_be_written_of_what_is_trained_so_far(
    small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from actionpiece.evaluation import recipes

    entries = (recipes.Entry("binning", (recipes.Knob("bins"),)), recipes.Entry("vqbet", (recipes.Knob("levels"),)))
    monkeypatch.setitem(recipes.COMPARISONS, "classical", recipes._tables(entries))
    command = ["compare", "--recipe", "classical", "--data", small_npz, "--out", tmp_path, "--n", 100, "--finished"]
    assert run(command, monkeypatch) == 0
    assert "Not there: vqbet (it is not trained yet)." in " ".join(capsys.readouterr().out.split())
    tables = json.loads((tmp_path / "results.json").read_text())["tables"]
    assert [table["names"] for table in tables] == [["binning"], ["binning:bins=5"]]


def test_a_recipe_is_filled_from_what_an_earlier_comparison_wrote(
    small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from actionpiece.evaluation import recipes

    command = ["compare", "--data", small_npz, "--n", 100]
    assert run([*command, "--tokenizers", "binning", "--out", tmp_path / "first"], monkeypatch) == 0
    file = tmp_path / "first" / "results.json"
    first = json.loads(file.read_text())
    contender = Contender.parse("oat")
    plain = json.loads(json.dumps(dataclasses.asdict(contender.config)))
    assert plain["train"]["steps"] == 100_000  # which nobody has the time to train in a test
    first["rows"].append(first["rows"][0] | {"name": "oat", "kind": "oat", "config": plain, "mse": 0.5})
    file.write_text(json.dumps(first))
    entries = (recipes.Entry("oat"), recipes.Entry("spline"), recipes.Entry("vqbet"))
    monkeypatch.setitem(recipes.COMPARISONS, "classical", recipes._tables(entries))
    capsys.readouterr()
    command += ["--known", file, "--tokenizers", "binning", "--out", tmp_path / "out"]
    assert run([*command, "--recipe", "classical", "--finished"], monkeypatch) == 0
    shown = " ".join(capsys.readouterr().out.split())
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [table["names"] for table in results["tables"]] == [["oat", "spline", "binning"], ["oat"]]
    assert [row for row in results["rows"] if row["name"] != "spline"] == first["rows"][::-1]
    assert [one["name"] for one in results["known"]] == ["oat", "binning"]
    assert "Not there: vqbet (it is not trained yet)." in shown
    said = f"(made by `{first['command']}`, {first['created'][:10]}): oat and binning, with latencies"
    assert said in shown
    assert said in (tmp_path / "out" / "tables.md").read_text()
    assert "not drawn here: oat and binning." in (tmp_path / "out" / "native.html").read_text()
    assert "not drawn here: oat." in (tmp_path / "out" / "within-144-bits.html").read_text()
    # What cannot work is said before anything is looked for or fitted.
    monkeypatch.setattr(recipes, "resolve", lambda *rest, **more: pytest.fail("looked for"))
    for flags, reason in (
        (["--k", 9], "was scored by another protocol: k is 32 there and 9 here"),
        (["--replay", 3], "--replay needs every tokenizer, and --known brings rows without"),
    ):
        again = [*command[:-1], tmp_path / "again", "--recipe", "classical", *flags]
        assert run(again, monkeypatch) == 2
        assert reason in capsys.readouterr().err


def test_compare_shows_a_table_on_a_terminal(
    small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "--data", small_npz, "--tokenizers", "binning", "--out", tmp_path, "--n", 100]
    assert run(command, monkeypatch) == 0
    assert "columns within ±2.5, ±2.5, ±2.5, ±2.5, ±2.5, ±2.5, no bound" in (tmp_path / "report.html").read_text()
    out = capsys.readouterr().out
    assert "binning" in out
    assert "report.html" in out


def test_names_may_have_commas_or_blanks_between_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one,folder").mkdir()
    monkeypatch.chdir(tmp_path)
    assert names_in(["pq, fast", "binning", "", "one,folder", ","]) == ["pq", "fast", "binning", "one,folder"]
