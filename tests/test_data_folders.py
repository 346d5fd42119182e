"""Several files as one: folders, lists of paths, and what must agree between them."""

from __future__ import annotations

import json
import os

import h5py
import numpy as np
import pytest

from actionpiece.data import open_demos
from actionpiece.errors import ActionPieceError
from actionpiece.space import ActionSpace


def npz(path, lengths, dim=7, card=None, value=0.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, actions=np.full((sum(lengths), dim), value, np.float32), ep_len=np.array(lengths))
    if card is not None:
        path.with_suffix(".json").write_text(json.dumps(card))


def aloha(path, length, value=0.0):
    with h5py.File(path, "w") as file:
        file["action"] = np.full((length, 7), value, np.float32)


def lerobot(root, lengths):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (root / "meta").mkdir(parents=True)
    (root / "data" / "chunk-000").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps({"codebase_version": "v2.1", "fps": 20}))
    with (root / "meta" / "episodes.jsonl").open("w") as handle:
        for i, n in enumerate(lengths):
            handle.write(json.dumps({"episode_index": i, "length": n, "tasks": []}) + "\n")
            table = pa.table({"action": pa.array([[0.0] * 7] * n, pa.list_(pa.float32()))})
            pq.write_table(table, root / "data" / "chunk-000" / f"episode_{i:06d}.parquet")


def test_a_folder_of_any_mix_is_read_in_natural_order(tmp_path):
    root = tmp_path / "mix"
    npz(root / "b" / "x.npz", [4, 5])
    aloha(root / "episode_10.hdf5", 10)
    aloha(root / "episode_9.hdf5", 9)
    lerobot(root / "c", [6, 7])
    npz(root / ".cache" / "old.npz", [1])
    (root / "README.md").write_text("hello")
    demos = open_demos(root)
    assert demos.name == "mix"
    assert demos.lengths.tolist() == [4, 5, 6, 7, 9, 10]
    labels = [file["name"] for file in demos.describe()["files"]]
    assert labels == ["mix/b/x.npz", "mix/c", "mix/episode_9.hdf5", "mix/episode_10.hdf5"]
    assert demos.episode(4).shape == (9, 7)


def test_each_member_keeps_its_own_card_and_the_splits_are_united(tmp_path):
    for name, clip, seed in (("a", 0.5, 1), ("b", 0.25, 2)):
        card = {"space": "libero", "clip": [clip] * 7, "split": {"seed": seed, "test": 2, "validation": 1}}
        npz(tmp_path / f"{name}.npz", [3] * 6, card=card, value=1.0)
    both = open_demos(tmp_path / "a.npz", tmp_path / "b.npz")
    split = both.split()
    first, second = (np.random.default_rng(seed).permutation(6) for seed in (1, 2))
    assert split.test.tolist() == [*first[:2], *(second[:2] + 6)]
    assert split.validation.tolist() == [first[2], second[2] + 6]
    assert both.episode(0).max() == 0.5
    assert both.episode(6).max() == 0.25
    assert both.name == "a+b"
    assert both.describe()["split"]["seeds"] == [1, 2]


def test_a_folders_card_is_that_of_all_files_without_a_nearer_one(tmp_path):
    root = tmp_path / "mine"
    npz(root / "a.npz", [3] * 4, card={"fps": 20})  # somebody else's JSON
    npz(root / "deep" / "b.npz", [3] * 4)
    npz(root / "deep" / "c.npz", [3] * 4, card={"space": "libero", "note": "its own"})
    lerobot(root / "near" / "d", [6, 7])
    (root / "actionpiece.json").write_text(json.dumps({"space": "libero", "note": "of all"}))
    (root / "near" / "actionpiece.json").write_text(json.dumps({"space": "libero", "note": "nearer"}))
    demos = open_demos(root)
    assert demos.space.name == "libero"
    assert [file["note"] for file in demos.describe()["files"]] == ["of all", "of all", "its own", "nearer"]
    for part, note in (
        ("a.npz", "of all"),
        ("deep", "of all; its own"),
        ("near/d", "nearer"),
        ("deep/../a.npz", "of all"),
    ):
        assert open_demos(root / part).note == note
    before = demos.fingerprint()
    (root / "actionpiece.json").write_text(json.dumps({"space": "libero", "note": "changed"}))
    assert open_demos(root).fingerprint() != before


def test_a_folders_card_splits_the_folder_as_a_whole(tmp_path, monkeypatch):
    root = tmp_path / "mine"
    for number in range(6):  # an episode a file
        npz(root / f"{number}.npz", [3])
    (root / "actionpiece.json").write_text(
        json.dumps({"space": "libero", "split": {"seed": 3, "test": 2, "validation": 1}})
    )
    order = np.random.default_rng(3).permutation(6)
    monkeypatch.chdir(root)
    for named in (root, tmp_path, "."):
        split = open_demos(named).split()
        assert [split.test.tolist(), split.validation.tolist()] == [order[:2].tolist(), order[2:3].tolist()]
    for part in (root / "0.npz", "1.npz"):  # by itself it would be split otherwise
        with pytest.raises(ActionPieceError, match=r"splits all that is in its folder: name .*mine, or give .* a card"):
            open_demos(part)
    npz(root / "0.npz", [3] * 4, card={"space": "libero"})
    assert len(open_demos(root / "0.npz")) == 4
    (root / "actionpiece.json").write_text(json.dumps({"split": {"seed": 3, "test": 4, "validation": 1}}))
    with pytest.raises(ActionPieceError, match="leaves none of 5 for training"):
        open_demos(root)


