"""Code that users bring: found by module or file, and its mistakes said in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from actionpiece import ActionPieceError
from actionpiece.makers import find_maker, make, names_maker

CODE = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True)
class Thing:
    size: int = 3

def make(): return Thing()
def broken(): raise KeyError("nothing\\nthere")
def leaves(): raise SystemExit(3)
number = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizers.py"
    path.write_text(CODE)
    return path


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("my_file.py:make", True),
        ("/a b/x-1.py:make", True),
        ("package.module:make", True),
        ("pq:blend=0.5", False),
        ("pq", False),
        ("file.py", False),
        ("file.py:", False),
        (":make", False),
        ("runs/first", False),
    ],
)
def test_the_spelling_of_makers(text: str, is_one: bool) -> None:
    assert names_maker(text) is is_one


def test_a_file_is_loaded_under_a_name_of_its_own(file: Path) -> None:
    import tokenizers  # a package that others import by the name of the file

    assert make(f"{file}:make", "thing").size == 3
    assert sys.modules["tokenizers"] is tokenizers


def test_a_file_is_executed_once_unless_it_was_changed_or_broke_off(tmp_path: Path) -> None:
    times, path = tmp_path / "times", tmp_path / "mine.py"
    counting = f"{CODE}\nopen({str(times)!r}, 'a').write('x')\n"
    path.write_text(f"{counting}1 / 0\n")
    for _ in range(2):
        with pytest.raises(ActionPieceError, match="cannot be loaded: ZeroDivisionError"):
            find_maker(f"{path}:make", "thing")
    assert times.read_text() == "xx"
    path.write_text(counting)
    here = tmp_path / ".." / tmp_path.name / "mine.py"
    assert find_maker(f"{path}:make", "thing") is find_maker(f"{here}:make", "thing")
    assert times.read_text() == "xxx"


def test_a_module_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_users_package").mkdir()
    (tmp_path / "a_users_package" / "things.py").write_text(CODE)
    assert make("a_users_package.things:make", "thing").size == 3
    (tmp_path / "shlex.py").write_text("raise RuntimeError")  # it is found after all others
    assert find_maker("shlex:join", "thing")(["a b"]) == "'a b'"


def test_a_module_is_imported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "some_users_module.py").write_text(CODE)
    monkeypatch.syspath_prepend(file.parent)
    assert make("some_users_module:make", "thing").size == 3


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone", "the thing '.*:gone' cannot be loaded: .* has no function 'gone'"),
        ("number", "number is not a function"),
        ("leaves", "the thing '.*:leaves' cannot be made: SystemExit: 3"),
        ("broken", "the thing '.*:broken' cannot be made: KeyError: 'nothing.nthere'"),
    ],
)
def test_mistakes_are_one_sentence(file: Path, name: str, reason: str) -> None:
    with pytest.raises(ActionPieceError, match=reason) as caught:
        make(f"{file}:{name}", "thing")
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ActionPieceError, match=r"none\.py does not exist"):
        find_maker(f"{tmp_path}/none.py:make", "thing")
    with pytest.raises(ActionPieceError, match="cannot be loaded: ModuleNotFoundError"):
        find_maker("no_such_package.module:make", "thing")
    with pytest.raises(ActionPieceError, match=r"names no thing: write package\.module:maker"):
        find_maker("nothing", "thing")
