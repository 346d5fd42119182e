"""LeRobot folders v2.1 and v3.0, written here with pyarrow the way LeRobot writes them."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actionpiece.data import Chunks, open_demos
from actionpiece.errors import ActionPieceError

LENGTHS = (6, 9, 4, 12, 7)
KINDS = {
    "fixed": lambda width: pa.list_(pa.float32(), width),
    "list": lambda width: pa.list_(pa.float32()),
    "large": lambda width: pa.large_list(pa.float64()),
}


def make_episodes(lengths=LENGTHS, dim=7):
    rng = np.random.default_rng(0)
    return [rng.uniform(-1, 1, (n, dim)).astype(np.float32) for n in lengths]


def frames(episodes, numbers, kind="fixed"):
    """A data table as LeRobot's: the action beside state, time and the usual counters, and one image column."""
    rows = np.concatenate(episodes)
    column = np.concatenate([np.full(len(e), i) for e, i in zip(episodes, numbers, strict=True)])
    return pa.table(
        {
            "observation.state": pa.array(rows.tolist(), pa.list_(pa.float32(), rows.shape[1])),
            "action": pa.array(rows.tolist(), KINDS[kind](rows.shape[1])),
            "observation.image": pa.array([b"not a picture"] * len(rows), pa.binary()),
            "timestamp": pa.array(np.arange(len(rows)) / 30, pa.float32()),
            "frame_index": pa.array(np.concatenate([np.arange(len(e)) for e in episodes]), pa.int64()),
            "episode_index": pa.array(column, pa.int64()),
            "index": pa.array(np.arange(len(rows)), pa.int64()),
            "task_index": pa.array(np.zeros(len(rows), int), pa.int64()),
        }
    )


def write_info(root, version, data_path, dim=7, /, **more):
    (root / "meta").mkdir(parents=True, exist_ok=True)
    features = {
        "observation.image": {"dtype": "video", "shape": [8, 8, 3], "names": ["height", "width", "channel"]},
        "action": {"dtype": "float32", "shape": [dim], "names": {"motors": [f"m{i}" for i in range(dim)]}},
    }
    info = {
        "codebase_version": version,
        "robot_type": "so100",
        "fps": 30,
        "chunks_size": 2,
        "data_path": data_path,
        "features": features,
    }
    text = {k: v for k, v in (info | more).items() if v is not None}
    (root / "meta" / "info.json").write_text(json.dumps(text))


def write_v2(root, episodes, kind="fixed", version="v2.1", **more):
    template = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    write_info(root, version, template, episodes[0].shape[1], **more)
    lines = []
    for i, episode in enumerate(episodes):
        path = root / template.format(episode_chunk=i // 2, episode_index=i)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(frames([episode], [i], kind), path)
        lines.append(
            json.dumps({"episode_index": i, "tasks": [f"task {i % 2}"], "length": len(episode), "good": i != 1})
        )
    (root / "meta" / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    return root


def write_v3(root, episodes, kind="fixed", files=((0, 1), (2, 3, 4)), drop=(), **more):
    write_info(root, "v3.0", "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", episodes[0].shape[1], **more)
    rows, start = [], 0
    for f, members in enumerate(files):
        path = root / f"data/chunk-000/file-{f:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(frames([episodes[i] for i in members], members, kind), path, row_group_size=5)
        for i in members:
            n = len(episodes[i])
            place = {
                "dataset_from_index": start,
                "dataset_to_index": start + n,
                "data/chunk_index": 0,
                "data/file_index": f,
            }
            extra = {"videos/observation.image/chunk_index": 0, "stats/action/mean": [0.0] * 7, "good": i != 1}
            rows.append({"episode_index": i, "tasks": [f"task {i % 2}"], "length": n, **place, **extra})
            start += n
    meta = root / "meta" / "episodes" / "chunk-000"
    meta.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows).drop_columns(list(drop)), meta / "file-000.parquet")
    return root


def read_all(path, **options):
    demos = open_demos(path, **options)
    return [demos.episode(i) for i in range(len(demos))]


