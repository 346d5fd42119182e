"""How the figures were made: everything needed to make them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from actionpiece.report.text import MISSING, esc, esc_name, figure, plain

_FILES = 20  # files of a data set that are named


def method(results: dict[str, Any]) -> str:
    """Protocol, data, scales, machine, command and the settings of every tokenizer."""
    return f"""<div class="cards">
<div><h3>Protocol</h3>{_facts(_protocol(results))}</div>
<div><h3>Data</h3>{_facts(_data(results["data"]))}</div>
<div><h3>Physical scales</h3>
<p class="note">One unit of each group in the physical distance, fitted on the training chunks.</p>
{_facts(_scales(results))}</div>
<div><h3>Machine and versions</h3>{_facts((key, value) for key, value in results["environment"].items())}</div>
</div>
<h3>Command</h3>
<pre tabindex="0"><code>{esc(results["command"]) or "not recorded"}</code></pre>
<h3>Tokenizers</h3>
<div class="scroll" role="region" aria-label="Settings of all tokenizers" tabindex="0">
<table class="settings">
<thead><tr><th scope="col">tokenizer</th><th scope="col">kind</th><th scope="col">vocabulary</th>
<th scope="col">settings</th><th scope="col">fitted on</th><th scope="col">normaliser</th>
<th scope="col">fitted in</th><th scope="col">seed</th>
<th scope="col" title="Values of the scored chunks beyond the normaliser's range">outside range</th>
<th scope="col">fingerprint</th></tr></thead>
<tbody>
{"".join(_tokenizer(row, results["data"]) for row in results["rows"])}</tbody>
</table>
</div>
{_files(results["data"])}"""


def _facts(facts: Iterable[tuple[str, object]]) -> str:
    items = "".join(
        f"<div><dt>{esc(key)}</dt><dd>{esc('none' if value is None else value)}</dd></div>" for key, value in facts
    )
    return f'<dl class="pairs">{items}</dl>'


def _protocol(results: dict[str, Any]) -> list[tuple[str, object]]:
    protocol, n = results["protocol"], results["rows"][0]["n"]
    asked = "" if n == protocol["n"] else f" (all there are; {protocol['n']:,} were asked for)"
    return [
        ("scored", f"{protocol['split']} split" if protocol["split"] != "all" else "all episodes"),
        ("chunks", f"{n:,}{asked}, the same for every tokenizer"),
        ("steps of a chunk", protocol["horizon"]),
        ("neighbours (k)", protocol["k"]),
        ("seed of the draw", protocol["seed"]),
        ("seed of fitting", results["seed"]),
        ("MSE, L1", "in one min-max scaling to [-1, 1], fitted on the training episodes"),
        ("created", results["created"]),
    ]


def _data(data: Mapping[str, Any]) -> list[tuple[str, object]]:
    split = data["split"]
    if "problem" in split:
        parts = split["problem"]
    else:
        seeds = ", ".join(map(str, split["seeds"]))
        counts = ", ".join(f"{split[key]:,} {key}" for key in ("train", "validation", "test"))
        parts = f"{counts} episodes (seed {seeds})"
    clips = list(dict.fromkeys(_clip(file["clip"]) for file in data["files"]))
    facts = [
        ("name", data["name"]),
        ("generated", "yes: not recorded from any robot" if data["generated"] else "no"),
        ("action space", f"{data['space'] or 'not named'}, {data['dim']} columns"),
        ("rate", f"{data['rate']:g} Hz" if data["rate"] else "not known"),
        ("size", f"{data['episodes']:,} episodes, {data['steps']:,} steps"),
        ("split", parts),
        ("clip", "; ".join(clips)),
        ("idle steps", data["idle"]),
        ("chunk tails", data["tail"]),
        ("fingerprint", data["fingerprint"][:12]),
        ("licence", data["licence"] or "not stated"),
        ("note", data["note"]),
    ]
    return [(key, value) for key, value in facts if value != ""]


def _clip(clip: list[float | None] | None) -> str:
    """What a card bounds the columns by, on both sides of zero."""
    if clip is None:
        return "none"
    return "columns within " + ", ".join("no bound" if bound is None else f"±{bound:g}" for bound in clip)


def _scales(results: dict[str, Any]) -> list[tuple[str, object]]:
    kinds = {group["name"]: group["kind"] for group in results["rows"][0]["groups"]}
    factors = {
        "translation": (1e3, "mm"),
        "rotation": (57.29577951308232, "degrees"),
        "joints": (57.29577951308232, "degrees"),
        "gripper": (1.0, "of the opening"),
    }
    facts: list[tuple[str, object]] = []
    for name, scale in results["physical_scales"].items():
        factor, unit = factors.get(kinds.get(name, "other"), (1.0, "raw"))
        facts.append((name, f"{figure(factor * scale)} {unit}"))
    return facts


def _tokenizer(row: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{plain(key)} = {plain(value)}" for key, value in row["config"].items()) or "none"
    fitted = row["fitted_on"]
    source = fitted.get("data")
    if source is None:
        origin = "not recorded"
    elif source["fingerprint"] == data["fingerprint"]:
        origin = "the training episodes of this data"
    else:
        origin = f"other data: {source['name']}" + (" (generated)" if source["generated"] else "")
    if fitted.get("chunks") is not None:
        origin += f", {fitted['chunks']:,} chunks"
    shown = (
        row["kind"],
        f"{row['vocab_size']:,}",
        settings,
        origin,
        row["normalizer"],
        _fit_time(fitted),
        MISSING if row["seed"] is None else row["seed"],
        MISSING if row["outside_range"] is None else f"{row['outside_range']:,} values",
        row["fingerprint"][:12],
    )
    figures = "".join(f"<td>{esc(text)}</td>" for text in shown)
    return f'<tr><th scope="row">{esc_name(row["name"])}</th>{figures}</tr>\n'


def _fit_time(fitted: Mapping[str, Any]) -> str:
    seconds, beside, before = fitted.get("fit_seconds"), fitted.get("side_by_side", 1), fitted.get("went_on_from_step")
    if seconds is None:
        return MISSING
    if before is not None:  # the time is that of the last part alone
        return "; ".join(map(_stretch, fitted.get("stretches", ()))) or f"went on from step {before:,}"
    return f"{figure(seconds)} s" + (f" ({beside} side by side)" if beside > 1 else "")


def _stretch(one: Mapping[str, Any]) -> str:
    products = f", products of {one['products']}" if "products" in one else ""
    return f"steps {one['from']:,} to {one['to']:,} on {one['gpu'] or 'a CPU'}{products}"


def _files(data: Mapping[str, Any]) -> str:
    """The files of a data set that has several; a single one is described above."""
    files = data["files"]
    if len(files) < 2:
        return ""
    items = "".join(
        f"<li>{esc(file['name'])}: {file['episodes']:,} episodes"
        + (f"; {esc(file['note'])}" if file["note"] else "")
        + (f"; {esc(file['licence'])}" if file["licence"] else "")
        + "</li>"
        for file in files[:_FILES]
    )
    more = f"<li>and {len(files) - _FILES} more</li>" if len(files) > _FILES else ""
    return f"<details><summary>The {len(files)} files of the data</summary><ul>{items}{more}</ul></details>\n"
