"""The LeRobot v3.0 writer: what it writes is whole, repeatable, readable, and damage to it is named."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from actionpiece.data import lerobot_tables as tables
from actionpiece.data import open_demos
from actionpiece.data.lerobot_layout import STATISTICS
from actionpiece.data.lerobot_writer import About, Episode, check_layout, write_lerobot
from actionpiece.errors import ActionPieceError

LENGTHS = (9, 5, 12, 6)
EVERY = 4
SIZE = 8
ABOUT = About(20, "panda", tuple("abcdefg"), ("x", "y"), {"agent": SIZE, "wrist": SIZE})
CARD = {"space": "libero", "rate": 20}


def png(rng: np.random.Generator) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)).save(stream, "png")
    return stream.getvalue()


def episodes(cameras: tuple[str, ...] = ("agent", "wrist")) -> list[Episode]:
    rng = np.random.default_rng(0)
    return [
        Episode(
            rng.uniform(-1, 1, (n, 7)).astype(np.float32),
            rng.normal(size=(n, 2)).astype(np.float32),
            f"do {i % 2}",
            {name: [png(rng) if t % EVERY == 0 else None for t in range(n)] for name in cameras},
            {"sim.task": "lift", "sim.seed": 2**31 + i},
        )
        for i, n in enumerate(LENGTHS)
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "demos"
    write_lerobot(root, episodes(), ABOUT, more={"actionpiece.json": CARD})
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_what_is_written_passes_the_check_and_is_read_back(whole: Path) -> None:
    assert check_layout(whole) == []
    demos = open_demos(whole)
    assert (demos.space.name, demos.rate, demos.dim) == ("libero", 20.0, 7)
    assert demos.tasks == ["do 0", "do 1", "do 0", "do 1"]
    for i, episode in enumerate(episodes()):
        np.testing.assert_array_equal(demos.episode(i), episode.actions)


def test_the_same_episodes_are_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    write_lerobot(tmp_path / "again", iter(episodes()), ABOUT, more={"actionpiece.json": CARD})
    assert contents(tmp_path / "again") == contents(whole)


def test_pictures_come_back_and_steps_without_one_are_null(whole: Path) -> None:
    column = pq.read_table(whole / "data/chunk-000/file-000.parquet")["observation.images.wrist"].to_pylist()
    wanted = [shot for episode in episodes() for shot in episode.pictures["wrist"]]
    assert [row and row["bytes"] for row in column] == wanted
    assert wanted.count(None) > 0


def test_episode_metadata_keeps_what_a_replay_needs(whole: Path) -> None:
    table = pq.read_table(whole / "meta/episodes/chunk-000/file-000.parquet")
    assert table["sim.seed"].to_pylist() == [2**31 + i for i in range(4)]
    assert table.schema.field("sim.seed").type == pa.int64()
    assert set(table["sim.task"].to_pylist()) == {"lift"}
    assert table["dataset_to_index"].to_pylist() == np.cumsum(LENGTHS).tolist()


def test_statistics_are_those_of_the_data(whole: Path) -> None:
    stats = json.loads((whole / "meta/stats.json").read_text())
    actions = np.concatenate([episode.actions for episode in episodes()]).astype(np.float64)
    np.testing.assert_allclose(stats["action"]["mean"], actions.mean(0), atol=1e-12)
    np.testing.assert_allclose(stats["action"]["std"], actions.std(0), atol=1e-12)
    np.testing.assert_allclose(stats["action"]["q90"], np.quantile(actions, 0.9, axis=0), atol=1e-12)
    assert stats["action"]["count"] == [sum(LENGTHS)]
    shots = [shot for episode in episodes() for shot in episode.pictures["agent"] if shot]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(shot))) for shot in shots]) / 255
    found = {name: np.array(value) for name, value in stats["observation.images.agent"].items()}
    assert found["count"].tolist() == [len(shots)]
    flat = pixels.reshape(-1, 3)
    for name, value in (("min", flat.min(0)), ("max", flat.max(0)), ("mean", flat.mean(0)), ("std", flat.std(0))):
        assert found[name].shape == (3, 1, 1)
        np.testing.assert_allclose(found[name].ravel(), value, atol=1e-12)
    inverted = np.quantile(flat, 0.1, axis=0, method="inverted_cdf")
    np.testing.assert_allclose(found["q10"].ravel(), inverted, atol=1e-12)


def test_episodes_fill_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "FILE_MB", 0)
    monkeypatch.setattr(tables, "_ROW_GROUP", 1)
    write_lerobot(tmp_path / "a", episodes(()), About(20, "panda", tuple("abcdefg"), ("x", "y")))
    assert len(list((tmp_path / "a" / "data").rglob("*.parquet"))) == len(LENGTHS)
    assert check_layout(tmp_path / "a") == []
    demos = open_demos(tmp_path / "a")
    np.testing.assert_array_equal(demos.episode(2), episodes(())[2].actions)


def test_a_failure_half_way_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[Episode]:
        yield episodes()[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lerobot(tmp_path / "a", broken(), ABOUT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"actions": np.zeros((5, 6), np.float32)}, r"episode 0: actions have shape \(5, 6\)"),
        ({"actions": np.zeros((0, 7), np.float32)}, "with a step at least"),
        ({"states": np.zeros((3, 2), np.float32)}, "episode 0: states have shape"),
        ({"states": np.full((9, 2), np.nan, np.float32)}, "not finite"),
        ({"task": ""}, "no instruction"),
        ({"pictures": {}}, "camera agent needs an entry for every step"),
        ({"more": {"length": 3}}, "metadata column length is LeRobot's own"),
    ],
)
def test_an_episode_that_does_not_fit_is_said(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    first = episodes()[0]
    with pytest.raises(ActionPieceError, match=sentence):
        write_lerobot(tmp_path / "a", [Episode(**(vars(first) | change))], ABOUT)


def test_other_sentences(tmp_path: Path) -> None:
    with pytest.raises(ActionPieceError, match="no episodes to write"):
        write_lerobot(tmp_path / "a", [], ABOUT)
    first, second = episodes()[:2]
    with pytest.raises(ActionPieceError, match="episode 1 has other metadata columns"):
        write_lerobot(tmp_path / "a", [first, Episode(**(vars(second) | {"more": {}}))], ABOUT)
    small = About(20, "panda", tuple("abcdefg"), ("x", "y"), {"agent": 2 * SIZE})
    with pytest.raises(ActionPieceError, match=r"picture of observation.images.agent is \(8, 8\), not \(16, 16\)"):
        write_lerobot(tmp_path / "a", episodes(), small)


# Every kind of damage, and the words by which the check names it.


def info(**change: Any) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = root / "meta/info.json"
        value = json.loads(path.read_text()) | change
        path.write_text(json.dumps({key: entry for key, entry in value.items() if entry != "gone"}))

    return damage


def feature(name: str, value: Any) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        features = json.loads((root / "meta/info.json").read_text())["features"]
        info(features=features | {name: value})(root)

    return damage


def stats(root: Path) -> None:
    path = root / "meta/stats.json"
    value = json.loads(path.read_text())
    del value["action"]["std"]
    value["observation.state"]["min"] = [0.0]
    path.write_text(json.dumps(value))


DATA, EPISODES, TASKS = (
    "data/chunk-000/file-000.parquet",
    "meta/episodes/chunk-000/file-000.parquet",
    "meta/tasks.parquet",
)


def column(file: str, name: str, values: Callable[[list[Any]], Any] | None) -> Callable[[Path], None]:
    """Replace a column's values, or drop it."""

    def damage(root: Path) -> None:
        table = pq.read_table(root / file)
        place = table.column_names.index(name)
        if values is None:
            table = table.drop_columns([name])
        else:
            new = values(table[name].to_pylist())
            new = new if isinstance(new, pa.Array) else pa.array(new, table.schema.field(name).type)
            table = table.set_column(place, name, new)
        pq.write_table(table, root / file)

    return damage


