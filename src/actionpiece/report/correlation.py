"""The page and the figure of a correlation analysis: ranks of error and PRC within groups against those of success."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actionpiece.report.looks import CARD, GRID, INK, MUTED, looks
from actionpiece.report.text import MISSING, counted, esc_markdown, plain, shorten

_NAMED = 12  # groups and tokenizers that a key can name


def page(results: dict[str, Any]) -> str:
    """The Markdown page."""
    count, groups = results["evaluations"], results["groups"]
    lines = [
        "# Error, physical rank consistency and success",
        "",
        f"Made by `{plain(results['command'])}`." if results["command"] else "The command was not recorded.",
        f"{count} evaluations of tokenizers in {counted(len(groups), 'group')};"
        f" success is the column `{plain(results['success'])}`.",
        "",
        "| what goes with success | Spearman's correlation | 95 % interval |",
        "|---|---:|---:|",
        f"| low error | {_estimate(results['fidelity'])} |",
        f"| high PRC | {_estimate(results['prc'])} |",
        f"| PRC's minus error's | {_estimate(results['difference'])} |",
        "",
        "Each column (error with its sign turned) is replaced by its ranks within a group, scaled to [0, 1]; ties share"
        " the mean of their ranks. The ranks of all groups are pooled and correlated by Spearman's rho.",
        _interval(results),
        "",
        "| group | tokenizers | error, this group alone | PRC, this group alone |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {esc_markdown(group['name'])} | {len(group['rows'])} | {group['fidelity']:.3f} | {group['prc']:.3f} |"
        for group in groups
    ]
    if results["left_out"]:
        said = "; ".join(f"{plain(one['group'])} ({one['why']})" for one in results["left_out"])
        lines += ["", f"Left out, {len(results['left_out'])} in number: {said}."]
    if results["incomplete"]:
        said = "; ".join(
            f"{plain(one['tokenizer'])} in {plain(one['group'])} (no {', '.join(one['lacks'])})"
            for one in results["incomplete"]
        )
        lines += ["", f"Not counted, {len(results['incomplete'])} in number: {said}."]
    lines += ["", "| group | tokenizer | MSE | PRC | success |", "|---|---|---:|---:|---:|"]
    lines += [
        f"| {esc_markdown(group['name'])} | {esc_markdown(row['tokenizer'])} | {row['mse']:.4g} | {row['prc']:.4f}"
        f" | {row['success']:.4g} |"
        for group in groups
        for row in group["rows"]
    ]
    return "\n".join(lines) + "\n"


def _estimate(one: dict[str, Any]) -> str:
    interval = MISSING if one["low"] is None else f"{one['low']:.3f} to {one['high']:.3f}"
    return f"{one['value']:.3f} | {interval}"


def _interval(results: dict[str, Any]) -> str:
    if not results["resamples"]:
        return "One group has nothing to resample, so there is no interval."
    count = len(results["groups"])
    few = " With so few groups it is coarse, and too narrow rather than too wide." if count < 10 else ""
    return (
        f"The interval is the middle 95 % of {results['resamples']:,} resamples of whole groups, {count} drawn with"
        f" replacement each time (seed {results['seed']}): tokenizers of one group share a benchmark and are not"
        f" independent.{few}"
    )


def draw(results: dict[str, Any], path: Path) -> None:
    """Write the figure as SVG: two panels, a colour for each group and a marker for each tokenizer."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    groups = results["groups"]
    names = list(dict.fromkeys(row["tokenizer"] for group in groups for row in group["rows"]))
    colours = {name: look.colour for name, look in looks([group["name"] for group in groups]).items()}
    markers = {name: look.marker for name, look in looks(names).items()}
    keys = min(max(len(groups), len(names)), _NAMED)
    with rc_context({"svg.hashsalt": "actionpiece", "svg.fonttype": "none", "text.parse_math": False}):
        figure = Figure(figsize=(9, 5.3 + 0.2 * keys), facecolor=CARD)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, key, label in zip(
            panels, ("fidelity", "prc"), ("reconstruction fidelity", "physical rank consistency"), strict=True
        ):
            _panel(axes, groups, key, colours, markers)
            one = results[key]
            interval = "" if one["low"] is None else f" ({one['low']:.2f} to {one['high']:.2f})"
            axes.set_title(f"Spearman {one['value']:.3f}{interval}", color=INK, fontsize=11)
            axes.set_xlabel(f"rank within the group: {label}", color=INK)
        panels[0].set_ylabel(f"rank within the group: {shorten(results['success'], 30)}", color=INK)
        below = (0.4 + 0.2 * keys) / figure.get_figheight()
        figure.tight_layout(rect=(0, below, 1, 0.99))
        _key(figure, "groups", {g["name"]: ("o", colours[g["name"]]) for g in groups}, (0.06, below))
        _key(figure, "tokenizers", {name: (marker, MUTED) for name, marker in markers.items()}, (0.56, below))
        figure.savefig(path, format="svg", metadata={"Date": None})


def _panel(axes: Any, groups: list[dict[str, Any]], key: str, colours: dict[str, str], markers: dict[str, str]) -> None:
    axes.plot([0, 1], [0, 1], color=GRID, linewidth=1.5, zorder=0)
    for number, group in enumerate(groups):
        # Ranks of groups of one size fall on the same points: each group steps aside a little.
        aside = 0.0 if len(groups) == 1 else 0.06 * (number / (len(groups) - 1) - 0.5)
        for row in group["rows"]:
            axes.plot(
                row[f"rank_{key}"] + aside,
                row["rank_success"] - aside,
                markers[row["tokenizer"]],
                color=colours[group["name"]],
                markeredgecolor=CARD,
                markersize=8,
                alpha=0.85,
            )
    axes.set_xlim(-0.08, 1.08)
    axes.set_ylim(-0.08, 1.08)
    axes.set_aspect("equal")
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_facecolor(CARD)
    axes.tick_params(colors=MUTED, length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _key(figure: Any, title: str, items: dict[str, tuple[str, str]], corner: tuple[float, float]) -> None:
    """A key below the panels; of more than fit, the first, and how many more there are."""
    from matplotlib.lines import Line2D

    shown = list(items.items())[:_NAMED]
    handles = [Line2D([], [], marker=marker, color=colour, linestyle="", markersize=7) for _, (marker, colour) in shown]
    labels = [shorten(name, 44) for name, _ in shown]
    if len(items) > _NAMED:
        title += f" (the first {_NAMED} of {len(items)})"
    legend = figure.legend(
        handles, labels, title=title, loc="upper left", bbox_to_anchor=corner, frameon=False, fontsize=9,
        labelcolor=INK, alignment="left",
    )  # fmt: skip
    legend.get_title().set_color(MUTED)
