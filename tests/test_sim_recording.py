"""The recorder: what it makes depends on its settings alone, and a kill costs at most the attempts under way."""

from __future__ import annotations

import fcntl
import io
import multiprocessing
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import actionpiece
from actionpiece import cli
from actionpiece.commands.simulating import record as record_command
from actionpiece.data.lerobot_writer import check_layout
from actionpiece.errors import ActionPieceError
from actionpiece.files import read_json
from actionpiece.sim import recording, rendering, workers
from actionpiece.sim.attempts import Attempt, Demonstration, perform
from actionpiece.sim.environment import Environment
from actionpiece.sim.recording import Settings, record
from actionpiece.sim.tasks import TASKS, task

WANTED: dict[str, Any] = {"seed": 3, "images": "chunks", "size": 32, "horizon": 8}
EPISODES = 3
FLAGS = ["--env", "lift", "--episodes", "3", "--seed", "3", "--images", "chunks", "--size", "32", "--horizon", "8"]


@pytest.fixture(autouse=True, scope="module")
def simulator() -> None:
    pytest.importorskip("robosuite")
    try:
        rendering.choose_backend()
    except ActionPieceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one") / "demos"
    seen: list[tuple[int, int, str]] = []
    made = record(["lift"], EPISODES, out, workers=1, progress=lambda *now: seen.append(now), **WANTED)
    assert (made.fresh, made.episodes, made.folder) == (True, EPISODES, out)
    assert made.discarded == {"lift": 0}
    assert seen[0][:2] == (0, EPISODES)
    assert seen[-1] == (EPISODES, EPISODES, "putting the data set together: 3 succeeded, 0 failed")
    assert list(out.parent.iterdir()) == [out]  # nothing is left beside it
    return out


@pytest.fixture(scope="module")
def lift() -> Iterator[Environment]:
    env = Environment(task("lift"), cameras=32)
    yield env
    env.close()


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.slow
def test_our_reader_and_the_layout_check_accept_it(recorded: Path) -> None:
    assert check_layout(recorded) == []
    demos = actionpiece.open_demos(recorded)
    assert (len(demos), demos.dim, demos.space.name, demos.rate) == (EPISODES, 7, "libero", 20.0)
    assert set(demos.tasks) <= set(task("lift").instructions)
    card = read_json(recorded / "actionpiece.json")
    assert card["discarded"] == {"lift": 0}
    assert card["command"] == f"actionpiece record {' '.join(FLAGS)} --out DIR"


@pytest.mark.slow
def test_an_episode_is_its_seed_and_replays_to_the_bit(recorded: Path, lift: Environment) -> None:
    about = pq.read_table(recorded / "meta/episodes/chunk-000/file-000.parquet").to_pylist()[2]
    rows = pq.read_table(recorded / "data/chunk-000/file-000.parquet").to_pylist()
    rows = [row for row in rows if row["episode_index"] == 2]
    again = perform(lift, Attempt("lift", 2, about["sim.seed"]), size=32, every=8)
    assert again is not None
    assert [again.instruction] == about["tasks"]
    np.testing.assert_array_equal(again.actions, [row["action"] for row in rows])
    np.testing.assert_array_equal(again.states, [row["observation.state"] for row in rows])
    lift.reset(about["sim.seed"])
    for step, row in enumerate(rows):  # open loop, from the data alone
        for camera in ("agent", "wrist"):
            shot = row[f"observation.images.{camera}"]
            assert (shot is not None) == (step % 8 == 0)
            if shot is not None:
                stored = np.asarray(Image.open(io.BytesIO(shot["bytes"])))
                np.testing.assert_array_equal(stored, lift.picture(camera, 32))
        np.testing.assert_array_equal(lift.state, np.float32(row["observation.state"]))
        lift.step(np.float32(row["action"]))
    assert lift.success


