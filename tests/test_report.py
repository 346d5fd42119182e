"""The report: tables, figures and the page, on small made-up results of odd shapes."""

from __future__ import annotations

import copy
import dataclasses
import html
import io
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from actionpiece.errors import ActionPieceError
from actionpiece.report import write_report
from actionpiece.report.looks import looks
from actionpiece.report.page import markdown_page
from actionpiece.report.summary import best_sentence
from actionpiece.report.tables import cells, columns, console_table, markdown_table
from actionpiece.report.text import distinct, shorten
from actionpiece.space import ActionSpace, Group

HOSTILE = "<script>alert(1)</script>"
UNITS = {"translation": "mm", "rotation": "deg", "joints": "deg", "gripper": "opening", "other": "raw"}
N, H = 60, 6


def row(name: str, space: ActionSpace, i: int = 0, **changes) -> dict:
    groups = [
        {
            "name": group.name,
            "kind": group.kind,
            "unit": UNITS[group.kind],
            "rmse": 0.1 * (i + 1),
            "worst": 0.7 * (i + 1),
            "flips": 0.01 * i if group.kind == "gripper" else None,
        }
        for group in space.groups
    ]
    made = {
        "name": name,
        "kind": "pq",
        "tokens_per_chunk": 16.0,
        "fixed_length": True,
        "vocab_size": 32,
        "bits_per_chunk": 80.0 + i,
        "mse": 1e-4 * (i + 1),
        "l1": 1e-3 * (i + 1),
        "prc": 0.99 - 0.01 * i,
        "prc_left_out": 1,
        "prc_collapsed": 0,
        "prc_across_episodes": 0.98 - 0.01 * i,
        "prc_quantiles": {"0.5": 0.99},
        "groups": groups,
        "gripper_flips": 0.01 * i,
        "jerk_error": 2.0 + i,
        "jerk_unit": "m/s^3",
        "codes_used": 0.75,
        "perplexity": 20.0,
        "position_perplexity": None,
        "overlap": 0.25,
        "valid_changed": 1.0,
        "valid_dropped": 0.0,
        "outside_range": 0,
        "encode_ms": 0.25,
        "decode_ms": 0.5,
        "encode_per_s": 1234567.0,
        "decode_per_s": 99.0,
        "seed": 0,
        "n": N,
        "config": {"tokens": 16},
        "normalizer": "minmax",
        "fingerprint": "f" * 64,
        "fitted_on": {"seed": 0, "chunks": 500, "data": {"name": "d", "generated": True, "fingerprint": "a" * 64}},
    }
    return made | changes


def made(names: list[str], space: ActionSpace, *, generated: bool = False, **changes) -> tuple[dict, dict]:
    """Results and drawings as `compare` makes them."""
    rng = np.random.default_rng(0)
    rows = [row(name, space, i, **changes) for i, name in enumerate(names)]
    files = [{"name": "a.npz", "episodes": 10, "keep": None, "clip": [None, 1.0], "licence": "MIT", "note": "a & b"}]
    results = {
        "command": "actionpiece compare --data 'x y'",
        "created": "2026-01-02T03:04:05+00:00",
        "seed": 0,
        "protocol": {"split": "test", "horizon": H, "n": 100, "k": 8, "seed": 0},
        "data": {
            "name": "kitchen",
            "generated": generated,
            "fingerprint": "a" * 64,
            "space": space.name,
            "dim": space.dim,
            "rate": space.rate,
            "episodes": 10,
            "steps": 400,
            "split": {"seeds": [0], "train": 8, "validation": 1, "test": 1},
            "idle": "kept",
            "tail": "drop",
            "licence": "MIT",
            "note": "a & b",
            "files": files,
        },
        "physical_scales": {group.name: 0.01 for group in space.groups},
        "environment": {"actionpiece": "0.1.0", "device": "cpu"},
        "rows": rows,
    }
    errors = {name: rng.uniform(1e-5, 1e-3, N) for name in names}
    rho = {name: rng.uniform(0.5, 1, N) for name in names}
    for values in rho.values():
        values[0] = np.nan  # an anchor that was left out
    chunks = []
    for why, index in [("typical", 1), *((f"worst of {n}: its largest", int(errors[n].argmax())) for n in names[:2])]:
        original = rng.uniform(-1, 1, (H, space.dim))
        decoded = {n: (original + rng.normal(0, 0.01, original.shape)).tolist() for n in names}
        mse = {n: float(errors[n][index]) for n in names}
        chunks.append({"why": why, "index": index, "original": original.tolist(), "decoded": decoded, "mse": mse})
    counts = {name: [9, 5, 3, 1, 0, 0] for name in names}
    drawings = {
        "labels": list(space.labels),
        "rate": space.rate,
        "chunks": chunks,
        "code_counts": counts,
        "rho": rho,
        "chunk_mse": errors,
    }
    return results, drawings


