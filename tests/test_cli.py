"""The commands as a user types them: what they print, and what they write."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from actionpiece import cli
from actionpiece.commands import console
from actionpiece.evaluation.contenders import Contender
from actionpiece.report.text import E4
from actionpiece.space import ActionSpace
from actionpiece.tokenizers import KINDS, RECIPES
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


def test_fit_eval_tokenize_inspect_walk_one_folder(
    small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pq"
    fit = ["fit", "pq", "--data", small_npz, "--out", out, "--tokens", 4, "--codes", 16, "--rows", 500, "--refine", 1]
    assert run(fit, monkeypatch) == 0
    assert "training chunks of small" in capsys.readouterr().out
    assert run(["eval", out, "--data", small_npz, "--n", 200, "--json"], monkeypatch) == 0
    document = json.loads(capsys.readouterr().out)  # one JSON document and nothing else
    (row,) = document["rows"]
    assert row.keys() >= ROW_KEYS
    assert row["name"] == "pq"
    assert row["tokens_per_chunk"] == 4
    assert row["bits_per_chunk"] == 16.0
    assert row["n"] == 200
    assert document["data"]["split"]["test"] == 3
    assert run(["inspect", out, "--json"], monkeypatch) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["vocab_size"] == 16
    assert facts["provenance"]["data"]["name"] == "small"
    assert run(["inspect", out], monkeypatch) == 0
    assert "4 tokens of 16 for 8 steps" in capsys.readouterr().out
    shards = tmp_path / "tokens"
    assert run(["tokenize", out, "--data", small_npz, "--out", shards, "--shard", 500], monkeypatch) == 0
    manifest = json.loads((shards / "_manifest.json").read_text())
    assert len(manifest["shards"]) == -(-manifest["chunks"]["chunks"] // 500)
    assert pq.read_table(shards).num_rows == manifest["chunks"]["chunks"]


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


def test_where_progress_goes_to_a_file_it_is_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with console.progress(200) as show:
        for second in range(0, 200, 10):
            now = float(second)
            show(second, f"a [name] and {'words ' * 20}after {second} s")
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert [line.split()[1] for line in lines] == ["30%", "60%", "90%"]
    assert all("a [name] and" in line and line.endswith(" s") for line in lines)
    monkeypatch.setenv("RANK", "1")  # of several processes one speaks
    now = 0.0
    with console.progress() as show:
        now = 100.0
        show(0.5, "again")
    assert capsys.readouterr().err == ""


def test_what_may_be_a_mistake_is_said_and_done(
    small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = ["fit", "pq", "--data", small_npz, "--codes", 400, "--refine", 1]
    assert run([*fit, "--out", tmp_path / "a"], monkeypatch) == 0
    told = capsys.readouterr().err
    assert "pq has 400 codes to learn from " in told
    assert "The card of" not in told
    assert run([*fit, "--out", tmp_path / "b", "--space", "bridge"], monkeypatch) == 0
    assert "The card of small says libero; --space bridge takes its place." in capsys.readouterr().err


def test_text_is_written_as_utf_8_and_printed_whatever_the_locale(small_npz: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "actionpiece",
        "compare",
        "--data",
        small_npz,
        "--tokenizers",
        "binning",
        "--n",
        "60",
    ]
    plain = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    out = tmp_path / "out"
    done = subprocess.run([*command, "--out", out], capture_output=True, timeout=120, env=plain)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"binning" in done.stdout
    assert E4 in (out / "tables.md").read_text(encoding="utf-8")
    assert json.loads((out / "results.json").read_text(encoding="utf-8"))["rows"]


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


def test_where_a_tokenizer_cannot_be_saved_is_said_before_the_fit(
    small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from actionpiece.evaluation import contenders

    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": []}')  # somebody's model
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(contenders, "fit", lambda *args, **rest: pytest.fail("something was fitted"))
        for out in (model, tmp_path / "file", tmp_path / "file" / "below"):
            assert run(["fit", "binning", "--data", small_npz, "--out", out], monkeypatch) == 2
            place = str(out.parent if out.name == "below" else out)
            assert place in "".join(capsys.readouterr().err.split("\n"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert run(["fit", "binning", "--data", small_npz, "--out", "."], monkeypatch) == 0
    there = sorted(path.name for path in (tmp_path / "empty").iterdir())  # the folder was replaced
    assert there == ["config.json", "model.safetensors"]


def test_nothing_that_was_fitted_is_lost_to_a_second_fit(
    small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t"
    fit = ["fit", "small", "--data", small_npz, "--out", out, "--steps", 3, "--checkpoint-every", 1]
    fit += ["--warmup", 0, "--settle", 0, "--batch", 8, "--codes", 8]
    assert run(fit, monkeypatch) == 0
    assert run(["inspect", out], monkeypatch) == 0
    assert "small (kind actionpiece): 16 tokens" in capsys.readouterr().out
    before = (out / "config.json").read_text()
    assert run(["fit", "binning", "--data", small_npz, "--out", out], monkeypatch) == 2
    assert "t holds a tokenizer already; --overwrite replaces it" in capsys.readouterr().err.replace("\n", "")
    assert (out / "config.json").read_text() == before
    assert run([*fit, "--resume"], monkeypatch) == 0  # it was over
    (out.parent / "t.run").rename(out.parent / "moved")
    assert run(["fit", "binning", "--data", small_npz, "--out", out, "--resume"], monkeypatch) == 2  # nothing to resume
    assert json.loads((out / "config.json").read_text())["kind"] == "actionpiece"
    (out.parent / "moved").rename(out.parent / "t.run")
    shutil.rmtree(out)
    assert run(fit, monkeypatch) == 2
    assert "t.run holds a training that came to step 3: --resume" in capsys.readouterr().err.replace("\n", "")
    assert run([*fit, "--overwrite"], monkeypatch) == 0
    assert run(["fit", "binning", "--data", small_npz, "--out", out, "--overwrite"], monkeypatch) == 0


def test_brackets_in_a_note_are_shown_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {**ActionSpace.preset("libero").to_dict(), "note": "units [m/s] and [/m]"}
    (tmp_path / "space.json").write_text(json.dumps(space))
    np.savez(tmp_path / "d [v2].npz", actions=np.random.default_rng(0).normal(size=(200, 7)), ep_len=[20] * 10)
    flags = ["--data", tmp_path / "d [v2].npz", "--space", tmp_path / "space.json"]
    assert run(["fit", "binning", *flags, "--out", tmp_path / "t"], monkeypatch) == 0
    assert run(["inspect", tmp_path / "t"], monkeypatch) == 0
    assert run(["eval", tmp_path / "t", *flags, "--n", 5, "--k", 2], monkeypatch) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "units [m/s] and [/m]" in shown
    assert "split of d [v2] (demonstrations)" in shown


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


def test_a_26_joint_robot_goes_through_fit_and_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "humanoid.hdf5"
    with h5py.File(path, "w") as file:
        for i in range(6):
            walk = np.cumsum(rng.normal(0, 0.02, (90, 26)), 0)
            file[f"data/demo_{i}/actions"] = walk
    small = "pq:codes=32:refine=1"
    command = ["compare", "--data", path, "--space", "joints:26", "--tokenizers", f"{small},binning"]
    assert run([*command, "--out", tmp_path / "out", "--n", 80, "--json"], monkeypatch) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["groups"][0]["unit"] == "deg"
    assert row["gripper_flips"] is None


def test_data_info_and_list_speak_json(
    small_npz: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["data", "info", small_npz, "--json"], monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 12
    assert run(["data", "info", small_npz], monkeypatch) == 0
    assert "12 episodes" in capsys.readouterr().out
    assert run(["list", "--json"], monkeypatch) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {kind["name"] for kind in listed["tokenizers"]} >= {"binning", "fast", "spline", "pq"}
    assert run(["list"], monkeypatch) == 0
    assert "aloha" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["fit"],
        ["data"],
        *[["fit", name] for name in (*KINDS, *RECIPES)],  # flags of settings and of objectives' weights may collide
        ["eval"],
        ["compare"],
        ["ablate"],
        ["correlate"],
        ["tokenize"],
    ],
)
def test_help_is_there_for_every_command(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--help"], monkeypatch) == 0
    assert "usage: actionpiece" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["compare"], ["record"], ["ablate"], ["fit", "actioncodec"], ["policy", "train"]])
def test_lines_of_help_are_full(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line of an argument's help ends where the next word has no room, and not where a docstring's line ends."""
    monkeypatch.setenv("COLUMNS", "100")
    assert run([*command, "--help"], monkeypatch) == 0
    lines = [line.rstrip(" │").replace("│", " ") for line in capsys.readouterr().out.splitlines()]
    pairs = 0
    for line, after in itertools.pairwise(lines):
        start = len(line) - len(line.lstrip())
        if start < 10 or len(after) - len(after.lstrip()) != start:
            continue  # not two lines of one text
        pairs += 1
        assert len(line) + 1 + len(after.split()[0]) > 97, line
    assert pairs


def test_what_help_says_of_a_command_is_not_broken_before_a_backtick(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", "--help"], monkeypatch) == 0
    assert "must have been made by `actionpiece record`, which" in capsys.readouterr().out


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, actionpiece.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_a_pipe_that_breaks_elsewhere_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: object, **rest: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(cli.tyro.extras, "subcommand_cli_from_dict", broken)
    assert run(["list"], monkeypatch) == 2
    assert "Broken pipe" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_left_is_no_error(unbuffered: str) -> None:
    command = f"{sys.executable} -m actionpiece list --json | true"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m actionpiece list | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