def test_files_of_one_episode_each_are_split_together(tmp_path):
    for i in range(10):
        aloha(tmp_path / f"episode_{i}.hdf5", 5, value=i)
    npz(tmp_path / "z.npz", [3] * 4, card={"split": {"seed": 0, "test": 1, "validation": 1}})
    split = open_demos(tmp_path).split()
    assert split.counts() == {"train": 2 + 8, "validation": 2, "test": 2}
    assert sorted([*split.train, *split.validation, *split.test]) == list(range(14))


def test_members_must_have_the_same_width(tmp_path):
    npz(tmp_path / "a.npz", [3])
    npz(tmp_path / "b.npz", [3], dim=6)
    with pytest.raises(ActionPieceError, match=r"a\.npz has actions of 7 columns and .*b\.npz of 6"):
        open_demos(tmp_path)


def test_members_must_be_in_the_same_space(tmp_path):
    npz(tmp_path / "a.npz", [3], card={"space": "libero"})
    npz(tmp_path / "b.npz", [3], card={"space": "bridge"})
    with pytest.raises(ActionPieceError, match=r"a\.npz is in the action space 'libero' and .*b\.npz in 'bridge'"):
        open_demos(tmp_path)
    assert open_demos(tmp_path, space="libero").space.name == "libero"


def test_a_member_without_a_space_is_not_given_its_neighbours(tmp_path):
    npz(tmp_path / "a.npz", [3], card={"space": "libero"})
    npz(tmp_path / "b.npz", [3])
    demos = open_demos(tmp_path)
    with pytest.raises(ActionPieceError, match=r"b\.npz is not known"):
        _ = demos.space
    assert demos.known_space is None


def test_the_same_file_twice_is_refused_however_it_is_spelled(tmp_path, monkeypatch):
    npz(tmp_path / "sub" / "a.npz", [3])
    npz(tmp_path / "b.npz", [3])
    (tmp_path / "link.npz").symlink_to(tmp_path / "b.npz")
    monkeypatch.chdir(tmp_path)
    for one, other in [
        (".", "sub/a.npz"),
        ("b.npz", tmp_path / "b.npz"),
        ("b.npz", "link.npz"),
        ("b.npz", "sub/../b.npz"),
    ]:
        with pytest.raises(ActionPieceError, match="named twice"):
            open_demos(one, other)


def test_links_to_folders_and_names_in_capitals_are_read_and_circles_end(tmp_path):
    npz(tmp_path / "elsewhere" / "a.npz", [3])
    npz(tmp_path / "here" / "b.npz", [4])
    (tmp_path / "here" / "b.npz").rename(tmp_path / "here" / "B.NPZ")
    (tmp_path / "here" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "here" / "round").symlink_to(tmp_path / "here")
    demos = open_demos(tmp_path / "here")
    assert sorted(demos.lengths.tolist()) == [3, 4]
    assert open_demos(tmp_path / "here" / "B.NPZ").name == "B"


def test_what_is_there_twice_by_a_link_is_read_once_under_its_own_name(tmp_path):
    for name, length in (("real/a", 3), ("b", 4)):
        npz(tmp_path / f"{name}.npz", [length])
    (tmp_path / "a_link").symlink_to(tmp_path / "real")
    (tmp_path / "a.npz").symlink_to(tmp_path / "b.npz")
    demos = open_demos(tmp_path)
    root = tmp_path.name
    assert [member.label for member in demos.members] == [f"{root}/b.npz", f"{root}/real/a.npz"]


def test_a_folder_that_may_not_be_entered_is_an_error(tmp_path, monkeypatch):
    npz(tmp_path / "a.npz", [3])
    walk = os.walk

    def refused(path, onerror, followlinks):
        onerror(PermissionError(13, "Permission denied", str(tmp_path / "locked")))
        yield from walk(path)

    monkeypatch.setattr(os, "walk", refused)  # root may enter anything
    with pytest.raises(ActionPieceError, match="locked cannot be looked into: Permission denied"):
        open_demos(tmp_path)


def test_a_folder_with_the_name_of_embedded_demonstrations_is_not_passed_over(tmp_path, monkeypatch):
    npz(tmp_path / "recorded" / "a.npz", [3])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ActionPieceError, match=r"'recorded' is here, and is also what demonstrations .*give its whole"):
        open_demos("recorded")
    assert open_demos(tmp_path / "recorded").lengths.tolist() == [3]


def test_the_fingerprint_knows_the_space_that_a_card_names(tmp_path):
    npz(tmp_path / "a.npz", [3], card={"space": "mine.space.json"})
    found = []
    for name in ("libero", "bridge"):
        (tmp_path / "mine.space.json").write_text(ActionSpace.preset(name).to_json())
        found.append(open_demos(tmp_path / "a.npz").describe()["fingerprint"])
    assert found[0] != found[1]


def test_an_empty_folder_is_an_error(tmp_path):
    (tmp_path / "sub").mkdir()
    with pytest.raises(ActionPieceError, match="holds no demonstrations"):
        open_demos(tmp_path)


def test_the_fingerprint_of_two_files_depends_on_both_and_on_their_order(tmp_path):
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    npz(a, [3], value=1.0)
    npz(b, [3], value=2.0)
    assert open_demos(tmp_path).fingerprint() == open_demos(a, b).fingerprint()
    assert len({open_demos(*paths).fingerprint() for paths in ([a], [b], [a, b], [b, a])}) == 4
