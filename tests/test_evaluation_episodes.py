"""The journal of episodes and the processes that fill it: crashes are errors, kills lose nothing that was finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actionpiece import ActionPieceError
from actionpiece.evaluation.episodes import Journal, check_no_errors, claim, run_episodes


@dataclass(frozen=True)
class Count:
    number: int
    trouble: str = ""
    folder: str = ""

    @property
    def key(self) -> str:
        return f"count {self.number}"

    @property
    def facts(self) -> dict[str, Any]:
        return {"number": self.number}


def square(job: Count) -> dict[str, Any]:
    if job.folder:
        (Path(job.folder) / f"{job.number}-{time.time_ns()}").touch()
    if job.trouble == "raise":
        raise RuntimeError("the gripper fell off")
    if job.trouble == "exit":
        sys.exit(0)
    if job.trouble == "die":
        os._exit(3)
    if job.trouble == "sleep":
        time.sleep(60)
    if job.trouble == "odd":
        return {"square": float("nan")}
    return {"square": job.number**2}


def test_lines_come_in_the_order_of_the_jobs_and_are_not_made_twice(tmp_path: Path) -> None:
    path, calls = tmp_path / "episodes.jsonl", tmp_path / "calls"
    calls.mkdir()
    jobs = [Count(n, folder=str(calls)) for n in range(5)]
    seen: list[float] = []
    first = run_episodes(jobs[:3], square, journal=Journal(path), workers=2, progress=lambda f, _: seen.append(f))
    assert [line["square"] for line in first] == [0, 1, 4]
    assert seen[0] == 0
    assert seen[-1] == 1
    again = run_episodes(jobs, square, journal=Journal(path), workers=2)
    assert [line["square"] for line in again] == [0, 1, 4, 9, 16]
    assert len(list(calls.iterdir())) == 5
    assert len(path.read_text().splitlines()) == 5


def test_a_crash_is_an_error_of_its_episode_and_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    lines = run_episodes([Count(1), Count(2, "raise")], square, journal=Journal(path), workers=1)
    assert lines[0]["square"] == 1
    assert lines[1]["error"] == "RuntimeError: the gripper fell off"
    assert lines[1]["number"] == 2
    assert "square" not in lines[1]
    assert "in square" in lines[1]["traceback"]
    with pytest.raises(ActionPieceError, match=r"1 of 2 episodes crashed, the first .count 2. with RuntimeError"):
        check_no_errors(lines)
    lines = run_episodes([Count(1), Count(2)], square, journal=Journal(path), workers=1)
    assert [line["square"] for line in lines] == [1, 4]
    check_no_errors(lines)


def test_a_process_that_dies_is_the_error_of_its_own_episode_and_the_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    jobs = [Count(1), Count(2, "die"), Count(3), Count(4, "exit"), Count(5), Count(6, "odd")]
    lines = run_episodes(jobs, square, journal=Journal(path), workers=2)
    assert [line.get("square") for line in lines] == [1, None, 9, None, 25, None]
    assert lines[1] == {"key": "count 2", "number": 2, "error": "its process died"}
    assert lines[3]["error"] == "SystemExit: 0"
    assert lines[5]["error"] == "ActionPieceError: its square is nan"  # which a line of JSON could not hold
    assert len(path.read_text().splitlines()) == 6


def test_a_process_that_dies_while_a_line_is_written_costs_no_other_episode(tmp_path: Path) -> None:
    class Slow(Journal):
        def add(self, line: dict[str, Any]) -> None:
            time.sleep(1.0)  # meanwhile the other process dies
            super().add(line)

    jobs = [Count(1), Count(2, "die"), Count(3), Count(4)]
    lines = run_episodes(jobs, square, journal=Slow(tmp_path / "episodes.jsonl"), workers=2)
    assert [line.get("square") for line in lines] == [1, None, 9, 16]


def test_a_killed_run_leaves_no_process_behind_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from test_evaluation_episodes import Count, square; from actionpiece.evaluation.episodes import *\n"
        "if __name__ == '__main__':\n"
        "    run_episodes([Count(1), Count(2, 'sleep')], square, journal=Journal(Path(sys.argv[2])), workers=2)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    here = str(Path(__file__).parent)
    process = subprocess.Popen([sys.executable, str(script), here, str(path)], start_new_session=True)
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while _alive(process.pid):
        assert time.monotonic() < deadline, "a worker outlived the run"
        time.sleep(0.05)
    lines = run_episodes([Count(1), Count(2)], square, journal=Journal(path), workers=1)
    assert [line["square"] for line in lines] == [1, 4]


def _alive(group: int) -> bool:
    """Whether a process of this process group still runs."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


def test_a_line_that_was_cut_short_is_dropped_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text('{"key": "a", "n": 1}\n{"key": "b", "n"')
    journal = Journal(path)
    assert list(journal.lines) == ["a"]
    journal.add({"key": "b", "n": 2})
    assert list(Journal(path).lines) == ["a", "b"]
    path.write_text('{"key": "a"}\nnonsense\n{"key": "b"}\n')
    with pytest.raises(ActionPieceError, match="line 2 is not JSON"):
        Journal(path)
    path.write_bytes(b'{"key": "a"}\n{"key": "\xe9"}\n')
    with pytest.raises(ActionPieceError, match=r"line 2 is not JSON: .*utf-8"):
        Journal(path)
    path.write_text("[1]\n")
    with pytest.raises(ActionPieceError, match="line 1 is not of an episode"):
        Journal(path)


def test_a_folder_belongs_to_its_settings(tmp_path: Path) -> None:
    claim(tmp_path / "a", {"policy": "x", "seed": 1})
    claim(tmp_path / "a", {"policy": "x", "seed": 1})
    with pytest.raises(ActionPieceError, match="another seed; choose"):
        claim(tmp_path / "a", {"policy": "x", "seed": 2})
    assert json.loads((tmp_path / "a" / "settings.json").read_text())["seed"] == 1
    (tmp_path / "b").mkdir()
    claim(tmp_path / "b", {"seed": 1})  # an empty folder is free
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "results.json").write_text("{}")
    for taken in (tmp_path / "c", tmp_path / "c" / "results.json"):
        with pytest.raises(ActionPieceError, match="holds something else"):
            claim(taken, {"seed": 1})


@pytest.mark.parametrize(
    ("jobs", "workers", "what"), [([Count(1), Count(1)], 1, "asked for twice"), ([Count(1)], 0, "at least one worker")]
)
def test_what_cannot_be_is_said(jobs: list[Count], workers: int, what: str) -> None:
    with pytest.raises(ActionPieceError, match=what):
        run_episodes(jobs, square, journal=Journal(None), workers=workers)