@pytest.mark.slow
def test_mistakes_are_made_and_mended(lift: Environment) -> None:
    attempt = Attempt.of(3, "lift", 0)
    plain, same, astray, again = (perform(lift, attempt, mistakes=share) for share in (0.0, 0.0, 1.0, 1.0))
    assert plain is not None
    assert same is not None
    assert astray is not None
    assert again is not None
    np.testing.assert_array_equal(plain.actions, same.actions)
    np.testing.assert_array_equal(astray.actions, again.actions)
    assert len(astray.actions) > len(plain.actions)
    assert plain.astray == ()
    assert 0 < len(astray.astray) < len(astray.actions)
    with pytest.raises(ActionPieceError, match="mistakes must lie between 0 and 1, not 2"):
        Settings(("lift",), 1, mistakes=2)
    assert "--mistakes 0.5" in Settings(("lift",), 1, mistakes=0.5).command()


@pytest.mark.slow
def test_no_look_shows_how_a_mistake_is_made(lift: Environment) -> None:
    attempt = Attempt.of(3, "lift", 0)
    done = perform(lift, attempt, size=32, every=3, horizon=5, mistakes=1.0)
    assert done is not None
    looks = range(0, len(done.actions), 3)
    good = tuple(look for look in looks if not set(range(look, look + 5)) & set(done.astray))
    assert 0 < len(good) < len(looks)
    assert done.shown == good
    everything = perform(lift, attempt, size=32, every=3, horizon=1, mistakes=1.0)
    assert everything is not None
    for camera, shots in done.pictures.items():  # those that are left are still where they belong
        at = dict(zip(everything.shown, everything.pictures[camera], strict=True))
        assert shots == [at[look] for look in good]


def test_settings_name_what_pictures_depend_on() -> None:
    assert Settings(("lift",), 1).decisive() == {"tasks": ["lift"], "episodes": 1, "seed": 0, "images": "none"}
    assert "--horizon 8" in Settings(("lift",), 1, images="chunks").command()
    assert "--every" not in Settings(("lift",), 1, images="chunks").command()
    assert "--every 2" in Settings(("lift",), 1, images="chunks", every=2).command()
    assert "--horizon" not in Settings(("lift",), 1, images="all", every=2).command()
    assert "--horizon" not in Settings(("lift",), 1, images="chunks", every=2).command()
    assert "--horizon 8 --mistakes 0.5" in Settings(("lift",), 1, images="all", mistakes=0.5).command()


@pytest.mark.slow
def test_two_workers_make_the_same_files(recorded: Path, tmp_path: Path) -> None:
    record(["lift"], EPISODES, tmp_path / "demos", workers=2, **WANTED)
    assert contents(tmp_path / "demos") == contents(recorded)


@pytest.mark.slow
def test_killed_at_a_random_moment_and_resumed_it_makes_the_same_files(recorded: Path, tmp_path: Path) -> None:
    out, staging = tmp_path / "demos", tmp_path / "demos.recording"
    command = [sys.executable, "-c", "from actionpiece.cli import main; main()", "record", *FLAGS, "--out", str(out)]
    process = subprocess.Popen([*command, "--workers", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not list(staging.glob("lift/*.npz")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 1))  # seeds are fixed everywhere else; here no moment may matter
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    if staging.exists():
        assert not out.exists()
        with pytest.raises(ActionPieceError, match=r"unfinished recording with other settings \(seed is 3, not 4\)"):
            record(["lift"], EPISODES, out, **(WANTED | {"seed": 4}))
    made = record(["lift"], EPISODES, out, workers=1, **WANTED)
    assert made.episodes == EPISODES
    assert contents(out) == contents(recorded)
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
def test_a_finished_recording_is_left_alone(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in recorded.rglob("*")}
    (left := recorded.with_name("demos.recording")).mkdir()  # stopped between the last two steps
    (left / "settings.json").write_text("{}")
    cli.run(["record", *FLAGS, "--out", str(recorded)])
    printed = capsys.readouterr().out
    assert "holds this recording already; nothing was done" in printed
    assert re.search(r"3 episodes, \d+ steps, 0\.\d MB", printed)
    assert "Failed attempts left out: none." in printed
    assert f"Next: actionpiece data info {recorded}" in printed
    assert {path: path.stat().st_mtime_ns for path in recorded.rglob("*")} == before
    assert not left.exists()
    with pytest.raises(ActionPieceError, match=r"with other settings \(episodes is 3, not 5\)"):
        record(["lift"], 5, recorded, **WANTED)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [("door", 0), ("square_nut", 0)])
