"""What becomes of mistakes in what is typed: one sentence, exit code 2, and nothing lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actionpiece import cli
from actionpiece.tokenizers.saving import TRAINED
from commands import run


@pytest.mark.parametrize("seed", ["-1", str(1 << 32), "one"])
@pytest.mark.parametrize("command", [["fit", "pq", "--seed"], ["compare", "--draw-seed"], ["ablate", "--seeds", "0"]])
def test_seeds_that_not_every_generator_takes_are_refused(
    command: list[str],
    seed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flag = next(word for word in command if word.startswith("--"))
    assert run([*command, seed, "--data", "none.npz", "--out", tmp_path / "out"], monkeypatch) == 2
    assert f"Error parsing {flag}: " in capsys.readouterr().err


def bad_inputs(folder: Path) -> dict[str, list[str]]:
    """Commands that cannot work, by what is wrong with them."""
    good = folder / "good.npz"
    steps = np.zeros((60, 7), np.float32)
    steps[:, 0] = np.sin(np.arange(60))
    np.savez(good, actions=np.concatenate([steps] * 5), ep_len=np.full(5, 60))
    (folder / "truncated.npz").write_bytes(good.read_bytes()[:200])
    (folder / "truncated.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    lerobot = folder / "lerobot"
    (lerobot / "meta").mkdir(parents=True)
    (lerobot / "data/chunk-000").mkdir(parents=True)
    info = {
        "codebase_version": "v2.1",
        "fps": 20,
        "chunks_size": 1000,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "features": {"action": {"dtype": "float32", "shape": [7]}},
    }
    (lerobot / "meta/info.json").write_text(json.dumps(info))
    (lerobot / "meta/episodes.jsonl").write_text(
        "\n".join(json.dumps({"episode_index": i, "tasks": ["x"], "length": 60}) for i in range(3))
    )
    for i in range(3):
        (lerobot / f"data/chunk-000/episode_{i:06d}.parquet").write_bytes(b"PAR1 not really")
    nan = steps.copy()
    nan[3, 2] = np.nan
    np.savez(folder / "nan.npz", actions=np.concatenate([nan] * 5), ep_len=np.full(5, 60))
    (folder / "empty").mkdir()
    fit = ["fit", "binning", "--out", str(folder / "out")]
    libero = ["--space", "libero"]
    return {
        "missing file": [*fit, "--data", str(folder / "none.npz"), *libero],
        "truncated npz": [*fit, "--data", str(folder / "truncated.npz"), *libero],
        "truncated hdf5": [*fit, "--data", str(folder / "truncated.hdf5"), *libero],
        "truncated parquet": [*fit, "--data", str(lerobot), *libero],
        "NaN": [*fit, "--data", str(folder / "nan.npz"), *libero],
        "wrong width": [*fit, "--data", str(good), "--space", "aloha"],
        "no action space": [*fit, "--data", str(good)],
        "unknown action space": [*fit, "--data", str(good), "--space", "nowhere"],
        "horizon beyond every episode": [*fit, "--data", str(good), *libero, "--horizon", "99"],
        "empty folder": [*fit, "--data", str(folder / "empty"), *libero],
        "unknown tokenizer": [
            "compare",
            "--data",
            str(good),
            *libero,
            "--out",
            str(folder / "o"),
            "--tokenizers",
            "nope",
        ],
        "unknown normaliser": [
            *["compare", "--data", str(good), *libero, "--out", str(folder / "o")],
            *["--tokenizers", "fast:normalizer=none"],
        ],
        "a maker that is not there": [
            *["compare", "--data", str(good), *libero, "--out", str(folder / "o")],
            *["--tokenizers", str(folder / "none.py:make")],
        ],
        "two numbers of steps": [
            *["compare", "--data", str(good), *libero, "--out", str(folder / "o")],
            *["--tokenizers", "rvq:train.steps=3", "--steps", "2"],
        ],
        "what is finished without a recipe": [
            *["compare", "--data", str(good), *libero, "--out", str(folder / "o"), "--finished"],
        ],
        "what is no earlier comparison": [
            *["compare", "--data", str(good), *libero, "--out", str(folder / "o")],
            *["--known", str(lerobot / "meta/info.json")],
        ],
        "an earlier comparison that is not there": [
            *[
                "compare",
                "--data",
                str(good),
                *libero,
                "--out",
                str(folder / "o"),
                "--known",
                str(folder / "none.json"),
            ],
        ],
        "no training steps": [
            *["compare", "--data", str(good), *libero, "--out", str(folder / "o")],
            *["--recipe", "matched", "--steps", "0"],
        ],
        "unknown setting": [
            "compare",
            "--data",
            str(good),
            *libero,
            "--out",
            str(folder / "o"),
            "--tokenizers",
            "pq:x=1",
        ],
        "bad setting": [*fit, "--data", str(good), *libero, "--bins", "1"],
        "too few chunks": ["compare", "--data", str(good), *libero, "--out", str(folder / "o"), "--k", "200"],
        "no tokenizer folder": ["eval", str(folder / "empty"), "--data", str(good), *libero],
        "no chunks": ["compare", "--data", str(good), *libero, "--out", str(folder / "o"), "--n", "-5"],
        "a contender that cannot work": [
            *["compare", "--data", str(good), *libero, "--out", str(folder / "o"), "--horizon", "4"],
            *["--tokenizers", "binning,spline", "--k", "8"],
        ],
        "a mistyped tokenizer": ["eval", str(folder / "typo"), "--data", str(good), *libero],
        "a file for a folder": ["compare", "--data", str(good), *libero, "--out", str(good)],
        "folder that is not ours": ["fit", "binning", "--data", str(good), *libero, "--out", str(folder)],
        "no such tokenizer": ["fit", "pk", "--data", str(good), "--out", str(folder / "out")],
        "one that is not fitted yet": ["eval", "pq", "--data", str(good), *libero],
        "a tokenizer for a policy": ["policy", "serve", str(TRAINED / "libero")],
        "no such row": ["ablate", "--data", str(good), *libero, "--out", str(folder / "o"), "--rows", "rvq,none"],
        "no rows": ["ablate", "--data", str(good), *libero, "--out", str(folder / "o"), "--rows", ","],
        "a file for an ablation": ["ablate", "--data", str(good), *libero, "--out", str(good)],
        "a device that is not there": [*fit, "--data", str(good), *libero, "--device", "cuda:99"],
        "no device at all": ["ablate", "--data", str(good), *libero, "--out", str(folder / "o"), "--device", "tpu9"],
        "nothing to resume": ["fit", "small", "--out", str(folder / "out"), "--data", str(good), *libero, "--resume"],
        "a recipe's bad setting": ["fit", "best", "--out", str(folder / "out"), "--data", str(good), "--blends", "2"],
        "unknown flag": [*fit, "--data", str(good), "--nonsense", "1"],
    }


def test_bad_input_gets_one_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for what, command in bad_inputs(tmp_path).items():
        assert run(command, monkeypatch) == 2, what
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err + printed.out, what
        if what != "unknown flag":  # the parser draws its own box for that
            (line,) = printed.err.strip().splitlines()
            assert line.startswith("actionpiece: "), what
            assert printed.out == "", what
    assert not (tmp_path / "out").exists()  # a fit that failed leaves nothing behind


@pytest.mark.parametrize(
    "damage", ["foreign tensors", "truncated tensors", "future", "no config", "other scale", "true horizon", "not json"]
)
def test_a_damaged_tokenizer_folder_is_said_in_one_sentence(
    damage: str, small_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "spline"
    assert run(["fit", "spline", "--data", small_npz, "--out", folder], monkeypatch) == 0
    config, tensors = folder / "config.json", folder / "model.safetensors"
    if damage == "foreign tensors":
        from safetensors.numpy import save_file

        save_file({"weight": np.zeros(3, np.float32)}, tensors)
    elif damage == "truncated tensors":
        tensors.write_bytes(tensors.read_bytes()[:50])
    elif damage == "future":
        config.write_text(json.dumps(json.loads(config.read_text()) | {"format_version": 99}))
    elif damage == "no config":
        config.unlink()
    elif damage == "other scale":  # it would decode, to other commands
        described = json.loads(config.read_text())
        described["normalizer"]["scale"][0] *= 2
        config.write_text(json.dumps(described))
    elif damage == "true horizon":
        config.write_text(json.dumps(json.loads(config.read_text()) | {"horizon": True}))
    else:
        config.write_text("{")
    capsys.readouterr()
    assert run(["eval", folder, "--data", small_npz], monkeypatch) == 2
    printed = capsys.readouterr()
    assert len(printed.err.strip().splitlines()) == 1
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    "greedy",
    [
        lambda: np.empty(10**15),
        lambda: torch.empty(10**15),
        lambda: (_ for _ in ()).throw(MemoryError),
        lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore")),
    ],
)
def test_memory_that_is_not_there_is_one_sentence(
    greedy: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "run", lambda arguments: next(iter(greedy())))
    assert run(["list"], monkeypatch) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("actionpiece: there is not enough memory for this")
    monkeypatch.setattr(cli, "run", lambda arguments: torch.ones(2) @ torch.ones(3))  # another mistake, and not theirs
    with pytest.raises(RuntimeError, match="size"):
        run(["list"], monkeypatch)