def first(value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda rows: [value, *rows[1:]]


def rows_gone(root: Path) -> None:
    pq.write_table(pq.read_table(root / DATA).slice(1), root / DATA)


def truncated(file: str) -> Callable[[Path], None]:
    return lambda root: (root / file).write_bytes((root / file).read_bytes()[:200]) and None  # type: ignore[func-returns-value]


def gone(file: str) -> Callable[[Path], None]:
    return lambda root: (root / file).unlink()


def stray(root: Path) -> None:
    shutil.copy(root / DATA, root / "data/chunk-000/file-007.parquet")


def no_index(root: Path) -> None:
    pq.write_table(pq.read_table(root / TASKS).replace_schema_metadata({}), root / TASKS)


PICTURE = "observation.images.agent"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (gone("meta/info.json"), "info.json does not exist"),
        (info(fps="gone"), "meta/info.json has no 'fps'"),
        (info(total_frames="many"), "total_frames is 'many', which is not of the right type"),
        (info(codebase_version="v2.1"), "codebase_version is not v3.0"),
        (info(data_path="data/all.parquet"), "data_path has no {chunk_index"),
        (info(splits={}), "splits should be"),
        (feature("action", {"dtype": "float32"}), "feature action needs dtype, shape and names"),
        (feature("index", {"dtype": "int32", "shape": [1], "names": None}), "feature index must be int64"),
        (feature("action", {"dtype": "float32", "shape": [6], "names": None}), "column action is"),
        (
            feature("observation.force", {"dtype": "float32", "shape": [3], "names": None}),
            "observation.force is missing",
        ),
        (info(total_frames=3), "total_frames is 3, the episode metadata has 32"),
        (info(total_episodes=5, splits={"train": "0:5"}), "total_episodes is 5, the episode metadata has 4"),
        (info(total_tasks=1), "says 1 tasks, meta/tasks.parquet has 2"),
        (gone("meta/stats.json"), "stats.json does not exist"),
        (stats, "meta/stats.json: action has no std"),
        (stats, "min of observation.state has shape (1,), not (2,)"),
        (gone(TASKS), "tasks.parquet is not a whole parquet file"),
        (no_index, "not a pandas table with the instruction as its index"),
        (column(TASKS, "task_index", lambda rows: [1, 2]), "task_index does not count from 0"),
        (column(TASKS, "task", lambda rows: ["do 0", "do 0"]), "lists an instruction twice"),
        (column(TASKS, "task_index", lambda rows: pa.array([0.0, 1.0])), "column task_index has the wrong type double"),
        (gone(EPISODES), "there is no meta/episodes/chunk-000/file-000.parquet"),
        (truncated(EPISODES), "is not a whole parquet file"),
        (column(EPISODES, "length", None), "has no column 'length'"),
        (column(EPISODES, "tasks", lambda rows: pa.array(["x"] * 4)), "column tasks has the wrong type string"),
        (column(EPISODES, "episode_index", first(1)), "row 0: episode_index is 1"),
        (column(EPISODES, "length", first(8)), "row 0: rows 0 to 9, not 0 to 8"),
        (column(EPISODES, "dataset_from_index", first(None)), "column dataset_from_index has empty rows"),
        (column(EPISODES, "tasks", first(["fly"])), "instruction ['fly'] is not in meta/tasks.parquet"),
        (column(EPISODES, "tasks", first([])), "row 0: no instruction"),
        (column(EPISODES, "meta/episodes/file_index", first(1)), "its rows say that they are in another file"),
        (gone(DATA), "there is no data/chunk-000/file-000.parquet, which the episode metadata names"),
        (truncated(DATA), "is not a whole parquet file"),
        (stray, "file-007.parquet belongs to no episode"),
        (rows_gone, "has 31 rows, its episodes 32"),
        (column(DATA, "timestamp", None), "column timestamp is missing"),
        (column(DATA, "index", lambda rows: pa.array(rows, pa.int32())), "column index is int32"),
        (column(DATA, "action", first(None)), "column action has 1 empty rows"),
        (column(DATA, "index", first(7)), "index does not count as the episode metadata says"),
        (column(DATA, "frame_index", first(7)), "frame_index does not count"),
        (column(DATA, "episode_index", first(1)), "episode_index does not count"),
        (column(DATA, "timestamp", first(0.5)), "timestamp is not frame_index / 20"),
        (column(DATA, "task_index", first(1)), "task_index of episode 0 is not that of its instruction"),
        (column(DATA, PICTURE, first({"bytes": b"film", "path": None})), "1 pictures of observation.images.agent are"),
        (column(DATA, PICTURE, first(None)), "an episode has no picture of observation.images.agent at its first step"),
    ],
)
def test_damage_is_named(whole: Path, tmp_path: Path, damage: Callable[[Path], None], sentence: str) -> None:
    root = tmp_path / "demos"
    shutil.copytree(whole, root)
    damage(root)
    found = check_layout(root)
    assert any(sentence in line for line in found), found
    assert all("\n" not in line for line in found)


