"""The commands as a user types them: what they print, and what they write."""

from __future__ import annotations

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
from actionpiece.report.text import E4
from actionpiece.space import ActionSpace
from actionpiece.tokenizers import KINDS, RECIPES
from commands import run

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