def test_demonstrators_of_what_turns(name: str, seed: int) -> None:
    env = Environment(task(name))
    done = perform(env, Attempt(name, 0, seed))
    env.close()
    assert done is not None
    assert np.abs(done.actions[:, 3:6]).max() > 0.1
    assert len(done.actions) < task(name).max_steps


def test_the_help_lists_every_task() -> None:
    assert record_command.__doc__ is not None
    assert f"`all`: {', '.join(TASKS)}." in record_command.__doc__


def pretend(outcome: Callable[[Attempt], bool], order: random.Random, stop_after: int = 10**6) -> Any:
    """A stand-in for `supervise`: attempts end in any order, each with the outcome that is its own."""

    def supervise(
        most: int, job: workers.Job, following: Callable[[], Attempt | None], finished: Callable[[Attempt, bool], None]
    ) -> None:
        under_way: list[Attempt] = []
        for _ in range(stop_after):
            while len(under_way) < most and (attempt := following()) is not None:
                under_way.append(attempt)
            if not under_way:
                return
            attempt = under_way.pop(order.randrange(len(under_way)))
            if outcome(attempt):
                values = np.random.default_rng(attempt.seed).normal(size=(5, 8)).astype(np.float32)
                Demonstration(values[:, :7], values, "do it").save(attempt.kept(job.folder))
            else:
                attempt.discarded(job.folder).touch()
            finished(attempt, outcome(attempt))
        raise KeyboardInterrupt

    return supervise


def test_the_first_successes_are_kept_whatever_ends_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(attempt: Attempt) -> bool:
        return attempt.seed % 3 != 0

    expected = []
    for name in ("stack", "lift"):
        attempts = [Attempt.of(0, name, number) for number in range(30)]
        assert len({attempt.seed for attempt in attempts}) == 30
        expected += [attempt.seed for attempt in attempts if outcome(attempt)][:6]
    results = []
    for seed, most in ((0, 1), (1, 2), (2, 7)):
        order = random.Random(seed)
        out = tmp_path / str(seed)
        for stop_after in (3, 5, 10**6):  # interrupted twice
            monkeypatch.setattr(recording, "supervise", pretend(outcome, order, stop_after))
            try:
                made = record(["stack", "lift"], 6, out, workers=most)
            except KeyboardInterrupt:
                assert not out.exists()
        results.append(contents(out))
        table = pq.read_table(out / "meta/episodes/chunk-000/file-000.parquet")
        assert table["sim.seed"].to_pylist() == expected
        assert table["sim.task"].to_pylist() == ["stack"] * 6 + ["lift"] * 6
        assert made.discarded == read_json(out / "actionpiece.json")["discarded"]
        assert sum(made.discarded.values()) > 0
        assert check_layout(out) == []
    assert results[0] == results[1] == results[2]


def test_a_task_that_never_succeeds_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "supervise", pretend(lambda attempt: False, random.Random(0)))
    with pytest.raises(ActionPieceError, match="only 0 of 30 attempts at lift succeeded"):
        record(["lift"], 2, tmp_path / "a")


@pytest.mark.slow
def test_a_crash_is_reported_with_task_and_attempt(tmp_path: Path) -> None:
    todo = [Attempt("lift", 7, -1)]  # numpy takes no such seed
    with pytest.raises(
        ActionPieceError, match=r"attempt 7 at lift \(seed -1\) crashed: ValueError: Seed must be"
    ) as caught:
        workers.supervise(1, workers.Job(tmp_path), lambda: todo.pop() if todo else None, lambda *_: None)
    assert "Traceback" in (tmp_path / "crash-lift-000007.txt").read_text()
    assert str(tmp_path / "crash-lift-000007.txt") in str(caught.value)


