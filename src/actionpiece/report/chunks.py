"""Example chunks, column by column: what went in, and what every tokenizer gave back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from actionpiece.report.looks import INK, Look
from actionpiece.report.svg import drawing, inline
from actionpiece.report.text import plain, shorten

_SHOWN = 8  # columns of a chunk that are drawn
_WIDTH, _HEIGHT = 184, 132


@dataclass(frozen=True)
class Example:
    """A chunk to show: why (one reason per line), original (H, D), decoded {name: (H, D)}, mse {name: error}.

    worst_of: the tokenizers whose largest error this is; they are drawn in front.
    """

    index: int
    why: tuple[str, ...]
    worst_of: tuple[str, ...]
    original: np.ndarray
    decoded: dict[str, np.ndarray]
    mse: dict[str, float]


def examples(drawings: dict[str, Any]) -> list[Example]:
    """The chunks in `drawings`; one that was picked for several reasons is shown once, with all of them."""
    largest = {name: float(np.nanmax(np.array(list(mse), dtype=float))) for name, mse in drawings["chunk_mse"].items()}
    found: dict[int, Example] = {}
    for chunk in drawings["chunks"]:
        index = int(chunk["index"])
        earlier = found[index].why if index in found else ()
        found[index] = Example(
            index=index,
            why=(*earlier, plain(chunk["why"])),
            worst_of=tuple(n for n, error in chunk["mse"].items() if len(largest) > 1 and error >= largest[n]),
            original=np.asarray(chunk["original"], float),
            decoded={name: np.asarray(values, float) for name, values in chunk["decoded"].items()},
            mse=dict(chunk["mse"]),
        )
    return list(found.values())


def spans(shown: Sequence[Example]) -> np.ndarray:
    """The range of every column over the originals that are drawn; 1 for columns that never change."""
    steps = np.concatenate([example.original for example in shown])
    spread = np.ptp(steps, axis=0)
    return np.where(spread > 0, spread, 1.0)


def columns_to_show(example: Example, span: np.ndarray) -> list[int]:
    """All columns, or in their usual order the few with the largest error relative to the column's range."""
    names = example.worst_of or tuple(example.decoded)
    errors = np.stack([np.sqrt(((example.decoded[n] - example.original) ** 2).mean(0)) for n in names]).max(0) / span
    return sorted(np.argsort(-errors, kind="stable")[:_SHOWN].tolist())


def column_panel(example: Example, column: int, label: str, span: float, looks: dict[str, Look], ident: str) -> str:
    """One column of one chunk over its steps."""
    original = example.original[:, column]
    steps = np.arange(len(original))
    front = example.worst_of or tuple(example.decoded)
    with drawing():
        figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72), dpi=72)
        axes = figure.add_axes((44 / _WIDTH, 20 / _HEIGHT, (_WIDTH - 50) / _WIDTH, (_HEIGHT - 40) / _HEIGHT))
        axes.grid(axis="y")
        axes.plot(steps, original, color=INK, linewidth=3.2, alpha=0.35)
        axes.plot(steps, original, "o", color=INK, markersize=2.6)
        for name, values in sorted(example.decoded.items(), key=lambda item: item[0] in front):
            look, ahead = looks[name], name in front
            axes.plot(
                steps,
                values[:, column],
                linestyle=look.line,
                color=look.colour,
                linewidth=1.7 if ahead else 0.9,
                alpha=1.0 if ahead else 0.55,
            )
        drawn = np.concatenate([original, *(values[:, column] for values in example.decoded.values())])
        # A column that hardly moves must not have its rounding errors blown up to the height of the panel.
        middle, half = (drawn.max() + drawn.min()) / 2, max(float(np.ptp(drawn)) * 0.56, 0.02 * span)
        axes.set_ylim(middle - half, middle + half)
        axes.yaxis.set_major_locator(MaxNLocator(3, min_n_ticks=2))
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.tick_params(labelsize=10)
        axes.set_title(shorten(label, 22))
        return inline(figure, ident, f"{plain(label)} of chunk {example.index} over its {len(steps)} steps")
