"""The figures of the report, each drawn by matplotlib and returned as an inline `<svg>`.

All are small enough to be read on a phone; the page arranges them side by side where there is room. One unit of a
drawing is one CSS pixel at its natural size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from actionpiece.report.labels import name_points
from actionpiece.report.looks import CARD, INK, MUTED, Look
from actionpiece.report.scales import Scale, floor_of, logarithmic, nines
from actionpiece.report.svg import drawing, inline
from actionpiece.report.text import E4, distinct, plain
from actionpiece.report.text import figure as written

Row = dict[str, Any]
Looks = dict[str, Look]

_WIDE, _TALL = 420, 350
_NAME = 20  # letters of a name that have room
_POINT = 18  # and beside a point
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def _panel(width: float, height: float, left: float, bottom: float, right: float, top: float) -> tuple[Figure, Axes]:
    """One set of axes with margins in drawing units."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    box = (left / width, bottom / height, (width - left - right) / width, (height - bottom - top) / height)
    return figure, figure.add_axes(box)


def _dot(axes: Axes, x: float, y: float, look: Look) -> None:
    axes.plot([x], [y], look.marker, color=look.colour, markersize=8, markeredgecolor=CARD, clip_on=False)


def tradeoff(rows: Sequence[Row], looks: Looks, ident: str) -> str:
    """MSE against PRC, every point labelled with its tokenizer and its bits; rows without a PRC are not drawn."""
    known = [row for row in rows if row["prc"] is not None]
    mse, prc = (np.array([row[key] for row in known], float) for key in ("mse", "prc"))
    scale = logarithmic(floor_of(1e4 * mse))
    alt = "Scatter plot of mean squared error against physical rank consistency. " + "; ".join(
        f"{plain(row['name'])}: MSE {written(1e4 * row['mse'])}e-4, PRC {row['prc']:.4f}" for row in known
    )
    short = distinct([row["name"] for row in known], _POINT)
    texts = [f"{name} · {row['bits_per_chunk']:.0f} b" for name, row in zip(short, known, strict=True)]
    x, y = (scale, 1e4 * mse, f"MSE {E4}   (← better)"), (nines, prc, "PRC   (better →)")
    return _scatter(known, looks, texts, x, y, ident, alt)


def cost(rows: Sequence[Row], looks: Looks, ident: str) -> str:
    """Bits of a chunk against MSE: what precision costs."""
    mse, bits = (np.array([row[key] for row in rows], float) for key in ("mse", "bits_per_chunk"))
    alt = "Scatter plot of bits per chunk against mean squared error. " + "; ".join(
        f"{plain(row['name'])}: {row['bits_per_chunk']:.0f} bits, MSE {written(1e4 * row['mse'])}e-4" for row in rows
    )
    texts = distinct([row["name"] for row in rows], _POINT)
    x = (logarithmic(floor_of(bits)), bits, "bits per chunk   (← better)")
    y = (logarithmic(floor_of(1e4 * mse)), 1e4 * mse, f"MSE {E4}   (← better)")
    return _scatter(rows, looks, texts, x, y, ident, alt)


def _scatter(
    rows: Sequence[Row],
    looks: Looks,
    texts: Sequence[str],
    x: tuple[Scale, np.ndarray, str],
    y: tuple[Scale, np.ndarray, str],
    ident: str,
    alt: str,
) -> str:
    with drawing():
        tall = _TALL + 14 * max(0, len(rows) - 8)  # many labels need room
        figure, axes = _panel(_WIDE, tall, left=54, bottom=48, right=14, top=12)
        xs, ys = x[0].place(x[1]), y[0].place(y[1])
        x[0].dress(axes, "x", xs.tolist())
        y[0].dress(axes, "y", ys.tolist())
        axes.set_xlabel(x[2])
        axes.set_ylabel(y[2])
        axes.grid()
        for row, at, height in zip(rows, xs, ys, strict=True):
            _dot(axes, float(at), float(height), looks[row["name"]])
        points = np.column_stack((xs, ys))
        name_points(figure, axes, points, texts, fontsize=11, line=MUTED, frame=(-2, -2, 12, 8))
        return inline(figure, ident, alt)


