"""The table of results: its columns are defined once, and written as HTML, Markdown or to the console."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from actionpiece.report.text import E3, E4, MISSING, esc_markdown, plain

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

Row = dict[str, Any]

_BRIEF_GROUPS = 4  # what fits eighty characters


@dataclass(frozen=True)
class Column:
    """One column of results.

    part: the heading it stands under. title, unit: its own heading. meaning: a sentence for the legend.
    value: what a row has there, None where it has nothing. better: which end is good, None where neither is.
    decimals: digits after the point; None chooses them so that the smallest value still shows two digits.
    brief: its turn on a console, where room is short; 0 where it has none.
    page: whether it stands in the brief Markdown table. marked: whether the best cell is marked.
    """

    part: str
    title: str
    unit: str
    meaning: str
    value: Callable[[Row], float | None]
    better: Literal["low", "high"] | None = None
    decimals: int | None = None
    brief: int = 0
    page: bool = True
    marked: bool = True

    @property
    def heading(self) -> str:
        """Title and unit in one line."""
        return f"{self.title} [{self.unit}]" if self.unit else self.title


@dataclass(frozen=True)
class Cell:
    """One figure: its value, how it is written, and whether none in its column is better."""

    value: float | None
    text: str
    best: bool


def columns(rows: Sequence[Row], *, timed_alike: bool = True) -> list[Column]:
    """The columns for these rows; every group of the action space has its own.

    timed_alike: whether their speeds were measured in one environment; otherwise none of them is the best.
    """
    return [*_cost(), *_fidelity(rows), *_ranks(), *_tokens(), *_speed(timed_alike)]


def cells(column: Column, rows: Sequence[Row]) -> list[Cell]:
    """A column's cells. All that read like the best value are best; when all do, none is marked."""
    values = [column.value(row) for row in rows]
    known = [value for value in values if value is not None]
    decimals = _decimals(known) if column.decimals is None else column.decimals
    texts = [MISSING if value is None else _written(value, decimals) for value in values]
    best = None
    if column.better and column.marked and known:
        best = texts[values.index(min(known) if column.better == "low" else max(known))]
    if len(set(texts)) < 2:
        best = None
    return [Cell(value, text, text == best) for value, text in zip(values, texts, strict=True)]


def markdown_table(rows: Sequence[Row], *, brief: bool = False, timed_alike: bool = True) -> str:
    """A Markdown table, the best of each column in bold; one line per row after the two heading lines.

    brief: without the columns that few ask for. timed_alike: see `columns`.
    """
    shown = [column for column in columns(rows, timed_alike=timed_alike) if column.page or not brief]
    body = [cells(column, rows) for column in shown]
    units = [f" [{esc_markdown(column.unit)}]" if column.unit else "" for column in shown]
    lines = [
        _line(["tokenizer", *(esc_markdown(column.title) + unit for column, unit in zip(shown, units, strict=True))]),
        _line(["---", *("---:" for _ in shown)]),
    ]
    for i, row in enumerate(rows):
        figures = (column[i] for column in body)
        lines.append(_line([esc_markdown(row["name"]), *(f"**{c.text}**" if c.best else c.text for c in figures)]))
    return "\n".join(lines) + "\n"


