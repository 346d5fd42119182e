"""`tokenize`, `inspect`, `data info` and `list`: what there is, and what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from actionpiece.commands.console import console, print_json, progress, say
from actionpiece.options import DataOptions


def tokenize(
    tokenizer: tyro.conf.Positional[Path],
    source: tyro.conf.OmitArgPrefixes[DataOptions],
    out: Path,
    stride: int = 1,
    tail: Literal["repeat", "drop"] = "repeat",
    shard: int = 100_000,
) -> None:
    """Write the token ids of a whole data set to parquet files; run again to go on after an interrupt.

    Args:
        tokenizer: folder of a fitted tokenizer, or the name of one that comes trained, such as libero, or of a
            repository on the Hugging Face hub (owner/name).
        out: folder for the shards and their manifest.
        stride: steps between the starts of consecutive chunks.
        tail: at an episode's end, repeat the last command (as policies need it) or drop windows that run past it.
        shard: chunks per file.
    """
    from actionpiece.report.text import counted
    from actionpiece.tokenizers import load
    from actionpiece.tokenizers.corpus import tokenize as run

    loaded = load(tokenizer)
    demos = source.open(loaded.space)
    with progress() as show:
        show(0.0, "tokenizing")
        manifest = run(
            loaded,
            demos,
            out,
            stride=stride,
            tail=tail,
            shard=shard,
            progress=lambda fraction: show(fraction, "tokenizing"),
        )
    chunks, shards = manifest["chunks"]["chunks"], len(manifest["shards"])
    say(f"{counted(chunks, 'chunk')} in {counted(shards, 'shard')} under {out}")


def inspect(tokenizer: tyro.conf.Positional[Path], json: bool = False) -> None:
    """Say what a tokenizer folder holds: kind, vocabulary, action space, scales, what it was fitted on.

    Args:
        tokenizer: folder of a fitted tokenizer, or the name of one that comes trained, such as libero, or of a
            repository on the Hugging Face hub (owner/name).
        json: print one JSON document and nothing else.
    """
    from actionpiece.report.facts import describe_tokenizer, show_tokenizer
    from actionpiece.tokenizers import load

    facts = describe_tokenizer(load(tokenizer))
    if json:
        print_json(facts)
    else:
        show_tokenizer(console, facts)


def data_info(
    data: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="PATH [PATH ...]", help_behavior_hint="(required)")]
    ],
    space: Annotated[str | None, tyro.conf.arg(metavar="SPACE")] = None,
    action_key: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    json: bool = False,
) -> None:
    """Look at demonstrations before trusting them: episodes, ranges, rate, and columns that look wrong.

    Args:
        data: npz or HDF5 files, LeRobot folders, folders of these, or the word `recorded`: demonstrations
            that come with the package.
        space: action space; with it grippers and idle steps can be judged.
        action_key: name of the action column or dataset.
        json: print one JSON document and nothing else.
    """
    from actionpiece.data import info
    from actionpiece.report.facts import show_data

    facts = info(DataOptions(data, space, action_key).open())
    if json:
        print_json(facts)
    else:
        show_data(console, facts)


def list_all(json: bool = False) -> None:
    """List the tokenizers, those that come trained, and the action spaces.

    Args:
        json: print one JSON document and nothing else.
    """
    from actionpiece.report.facts import show_kinds
    from actionpiece.space import PRESETS
    from actionpiece.tokenizers import KINDS, RECIPES, trained

    kinds = [{"name": name, "about": about} for name, (_, _, about) in (KINDS | RECIPES).items()]
    spaces = [{"name": name, "dim": make().dim, "about": make().note} for name, make in PRESETS.items()]
    if json:
        print_json({"tokenizers": kinds, "trained": sorted(trained()), "spaces": spaces})
    else:
        show_kinds(console, kinds, sorted(trained()), spaces)