def _names(axes: Axes, names: Sequence[str]) -> None:
    """Tokenizers from top to bottom along the left side."""
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), names, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _ledger(names: Sequence[str], right: float) -> tuple[Figure, Axes]:
    """Axes with one line per tokenizer."""
    short = distinct(names, _NAME)
    longest = max(map(len, short))
    wide = _WIDE + 6.8 * max(0, longest - _NAME)  # names that only many letters tell apart must not cost the figures
    left = 14 + 6.8 * longest
    figure, axes = _panel(wide, 58 + 25 * len(names), left=left, bottom=46, right=right, top=8)
    _names(axes, short)
    return figure, axes


def _beside(axes: Axes, text: str, x: float, y: float) -> None:
    axes.annotate(text, (x, y), (6, 0), textcoords="offset points", va="center", fontsize=10, color=MUTED)


def group_bars(rows: Sequence[Row], group: str, looks: Looks, ident: str) -> str:
    """The root mean square error of one group of columns, and in words its worst case, or a gripper's flips."""
    names = [row["name"] for row in rows]
    errors = [next(g for g in row["groups"] if g["name"] == group) for row in rows]
    unit = errors[0]["unit"]
    unit = {"deg": "degrees", "opening": "opening, 0 to 1", "raw": "raw units"}.get(unit, unit)
    said = [
        f"{written(e['rmse'])} · "
        + (f"worst {written(e['worst'])}" if e["flips"] is None else f"flips {100 * e['flips']:.2f} %")
        for e in errors
    ]
    alt = f"Error of {plain(group)} in {plain(unit)}. " + "; ".join(
        f"{plain(name)}: {text}" for name, text in zip(names, said, strict=True)
    )
    with drawing():
        figure, axes = _ledger(names, right=10)
        top = max(e["rmse"] for e in errors) or 1.0
        room = float(axes.bbox.width)
        axes.set_xlim(
            0, top * room / (room - 6.2 * max(map(len, said)) - 8)
        )  # the words beside the longest bar fit too
        for i, (name, e, text) in enumerate(zip(names, errors, said, strict=True)):
            axes.barh(i, e["rmse"], height=0.62, color=looks[name].colour)
            _beside(axes, text, e["rmse"], i)
        axes.set_xticks([tick for tick in MaxNLocator(3).tick_values(0, top) if tick <= 1.001 * top])
        axes.spines["bottom"].set_bounds(0, top)
        axes.set_xlabel(f"root mean square error, {plain(unit)}", loc="left")
        return inline(figure, ident, alt)


def rank_strips(rho: dict[str, Any], looks: Looks, ident: str) -> str:
    """Per-anchor Spearman correlations: how many neighbourhoods are kept badly, and not only on average."""
    label = "rank correlation of an anchor   (better →)"
    return _strips(_finite(rho), looks, nines, label, "Distribution of rank correlations over anchors", ident)


def error_strips(chunk_mse: dict[str, Any], looks: Looks, ident: str) -> str:
    """Per-chunk mean squared errors."""
    values = {name: 1e4 * array for name, array in _finite(chunk_mse).items()}
    scale = logarithmic(floor_of(np.concatenate(list(values.values()))))
    label = f"MSE of a chunk {E4}   (← better)"
    return _strips(values, looks, scale, label, "Distribution of mean squared errors over chunks, in 1e-4", ident)


def _finite(values: dict[str, Any]) -> dict[str, np.ndarray]:
    """Arrays without the anchors that have no value: NaN in arrays, null in JSON."""
    arrays = {name: np.array(list(array), dtype=float) for name, array in values.items()}
    return {name: array[np.isfinite(array)] for name, array in arrays.items()}