def check(demos, episodes):
    assert demos.lengths.tolist() == [len(episode) for episode in episodes]
    for i in np.random.default_rng(1).permutation(len(episodes)):
        np.testing.assert_array_equal(demos.episode(int(i)), episodes[i])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [write_v2, write_v3])
def test_episodes_come_back_as_written(tmp_path, write, kind):
    episodes = make_episodes()
    demos = open_demos(write(tmp_path / "pick", episodes, kind))
    check(demos, episodes)
    assert (demos.name, demos.rate, demos.dim) == ("pick", 30.0, 7)
    assert demos.tasks == ["task 0", "task 1", "task 0", "task 1", "task 0"]


@pytest.mark.parametrize("write", [write_v2, write_v3])
def test_the_card_lies_inside_the_folder(tmp_path, write):
    root = write(tmp_path / "pick", make_episodes())
    card = {"space": "libero", "keep": "good", "rate": 20, "split": {"seed": 1, "test": 1, "validation": 1}}
    (root / "actionpiece.json").write_text(json.dumps(card))
    demos = open_demos(root)
    assert demos.lengths.tolist() == [6, 4, 12, 7]
    assert (demos.space.name, demos.rate, demos.split().counts()["train"]) == ("libero", 20.0, 2)
    (root / "actionpiece.json").write_text(json.dumps({"keep": "best"}))
    with pytest.raises(ActionPieceError, match="has no 'best', which its card names"):
        open_demos(root)


@pytest.mark.parametrize("write", [write_v2, write_v3])
def test_videos_and_fingerprints_have_nothing_to_do_with_each_other(tmp_path, write):
    root = write(tmp_path / "pick", make_episodes())
    before = open_demos(root).fingerprint()
    (root / "videos").mkdir()
    (root / "videos" / "a.mp4").write_bytes(b"film")
    assert open_demos(root).fingerprint() == before
    files = open_demos(root).members[0].reader.files()
    assert all(path.suffix in (".json", ".jsonl", ".parquet") for path in files)
    (root / "actionpiece.json").write_text("{}")
    assert open_demos(root).fingerprint() != before


def test_opening_touches_no_data_file_and_sampling_decodes_each_once(tmp_path):
    root = write_v3(tmp_path / "pick", make_episodes())
    demos = open_demos(root)
    cache = demos.members[0].reader._cache
    assert cache.loads == 0
    chunks = Chunks(demos, [4, 0, 2, 1, 3], horizon=4)
    assert cache.loads == 0
    chunks.sample(20)
    assert cache.loads == 2


def test_a_small_cache_only_costs_time(tmp_path):
    episodes = make_episodes()
    demos = open_demos(write_v3(tmp_path / "pick", episodes))
    cache = demos.members[0].reader._cache
    cache.budget = 1
    check(demos, episodes)
    assert cache.loads > 2
    assert cache.nbytes < 2000


def test_v3_row_numbers_are_not_trusted_where_rows_name_their_episode(tmp_path):
    # dataset_from_index is known to restart in every file of some data sets
    episodes = make_episodes()
    check(open_demos(write_v3(tmp_path / "a", episodes, drop=("dataset_from_index", "dataset_to_index"))), episodes)


def test_v3_with_one_file_needs_no_file_number(tmp_path):
    episodes = make_episodes()
    root = write_v3(tmp_path / "a", episodes, files=((0, 1, 2, 3, 4),), drop=("data/chunk_index", "data/file_index"))
    check(open_demos(root), episodes)
    root = write_v3(tmp_path / "b", episodes, drop=("data/chunk_index", "data/file_index"))
    with pytest.raises(ActionPieceError, match="does not say which of 2 data files"):
        open_demos(root)


def test_lengths_may_follow_from_the_range(tmp_path):
    episodes = make_episodes()
    check(open_demos(write_v3(tmp_path / "a", episodes, drop=("length",))), episodes)


def test_rows_of_an_episode_need_not_be_sorted_by_episode(tmp_path):
    episodes = make_episodes()
    check(open_demos(write_v3(tmp_path / "a", episodes, files=((3, 0, 4, 1, 2),))), episodes)


