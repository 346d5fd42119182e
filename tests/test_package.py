"""The package as it is shipped: the wheel holds everything it needs, and the documents name what there is."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import actionpiece
from actionpiece.data.card import Card, read_card
from actionpiece.makers import make
from actionpiece.space import ActionSpace

ROOT = Path(__file__).parent.parent
LOOK = ("prompt", "observation/image", "observation/wrist_image", "observation/state")


@pytest.mark.slow
def test_the_wheel_imports_and_runs_from_an_empty_folder(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=200)
    (wheel,) = tmp_path.glob("*.whl")
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(unpacked)
    assert "actionpiece/py.typed" in names
    assert not [name for name in names if name.startswith("tests/")]
    code = (
        "import actionpiece, pathlib, sys;"
        "assert pathlib.Path(actionpiece.__file__).is_relative_to(sys.argv[1]), actionpiece.__file__;"
        "from actionpiece.report import write_report; from actionpiece.cli import main;"
        "print(actionpiece.ActionSpace.preset('libero').dim)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(unpacked)],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(unpacked), "PATH": "/usr/bin:/bin"},
        timeout=100,
    )
    assert done.stdout.strip() == "7"


def test_every_public_name_exists_and_is_documented() -> None:
    for name in actionpiece.__all__:
        assert getattr(actionpiece, name).__doc__, name


def test_the_architecture_names_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for path in (ROOT / "src" / "actionpiece").iterdir():
        if path.name.startswith("_") or path.suffix not in ("", ".py"):
            continue
        assert f"`{path.name}{'/' if path.is_dir() else ''}`" in text, path.name


def test_the_documented_card_and_action_space_are_read(tmp_path: Path) -> None:
    def blocks(document: Path) -> list[str]:
        return re.findall(r"```json\n(.*?)```", document.read_text(), re.DOTALL)

    card, space = blocks(ROOT / "docs" / "data.md")
    (short,) = blocks(ROOT / "README.md")
    (tmp_path / "card.json").write_text(card)
    (tmp_path / "short.json").write_text(short)
    assert read_card(tmp_path / "card.json").split == read_card(tmp_path / "short.json").split is not None
    keys = {field.name for field in dataclasses.fields(Card)} - {"path", "space_path"}
    assert keys - {"ahead"} == json.loads(card).keys()
    assert ActionSpace.from_json(space).groups == ActionSpace.preset("libero").groups


def test_the_readme_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        file = re.match(r"# (\w+\.py)\n", block)
        if file is not None:  # it stands alone
            Path(file[1]).write_text(block)
        else:
            exec(compile(block, "README.md", "exec"), names)
    test = names["test"]
    mine = make("my_file.py:make", "tokenizer", names["train"], names["demos"].space)
    assert abs(mine.decode(mine.encode(test)) - test).max() < 0.1
    assert make("my_policy.py:make", "policy").act(dict.fromkeys(LOOK)).shape == (8, 7)
