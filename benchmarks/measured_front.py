"""The front of MSE against PRC at 144 bits, of published ablations, fronts and comparisons: no training, a figure.

    python benchmarks/measured_front.py --classical docs/results/classical.json \
        --ablations docs/results/libero/ablation.json docs/results/teleop/ablation.json \
        --before docs/results/libero/best_before.json --fronts docs/results/front_libero.json \
        --compared docs/results/matched_libero/results.json docs/results/matched_teleop/results.json \
        --out docs/results/front

Writes OUT.svg, and OUT.json with the points. Those that no other point beats in both are joined. Tokenizers of other
works come as near to 144 bits as they can; those that do not come near are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib import rc_context
from matplotlib.figure import Figure

from actionpiece.errors import ActionPieceError
from actionpiece.files import read_json, write_json, writing
from actionpiece.report.labels import name_points

BITS, NEAR = 144, 120
OTHERS = ("binning", "fast", "spline", "vqbet", "quest", "oat", "actioncodec", "fastervq", "xtokenizer")
COLOURS = {"classical": "#0072b2", "codec": "#d55e00", "other": "#56606a", "blend": "#cc79a7", "best": "#009e73"}
MARKERS = {"classical": "o", "codec": "s", "other": "^", "blend": "D", "best": "*"}
KINDS = {
    "classical": "product quantisers",
    "codec": "the paper's codec",
    "other": f"other works, {NEAR} to {BITS} bits",
    "blend": "started from other quantisers, by blend",
    "best": "best",
}
ERRORS, ORDERS = (0.2, 0.3, 0.5, 1, 2, 3, 5), (0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995)  # ticks
TITLES = {
    "libero_4suite_bspline_recon": "LIBERO, smoothed",
    "libero_env_teleop_yshedan": "raw teleoperation in the same simulator",
}
FAR = 5.0  # errors beyond it would press all others together: they are named instead


@dataclass(frozen=True)
class Options:
    """What to put into the figure.

    Attributes:
        classical: of `benchmarks/classical.py`.
        ablations: of `actionpiece ablate`, one for each data set.
        before: cells of `best` with an earlier start, {"cells": …} as in an ablation, of the first of these.
        fronts: of `benchmarks/front.py`: codecs started from quantisers of many blends, which are left out themselves.
        compared: of `actionpiece compare --recipe matched`: the tokenizers of other works.
        out: where to write, without an ending.
    """

    classical: Path
    ablations: tuple[Path, ...]
    out: Path
    before: Path | None = None
    fronts: tuple[Path, ...] = ()
    compared: tuple[Path, ...] = ()


def points(options: Options) -> dict[str, list[dict[str, Any]]]:
    """By data set: name, kind, mean MSE and PRC over seeds, how many, bits, and whether it is on the front."""
    found: dict[str, list[dict[str, Any]]] = {}
    for document in read_json(options.classical):
        rows = [row for row in document["rows"] if row["bits_per_chunk"] == BITS]
        for name in dict.fromkeys(row["name"] for row in rows):
            own = [row for row in rows if row["name"] == name]
            mean = {key: float(np.mean([row[key] for row in own])) for key in ("mse", "prc")}
            found.setdefault(document["data"]["name"], []).append(
                {"name": name, "kind": "classical", **mean, "seeds": len(own)}
            )

    def beside(document: dict[str, Any], path: Path) -> list[dict[str, Any]]:
        name = document["data"]["name"]
        if name not in found:
            raise ActionPieceError(f"{options.classical} has no rows of {name}, which {path} is of")
        return found[name]

    for path in options.ablations:
        document = read_json(path)
        own = beside(document, path)
        for row in document["table"]:
            if row["row"] == "pq":  # the classical table has it
                continue
            kind = "best" if row["row"] == "best" else "codec"
            own.append({"name": row["label"], "kind": kind, **{key: row[key] for key in ("mse", "prc")}})
            own[-1]["seeds"] = len(row["seeds"])
    if options.before is not None:
        rows = [cell["row"] for cell in read_json(options.before)["cells"]]
        mean = {key: float(np.mean([row[key] for row in rows])) for key in ("mse", "prc")}
        first = beside(read_json(options.ablations[0]), options.ablations[0])
        first.append({"name": "best, earlier start", "kind": "best", **mean, "seeds": len(rows)})
    for path in options.fronts:
        document = read_json(path)
        own = beside(document, path)
        for row in document["rows"]:
            if not row["name"].startswith("codec "):
                continue
            name = f"blend {row['blend']:g}, {row['groups_of'].replace('_', ' ')}"
            own.append({"name": name, "kind": "blend", "mse": row["mse"], "prc": row["prc"], "seeds": 1})
    for path in options.compared:
        document = read_json(path)
        own = beside(document, path)
        for row in document["rows"]:
            if row["kind"] in OTHERS and NEAR <= row["bits_per_chunk"] <= BITS:
                figures = {key: row[key] for key in ("mse", "prc", "bits_per_chunk")}
                own.append({"name": row["name"], "kind": "other", **figures, "seeds": 1})
    for rows in found.values():
        for row in rows:
            row.setdefault("bits_per_chunk", BITS)
            row["front"] = not any(other["mse"] < row["mse"] and other["prc"] > row["prc"] for other in rows)
    return found


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """A panel for each data set."""
    wide, tall = 560 * len(found), 540
    figure = Figure(figsize=(wide / 100, tall / 100), dpi=100)
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    figure.subplots_adjust(left=70 / wide, right=1 - 20 / wide, bottom=50 / tall, top=1 - 70 / tall, wspace=0.2)
    for axes, (data, rows) in zip(panels, found.items(), strict=True):
        near = [row for row in rows if 1e4 * row["mse"] <= FAR] or rows
        front = sorted((row for row in near if row["front"]), key=lambda row: row["mse"])
        axes.plot(*_places(front), color="#9aa3ab", linewidth=1, zorder=1)
        for kind in COLOURS:
            own = [row for row in near if row["kind"] == kind]
            size = 130 if kind == "best" else 40
            style = {"color": COLOURS[kind], "marker": MARKERS[kind], "label": KINDS[kind], "zorder": 2}
            axes.scatter(*_places(own), s=size, **style)
        axes.set_xscale("log")
        # 0.9 and 0.99 are as far apart as 0.99 and 0.999: what is missing to a perfect order counts.
        axes.set_yscale(
            "function", functions=(lambda prc: -np.log10(np.maximum(1 - prc, 1e-9)), lambda at: 1 - 10.0**-at)
        )
        errors, orders = _places(near)
        x = [tick for tick in ERRORS if 0.6 * min(errors) <= tick <= 1.7 * max(errors)]
        missing = [1 - order for order in orders]
        y = [tick for tick in ORDERS if 0.6 * min(missing) <= 1 - tick <= 1.7 * max(missing)]
        axes.set_xticks(x, [f"{tick:g}" for tick in x])
        axes.set_yticks(y, [f"{tick:g}" for tick in y])
        axes.minorticks_off()
        axes.margins(x=0.2, y=0.12)
        axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # points stay where labels find them
        axes.set_title(TITLES.get(data, data), fontsize=9)
        axes.set_xlabel("MSE x1e-4 (left is better)")
        axes.set_ylabel("PRC@32 (up is better)")
        axes.grid(color="#e7eaed")
        far = [f"{short(row)} {1e4 * row['mse']:.0f}" for row in rows if row not in near]
        if far:
            axes.text(0.99, 0.01, f"further right: {', '.join(far)}", transform=axes.transAxes, ha="right", fontsize=7)
        points, texts = np.column_stack(_places(near)), [short(row) for row in near]
        name_points(figure, axes, points, texts, fontsize=7.5, line="#9aa3ab")
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="upper center", ncols=3)
    with rc_context({"svg.hashsalt": "actionpiece"}):  # ids would be random otherwise
        figure.savefig(path, format="svg", metadata={"Date": None})


def short(row: dict[str, Any]) -> str:
    """A name as the figure has it: settings that all of a kind share are left out."""
    if row["kind"] == "other":
        return f"{row['name'].partition(':')[0]} ({row['bits_per_chunk']:.0f} bits)"
    return str(row["name"]).replace(":groups=", " ").replace(":blend=", " ").replace(", balanced", "")


def _places(rows: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return [1e4 * row["mse"] for row in rows], [row["prc"] for row in rows]


def main(options: Options) -> None:
    found = points(options)
    names = " ".join(str(path) for path in options.ablations)
    command = f"python benchmarks/measured_front.py --classical {options.classical} --ablations {names}"
    if options.before is not None:
        command += f" --before {options.before}"
    if options.compared:
        command += f" --compared {' '.join(str(path) for path in options.compared)}"
    if options.fronts:
        command += f" --fronts {' '.join(str(path) for path in options.fronts)}"
    # Seeds, versions and devices are in the files that were read.
    data = {each["data"]["name"]: each["data"]["fingerprint"] for each in read_json(options.classical)}
    document = {"command": f"{command} --out {options.out}", "data": data, "bits_per_chunk": BITS, "points": found}
    write_json(options.out.with_suffix(".json"), document)
    with writing(options.out.with_suffix(".svg")) as aside:
        draw(found, aside)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