def test_a_file_without_episode_numbers_is_cut_by_lengths(tmp_path):
    episodes = make_episodes()
    root = write_v3(tmp_path / "a", episodes)
    for path in (root / "data").rglob("*.parquet"):
        pq.write_table(pq.read_table(path).select(["action"]), path)
    check(open_demos(root), episodes)


@pytest.mark.parametrize("write", [write_v2, write_v3])
def test_info_may_leave_out_what_the_files_say(tmp_path, write):
    episodes = make_episodes()
    root = write(
        tmp_path / "a", episodes, features={}, data_path=None, codebase_version=None, chunks_size=None, fps=None
    )
    if write is write_v2:  # with the default of 1000 episodes a chunk
        for path in sorted((root / "data").rglob("*.parquet")):
            path.rename(root / "data" / "chunk-000" / path.name)
    demos = open_demos(root)
    check(demos, episodes)
    assert demos.rate is None


def test_a_plain_number_is_an_action_of_one_column(tmp_path):
    root = write_v3(tmp_path / "a", make_episodes(dim=1))
    for path in (root / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        flat = pa.array([row[0] for row in table["action"].to_pylist()], pa.float32())
        pq.write_table(table.set_column(table.column_names.index("action"), "action", flat), path)
    assert open_demos(root).episode(3).shape == (12, 1)


def test_another_column_can_be_the_action(tmp_path):
    episodes = make_episodes()
    root = write_v3(tmp_path / "a", episodes, features=None)
    check(open_demos(root, action_key="observation.state"), episodes)


def test_instructions_may_hold_any_letter(tmp_path):
    root = write_v2(tmp_path / "a", make_episodes())
    path = root / "meta" / "episodes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["tasks"] = ["up\u2028and\x85down"]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    assert open_demos(root).tasks[0] == "up\u2028and\x85down"


class TestBadInput:
    def fails(self, match, path, **options):
        with pytest.raises(ActionPieceError, match=match) as caught:
            read_all(path, **options)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("version", ["v1.6", "v4.0", 3])
    def test_an_unknown_version(self, tmp_path, version):
        self.fails(
            f"LeRobot version {version} is not known",
            write_v2(tmp_path / "a", make_episodes(), version=version),
        )

    def test_info_that_is_not_json(self, tmp_path):
        root = write_v2(tmp_path / "a", make_episodes())
        (root / "meta" / "info.json").write_text("{")
        self.fails("not readable JSON", root)

    def test_no_list_of_episodes(self, tmp_path):
        root = write_v2(tmp_path / "a", make_episodes())
        (root / "meta" / "episodes.jsonl").unlink()
        self.fails("neither meta/episodes.jsonl nor", root)

    def test_an_empty_list_of_episodes(self, tmp_path):
        root = write_v2(tmp_path / "a", make_episodes())
        (root / "meta" / "episodes.jsonl").write_text("\n")
        self.fails("holds no episodes", root)

    @pytest.mark.parametrize(
        ("line", "match"),
        [
            ("{", "line 6 is not valid JSON"),
            ("[]", "line 6 must be a JSON object"),
            ('{"length": 3}', "episode_index of an episode must be a whole number"),
            ('{"episode_index": 0, "length": 3}', "lists episode 0 twice"),
            (f'{{"episode_index": {10**400}, "length": 3}}', "episode_index of an episode must be a whole number"),
            ("[" * 100_000, "line 6 is not valid JSON"),
            ('{"episode_index": 5, "length": "x"}', "length of an episode must be a whole number"),
            ('{"episode_index": 5, "length": 3}', "does not exist, but the metadata"),
        ],
    )
    def test_a_line_that_does_not_fit(self, tmp_path, line, match):
        root = write_v2(tmp_path / "a", make_episodes())
        with (root / "meta" / "episodes.jsonl").open("a") as handle:
            handle.write(line + "\n")
        self.fails(match, root)

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"chunks_size": 0.5}, "cannot be filled in: chunks_size is no whole number"),
            ({"chunks_size": -1}, "cannot be filled in: chunks_size is no whole number"),
            ({"data_path": "../a/data/episode_{episode_index:06d}.parquet"}, "it leads out of the folder"),
            ({"data_path": "/data/episode_{episode_index:06d}.parquet"}, "it leads out of the folder"),
        ],
    )
    def test_info_that_does_not_fit(self, tmp_path, changes, match):
        root = write_v2(tmp_path / "a", make_episodes())
        path = root / "meta" / "info.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        self.fails(match, root)

    @pytest.mark.parametrize("numbers", [["0"] * 6, [0, 0, None, 0, 0, 0]])
    def test_rows_that_do_not_say_whose_they_are(self, tmp_path, numbers):
        root = write_v2(tmp_path / "a", make_episodes())
        path = sorted((root / "data").rglob("*.parquet"))[0]
        table = pq.read_table(path)
        at = table.column_names.index("episode_index")
        pq.write_table(table.set_column(at, "episode_index", pa.array(numbers)), path)
        self.fails("episode_index must be a whole number in every row", root)

    @pytest.mark.parametrize("write", [write_v2, write_v3])
    @pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
    def test_a_truncated_data_file(self, tmp_path, write, part):
        root = write(tmp_path / "a", make_episodes())
        path = sorted((root / "data").rglob("*.parquet"))[1]
        data = path.read_bytes()
        path.write_bytes(data[: int(part * len(data))])
        self.fails(f"{path.name} is not a whole parquet file", root)

    def test_truncated_metadata(self, tmp_path):
        root = write_v3(tmp_path / "a", make_episodes())
        path = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        path.write_bytes(path.read_bytes()[:100])
        self.fails("not a whole parquet file", root)

    @pytest.mark.parametrize("write", [write_v2, write_v3])
    def test_a_length_that_the_data_does_not_have(self, tmp_path, write):
        episodes = make_episodes()
        root = write(tmp_path / "a", episodes)
        short = sorted((root / "data").rglob("*.parquet"))[0]
        pq.write_table(pq.read_table(short).slice(2), short)
        self.fails("episode 0 has 4 steps, but the metadata says 6", root)

    @pytest.mark.parametrize("write", [write_v2, write_v3])
    def test_a_missing_action_column(self, tmp_path, write):
        self.fails("no column 'torque'; its features are", write(tmp_path / "a", make_episodes()), action_key="torque")
        root = write(tmp_path / "b", make_episodes(), features={})
        self.fails("has no column 'torque'", root, action_key="torque")

    def test_a_width_other_than_announced(self, tmp_path):
        root = write_v3(tmp_path / "a", make_episodes(dim=6))
        write_info(root, "v3.0", None, 7)
        self.fails("actions have 6 columns, but 7 are announced", root)

    def test_rows_of_different_widths_and_missing_values(self, tmp_path):
        root = write_v3(tmp_path / "a", make_episodes(), files=((0, 1, 2, 3, 4),))
        path = root / "data" / "chunk-000" / "file-000.parquet"
        table = pq.read_table(path)
        rows = table["action"].to_pylist()
        spoilt = {
            "different widths": [rows[0][:3], *rows[1:]],
            "1 empty rows": [None, *rows[1:]],
            "numbers in every row": [[None] * 7, *rows[1:]],
        }
        for match, values in spoilt.items():
            column = pa.array(values, pa.list_(pa.float32()))
            pq.write_table(table.set_column(table.column_names.index("action"), "action", column), path)
            self.fails(match, root)
        column = pa.array([["x"]] * len(rows), pa.list_(pa.string()))
        pq.write_table(table.set_column(table.column_names.index("action"), "action", column), path)
        self.fails("numbers in every row", root)

    def test_nan(self, tmp_path):
        episodes = make_episodes()
        episodes[3][1, 2] = np.nan
        self.fails("episode 3 holds 1 values that are not finite", write_v3(tmp_path / "a", episodes))

    def test_a_path_template_that_cannot_be_filled(self, tmp_path):
        self.fails("cannot be filled in", write_v2(tmp_path / "a", make_episodes(), data_path="data/{shard}.parquet"))