@pytest.mark.slow
def test_a_mistake_that_only_a_worker_finds_is_one_sentence(tmp_path: Path) -> None:
    todo = [Attempt("fly", 7, 1)]
    with pytest.raises(ActionPieceError, match=r"^attempt 7 at fly \(seed 1\): there is no task 'fly'; there are lift"):
        workers.supervise(1, workers.Job(tmp_path), lambda: todo.pop() if todo else None, lambda *_: None)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_died_while_it_was_idle_is_said(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    gone = workers._Worker(SimpleNamespace(join=lambda: None, exitcode=-9), ours)
    with pytest.raises(ActionPieceError, match=r"attempt 2 at lift \(seed 6\) ended its process with code -9"):
        workers._hand_out([gone], 1, workers.Job(tmp_path), None, lambda: Attempt("lift", 2, 6))


@pytest.mark.slow
def test_a_worker_that_dies_is_no_failed_attempt(tmp_path: Path) -> None:
    todo = [Attempt("lift", 2, 5)]

    def kill() -> None:
        for child in multiprocessing.active_children():
            child.kill()

    timer = threading.Timer(0.5, kill)
    timer.start()
    with pytest.raises(ActionPieceError, match=r"attempt 2 at lift \(seed 5\) ended its process with code -9"):
        workers.supervise(
            1, workers.Job(tmp_path), lambda: todo.pop() if todo else None, lambda *_: pytest.fail("it is not finished")
        )
    timer.join()
    assert list(tmp_path.iterdir()) == []


def test_demonstrations_are_kept_with_their_pictures(tmp_path: Path) -> None:
    actions, states = np.zeros((3, 7), np.float32), np.ones((3, 8), np.float32)
    kept = Demonstration(actions, states, "lift it", (1,), (0, 2), {"agent": [b"ab", b"c"], "wrist": [b"", b"def"]})
    kept.save(tmp_path / "a.npz")
    back = Demonstration.load(tmp_path / "a.npz")
    assert (back.instruction, back.astray, back.shown) == (kept.instruction, kept.astray, kept.shown)
    assert back.pictures == kept.pictures
    Demonstration(actions, states, "lift it", (), (), {"agent": []}).save(tmp_path / "blind.npz")
    assert Demonstration.load(tmp_path / "blind.npz").pictures == {"agent": []}
    np.testing.assert_array_equal(back.states, states)
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:90])
    with pytest.raises(ActionPieceError, match=r"a\.npz is damaged .* remove it and record again"):
        Demonstration.load(tmp_path / "a.npz")


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"tasks": []}, "no task was named"),
            ({"tasks": ["fly"]}, "no task 'fly'; there are lift, stack"),
            ({"tasks": ["lift", "lift"]}, "a task is named twice"),
            ({"episodes": 0}, "episodes must be at least 1, not 0"),
            ({"workers": 0}, "workers must be at least 1, not 0"),
            ({"seed": -1}, "seed must be at least 0"),
            ({"horizon": 0}, "horizon must be at least 1"),
            ({"size": 2}, "size must be at least 16"),
            ({"images": "some"}, "images must be none, chunks, all, not 'some'"),
        ],
    )
    def test_settings(self, tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ActionPieceError, match=sentence):
            record(**({"tasks": ["lift"], "episodes": 1, "out": tmp_path / "a"} | change))
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_is_somebody_elses(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(ActionPieceError, match="is there already and is no recording"):
            record(["lift"], 1, tmp_path)
        with pytest.raises(ActionPieceError, match="is there already and is no recording"):
            record(["lift"], 1, tmp_path / "notes.txt")
        (tmp_path / "a.recording").mkdir()
        (tmp_path / "a.recording" / "notes.txt").write_text("mine")
        with pytest.raises(ActionPieceError, match="is not an unfinished recording"):
            record(["lift"], 1, tmp_path / "a")

    def test_two_recorders_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "a.recording").mkdir()
        with (tmp_path / "a.recording" / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(ActionPieceError, match="another process is recording into"):
                record(["lift"], 1, tmp_path / "a")

    def test_settings_that_do_not_matter_are_not_compared(self) -> None:
        assert Settings(("lift",), 1, size=64).decisive() == Settings(("lift",), 1, horizon=3).decisive()
        assert "horizon" not in Settings(("lift",), 1, images="all").decisive()
