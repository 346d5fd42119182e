"""Tables of the README have the figures of the files that they are of."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from actionpiece.files import read_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
WITHIN = {"xtokenizer": "codes=512", "fastervq": "codes=256", "actioncodec": "codes=512", "fast": "scale=30"}
WITHIN |= {"oat": "tokens=14", "quest": "downsample=1", "vqbet": "levels=36"}


PRODUCT_QUANTISERS = {"pq", "pq:blend=0.75:groups=balanced"}


def readme_table(heading: str) -> dict[str, list[str]]:
    """The cells of a README table by the name that stands first in each row."""
    lines = iter((ROOT / "README.md").read_text().splitlines())
    assert any(line.startswith(heading) for line in lines)
    next(lines)
    rows = {}
    for line in lines:
        if not line.startswith("|"):
            break
        first, *cells = (cell.strip(" *") for cell in line.strip("|").split("|"))
        rows[first.split("`")[1]] = cells
    return rows


def shows(text: str, value: float) -> bool:
    """Whether a text is the value, rounded to as many digits as it has."""
    return abs(float(text) - value) <= 0.5001 * 10.0 ** -len(text.partition(".")[2])


@pytest.mark.parametrize(("heading", "within"), [("native", False), ("within 144 bits", True)])
def test_the_matched_comparison(heading: str, within: bool) -> None:
    by_data = [
        {row["name"]: row for row in read_json(RESULTS / f"matched_{data}" / "results.json")["rows"]}
        for data in ("libero", "teleop")
    ]
    table = readme_table(f"| {heading} | bits")
    learned = {name for name, row in by_data[0].items() if "train" in row["config"] and ":" not in name}
    named = learned | {"fast"} | (PRODUCT_QUANTISERS if within else set())
    called = {name: f"{name}:{WITHIN[name]}" if within and name in WITHIN else name for name in named}
    fits = {name: row for name, row in by_data[0].items() if not within or row["bits_per_chunk"] <= 144}
    assert table.keys() == {name for name, full in called.items() if full in fits}
    for name, (bits, *shown) in table.items():
        rows = [found[called[name]] for found in by_data]
        for text, row in zip(bits.split(" / ") if "/" in bits else (bits, bits), rows, strict=True):
            assert shows(text, row["bits_per_chunk"]), (name, text)
        figures = [figure for row in rows for figure in (1e4 * row["mse"], row["prc"])]
        assert all(map(shows, shown, figures)), (name, shown, figures)


def published(name: str) -> list[dict[str, Any]]:
    """The rows of a tokenizer, LIBERO's and those of teleoperation, of the classical table or of the ablations."""
    for_name = []
    for document, data in zip(read_json(RESULTS / "classical.json"), ("libero", "teleop"), strict=True):
        assert data in document["data"]["name"]
        ablated = read_json(RESULTS / data / "ablation.json")["table"]
        rows = [row for row in document["rows"] if row["name"] == name]
        for_name.append(
            {key: mean(row[key] for row in rows) for key in ("mse", "prc")}
            if rows
            else next(row for row in ablated if row["row"] == name)
        )
    return for_name


@pytest.mark.parametrize("name", readme_table("| tokenizer | bits a chunk"))
def test_what_it_shows(name: str) -> None:
    _, *shown = readme_table("| tokenizer | bits a chunk")[name]
    figures = [figure for row in published(name) for figure in (1e4 * row["mse"], row["prc"])]
    assert all(map(shows, shown, figures)), (shown, figures)


def test_the_front_and_the_fair_table_are_of_the_published_rows() -> None:
    """They are made of `matched_*`: one that was extended has them made again."""
    rows = {row["name"]: row for row in read_json(RESULTS / "matched_libero" / "results.json")["rows"]}
    fair = {row["name"]: row["mse"] for row in read_json(RESULTS / "fair_libero.json")["rows"]}
    assert fair == {name: row["mse"] for name, row in rows.items() if "train" in row["config"]}
    points = read_json(RESULTS / "front.json")["points"]["libero_4suite_bspline_recon"]
    assert all(point["mse"] == rows[point["name"]]["mse"] for point in points if point["kind"] == "other")
    named = re.findall(r"- `([a-z0-9:=-]+)`, ([\d.]+) times", (RESULTS / "README.md").read_text())
    ratios = {row["name"]: row["ratio"] for row in read_json(RESULTS / "fair_libero.json")["rows"]}
    assert {name for name, _ in named} == {name for name, ratio in ratios.items() if ratio > 5}
    assert all(shows(text, ratios[name]) for name, text in named)
