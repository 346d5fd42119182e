"""The sections with figures: what is drawn, and how to read it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from actionpiece.report import chunks, figures
from actionpiece.report.looks import Look, swatch
from actionpiece.report.tables import Row
from actionpiece.report.text import E4, esc, listed
from actionpiece.report.text import figure as written

Looks = dict[str, Look]

_TRADEOFF = """<strong>Error against neighbourhoods kept:</strong> the good corner is at the top left, and the number
after a name is its bits per chunk. The axis of PRC stretches towards 1: 0.9, 0.99 and 0.999 are equally far apart."""
_COST = """<strong>What precision costs:</strong> towards the bottom left, less error for fewer bits. Both axes are
logarithmic."""
_GROUPS = """Bars are root mean square errors over all steps, in the unit below each panel. Beside them stands the
largest error of any step, or for a gripper the share of flips: steps at which its command crosses from open to closed
or back."""
_SPREAD = """Every line is one tokenizer: the thin line runs from the smallest to the largest value, the thick one
from the 5th to the 95th percentile, the box from the 25th to the 75th; the marker is the median and the upright
stroke the mean. <strong>First:</strong> how well the order of each anchor's neighbours is kept; the mean is the PRC,
and a long tail to the left means that some motions are confused although the average is good. The axis stretches
towards 1. <strong>Second:</strong> the error of single chunks, on a logarithmic axis."""
_CURVES = """<strong>Curves:</strong> the codes of each vocabulary, most frequent first; the horizontal line at 1 is an
even use of all codes, and a curve that ends before 100 % leaves the rest unused."""
_BARS = """<strong>Bars:</strong> the pale bar is the share of codes that occur at all, the full bar the share that all
tokens together are worth (their perplexity; that of the table is the mean over positions)."""
_CHUNKS = """The wide grey line with dots is the original, the coloured lines are what each tokenizer gave back. Where
a chunk is the worst of a tokenizer, that tokenizer is drawn in front and the others thinner."""


def tradeoff(rows: Sequence[Row], looks: Looks) -> str:
    """MSE against PRC, and bits against MSE."""
    without = [esc(row["name"]) for row in rows if row["prc"] is None]
    drawn, caption = [figures.cost(rows, looks, "f-cost")], _COST
    if len(without) < len(rows):
        drawn.insert(0, figures.tradeoff(rows, looks, "f-tradeoff"))
        caption = f"{_TRADEOFF} {_COST}"
    if without:
        caption += f" Without a PRC, and therefore not drawn against it: {listed(without)}."
    return _figure(caption, *drawn)


def groups(rows: Sequence[Row], looks: Looks) -> str:
    """The error of every group of columns."""
    names = [group["name"] for group in rows[0]["groups"]]
    panels = (
        f"<div><h3>{esc(name)}</h3>{figures.group_bars(rows, name, looks, f'f-group{i}')}</div>"
        for i, name in enumerate(names)
    )
    return _figure(_GROUPS, *panels)


def spread(drawings: dict[str, Any], looks: Looks) -> str:
    """Distributions over anchors and chunks."""
    note = _left_out(drawings["rho"], looks, "not drawn here")
    if not drawings["rho"]:
        return note
    ranks = figures.rank_strips(drawings["rho"], looks, "f-rho")
    return note + _figure(_SPREAD, ranks, figures.error_strips(drawings["chunk_mse"], looks, "f-error"))


def codes(rows: Sequence[Row], drawings: dict[str, Any], looks: Looks) -> str:
    """How the vocabularies are used."""
    counts, bars = drawings["code_counts"], figures.code_bars(rows, looks, "f-used")
    note = _left_out(counts, looks, "without a curve here")
    if not counts:
        return note + _figure(_BARS, bars)
    curves = figures.code_curves(counts, looks, "f-codes")
    return note + _key(looks, counts) + _figure(f"{_CURVES} {_BARS}", curves, bars)


def example_chunks(drawings: dict[str, Any], looks: Looks) -> str:
    """The typical chunk and the worst ones, column by column."""
    note = _left_out(drawings["rho"], looks, "not drawn here")
    if not drawings["rho"]:
        return note
    labels: list[str] = list(drawings["labels"])
    found = chunks.examples(drawings)
    span = chunks.spans(found)
    each = f", {1 / drawings['rate']:.3g} s each" if drawings["rate"] else ""
    out = f'{note}<p class="note">Raw command values over the steps of a chunk{each}. {_CHUNKS}</p>\n'
    out += _key(looks, drawings["rho"], original=True)
    for number, example in enumerate(found):
        picked = chunks.columns_to_show(example, span)
        panels = [
            chunks.column_panel(example, c, labels[c], float(span[c]), looks, f"f-chunk{number}-{c}") for c in picked
        ]
        errors = ", ".join(f"{esc(name)} {written(1e4 * mse)}" for name, mse in example.mse.items())
        caption = f"Chunk {example.index}. MSE {E4}: {errors}."
        if len(picked) < len(labels):
            few = f"Shown are the {len(picked)} of {len(labels)} columns"
            caption += f" {few} with the largest error relative to their range in the chunks of this section."
        why = "; ".join(example.why)
        out += f"<details{' open' if number < 2 else ''}><summary>{esc(why[:1].upper() + why[1:])}</summary>\n"
        out += f"{_figure(caption, *panels, kind='panels')}</details>\n"
    return out


def _figure(caption: str, *drawn: str, kind: str = "pair") -> str:
    return f'<figure><div class="{kind}">{"".join(drawn)}</div>\n<figcaption>{caption}</figcaption></figure>'


def _left_out(drawn: Collection[str], looks: Looks, what: str) -> str:
    """Who has a row but nothing to draw: an earlier comparison keeps the row alone."""
    names = [esc(name) for name in looks if name not in drawn]
    if not names:
        return ""
    return f'<p class="note">Taken from an earlier comparison, and therefore {what}: {listed(names)}.</p>\n'


def _key(looks: Looks, drawn: Collection[str], *, original: bool = False) -> str:
    """Which look is which tokenizer, of those that are drawn."""
    first = ""
    if original:
        first = '<li><svg class="swatch" viewBox="0 0 28 14" aria-hidden="true"><path d="M0 7H28" stroke="var(--ink)" '
        first += 'stroke-width="4" opacity=".35"/><circle cx="14" cy="7" r="3" fill="var(--ink)"/></svg>original</li>'
    items = "".join(f"<li>{swatch(look)}{esc(name)}</li>" for name, look in looks.items() if name in drawn)
    return f'<ul class="key">{first}{items}</ul>\n'
