"""Arrays and files at the door: what comes in is checked, and what is written is whole or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from actionpiece.arrays import chunks_tensor, to_tensor
from actionpiece.errors import ActionPieceError
from actionpiece.files import check_folder, read_json, sha256_of, write_json, writing, writing_folder


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3, 4]],
        np.array([[1, 2], [3, 4]], ">f4"),
        np.array([[1, 2], [3, 4]], np.float16),
        np.array([[1, 2], [3, 4]], np.longdouble),
        np.array([[1, 2], [3, 4]], np.uint64),
        np.array([[3, 4], [1, 2]], np.float32)[::-1],
        np.asfortranarray(np.array([[1.0, 2], [3, 4]])),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.int32),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.bfloat16),
    ],
)
def test_numbers_of_any_kind_become_a_float_tensor(values: object) -> None:
    for dtype in (None, torch.float32, torch.float64):
        tensor = to_tensor(values, dtype=dtype)
        assert tensor.is_floating_point()
        assert dtype is None or tensor.dtype == dtype
        assert tensor.tolist() == [[1, 2], [3, 4]]


def test_a_reversed_axis_of_length_one_and_read_only_memory_are_fine() -> None:
    assert to_tensor(np.ones((2, 1, 3))[:, ::-1]).shape == (2, 1, 3)
    frozen = np.ones(3)
    frozen.setflags(write=False)
    assert to_tensor(frozen).tolist() == [1, 1, 1]


@pytest.mark.parametrize("values", [None, "abc", [[1], [1, 2]], [1j], torch.tensor([1j]), [object()], [None]])
def test_what_is_no_rectangle_of_numbers_is_a_clear_error(values: object) -> None:
    with pytest.raises(ActionPieceError, match="actions must be"):
        to_tensor(values)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_counted_in_the_error(bad: float) -> None:
    with pytest.raises(ActionPieceError, match="hold 2 values that are not finite"):
        to_tensor([1.0, bad, bad])


def test_chunks_need_three_axes_the_right_width_and_something_in_them() -> None:
    assert chunks_tensor(np.zeros((2, 3, 4)), 4).shape == (2, 3, 4)
    for shape, sentence in (
        ((3, 4), "must have shape"),
        ((2, 3, 5), "5 columns, but the action space has 4"),
        ((0, 3, 4), "are empty"),
        ((2, 0, 4), "are empty"),
    ):
        with pytest.raises(ActionPieceError, match=sentence):
            chunks_tensor(np.zeros(shape), 4)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    with writing(path) as aside:
        aside.write_text("first")
        assert not path.exists()
    assert path.read_text() == "first"
    assert path.stat().st_mode & 0o777 == 0o644

    def interrupted() -> None:
        with writing(path) as aside:
            aside.write_text("second, hal")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "first"
    assert os.listdir(path.parent) == ["file.txt"]


def test_json_comes_back_and_a_broken_file_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [1, 2.5, None]})
    assert read_json(tmp_path / "a.json") == {"x": [1, 2.5, None]}
    (tmp_path / "broken.json").write_text('{"x": ')
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    for name, sentence in (
        ("missing.json", "missing.json does not exist"),
        ("broken.json", "broken.json is not readable JSON"),
        ("bytes.json", "bytes.json is not readable JSON"),
        (".", "is not readable JSON"),
    ):
        with pytest.raises(ActionPieceError, match=sentence):
            read_json(tmp_path / name)


def test_the_hash_of_several_files_is_that_of_their_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"ab")
    (tmp_path / "b").write_bytes(b"c")
    whole = tmp_path / "whole"
    whole.write_bytes(b"abc")
    assert sha256_of([tmp_path / "a", tmp_path / "b"]) == sha256_of([whole])
    assert sha256_of([tmp_path / "b", tmp_path / "a"]) != sha256_of([whole])


def make(folder: Path, text: str) -> None:
    with writing_folder(folder, "marker.json") as aside:
        (aside / "marker.json").write_text(text)


def test_where_no_folder_can_be_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ActionPieceError, match="file is a file; a folder is to be written there"):
        check_folder(file)
    with pytest.raises(ActionPieceError, match=r"nothing can be written in .*file is no folder that may be changed"):
        check_folder(file / "below" / "it")
    check_folder(tmp_path)
    check_folder(tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == [file]  # it only looks
    monkeypatch.chdir(tmp_path)
    check_folder(Path("new"))
    monkeypatch.setattr(os, "access", lambda path, how: False)  # root may write anywhere
    with pytest.raises(ActionPieceError, match="nothing can be written in new"):
        check_folder(Path("new"))


def test_a_folder_is_made_replaced_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    make(folder, "one")
    make(folder, "two")
    assert [path.name for path in folder.iterdir()] == ["marker.json"]
    assert (folder / "marker.json").read_text() == "two"
    assert os.listdir(folder.parent) == ["out"]
    assert folder.stat().st_mode & 0o777 == 0o755


def test_a_folder_with_somebodys_notes_in_it_is_not_replaced(tmp_path: Path) -> None:
    make(tmp_path / "out", "one")
    (tmp_path / "out" / "notes.txt").write_text("do not touch")
    with pytest.raises(ActionPieceError, match=r"also holds notes\.txt"):
        make(tmp_path / "out", "two")
    assert (tmp_path / "out" / "marker.json").read_text() == "one"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_while_writing_leaves_the_old_folder_whole(tmp_path: Path, error: type[BaseException]) -> None:
    make(tmp_path / "out", "one")

    def interrupted() -> None:
        with writing_folder(tmp_path / "out", "marker.json") as aside:
            (aside / "marker.json").write_text("tw")
            raise error

    with pytest.raises(error):
        interrupted()
    assert (tmp_path / "out" / "marker.json").read_text() == "one"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), np.float64("-inf")])
def test_what_is_no_number_in_json_is_never_written(tmp_path: Path, odd: float) -> None:
    with pytest.raises(ActionPieceError, match=rf"x\.json cannot be written: rows\.1\.mse is {odd}, and JSON has no"):
        write_json(tmp_path / "x.json", {"rows": [{"mse": 1.0}, {"mse": odd}]})
    assert not list(tmp_path.iterdir())


def test_a_failure_while_swapping_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "out", "one")
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if str(source).endswith(".part"):
            raise OSError("the disk is full")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="disk is full"):
        make(tmp_path / "out", "two")
    assert (tmp_path / "out" / "marker.json").read_text() == "one"
    with pytest.raises(OSError, match="disk is full"):
        make(tmp_path / "new", "two")
    monkeypatch.undo()
    assert (tmp_path / "out" / "marker.json").read_text() == "one"
    assert os.listdir(tmp_path) == ["out"]


def test_a_foreign_folder_or_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    with pytest.raises(ActionPieceError, match=r"not empty and has no marker\.json"):
        make(tmp_path / "thesis", "one")
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "years of work"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ActionPieceError, match="is a file"):
        make(tmp_path / "file", "one")
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty", "one")
    assert sorted(os.listdir(tmp_path)) == ["empty", "file", "thesis"]


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    make(tmp_path / "real", "one")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    make(tmp_path / "link", "two")
    assert (tmp_path / "link").is_symlink()
    assert json.dumps((tmp_path / "real" / "marker.json").read_text()) == '"two"'
