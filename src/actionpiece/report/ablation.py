"""The figure of an ablation: every row's error and rank consistency, with the paper's figures where it has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from actionpiece.report.looks import CARD, GRID, INK, MUTED

_OURS, _THEIRS = "#0072b2", "#a87400"


def draw(table: list[dict[str, Any]], path: Path) -> None:
    """Write the figure of `evaluation.ablate.table` as SVG."""
    figure = Figure(figsize=(9, 1.3 + 0.36 * len(table)), facecolor=CARD)
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(table))[::-1]
    for axes, key, factor, index in ((left, "mse", 1e4, 0), (right, "prc", 1, 1)):
        for place, entry in zip(places, table, strict=True):
            if entry["paper"] is not None:
                axes.plot(
                    factor * entry["paper"][index], place, "D", color=_THEIRS, markerfacecolor="none", markersize=6
                )
            if entry[key] is not None:
                spread = entry[f"{key}_spread"] or 0.0
                axes.errorbar(
                    factor * entry[key], place, xerr=factor * spread, fmt="o", color=_OURS, markersize=6, capsize=3
                )
        axes.grid(axis="x", color=GRID)
        axes.set_facecolor(CARD)
        axes.tick_params(colors=MUTED, length=0)
        for side in axes.spines.values():
            side.set_visible(False)
    left.set_xscale("log")
    left.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left.xaxis.set_minor_locator(NullLocator())
    left.set_xlabel("MSE x1e-4 (left is better)", color=INK)
    right.set_xlabel("PRC (right is better)", color=INK)
    left.set_yticks(list(places), [entry["label"] for entry in table], color=INK)
    left.plot([], [], "o", color=_OURS, label="measured here, mean ± deviation over seeds")
    left.plot([], [], "D", color=_THEIRS, markerfacecolor="none", label="the paper's, on its data")
    figure.legend(*left.get_legend_handles_labels(), loc="upper center", ncols=2, frameon=False, labelcolor=INK)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.42 / figure.get_figheight()))
    figure.savefig(path, format="svg", metadata={"Date": None})