def console_table(rows: Sequence[Row]) -> Table:
    """The columns that fit a console, the most telling first, and the best of each in bold green."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    every = columns(rows)
    shown = sorted((column for column in every if column.brief), key=lambda column: column.brief)
    body = [cells(column, rows) for column in shown]
    table = Table(box=box.SIMPLE, header_style="bold", padding=(0, 1, 0, 0))
    longest = max((len(part) for row in rows for part in _parts(row["name"])), default=0)
    table.add_column("tokenizer", overflow="fold", min_width=min(max(longest, 9), 12 if len(shown) < 8 else 9))
    for column, written in zip(shown, body, strict=True):
        heading = Text(f"{column.title.replace('_', ' ')}\n{column.unit}", overflow="fold")  # long names break at words
        table.add_column(heading, justify="right", min_width=max((len(c.text) for c in written), default=1))
    for i, row in enumerate(rows):
        figures = (column[i] for column in body)
        table.add_row(_Name(row["name"]), *(Text(c.text, "bold green" if c.best else "") for c in figures))
    table.caption = f"{len(every) - len(shown)} more columns are in the JSON"
    return table


class _Name:
    """A tokenizer's name on a console. Where there is no room for it, it breaks before settings and values."""

    def __init__(self, name: object) -> None:
        self.parts = _parts(name)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(max(map(len, self.parts)), sum(map(len, self.parts)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        line = ""
        for part in self._pieces(options.max_width):
            if line and len(line) + len(part) > options.max_width:
                yield Text(line)
                line = ""
            line += part
        yield Text(line)

    def _pieces(self, width: int) -> Iterator[str]:
        for part in self.parts:
            setting, equals, value = part.partition("=")
            yield from (part,) if len(part) <= width else (f"{setting}{equals}", value)


def _parts(name: object) -> list[str]:
    """A name and its settings, each with the colon behind it."""
    *first, last = plain(name).split(":")
    return [*(f"{part}:" for part in first), last]


def _line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(parts)} |"


def _decimals(values: Sequence[float]) -> int:
    smallest = min((abs(value) for value in values if value), default=1.0)
    return min(max(1 - math.floor(math.log10(smallest)), 0), 4)


def _written(value: float, decimals: int) -> str:
    if decimals < 0:  # speeds: the digits beyond the third are noise
        digits = 2 - math.floor(math.log10(value)) if value > 0 else 0
        return f"{round(value, digits):,.0f}"
    if 0 < abs(value) < 0.5 * 10**-decimals:
        return f"<{10**-decimals:.{decimals}f}"
    return f"{value:,.{decimals}f}"


def _of(key: str, factor: float = 1.0) -> Callable[[Row], float | None]:
    return lambda row: None if row[key] is None else factor * row[key]


def perplexity_of(row: Row) -> float:
    """The mean over positions; of all tokens together where their number varies, so that there are no positions."""
    own: float | None = row["position_perplexity"]
    return row["perplexity"] if own is None else own


def _of_group(name: str, key: str, factor: float = 1.0) -> Callable[[Row], float | None]:
    def value(row: Row) -> float | None:
        group = next((group for group in row["groups"] if group["name"] == name), None)
        return None if group is None or group[key] is None else factor * group[key]

    return value


def _cost() -> list[Column]:
    part = "Cost of a chunk"
    tokens = "Tokens of one chunk, the mean where the number varies. Fewer are better."
    bits = "Tokens times log2 of the ids that each may have, the most that one chunk can say. Fewer are better."
    return [
        Column(part, "tokens", "", tokens, _of("tokens_per_chunk"), "low", brief=1),
        Column(part, "bits", "", bits, _of("bits_per_chunk"), "low", 1, brief=1),
    ]


def _fidelity(rows: Sequence[Row]) -> list[Column]:
    part = "What is lost"
    mse = "Mean squared error in coordinates scaled to [-1, 1], the same for all tokenizers. Lower is better."
    l1 = "Mean absolute error in the same coordinates. Lower is better."
    found = [
        Column(part, "MSE", E4, mse, _of("mse", 1e4), "low", brief=1),
        Column(part, "L1", E3, l1, _of("l1", 1e3), "low", page=False),
    ]
    # Contenders share one action space; the first row names its groups.
    for i, group in enumerate(rows[0]["groups"] if rows else []):
        brief = 3 if i < _BRIEF_GROUPS else 0
        name, label, unit = group["name"], plain(group["name"]), group["unit"]
        if group["kind"] == "gripper":
            meaning = f"Share of steps at which {label} goes from open to closed or back by mistake. Lower is better."
            value = _of_group(name, "flips", 100)
            found.append(Column(part, f"{label} flips", "%", meaning, value, "low", 2, brief=brief))
        else:
            length = "angle" if group["kind"] == "rotation" else "length"
            meaning = f"Root mean square over steps of the error's {length} in {label}, in {unit}. Lower is better."
            found.append(Column(part, label, unit, meaning, _of_group(name, "rmse"), "low", brief=brief))
    unit = plain(rows[0]["jerk_unit"]).replace("^3", "³") if rows else ""
    meaning = "Root mean square error of the third derivative of the commanded motion: roughness. Lower is better."
    found.append(Column(part, "jerk error", unit, meaning, _of("jerk_error"), "low", page=False))
    return found


def _ranks() -> list[Column]:
    part = "Neighbourhoods kept"
    kept = (
        "Physical rank consistency: do a chunk's nearest neighbours keep their order of distance after decoding? "
        "1 is perfect, 0 is chance. Higher is better."
    )
    across = "PRC when neighbours must come from other episodes than the chunk itself. Higher is better."
    left = (
        "Chunks left out of PRC because their neighbours are all equally far (idle duplicates). A property of the data."
    )
    collapsed = "Chunks whose neighbours all decode to the same distance; they count as 0. Fewer are better."
    return [
        Column(part, "PRC", "", kept, _of("prc"), "high", 4, brief=2),
        Column(part, "PRC across episodes", "", across, _of("prc_across_episodes"), "high", 4),
        Column(part, "left out", "chunks", left, _of("prc_left_out"), None, 0, page=False),
        Column(part, "collapsed", "chunks", collapsed, _of("prc_collapsed"), "low", 0, page=False),
    ]


def _tokens() -> list[Column]:
    part = "Tokens"
    used = "Share of the vocabulary that occurs in these chunks. Higher is better."
    perplexity = (
        "How many equally frequent codes a token is worth: the mean over positions, each of which may have its own "
        "codes; of all tokens together where their number varies. To be read against the codes of a position."
    )
    overlap = "Share of tokens that stay the same one step later. Higher means steadier targets for a policy."
    changed = "Share of sequences that still decode after one random token was changed. Higher is better."
    dropped = (
        "Share of sequences that still decode after the last token was lost. A tokenizer of fixed length notices the "
        "loss and reports it, so 0 is not a fault."
    )
    return [
        Column(part, "codes used", "%", used, _of("codes_used", 100), "high", 1, page=False),
        Column(part, "perplexity", "codes", perplexity, perplexity_of, None, 1),
        Column(part, "overlap", "%", overlap, _of("overlap", 100), "high", 1),
        Column(part, "valid, changed", "%", changed, _of("valid_changed", 100), "high", 1),
        Column(part, "valid, dropped", "%", dropped, _of("valid_dropped", 100), None, 1),
    ]


def _speed(marked: bool) -> list[Column]:
    part = "Speed where it was scored"
    one = "Median time to {} one chunk, as a robot waits for it. Lower is better."
    many = "Chunks {}d in a second, in batches. Higher is better."
    found = [
        Column(part, "encode", "ms", one.format("encode"), _of("encode_ms"), "low", 2),
        Column(part, "decode", "ms", one.format("decode"), _of("decode_ms"), "low", 2),
        Column(part, "encode", "chunks/s", many.format("encode"), _of("encode_per_s"), "high", -1, page=False),
        Column(part, "decode", "chunks/s", many.format("decode"), _of("decode_per_s"), "high", -1, page=False),
    ]
    return [replace(column, marked=marked) for column in found]
