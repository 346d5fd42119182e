"""Replay in the real simulator: raw commands come back exactly, coarse ones do not, and the sums are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from actionpiece import ActionPieceError, ActionSpace, Chunks, open_demos
from actionpiece.cli import run
from actionpiece.data import Demos
from actionpiece.evaluation import replay as module
from actionpiece.evaluation.replay import RAW, reconstruct, replay, replayable, summary, telling_failure
from actionpiece.report.replay import replay_section, strip_png
from actionpiece.tokenizers.binning import BinningConfig, BinningTokenizer


@pytest.fixture(scope="module")
def demos() -> Demos:
    return open_demos("recorded")


def binning(demos: Demos, bins: int, horizon: int = 8) -> BinningTokenizer:
    chunks = Chunks(demos, demos.split().train, horizon).sample(500)
    return BinningTokenizer.fit(chunks, demos.space, BinningConfig(bins=bins), normalizer="identity")


def test_an_episode_of_any_length_is_reconstructed_chunk_by_chunk(demos: Demos) -> None:
    for horizon in (8, 50):
        fine = binning(demos, 4001, horizon)
        actions = demos.episode(0)[:45]
        out = reconstruct(fine, actions)
        assert out.shape == actions.shape
        np.testing.assert_allclose(out, actions, atol=1e-3)


def test_which_episodes_can_be_replayed(demos: Demos) -> None:
    chosen = replayable(demos, tasks=("lift", "can"), split="all", most=3)
    tasks = [demos.starts[index].task for index in chosen]  # type: ignore[union-attr]
    assert tasks == ["can"] * 3 + ["lift"] * 3
    test = replayable(demos, split="test", most=1000)
    assert sorted(test) == sorted(demos.split().test.tolist())
    with pytest.raises(ActionPieceError, match="no episode of the task 'fly'; it has can"):
        replayable(demos, tasks=("fly",))
    with pytest.raises(ActionPieceError, match="does not say where its episodes began"):
        replayable(open_demos("generated"))
    with pytest.raises(ActionPieceError, match="at least one episode"):
        replayable(demos, most=0)


def test_angles_are_scipys() -> None:
    rng = np.random.default_rng(0)
    a = Rotation.from_rotvec(rng.normal(size=(50, 3)))
    turn = Rotation.from_rotvec(rng.normal(size=(50, 3)) * np.logspace(-9, 0, 50)[:, None])
    b = a * turn
    np.testing.assert_allclose(module._angles(a.as_matrix(), b.as_matrix()), turn.magnitude(), rtol=1e-6, atol=1e-15)


def line(episode: int, raw: bool, coarse: bool, task: str = "lift", mm: float = 1.0) -> dict[str, Any]:
    def one(success: bool, far: float) -> dict[str, Any]:
        return {"success": success, "mm": {"mean": far, "max": 2 * far}, "degrees": {"mean": far, "max": far}}

    runs = {RAW: one(raw, 0.0), "coarse": one(coarse, mm)}
    return {"key": str(episode), "episode": episode, "task": task, "seed": episode, "steps": 9, "runs": runs}


def test_the_summary_counts_by_task_and_pairs() -> None:
    lines = [
        line(0, True, False, mm=3),
        line(1, True, False, mm=2),
        line(2, True, True, "can"),
        line(3, False, True, "can"),
    ]
    results = summary(lines)
    raw, coarse = results["rows"]
    assert (raw["successes"], coarse["successes"]) == (3, 2)
    assert coarse["tasks"]["lift"]["successes"] == 0
    assert coarse["tasks"]["can"]["success"] == 1
    assert coarse["mm"] == pytest.approx(7 / 4)
    assert coarse["mm_worst"] == 6
    assert results["pairs"] == [
        {"first": RAW, "second": "coarse", "starts": 4, "both": 1, "only_first": 2, "only_second": 1, "p": 1.0}
    ]
    found = telling_failure(results)
    assert found is not None
    assert (found[0], found[1]["episode"]) == ("coarse", 1)
    assert telling_failure(summary([line(0, True, True)])) is None
    page = replay_section(results, None)
    assert "<td>2/4</td>" in page
    assert '<th scope="row">coarse</th>' in page


def test_a_strip_is_a_picture_of_both_rows() -> None:
    from io import BytesIO

    from PIL import Image

    rows = [[np.full((10, 10, 3), 20 * (3 * i + j), np.uint8) for j in range(3)] for i in range(2)]
    with Image.open(BytesIO(strip_png(rows))) as picture:
        assert picture.size == (3 * 14 - 4, 2 * 14 - 4)
        assert picture.getpixel((15, 15)) == (80, 80, 80)
        assert picture.getpixel((11, 0)) == (255, 255, 255)
    strip = {"name": "<b>", "task": "lift", "seed": 1, "png": b"x"}
    assert "&lt;b&gt;" in replay_section(summary([line(0, True, False)]), strip)
    assert "No pictures: no GL" in replay_section(summary([line(0, True, False)]), {"problem": "no GL"})


class TestInTheSimulator:
    """Needs robosuite."""

    @pytest.fixture(autouse=True)
    def robosuite(self) -> None:
        pytest.importorskip("robosuite")

    def test_raw_commands_succeed_and_coarse_ones_stray(self, demos: Demos, tmp_path: Path) -> None:
        episodes = replayable(demos, tasks=("lift",), split="all", most=2)
        tokenizers = {"coarse": binning(demos, 4), "fine": binning(demos, 1001)}
        results = replay(demos, tokenizers, episodes=episodes, journal=tmp_path / "episodes.jsonl")
        raw, coarse, fine = results["rows"]
        assert raw["successes"] == 2
        assert raw["mm"] == raw["degrees"] == 0
        assert fine["mm"] < 2 < coarse["mm"]
        assert fine["successes"] == 2
        before = (tmp_path / "episodes.jsonl").read_bytes()
        again = replay(demos, tokenizers, episodes=episodes, journal=tmp_path / "episodes.jsonl")
        assert again == results
        assert (tmp_path / "episodes.jsonl").read_bytes() == before

    def test_the_command_and_its_picture(
        self, demos: Demos, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flags = ["--data", "recorded", "--env", "lift", "--split", "all", "--episodes", "1", "--out", str(tmp_path)]
        run(["replay", "--tokenizer", "binning:bins=2", *flags, "--json"])
        results = json.loads(capsys.readouterr().out)
        assert [row["name"] for row in results["rows"]] == [RAW, "binning:bins=2"]
        assert json.loads((tmp_path / "replay.json").read_text())["rows"] == results["rows"]
        assert results["rows"][1]["successes"] == 0  # a hand that is never still does not lift anything

    def test_a_comparison_with_replay_shows_it_in_the_report(self, tmp_path: Path) -> None:
        from actionpiece.sim.recording import record

        record(["lift"], 3, tmp_path / "lift", workers=1)
        flags = [
            "--tokenizers",
            "binning:bins=2",
            "--n",
            "60",
            "--k",
            "8",
            "--replay",
            "5",
            "--out",
            str(tmp_path / "out"),
        ]
        run(["compare", "--data", str(tmp_path / "lift"), *flags])
        results = json.loads((tmp_path / "out" / "results.json").read_text())
        assert [row["episodes"] for row in results["replay"]["rows"]] == [1, 1]
        assert results["replay"]["rows"][0]["successes"] == 1
        page = (tmp_path / "out" / "report.html").read_text()
        assert "Replay in the simulator" in page
        assert 'src="data:image/png;base64,' in page or "No pictures: " in page


def test_two_of_one_name_and_a_file_to_write_to_are_refused(tmp_path: Path, demos: Demos) -> None:
    for parent in ("a", "b"):
        binning(demos, 4).save_pretrained(tmp_path / parent / "bin")
    both = [str(tmp_path / parent / "bin") for parent in ("a", "b")]
    with pytest.raises(ActionPieceError, match="named twice"):
        run(["replay", "--tokenizer", *both, "--data", "recorded", "--out", str(tmp_path / "out")])
    (tmp_path / "file").touch()
    with pytest.raises(ActionPieceError, match="is a file"):
        run(["replay", "--tokenizer", both[0], "--data", "recorded", "--out", str(tmp_path / "file")])


def test_what_cannot_be_replayed_is_said(demos: Demos) -> None:
    fine = {"fine": binning(demos, 100)}
    with pytest.raises(ActionPieceError, match="no episodes"):
        replay(demos, fine, episodes=[])
    with pytest.raises(ActionPieceError, match="cannot be called"):
        replay(demos, {RAW: fine["fine"]}, episodes=[0])
    with pytest.raises(ActionPieceError, match="idle steps"):
        replay(open_demos("recorded", drop_idle=0.01), fine, episodes=[0])
    joints = BinningTokenizer.fit(np.zeros((4, 8, 7)) + np.arange(4)[:, None, None], ActionSpace.resolve("joints:7"))
    with pytest.raises(
        ActionPieceError, match="joints is for the action space 'joints:7', and recorded is in 'libero'"
    ):
        replay(demos, {"joints": joints}, episodes=[0])
    generated = open_demos("generated")
    with pytest.raises(ActionPieceError, match="where episode 3 began"):
        replay(generated, fine, episodes=[3])