def _strips(values: dict[str, np.ndarray], looks: Looks, scale: Scale, label: str, alt: str, ident: str) -> str:
    names = list(values)
    levels = {name: np.quantile(array, _QUANTILES) for name, array in values.items() if len(array)}
    said = [f"{plain(n)}: median {written(q[3])}, from {written(q[0])} to {written(q[6])}" for n, q in levels.items()]
    with drawing():
        figure, axes = _ledger(names, right=14)
        axes.grid(axis="x")
        drawn = [0.0]
        if levels:
            drawn = np.concatenate([scale.place(q) for q in levels.values()]).tolist()
        for i, name in enumerate(names):
            if name not in levels:
                axes.text(0.02, i, "no anchor has an order to keep", color=MUTED, transform=axes.get_yaxis_transform())
                continue
            look = looks[name]
            low, p5, p25, middle, p75, p95, high = scale.place(levels[name])
            axes.plot([low, high], [i, i], color=look.colour, linewidth=0.9)
            axes.plot([p5, p95], [i, i], color=look.colour, linewidth=3.5)
            axes.plot([p25, p75], [i, i], color=look.colour, linewidth=11, solid_capstyle="butt", alpha=0.55)
            _dot(axes, float(middle), i, look)
            mean = scale.place(values[name].mean(keepdims=True))
            axes.plot(mean, [i], "|", color=INK, markersize=15, markeredgewidth=1.6)
        scale.dress(axes, "x", drawn)
        axes.set_xlabel(label, loc="left")
        return inline(figure, ident, f"{alt}. {'; '.join(said)}")


def _curve(counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """About a hundred points of a sorted frequency curve: (% of the vocabulary, frequency over the even share)."""
    sizes = np.asarray(counts, float)
    used = int((sizes > 0).sum())
    if not used:
        return np.empty(0), np.empty(0)
    ranks = np.concatenate((np.geomspace(1, used, 60), np.linspace(1, used, 40)))
    at = np.unique(ranks.round().astype(int))
    return 100 * at / len(sizes), sizes[at - 1] / sizes.sum() * len(sizes)


def code_curves(counts: dict[str, Sequence[int]], looks: Looks, ident: str) -> str:
    """How often each code occurs, most frequent first, against a vocabulary used evenly."""
    curves = {name: curve for name, values in counts.items() if len((curve := _curve(values))[0])}
    alt = "Frequency of codes, sorted, relative to an even use of the vocabulary. " + "; ".join(
        f"{plain(name)}: most frequent code {written(float(y[0]))} times the even share, {x[-1]:.0f} % of codes used"
        for name, (x, y) in curves.items()
    )
    with drawing():
        figure, axes = _panel(_WIDE, 300, left=54, bottom=48, right=14, top=12)
        axes.grid()
        scale = logarithmic(1e-6)
        axes.axhline(0.0, color=MUTED, linewidth=1)
        for name, (x, y) in curves.items():
            look = looks[name]
            places = scale.place(y)
            axes.plot(x, places, color=look.colour, linestyle=look.line, linewidth=1.8)
            _dot(axes, float(x[-1]), float(places[-1]), look)
        spread = np.concatenate([[0.0], *(scale.place(y) for _, y in curves.values())])
        axes.set_xlim(0, 100)
        scale.dress(axes, "y", spread.tolist())
        axes.set_xlabel("codes, most frequent first (% of the vocabulary)")
        axes.set_ylabel("frequency ÷ even share")
        return inline(figure, ident, alt)


def code_bars(rows: Sequence[Row], looks: Looks, ident: str) -> str:
    """Which share of the vocabulary is used at all, and which share it is worth."""
    names = [row["name"] for row in rows]
    used = [100 * row["codes_used"] for row in rows]
    worth = [100 * row["perplexity"] / row["vocab_size"] for row in rows]
    said = [f"worth {row['perplexity']:,.0f} of {row['vocab_size']:,}" for row in rows]
    alt = "Codes used and perplexity. " + "; ".join(
        f"{plain(name)}: {u:.1f} % used, {text} codes" for name, u, text in zip(names, used, said, strict=True)
    )
    with drawing():
        figure, axes = _ledger(names, right=10)
        axes.set_xlim(0, 190)
        for i, (name, u, w, text) in enumerate(zip(names, used, worth, said, strict=True)):
            axes.barh(i, u, height=0.62, color=looks[name].colour, alpha=0.3)
            axes.barh(i, w, height=0.62, color=looks[name].colour)
            _beside(axes, text, 100, i)
        axes.set_xticks([0, 25, 50, 75, 100])
        axes.spines["bottom"].set_bounds(0, 100)
        axes.set_xlabel("% of the vocabulary", loc="left")
        return inline(figure, ident, alt)
