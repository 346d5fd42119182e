"""Is every learned tokenizer of a comparison a fair contender? Its error beside a product quantiser's of the same bits.

    actionpiece compare --recipe matched --data A.npz --device cuda --out matched
    python benchmarks/fair.py --data A.npz --compared matched/results.json --fitted matched/tokenizers --out fair_a

For every learned row: the error of `pq` with as many tokens of as many codes, on the same chunks, and that of the mean
training chunk; that of its network without a quantiser, what more codes could come to, where its weights are at hand;
how many of a position's codes are in use, as a share. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console

import actionpiece
from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.contenders import file_name, fit, fitting_chunks
from actionpiece.evaluation.score import Protocol, ScoringSet, Training, environment
from actionpiece.files import read_json, write_json, writing
from actionpiece.metrics.fidelity import fidelity
from actionpiece.tokenizers import KINDS, load, tokenizer_class
from actionpiece.tokenizers.learned import LearnedTokenizer
from actionpiece.tokenizers.pq import PQConfig


@dataclass(frozen=True)
class Options:
    """What to look at.

    Attributes:
        data: the demonstrations that were compared.
        compared: results.json of `actionpiece compare`.
        out: where to write, without an ending.
        fitted: folder of the tokenizers that were compared, as far as they are there.
        before: an OUT.json of an earlier call for the same data: what it has is not computed again, and is not checked
            for whether our `pq` has changed since.
    """

    data: str
    compared: Path
    out: Path
    fitted: Path | None = None
    before: Path | None = None


def gather(options: Options, console: Console) -> dict[str, Any]:
    """A row for every learned tokenizer, as plain data."""
    if options.fitted is not None and not options.fitted.is_dir():
        raise ActionPieceError(f"{options.fitted} is no folder of fitted tokenizers")
    compared = read_json(options.compared)
    demos = actionpiece.open_demos(options.data)
    if demos.describe()["fingerprint"] != compared["data"]["fingerprint"]:
        raise ActionPieceError(f"{options.compared} is of other demonstrations than {options.data}")
    protocol = Protocol(**compared["protocol"])
    training = Training.of(demos, protocol.horizon)
    data = ScoringSet.of(demos, training, protocol)

    def error(decoded: np.ndarray) -> float:
        return fidelity(data.chunks, decoded, space=demos.space, normalizer=training.normalizer).mse

    mean = error(np.broadcast_to(fitting_chunks(training, compared["seed"]).mean(0), data.chunks.shape))
    earlier = [] if options.before is None else rows_before(options.before, compared)
    known = {(row["tokens"], row["codes"]): row["pq"] for row in earlier}
    bare = {(row["name"], row["mse"]): row["unquantized"] for row in earlier}
    rows = []
    for row in compared["rows"]:
        if row["kind"] not in KINDS or not issubclass(tokenizer_class(row["kind"]), LearnedTokenizer):
            continue  # a user's own, or a classical one
        tokens = round(row["tokens_per_chunk"])
        codes = round(2 ** (row["bits_per_chunk"] / tokens))
        if (tokens, codes) not in known:
            console.print(f"pq of {tokens} tokens of {codes} codes")
            config = PQConfig(tokens=tokens, codes=codes)
            plain = fit("pq", demos, training, config=config, seed=compared["seed"])
            known[tokens, codes] = error(np.asarray(plain.decode(plain.encode(data.chunks))))
        same = known[tokens, codes]
        use = {"perplexity": row["position_perplexity"], "share": row["position_perplexity"] / codes}
        alone = bare.get((row["name"], row["mse"]))
        tokenizer = None if options.fitted is None or alone is not None else of_row(row, options.fitted)
        if tokenizer is not None:
            alone = error(unquantized(tokenizer, data.chunks))
        figures = {"unquantized": alone, "mse": row["mse"], "pq": same, "ratio": row["mse"] / same, "mean_chunk": mean}
        rows.append({"name": row["name"], "tokens": tokens, "codes": codes, **figures, **use})
    return {
        "command": f"python benchmarks/fair.py {shlex.join(sys.argv[1:])}",
        "compared": compared["command"],
        "seed": compared["seed"],
        "protocol": compared["protocol"],
        "data": demos.describe(),
        "environment": environment(),
        "rows": rows,
    }


def rows_before(path: Path, compared: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an earlier call, which must have been of the same chunks."""
    document = read_json(path)
    if "compared" not in document:
        raise ActionPieceError(f"{path} was not written by this script")
    there, here = (
        (one["data"]["fingerprint"], one["data"]["split"], one["protocol"], one["seed"]) for one in (document, compared)
    )
    if there != here:
        raise ActionPieceError(f"{path} is of other demonstrations or of another protocol")
    rows: list[dict[str, Any]] = document["rows"]
    return rows


def of_row(row: dict[str, Any], fitted: Path) -> LearnedTokenizer | None:
    """The tokenizer that a row is of, if it is among those that were fitted."""
    folder = fitted / file_name(row["name"])
    if not folder.is_dir():
        return None
    tokenizer = load(folder)
    if tokenizer.fingerprint() != row["fingerprint"]:
        raise ActionPieceError(f"{folder} is not the tokenizer that was compared")
    assert isinstance(tokenizer, LearnedTokenizer)
    return tokenizer


@torch.no_grad()
def unquantized(tokenizer: LearnedTokenizer, chunks: np.ndarray) -> np.ndarray:
    """Chunks (n, H, D) as the network gives them back without a quantiser."""
    x = tokenizer.normalizer.normalize(torch.from_numpy(chunks).float())
    back = torch.cat([tokenizer.codec.continuous(part) for part in x.split(1000)])
    decoded: np.ndarray = tokenizer.normalizer.denormalize(back).numpy()
    return decoded


def page(document: dict[str, Any]) -> str:
    """The Markdown page."""
    rows = document["rows"]
    lines = [
        f"# Learned tokenizers beside a product quantiser of the same bits: {document['data']['name']}",
        "",
        f"Made by `{document['command']}` from `{document['compared']}`.",
        f"`pq` has as many tokens of as many codes. Predicting the mean training chunk has an MSE of"
        f" {1e4 * rows[0]['mean_chunk']:.0f} x1e-4. Unquantised: its network"
        " without a quantiser, where its weights were at hand. Perplexity is of the codes of one position.",
        "",
        "| tokenizer | tokens | codes | MSE x1e-4 | unquantised x1e-4 | `pq` x1e-4 | of `pq` | of the mean's"
        " | perplexity | of its codes |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        bare = "-" if row["unquantized"] is None else f"{1e4 * row['unquantized']:.3f}"
        errors = f"{1e4 * row['mse']:.3f} | {bare} | {1e4 * row['pq']:.3f} | {row['ratio']:.2f}"
        use = f"1/{row['mean_chunk'] / row['mse']:.1f} | {row['perplexity']:.0f} | {100 * row['share']:.0f} %"
        lines.append(f"| {row['name']} | {row['tokens']} | {row['codes']} | {errors} | {use} |")
    return "\n".join(lines) + "\n"


def main(options: Options) -> None:
    document = gather(options, Console(stderr=True))
    if not document["rows"]:
        raise ActionPieceError(f"{options.compared} has no learned tokenizer")
    write_json(options.out.with_suffix(".json"), document)
    with writing(options.out.with_suffix(".md")) as aside:
        aside.write_text(page(document), encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
