"""What commands print about things: tokenizer folders, data sets, the lists of what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from actionpiece.tokenizers.base import ActionTokenizer


def describe_tokenizer(tokenizer: ActionTokenizer) -> dict[str, Any]:
    """Plain facts about a tokenizer."""
    space = tokenizer.space
    return {
        "kind": tokenizer.kind,
        "horizon": tokenizer.horizon,
        "tokens_per_chunk": tokenizer.tokens_per_chunk,
        "vocab_size": tokenizer.vocab_size,
        "token_order": tokenizer.token_order,
        "has_prefix": tokenizer.has_prefix,
        "config": tokenizer.settings,
        "space": space.to_dict(),
        "normalizer": tokenizer.normalizer.to_dict(),
        "physical_scales": tokenizer.distance.to_dict(),
        "values": sum(tensor.numel() for tensor in tokenizer._tensors().values()),
        "fingerprint": tokenizer.fingerprint(),
        "provenance": tokenizer.provenance,
    }


def show_tokenizer(console: Console, facts: dict[str, Any]) -> None:
    """Print what `describe_tokenizer` gave."""
    tokens = facts["tokens_per_chunk"] or "a varying number of"
    space = facts["space"]
    recipe = facts["provenance"].get("recipe")
    name = f"[bold]{escape(str(recipe))}[/bold] (kind {facts['kind']})" if recipe else f"[bold]{facts['kind']}[/bold]"
    console.print(f"{name}: {tokens} tokens of {facts['vocab_size']} for {facts['horizon']} steps")
    table = _facts_table()
    table.add_fact("token order", facts["token_order"])
    table.add_fact("prefix decoding", "yes" if facts["has_prefix"] else "no")
    table.add_fact("settings", ", ".join(f"{k}={v}" for k, v in facts["config"].items()) or "none")
    rate = f"{space['rate']:g} Hz" if space["rate"] else "rate unknown"
    table.add_fact("action space", f"{space['name']} ({rate}): {space['note']}")
    for group in space["groups"]:
        scale = facts["physical_scales"][group["name"]]
        table.add_fact(f"  {group['name']}", f"{_columns(group['columns'])}, physical scale {scale:.4g}")
    table.add_fact(
        "normaliser", f"{facts['normalizer']['method']}, out of range: {facts['normalizer']['out_of_range']}"
    )
    table.add_fact("learned values", f"{facts['values']:,}")
    data = facts["provenance"].get("data")
    if data:
        kind = " (generated demonstrations)" if data.get("generated") else ""
        table.add_fact("fitted on", f"{data['name']}{kind}, {facts['provenance'].get('chunks', 0):,} chunks")
    table.add_fact("fingerprint", facts["fingerprint"][:16])
    console.print(table)


def _columns(columns: list[int]) -> str:
    if len(columns) > 1 and columns == list(range(columns[0], columns[-1] + 1)):
        return f"columns {columns[0]}-{columns[-1]}"
    return f"column{'s' * (len(columns) > 1)} {', '.join(map(str, columns))}"


class _Facts(Table):
    """A table of plain text: what users have written may hold brackets."""

    def add_fact(self, label: str, text: object) -> None:
        self.add_row(Text(label), Text(str(text)))


def _facts_table() -> _Facts:
    table = _Facts(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    return table


def show_kinds(console: Console, kinds: list[dict[str, Any]], trained: list[str], spaces: list[dict[str, Any]]) -> None:
    """Print the tokenizers, those that come trained, and the action spaces there are."""
    console.print("[bold]Tokenizers[/bold]  (actionpiece fit NAME --help shows the settings of each)")
    table = _facts_table()
    for kind in kinds:
        table.add_fact(kind["name"], kind["about"])
    console.print(table)
    console.print(f"\n[bold]Trained[/bold]  (actionpiece.load(NAME); actionpiece inspect NAME)\n{', '.join(trained)}")
    console.print("\n[bold]Action spaces[/bold]  (--space NAME; or joints:N, or a JSON file of your own)")
    table = _facts_table()
    for space in spaces:
        table.add_fact(space["name"], f"{space['dim']} columns: {space['about']}")
    console.print(table)


def show_data(console: Console, facts: dict[str, Any]) -> None:
    """Print what `actionpiece.data.info` found."""
    kind = " [yellow](generated demonstrations)[/yellow]" if facts["generated"] else ""
    console.print(
        f"[bold]{escape(facts['name'])}[/bold]{kind}: {facts['episodes']:,} episodes, {facts['steps']:,} steps"
    )
    length, table = facts["length"], _facts_table()
    rate = f"{facts['rate']:g} Hz" if facts["rate"] else "unknown"
    table.add_fact("episode length", f"{length['min']} to {length['max']} steps, median {length['median']:g}")
    table.add_fact("control rate", rate)
    table.add_fact("action space", facts["space"] or "not known: pass --space, or write a data card")
    table.add_fact("instructions", str(facts["tasks"]) if facts["tasks"] else "not named")
    split = facts["split"]
    if "problem" not in split:
        parts = ", ".join(f"{split[part]:,} {part}" for part in ("train", "validation", "test"))
        said = "as the card says" if split["by_card"] else "drawn with seed 0; a card may say otherwise"
        table.add_fact("split", f"{parts} episodes ({said})")
    table.add_fact(
        "idle steps", f"{facts['idle_share']:.1%} ({facts['idle_rule']}), repeated {facts['repeated_share']:.1%}"
    )
    for label in ("licence", "note"):
        if facts[label]:
            table.add_fact(label, facts[label])
    console.print(table)
    columns = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("column", "min", "q01", "mean", "q99", "max", "std", ""):
        left = heading in ("column", "")
        columns.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for row in facts["columns"]:
        numbers = [row[key] for key in ("min", "q01", "mean", "q99", "max", "std")]
        cells = ["-" if number is None else f"{number:.4g}" for number in numbers]
        columns.add_row(Text(row["label"]), *cells, ", ".join(row["flags"]))
    console.print(columns)
    if facts["suspicious"]:
        console.print("[bold yellow]Worth a look[/bold yellow]")
        for sentence in facts["suspicious"]:
            console.print(Text(f"  {sentence}"))
    else:
        console.print("Nothing suspicious.")
