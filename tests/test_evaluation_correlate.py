"""The correlation analysis: which evaluations files hold, how they are joined, and what is written."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import scipy.stats

from actionpiece import ActionPieceError, cli
from actionpiece.evaluation.correlate import analyse, read, write_correlation

NAMES = ("a", "b", "c", "d")
MSE = {"a": 4e-4, "b": 3e-4, "c": 2e-4, "d": 1e-4}
PRC = {"a": 0.8, "b": 0.9, "c": 0.85, "d": 0.95}


def share(success: float) -> dict[str, Any]:
    return {"successes": int(20 * success), "episodes": 20, "success": success, "low": 0.0, "high": 1.0}


def compared(name: str = "kitchen") -> dict[str, Any]:
    rows = [{"name": n, "mse": MSE[n], "prc": PRC[n], "fingerprint": f"print-{n}"} for n in NAMES]
    return {"data": {"name": name}, "rows": rows}


def replay_rows(success: dict[str, float]) -> list[dict[str, Any]]:
    names = {"raw commands": 1.0} | success
    return [
        {"name": n, **share(s), "mm": 1.0, "tasks": {"lift": share(s), "door": share(1 - s)}} for n, s in names.items()
    ]


def replayed(success: dict[str, float]) -> dict[str, Any]:
    prints = {n: {"kind": "pq", "fingerprint": f"print-{n.removesuffix('!')}"} for n in success}
    return {"data": {"name": "fresh"}, "tokenizers": prints, "rows": replay_rows(success), "pairs": []}


def rolled(success: float) -> dict[str, Any]:
    tasks = {"lift": share(success), "door": share(success / 2)}
    return {"errors": 0, "overall": share(success), "categories": {}, "tasks": tasks}


def ablated() -> dict[str, Any]:
    cells = [{"about": {}, "row": {"mse": MSE[n], "prc": PRC[n], "fingerprint": f"print-{n}"}} for n in NAMES]
    table = [{"row": n, "label": n, "mse": MSE[n], "prc": PRC[n]} for n in NAMES]
    return {"data": {"name": "kitchen"}, "cells": cells, "table": table}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(name: str, content: Any) -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return written


SUCCESS = {"a": 0.2, "b": 0.4, "c": 0.6, "d": 0.8}


def test_a_comparison_with_replay_is_a_group_or_one_for_each_task(write: Any) -> None:
    file = write("results.json", compared() | {"replay": {"rows": replay_rows(SUCCESS)}})
    found = read([file])
    assert [(one.group, one.tokenizer, one.mse, one.prc, one.success) for one in found] == [
        ("kitchen", n, MSE[n], PRC[n], SUCCESS[n]) for n in NAMES
    ]
    by_task = read([file], by="task")
    assert {one.group for one in by_task} == {"kitchen: lift", "kitchen: door"}
    assert [one.success for one in by_task if one.group == "kitchen: door"] == [1 - s for s in SUCCESS.values()]


def test_a_replay_finds_its_errors_by_fingerprint_and_leaves_raw_commands_out(write: Any) -> None:
    replay = write("replay.json", replayed({f"{n}!": s for n, s in SUCCESS.items()}))
    for scores in (compared(), ablated()):
        found = read([replay, write("scores.json", scores)])
        assert [(one.group, one.tokenizer, one.mse) for one in found] == [("fresh", f"{n}!", MSE[n]) for n in NAMES]
    assert [one.mse for one in read([replay])] == [None] * 4


def test_a_name_is_no_answer_where_fingerprints_say_that_it_is_another(write: Any) -> None:
    scores = compared()
    scores["rows"][0] |= {"fingerprint": "another"}
    replay, file = write("replay.json", replayed(SUCCESS)), write("scores.json", scores)
    assert [one.mse for one in read([replay, file])] == [None, MSE["b"], MSE["c"], MSE["d"]]
    del scores["rows"][0]["fingerprint"]
    assert [one.mse for one in read([replay, write("scores.json", scores)])] == list(MSE.values())


def test_code_from_elsewhere_has_no_fingerprint_and_is_known_by_name_alone(write: Any) -> None:
    scores, replay = compared(), replayed(SUCCESS)
    for one in (*scores["rows"], *replay["tokenizers"].values()):
        one["fingerprint"] = "not known"
    files = [write("replay.json", replay), write("scores.json", scores)]
    assert [one.mse for one in read(files)] == list(MSE.values())
    scores["rows"] = scores["rows"][:1]
    assert [one.mse for one in read([files[0], write("scores.json", scores)])] == [MSE["a"], None, None, None]


def test_rollouts_of_the_same_tasks_are_one_group(write: Any) -> None:
    files = [f"{n}={write(f'{n}.json', rolled(s))}" for n, s in SUCCESS.items()]
    found = read([*files, write("scores.json", compared())])
    assert [(one.group, one.tokenizer, one.prc, one.success) for one in found] == [
        ("rollouts of door, lift", n, PRC[n], SUCCESS[n]) for n in NAMES
    ]
    assert {one.group for one in read(files, by="task")} == {"rollouts of lift", "rollouts of door"}
    with pytest.raises(ActionPieceError, match="does not say its tokenizer: write TOKENIZER="):
        read([files[0].partition("=")[2]])
    turned = rolled(0.9)
    turned["tasks"] = dict(reversed(turned["tasks"].items()))  # the order of the tasks is no other group
    assert {one.group for one in read([*files, f"e={write('e.json', turned)}"])} == {"rollouts of door, lift"}
    with pytest.raises(ActionPieceError, match="3 episodes crashed; run that rollout once more"):
        read([f"a={write('broken.json', rolled(0.5) | {'errors': 3})}"])
    other = compared()
    other["rows"][0]["mse"] = 1.0
    with pytest.raises(ActionPieceError, match="several errors for the tokenizer 'a'"):
        read([*files, write("scores.json", compared()), write("other.json", other)])


def test_rollouts_of_policies_find_their_errors_by_the_fingerprint_of_their_tokenizer(write: Any) -> None:
    other = compared("garden")
    for row in other["rows"]:
        row |= {"mse": 10 * row["mse"], "fingerprint": f"other-{row['name']}"}
    scores = [write("scores.json", compared()), write("other.json", other)]
    for prefix, factor in (("print", 1), ("other", 10)):
        files = [
            f"{n}={write(f'{prefix}-{n}.json', rolled(s) | {'tokenizer': f'{prefix}-{n}'})}" for n, s in SUCCESS.items()
        ]
        assert [one.mse for one in read([*files, *scores])] == [factor * MSE[n] for n in NAMES]


def test_rollouts_that_were_not_made_alike_are_no_group(write: Any, tmp_path: Path) -> None:
    settings = {"seed": 7, "execute": 8, "size": 128, "published": False}
    first = write("a.json", rolled(0.1) | {"settings": settings})
    other = write("b.json", rolled(0.2) | {"settings": settings | {"seed": 8, "execute": 4}})
    with pytest.raises(ActionPieceError, match=r"b\.json was rolled out with another seed and execute than .*a\.json"):
        read([f"a={first}", f"b={other}"])
    (tmp_path / "older").mkdir()
    older = write("older/results.json", rolled(0.2))  # what it says itself is not there, but its folder does
    write("older/settings.json", settings | {"policy": "x", "size": 64})
    with pytest.raises(ActionPieceError, match="another size than"):
        read([f"a={first}", f"b={older}"], by="task")
    assert len(read([f"a={first}", f"b={write('c.json', rolled(0.2))}"])) == 2  # it is not known of this one


def test_a_file_counts_once(write: Any, tmp_path: Path) -> None:
    file, rollout = write("t.csv", TABLE), write("a.json", rolled(0.1))
    for files in ([file, file], [file, f"{tmp_path}/../{tmp_path.name}/t.csv"], [f"a={rollout}", f"b={rollout}"]):
        with pytest.raises(ActionPieceError, match=r"(t\.csv|a\.json) is named twice"):
            read(files)
    with pytest.raises(ActionPieceError, match=r"two\.csv is a copy of .*t\.csv"):
        read([file, write("two.csv", TABLE)])


def test_what_correlate_wrote_itself_is_passed_over(write: Any, tmp_path: Path) -> None:
    file = write("table.json", compared() | {"replay": {"rows": replay_rows(SUCCESS)}})
    first = analyse([file], resamples=100)
    write_correlation(tmp_path, first)
    own = str(tmp_path / "correlation.json")
    again = analyse([own, file], resamples=100)
    assert again["files"] == first["files"]
    assert again["groups"] == first["groups"]
    with pytest.raises(ActionPieceError, match="what correlate wrote itself; name those that it is to read"):
        analyse([own], resamples=100)


def test_a_column_of_rows_may_be_the_success(write: Any) -> None:
    document = compared()
    for row in document["rows"]:
        row["libero"] = SUCCESS[row["name"]]
    assert [one.success for one in read([write("r.json", document)], success="libero")] == list(SUCCESS.values())
    assert read([write("r.json", document)]) == []
    table = ablated()
    for entry in table["table"]:
        entry["libero"] = SUCCESS[entry["row"]]
    assert {one.group for one in read([write("t.json", table)], success="libero")} == {"ablation on kitchen"}


def test_two_files_of_one_name_are_two_groups(write: Any) -> None:
    document = compared() | {"replay": {"rows": replay_rows(SUCCESS)}}
    found = read([write("one.json", document), write("two.json", document | {"seed": 1})])
    assert len({one.group for one in found}) == 2
    assert len(found) == 8


def test_a_group_of_tables_may_go_on_in_another_file(write: Any) -> None:
    head = "group,tokenizer,mse,prc,success\n"
    files = [write("one.csv", f"{head}x,a,3,1,1\nx,b,2,2,2\n"), write("two.csv", f"{head}x,c,1,3,3\n")]
    assert [(one.group, one.tokenizer) for one in read(files)] == [("x", "a"), ("x", "b"), ("x", "c")]


TABLE = """group,tokenizer,mse,prc,success
x,a,4,0.1,10
x,b,3,0.3,20
x,c,2,0.2,30
y,a,4,0.1,30
y,b,3,0.3,20
y,c,2,,10
y,d,1,0.4,10
z,a,1,1,1
z,b,1,2,2
z,c,1,3,3
"""


def test_a_table_is_correlated_and_written_as_json_markdown_and_svg(write: Any, tmp_path: Path) -> None:
    results = analyse([write("table.csv", TABLE)], resamples=200)
    ranks = {"x": ([0, 0.5, 1], [0, 1, 0.5], [0, 0.5, 1]), "y": ([0, 0.5, 1], [0, 0.5, 1], [1, 0.5, 0])}
    pooled = [[*ranks["x"][i], *ranks["y"][i]] for i in range(3)]
    assert results["fidelity"]["value"] == pytest.approx(scipy.stats.spearmanr(pooled[0], pooled[2]).statistic)
    assert results["prc"]["value"] == pytest.approx(scipy.stats.spearmanr(pooled[1], pooled[2]).statistic)
    assert (results["evaluations"], len(results["groups"])) == (6, 2)
    assert results["left_out"] == [{"group": "z", "why": "all have the same mse"}]
    assert results["incomplete"] == [{"group": "y", "tokenizer": "c", "lacks": ["prc"]}]
    assert results["groups"][0]["rows"][1]["rank_prc"] == 1
    write_correlation(tmp_path / "out", results)
    assert json.loads((tmp_path / "out" / "correlation.json").read_text()) == results
    page = (tmp_path / "out" / "correlation.md").read_text()
    assert f"| high PRC | {results['prc']['value']:.3f} |" in page
    assert "Left out, 1 in number: z (all have the same mse)." in page
    assert "Not counted, 1 in number: c in y (no prc)." in page
    assert "200 resamples of whole groups, 2 drawn with replacement each time (seed 0)" in page
    drawing = (tmp_path / "out" / "correlation.svg").read_text()
    assert drawing.startswith("<?xml")
    assert "physical rank consistency" in drawing
    write_correlation(tmp_path / "again", results)
    assert (tmp_path / "again" / "correlation.svg").read_text() == drawing


def test_a_json_table_says_the_same_as_csv(write: Any) -> None:
    head, *lines = (line.split(",") for line in TABLE.strip().splitlines())
    rows = [{key: value or None for key, value in zip(head, line, strict=True)} for line in lines]
    numbers = [{k: v if v is None or k in ("group", "tokenizer") else float(v) for k, v in row.items()} for row in rows]
    first, second = (analyse([file], resamples=100) for file in (write("t.csv", TABLE), write("t.json", numbers)))
    for key in ("fidelity", "prc", "difference", "groups", "left_out", "incomplete"):
        assert first[key] == second[key]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.csv", TABLE.replace(",prc,", ",rank,"), "row 1: there is no column 'prc'"),
        ("t.csv", TABLE.replace("0.3,20", "much,20"), "row 2: prc must be a finite number, not 'much'"),
        ("t.csv", TABLE.replace("x,a,4", "x,a,inf"), "row 1: mse must be a finite number"),
        ("t.csv", TABLE.replace("x,b", "x,a"), "'a' is twice in the group 'x'"),
        ("t.csv", "group,tokenizer,mse,prc,success\nx,a,1,1,1\n", "x: fewer than 3 tokenizers"),
        ("t.json", {"hello": 1}, "is neither what compare, replay, rollout or ablate writes"),
        ("t.json", [1], "is neither"),
        ("t.json", "{", "not readable JSON"),
        ("t.csv", TABLE.replace("0.3,20", f"{'9' * 400},20"), "row 2: prc must be a finite number"),
        ("t.json", compared() | {"rows": [{"name": "a", "mse": math.nan, "prc": 1.0}]}, "t.json: a: mse must be a fin"),
        ("t.json", compared() | {"rows": [{"name": "a", "mse": 1.0, "prc": True}]}, "t.json: a: prc must be a finite"),
        ("t.json", ablated() | {"table": [{"row": "a", "mse": "abc", "prc": 1.0}]}, "mse must be a finite number"),
        ("t.json", compared(), "none has a column 'success'"),
    ],
)
def test_what_cannot_be_correlated_is_said(write: Any, name: str, content: Any, reason: str) -> None:
    with pytest.raises(ActionPieceError, match=reason):
        analyse([write(name, content)])


def test_the_command_prints_and_writes_and_fails_in_one_sentence(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["actionpiece", "correlate", *arguments])
        try:
            cli.main()
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    table, out = write("t.csv", TABLE), str(tmp_path / "out")
    assert run(table, "--success", "success", "--out", out, "--resamples", "200") == 0
    printed = capsys.readouterr().out
    assert "6 evaluations in 2 groups, 1 group left out" in printed
    assert "high PRC" in printed
    assert run(table, "--out", out, "--resamples", "200", "--json") == 0
    assert json.loads(capsys.readouterr().out)["evaluations"] == 6
    assert run(str(tmp_path / "none.json"), "--out", out) == 2
    assert capsys.readouterr().err.strip().endswith("none.json does not exist")
    assert run("--out", out) == 2
    assert "no files were named" in capsys.readouterr().err
    assert run(table, "--out", table) == 2
    assert run(table, "--out", out, "--resamples", "5") == 2
