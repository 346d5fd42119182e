"""The tokenizers that come with the package: found by name, whole, and of use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import actionpiece
from actionpiece import ActionPieceError
from actionpiece.cli import run
from actionpiece.evaluation.contenders import Contender
from actionpiece.tokenizers import trained
from actionpiece.tokenizers.binning import BinningConfig, BinningTokenizer
from actionpiece.tokenizers.saving import read_tensors
from conftest import libero_like


def test_every_one_loads_by_its_name_and_is_what_its_config_says() -> None:
    assert "libero" in trained()
    for name, folder in trained().items():
        tok = actionpiece.load(name)
        description = json.loads((folder / "config.json").read_text())
        assert description["fingerprint"] == tok.fingerprint()
        assert tok.provenance["data"]["generated"] is False
        assert (folder / "README.md").is_file()
        assert sum(file.stat().st_size for file in folder.iterdir()) < 4e6


def test_libero_keeps_smooth_commands_it_has_not_seen() -> None:
    tok = actionpiece.load("libero")
    assert (tok.tokens_per_chunk, tok.vocab_size, tok.space.name) == (16, 512, "libero")
    chunks = 0.5 * libero_like(500)
    chunks[..., 6] = libero_like(500)[..., 6]
    error = tok.decode(tok.encode(chunks)) - chunks
    assert np.sqrt(np.square(error[..., :6]).mean()) < 0.05  # of commands with a deviation of 0.1
    assert (np.sign(tok.decode(tok.encode(chunks))[..., 6]) == np.sign(chunks[..., 6])).mean() > 0.99


def test_a_folder_of_that_name_comes_first_but_only_if_it_holds_a_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("libero").mkdir()  # demonstrations, say
    assert actionpiece.load("libero").kind == "actionpiece"
    BinningTokenizer.fit(libero_like(50), actionpiece.ActionSpace.preset("libero"), BinningConfig()).save_pretrained(
        "mine"
    )
    Path("libero").rmdir()
    Path("mine").rename("libero")
    assert actionpiece.load("libero").kind == "binning"


def test_commands_know_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Contender.parse("libero").name == "libero"
    with pytest.raises(ActionPieceError, match="libero"):
        Contender.parse("liber")
    run(["list"])
    assert "libero" in capsys.readouterr().out
    run(["inspect", "libero", "--json"])
    assert json.loads(capsys.readouterr().out)["kind"] == "actionpiece"


def test_half_writes_what_it_keeps(tmp_path: Path) -> None:
    tok = actionpiece.load("libero")
    with torch.no_grad():
        tok.codec.analysis.weight.mul_(1 + 1e-5)  # no longer values of float16
    whole = tok.fingerprint()
    tok.config = replace(tok.config, train=replace(tok.config.train, steps=7))
    assert tok.fingerprint() == whole  # how it was trained is not what it does
    tok.save_pretrained(tmp_path / "half", half=True)
    assert tok.fingerprint() != whole
    again = actionpiece.load(tmp_path / "half")
    assert again.fingerprint() == tok.fingerprint()
    kinds = {tensor.dtype for tensor in read_tensors(tmp_path / "half" / "model.safetensors").values()}
    assert torch.float16 in kinds
    assert torch.float32 not in kinds
    assert all(parameter.dtype == torch.float32 for parameter in again.parameters())
    with torch.no_grad():
        tok.codec.analysis.weight[0, 0] = 1e6
    with pytest.raises(ActionPieceError, match="too large for float16"):
        tok.save_pretrained(tmp_path / "large", half=True)
    assert not (tmp_path / "large").exists()