def test_the_statistics_lerobot_aggregates_are_all_there(whole: Path) -> None:
    stats = json.loads((whole / "meta/stats.json").read_text())
    features = json.loads((whole / "meta/info.json").read_text())["features"]
    assert stats.keys() == features.keys()
    assert all(set(STATISTICS) <= of.keys() for of in stats.values())


def test_features_of_one_number_are_plain_columns(tmp_path: Path) -> None:
    about = About(20, "gate", ("open",), ("angle",), {})
    rows = np.linspace(-1, 1, 6, dtype=np.float32)[:, None]
    write_lerobot(tmp_path / "gate", [Episode(rows, rows, "open it", {}, {})], about, more={})
    assert check_layout(tmp_path / "gate") == []
    np.testing.assert_array_equal(open_demos(tmp_path / "gate").episode(0), rows)


@pytest.mark.parametrize("empty", ["all", "one"])
def test_states_that_are_not_there(whole: Path, tmp_path: Path, empty: str) -> None:
    root = shutil.copytree(whole, tmp_path / "demos")
    (file,) = (root / "data").rglob("*.parquet")
    table = pq.read_table(file)
    at = table.schema.get_field_index("observation.state")
    states = table["observation.state"].to_pylist()
    states = [None] * len(states) if empty == "all" else [None, *states[1:]]
    pq.write_table(table.set_column(at, "observation.state", pa.array(states, pa.list_(pa.float32()))), file)
    if empty == "all":
        assert {look.state.shape for look in open_demos(root).looks(["agent"])} == {(0,)}
    else:
        with pytest.raises(ActionPieceError, match=r"observation\.state holds 1 empty rows"):
            list(open_demos(root).looks(["agent"]))