LIBERO, ALOHA, JOINTS = ActionSpace.preset("libero"), ActionSpace.preset("aloha"), ActionSpace.of_joints(26)
TINY = ActionSpace("tiny", (Group("joints", (0,), unit=1.0, delta=False), Group("gripper", (1,), open=1.0, closed=0.0)))


def written(tmp_path, results: dict, drawings: dict) -> str:
    write_report(tmp_path / "report.html", results, drawings)
    return (tmp_path / "report.html").read_text(encoding="utf-8")


class Checker(HTMLParser):
    """Complains about tags that are not closed or not opened; collects ids, references and text."""

    VOID = frozenset({"meta", "br", "hr", "img", "input", "link", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: set[str] = set()
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            assert key not in ("src", "srcset", "onclick", "onload"), (tag, key)
            if key == "id":
                self.ids.append(value)
            if key == "href":
                assert value.startswith("#"), value
            if key in ("href", "clip-path"):
                self.references.update(re.findall(r"#([\w-]+)", value))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.text.append(data)


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert len(set(checker.ids)) == len(checker.ids), "two elements have the same id"
    assert checker.references <= set(checker.ids)
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert checker.tags.count("script") == 1
    assert "nan" not in re.findall(r"[a-z]+", " ".join(re.findall(r'(?:d|viewBox|x|y)="[^"]*"', page)))
    return checker


@pytest.mark.parametrize(
    ("names", "space", "changes"),
    [
        (["binning", "pq"], LIBERO, {}),
        (["pq"], TINY, {}),
        (["pq", "fast"], ALOHA, {}),
        (["pq", "fast"], JOINTS, {"gripper_flips": None, "jerk_unit": "rad/step^3"}),
        (["pq", "fast"], TINY, {"prc": None, "prc_across_episodes": None, "overlap": None, "jerk_error": None}),
        (["pq"], TINY, {"mse": 0.0, "seed": None, "fitted_on": {}, "config": {}}),
    ],
    ids=["arm", "single", "two arms", "joints", "nulls", "zeros"],
)
def test_every_shape_of_results_becomes_a_whole_page(tmp_path, names, space, changes):
    results, drawings = made(names, space, **changes)
    page = written(tmp_path, results, drawings)
    text = " ".join(checked(page).text).replace("_ ", "_")
    for name in names:
        assert re.search(rf"\b{name}\b", text)
    for group in space.groups:
        assert group.name in text
    if space.dim > 8:
        assert f"8 of {space.dim} columns" in text
    assert "generated demonstrations" not in text


def test_a_training_elsewhere_is_told_by_its_stretches(tmp_path):
    results, drawings = made(["rvq", "quest"], TINY)
    far = {"from": 0, "to": 9_000, "device": "cuda", "gpu": "NVIDIA H200", "torch": "2.11.0"}
    near = {"from": 9_000, "to": 10_000, "device": "cpu", "gpu": None, "torch": "2.13.0", "products": "float32"}
    rvq, quest = (row["fitted_on"] for row in results["rows"])
    rvq |= {"fit_seconds": 3.0, "went_on_from_step": 9_000, "stretches": [far, near]}
    quest |= {"fit_seconds": 3.0, "went_on_from_step": 500}  # of a checkpoint that does not know
    page = written(tmp_path, results, drawings)
    assert "<td>steps 0 to 9,000 on NVIDIA H200; steps 9,000 to 10,000 on a CPU, products of float32</td>" in page
    assert "<td>went on from step 500</td>" in page


def test_generated_data_is_called_generated(tmp_path):
    page = written(tmp_path, *made(["pq"], TINY, generated=True))
    assert "<h1>Action tokenizers on generated demonstrations</h1>" in page
    assert "not recorded from any robot" in page


def test_names_and_notes_are_never_markup(tmp_path):
    results, drawings = made([HOSTILE, '" onload="x', "$x_1$ & \x00\ud800\n|"], TINY)
    for key in ("name", "note", "licence", "idle"):
        results["data"][key] = HOSTILE
    results["command"] = f"actionpiece {HOSTILE}"
    results["environment"]["device"] = HOSTILE
    drawings["labels"][0] = HOSTILE
    page = written(tmp_path, results, drawings)
    checker = checked(page)
    assert HOSTILE not in page
    assert html.escape(HOSTILE) in page
    assert HOSTILE in "".join(checker.text)
    assert "\x00" not in page


def test_many_tokenizers_with_long_names_fit(tmp_path):
    names = [f"pq:blend={i / 20}:codes=1024:tokens=8:iterations=25" for i in range(13)]
    results, drawings = made(names, TINY)
    page = written(tmp_path, results, drawings)
    checked(page)
    for name in names:
        assert f"<span>{name.replace(':', ':<wbr>')}</span>" in page  # they break before a setting
    assert len(page) < 3_000_000


def test_names_that_only_many_letters_tell_apart_widen_the_figures(tmp_path):
    long = "rvq:train.steps=2000:train.batch=128:train.learning_rate={}:train.weight_decay=0.01:train.warmup=1000"
    results, drawings = made([long.format(rate) for rate in (1e-3, 3e-3)], TINY)
    page = written(tmp_path, results, drawings)
    checked(page)
    usual = written(tmp_path, *made(["pq", "fast"], TINY))
    widths = [max(float(width) for width in re.findall(r'viewBox="0 0 ([\d.]+)', text)) for text in (page, usual)]
    assert widths[0] > widths[1] + 100


def test_same_input_gives_the_same_bytes_as_arrays_and_as_lists(tmp_path):
    results, drawings = made(["pq", "fast"], TINY)
    before = copy.deepcopy((results, drawings["chunks"]))
    first = written(tmp_path, results, drawings)
    assert written(tmp_path, results, drawings) == first
    for key in ("rho", "chunk_mse"):
        drawings[key] = {n: [None if np.isnan(v) else float(v) for v in a] for n, a in drawings[key].items()}
    assert written(tmp_path, results, drawings) == first
    assert (results, drawings["chunks"]) == before


def test_anchors_all_left_out_are_said_not_drawn(tmp_path):
    results, drawings = made(["pq", "fast"], TINY, prc=None, prc_across_episodes=None)
    drawings["rho"] = {name: np.full(N, np.nan) for name in drawings["rho"]}
    drawings["code_counts"]["pq"] = [0, 0, 0]
    page = written(tmp_path, results, drawings)
    checked(page)
    assert "no anchor has an order to keep" in page
    assert "no PRC could be measured" in page


def test_a_chunk_picked_twice_is_shown_once(tmp_path):
    results, drawings = made(["pq", "fast"], TINY)
    drawings["chunks"][2] = drawings["chunks"][1] | {"why": "worst of fast: its largest"}
    page = written(tmp_path, results, drawings)
    assert "Worst of pq: its largest; worst of fast: its largest" in page
    assert page.count("<summary>Worst") == 1


@pytest.mark.parametrize("drawn", [["fast"], []], ids=["some", "none"])
def test_rows_with_nothing_to_draw_are_left_out_of_the_pictures_and_named(tmp_path, drawn):
    names = ["pq", "fast", HOSTILE]
    results, drawings = made(names, TINY)
    for key in ("rho", "chunk_mse", "code_counts"):
        drawings[key] = {name: drawings[key][name] for name in drawn}
    for chunk in drawings["chunks"]:
        chunk |= {key: {name: chunk[key][name] for name in drawn} for key in ("decoded", "mse")}
    if not drawn:
        drawings["chunks"] = []
    known = [name for name in names if name not in drawn]
    results["known"] = [
        {
            "name": name,
            "command": f"compare {HOSTILE}",
            "created": results["created"],
            "environment": results["environment"],
        }
        for name in [*known, "another table's"]
    ]
    page = written(tmp_path, results, drawings)
    text = " ".join("".join(checked(page).text).split())
    listed = f"pq and {HOSTILE}" if drawn else f"pq, fast and {HOSTILE}"
    source = f"made by compare {HOSTILE}, 2026-01-02"
    assert f"Taken from an earlier comparison ({source}): {listed}, with latencies of the machine of then." in text
    assert text.count(f"Taken from an earlier comparison, and therefore not drawn here: {listed}.") == 2
    assert text.count(f"Taken from an earlier comparison, and therefore without a curve here: {listed}.") == 1
    for ident in ("f-rho", "f-error", "f-codes", "f-chunk"):
        assert (f'id="{ident}' in page) == bool(drawn), ident
    for ident in ("f-tradeoff", "f-cost", "f-group0", "f-used"):
        assert f'id="{ident}' in page, ident


def test_no_rows_are_an_error(tmp_path):
    results, drawings = made(["pq"], TINY)
    with pytest.raises(ActionPieceError, match="nothing to report"):
        write_report(tmp_path / "report.html", results | {"rows": []}, drawings)
    assert not (tmp_path / "report.html").exists()


def best_of(rows: list[dict], title: str) -> list[str]:
    column = next(column for column in columns(rows) if column.heading == title)
    return [r["name"] for r, cell in zip(rows, cells(column, rows), strict=True) if cell.best]


def test_the_best_cell_is_the_best():
    rows = [
        row("a", LIBERO, 2, prc=0.91, overlap=0.3),
        row("b", LIBERO, 0, prc=None, overlap=0.3),
        row("c", LIBERO, 1, prc=0.95, overlap=None),
    ]
    assert best_of(rows, "MSE [\N{MULTIPLICATION SIGN}10⁻⁴]") == ["b"]
    assert best_of(rows, "PRC") == ["c"]
    assert best_of(rows, "overlap [%]") == ["a", "b"]
    assert best_of(rows, "translation [mm]") == ["b"]
    assert best_of(rows, "gripper flips [%]") == ["b"]
    assert best_of(rows, "tokens") == []  # all alike
    assert best_of(rows, "perplexity [codes]") == []  # neither end is good
    assert best_of(rows[:1], "PRC") == []  # nobody to be better than


def test_what_reads_alike_is_marked_alike():
    rows = [row("a", LIBERO, prc=0.950001), row("b", LIBERO, prc=0.950002), row("c", LIBERO, prc=0.9)]
    assert best_of(rows, "PRC") == ["a", "b"]


def test_the_page_marks_the_best_cell(tmp_path):
    results, drawings = made(["bad", "good"], TINY)
    results["rows"][0]["mse"], results["rows"][1]["mse"] = 9e-4, 2e-4
    page = written(tmp_path, results, drawings)
    line = next(line for line in page.splitlines() if line.startswith("<tr>") and "<span>good</span>" in line)
    assert 'class="edge best"><strong>2.0</strong>' in line


def test_no_speed_is_the_best_where_rows_were_timed_in_several_environments(tmp_path):
    results, drawings = made(["old", "new"], TINY)
    results["rows"][0] |= {"encode_ms": 0.11, "decode_ms": 0.22, "encode_per_s": 3e6, "decode_per_s": 400.0}
    figures = ("0.11", "0.22", "3,000,000", "400")
    origin = {"name": "old", "command": "", "created": "2026-01-01T00:00:00+00:00"}
    here = results["environment"]
    for known, marked in (
        ([], True),
        ([origin | {"environment": here}], True),
        ([origin | {"environment": here | {"cores": 64}}], False),
        ([origin | {"environment": here | {"cores": 64}, "name": "of another table"}], True),
    ):
        page = written(tmp_path, results | {"known": known}, drawings)
        for figure in figures:
            assert (f"<strong>{figure}</strong>" in page) == marked
            assert figure in page
        assert ("but for speeds, which are of several machines or versions, is in bold" in page) != marked
        text = markdown_page(results | {"known": known})
        assert ("**0.11**" in text) == ("**0.22**" in text) == marked
        assert "0.11" in text
        assert "**1.0**" in text  # the error is of the same chunks wherever it was measured


def test_the_sentence_claims_what_was_measured():
    rows = [row("a", LIBERO, 0), row("b", LIBERO, 1, bits_per_chunk=40.0)]
    times = "\N{MULTIPLICATION SIGN}10⁻⁴"
    expected = f"On these chunks, a has the lowest MSE (1.0 {times}) and the highest PRC (0.9900); "
    assert best_sentence(rows) == expected + "b has the fewest bits per chunk (40.0)."
    alone = f"On these chunks, a has an MSE of 1.0 {times}, a PRC of 0.9900 and 80.0 bits per chunk."
    assert best_sentence(rows[:1]) == alone


def test_markdown_has_one_line_per_row():
    rows = [row("a|b", ALOHA, 0), row(HOSTILE, ALOHA, 1), row("c\nd", ALOHA, 2, prc=None)]
    lines = markdown_table(rows).splitlines()
    assert len(lines) == 2 + len(rows)
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert bars == {len(columns(rows)) + 2}
    assert r"left\_gripper flips [%]" in lines[0]
    assert "**0.9900**" in lines[2]
    assert "<script>" not in lines[3]


def test_headings_and_titles_in_markdown_are_escaped_like_rows():
    hostile = "a|b <script> *c*"
    groups = tuple(dataclasses.replace(group, name=f"{group.name} {hostile}") for group in LIBERO.groups)
    results, _ = made(["pq"], dataclasses.replace(LIBERO, groups=groups))
    results["data"]["name"] = hostile
    lines = markdown_page(results).splitlines()
    assert lines[0] == r"# Action tokenizers on a\|b &lt;script> \*c\*"
    head, below = (line for line in lines if line.startswith(("| tokenizer", "| ---")))
    assert r"| translation a\|b &lt;script> \*c\* [mm] |" in head
    assert len(re.findall(r"(?<!\\)\|", head)) == below.count("|")


@pytest.mark.parametrize("space", [LIBERO, ALOHA, JOINTS], ids=lambda space: space.name)
def test_console_table_shows_names_as_they_are_and_fits(space):
    rows = [row("[red]a[/red]", space, 0), row("b", space, 1)]
    console = Console(file=io.StringIO(), width=80)
    console.print(console_table(rows))
    shown = console.file.getvalue()
    assert "[red]a[/r" in shown
    assert "0.9900" in shown
    for group in space.groups:
        assert group.name.split("_")[-1] in shown
    assert "…" not in shown  # no figure is cut on a narrow console


def test_names_on_a_narrow_console_break_before_a_setting(libero: ActionSpace) -> None:
    rows = [row(name, libero) for name in ("quest:downsample=1", "pq:blend=0.75:groups=balanced", "fast")]

    def names(width: int) -> list[str]:
        console = Console(file=io.StringIO(), width=width)
        console.print(console_table(rows))
        lines = console.file.getvalue().splitlines()
        body = lines[next(i for i, line in enumerate(lines) if "───" in line) + 1 :]
        return [line[1:].split(" ")[0] for line in body if line[1:2].strip()]

    assert names(140) == ["quest:downsample=1", "pq:blend=0.75:groups=balanced", "fast"]
    assert names(80) == ["quest:", "downsample=1", "pq:", "blend=0.75:", "groups=", "balanced", "fast"]


def test_tables_of_nothing_are_empty():
    assert len(markdown_table([]).splitlines()) == 2
    assert console_table([]).row_count == 0


def test_drawing_leaves_matplotlib_as_it_was_and_tables_do_not_load_it(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    written(tmp_path, *made(["pq"], TINY))
    assert dict(matplotlib.rcParams) == before
    code = "import sys, actionpiece.report, actionpiece.report.tables; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_eighteen_tokenizers_have_colours_of_their_own_and_forty_a_look() -> None:
    shown = looks([str(i) for i in range(40)])
    assert len({look.colour for look in list(shown.values())[:18]}) == 18
    assert len({(look.colour, look.marker) for look in shown.values()}) == 40


def test_shortened_names_stay_apart() -> None:
    names = ["pq:blend=0.25:refine=1:rows=4000", "pq:blend=0.75:refine=1:rows=4000", "fast"]
    short = distinct(names, 12)
    assert len(set(short)) == 3
    assert short[2] == "fast"
    assert max(map(len, short)) < max(map(len, names))
    assert distinct(["same", "same"], 3) == [shorten("same", 3)] * 2
