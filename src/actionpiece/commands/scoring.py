"""`eval`, `compare` and `ablate`: tokenizers measured. `correlate`: what the measures say about success."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from actionpiece.commands.console import command_line, console, note_few_chunks, print_json, progress, say
from actionpiece.errors import ActionPieceError
from actionpiece.files import check_folder
from actionpiece.options import DataOptions, ScoreOptions, Seed, names_in

if TYPE_CHECKING:
    from actionpiece.data import Demos


def evaluate(
    tokenizer: tyro.conf.Positional[Path],
    source: tyro.conf.OmitArgPrefixes[DataOptions],
    scoring: tyro.conf.OmitArgPrefixes[ScoreOptions],
    json: bool = False,
) -> None:
    """Score a fitted tokenizer on the test split of a data set.

    Normalised MSE, errors in millimetres and degrees, physical rank consistency, tokens and bits, latency.

    Args:
        tokenizer: folder of a fitted tokenizer, or the name of one that comes trained, such as libero, or of a
            repository on the Hugging Face hub (owner/name).
        json: print one JSON document and nothing else.
    """
    from actionpiece.evaluation.score import ScoringSet, Training, environment, score
    from actionpiece.tokenizers import load

    loaded = load(tokenizer)
    demos = source.open(loaded.space)
    with progress() as show:
        show(0.0, "reading demonstrations")
        training = Training.of(demos, loaded.horizon)
        data = ScoringSet.of(demos, training, scoring.protocol(loaded.horizon))
        row = score(loaded, data, name=tokenizer.resolve().name, progress=show).row
    if json:
        print_json({"data": demos.describe(), "environment": environment(), "rows": [row]})
    else:
        show_rows([row], demos, scoring)


def compare(
    source: tyro.conf.OmitArgPrefixes[DataOptions],
    out: Path,
    scoring: tyro.conf.OmitArgPrefixes[ScoreOptions],
    tokenizers: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            metavar="NAME [NAME ...]", help_behavior_hint="(default: binning fast spline pq; beside a recipe none)"
        ),
    ] = (),
    recipe: Annotated[Literal["matched", "classical"] | None, tyro.conf.arg(metavar="{matched,classical}")] = None,
    horizon: int = 8,
    seed: Seed = 0,
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    device: str = "cpu",
    together: int = 8,
    finished: bool = False,
    known: Annotated[
        tuple[Path, ...], tyro.conf.arg(metavar="FILE [FILE ...]", help_behavior_hint="(default: none)")
    ] = (),
    replay: int = 0,
    workers: int = 2,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Fit several tokenizers on the same training episodes, score them on the same test chunks, write a report.

    One that cannot be made, trained or scored is left out; all else is written, and the status is that of an error.

    Args:
        out: folder for results.json, tables.md, report.html and the fitted tokenizers.
        tokenizers: names, with blanks or commas between them, and settings after colons (pq:blend=0.5:codes=256, or of
            the training rvq:train.batch=256; normalizer=quantile is a setting of all that are fitted here), folders of
            tokenizers fitted before, the name of one that comes trained, or your own: my_file.py:make or
            package.module:make, a function of no argument or of (train_chunks, space) that returns a tokenizer, such as
            actionpiece.wrap makes of two functions. `actionpiece list` shows the names.
        recipe: a list of tokenizers with a name, in two tables with a report each: native, every tokenizer as its
            original work has it, and within-144-bits, every tokenizer as large as fits. `matched` holds all there are,
            `classical` those without training. --tokenizers are added to the tables into which they fit. Run it again
            to go on after an interrupt: what is finished is not redone.
        horizon: steps of an action chunk.
        seed: of the fits.
        steps: training steps of learned tokenizers, where they are not to be their recipe's.
        device: where learned tokenizers train: cpu or cuda.
        together: learned tokenizers that train side by side on a GPU.
        finished: with --recipe, train no learned tokenizer: the tables hold those that are trained to their last step
            and all that need no training, and name the others.
        known: results.json of earlier comparisons, of the same data and scored alike. A tokenizer by name whose row
            stands there, however its settings are spelled, is neither fitted nor scored again: its row is taken as it
            is, and the report says so. One of the same name that was made with other settings there is an error;
            whether our code has changed since is not known.
            Folders and your own code are scored as ever.
        replay: also execute so many demonstrations of each task in the simulator after encoding and decoding; needs
            demonstrations made by `actionpiece record`.
        workers: processes of that replay; about one for each core.
        overwrite: replace a comparison of something else that is in the folder.
        json: print the results as one JSON document and nothing else.
    """
    from actionpiece.evaluation.compare import compare as run
    from actionpiece.evaluation.compare import replay_comparison, write_comparison
    from actionpiece.evaluation.contenders import Contender, with_steps
    from actionpiece.evaluation.known import check_same_comparison, read_known
    from actionpiece.evaluation.recipes import resolve_once
    from actionpiece.evaluation.replay import replayable
    from actionpiece.evaluation.score import Training
    from actionpiece.report.text import listed
    from actionpiece.sim.make import simulator

    if not tokenizers and not recipe:
        tokenizers = ("binning", "fast", "spline", "pq")
    named = [Contender.parse(text) for text in names_in(tokenizers)]
    if not named and not recipe:
        raise ActionPieceError("no tokenizers were named; `actionpiece list` shows what there is")
    if (steps is not None and steps < 1) or together < 1:
        raise ActionPieceError("at least one training step and one tokenizer at a time are needed")
    own = next((one.name for one in named if re.search(r":train\.(steps|warmup|continuous|settle)=", one.name)), None)
    if steps is not None and own is not None:
        raise ActionPieceError(f"{own} says itself how it is trained: leave --steps out, or that")
    if finished and not recipe:
        raise ActionPieceError("--finished goes with --recipe, which keeps what is trained")
    if replay and known:
        raise ActionPieceError("--replay needs every tokenizer, and --known brings rows without: leave one of them out")
    check_folder(out)
    looked = out / "recipe.json"  # what a recipe has come to
    if looked.exists() and not recipe:
        raise ActionPieceError(f"{out} holds a comparison by recipe, which is not overwritten; choose another folder")
    if recipe and (out / "results.json").exists() and not looked.exists():
        raise ActionPieceError(f"{out} holds results of something else; choose another folder for a recipe")
    demos, protocol = source.open(), scoring.protocol(horizon)
    if replay and workers < 1:
        raise ActionPieceError(f"at least one worker is needed, not {workers}")
    if replay:
        simulator()
        replayable(demos, split=scoring.split, most=replay)
    with progress() as show:
        show(0.0, "reading demonstrations")
        training = Training.of(demos, horizon)
        earlier = read_known(known, demos, training, protocol)  # what cannot work is better known before the first fit
        contenders = named
        if recipe:
            found = resolve_once(looked, recipe, demos, training, seed=seed, progress=show)
            contenders = [Contender.parse(name) for name in found.names]
            named = [one for one in named if one not in contenders]  # a folder of the same name is another one
            contenders += named
        if steps is not None:
            contenders = [replace(one, config=with_steps(one.config, steps)) for one in contenders]
        if not recipe:
            check_same_comparison(out / "results.json", contenders, demos, protocol, seed=seed, overwrite=overwrite)
        comparison = run(
            demos,
            contenders,
            protocol=protocol,
            training=training,
            seed=seed,
            command=command_line(),
            save=out / "tokenizers",
            cells=out / "cells" if recipe else None,
            device=device,
            together=together if device != "cpu" else 1,
            finished=finished,
            known=earlier,
            progress=show,
        )
        results = comparison.results
        contenders = [one for one in contenders if one.name not in comparison.absent]
        order = {contender.name: number for number, contender in enumerate(contenders)}
        if recipe:
            names = {one.name for one in named}
            joined = found.joined({r["name"]: r["bits_per_chunk"] for r in results["rows"] if r["name"] in names})
            joined = joined.without(comparison.absent)
            results |= {"recipe": recipe, "tables": joined.tables, "missing": joined.missing}
        show(1.0, "writing the report")
        reports = write_comparison(out, comparison)
        if replay:
            replay_comparison(
                out,
                comparison,
                demos,
                contenders,
                most=replay,
                workers=workers,
                progress=lambda fraction, what: show(fraction, f"replaying: {what}"),
            )
    for one in contenders:
        note_few_chunks(one.name, one.config, len(training.chunks))
    if json:
        print_json(results)
    else:
        _show_comparison(results, order, demos, scoring)
        say(f"Report: {', '.join(map(str, reports))}   Table: {out / 'tables.md'}   Figures: {out / 'results.json'}")
    if comparison.broken:
        name, why = next(iter(comparison.broken.items()))
        broken = listed(comparison.broken)
        raise ActionPieceError(f"{broken} could not be fitted or scored, the rest is there. {name}: {why}")


def _show_comparison(results: dict[str, Any], order: dict[str, int], demos: Demos, scoring: ScoreOptions) -> None:
    """The tables of a comparison on the console. order: where a contender's row is."""
    from actionpiece.report.page import absent, taken

    for table in results.get("tables", [{"names": list(order)}]):
        if "name" in table:
            say(f"{table['name']}: {table['about']}")
        if table["names"]:
            show_rows([results["rows"][order[name]] for name in table["names"]], demos, scoring)
        for sentence in absent(results, table.get("name", "")):
            say(sentence)
    for sentence in taken(results):
        say(sentence)
    if "replay" in results:
        from actionpiece.report.replay import show_replay

        show_replay(console, results["replay"])


def ablate(
    source: tyro.conf.OmitArgPrefixes[DataOptions],
    out: Path,
    scoring: tyro.conf.OmitArgPrefixes[ScoreOptions],
    rows: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ROW [ROW ...]", help_behavior_hint="(default: all)")] = (),
    seeds: tuple[Seed, ...] = (0,),
    horizon: int = 8,
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    device: str = "cpu",
    together: int = 8,
    finished: bool = False,
) -> None:
    """Train the paper's codec with every training objective it tries, score them all, write the table and a figure.

    Run it again to go on after an interrupt: finished cells are not redone, others continue from their checkpoint. On
    a CPU the recipes' 100,000 steps take days; try `--steps 200` first.

    Args:
        out: folder for ablation.md, ablation.json, ablation.svg and the cells.
        rows: of the table: rvq, sigreg, neighborhood, temporal, prp, qr, actionpiece, actionpiece-q2, best, pq; with
            blanks or commas between them.
        seeds: one cell of every row for each of these.
        horizon: steps of an action chunk.
        steps: training steps of the learned rows, where they are not to be their recipe's.
        device: where they train: cpu or cuda.
        together: learned cells that train side by side in this process.
        finished: train nothing; write the table of what is finished so far.
    """
    from actionpiece.evaluation.ablate import ROWS, page
    from actionpiece.evaluation.ablate import ablate as run

    check_folder(out)
    demos = source.open()
    with progress() as show:
        show(0.0, "reading demonstrations")
        results = run(
            demos,
            out,
            rows=names_in(rows) if rows else tuple(ROWS),
            seeds=seeds,
            protocol=scoring.protocol(horizon),
            steps=steps,
            device=device,
            together=together,
            finished=finished,
            command=command_line(),
            progress=show,
        )
    say(page(results))
    say(f"Table: {out / 'ablation.md'}   Figure: {out / 'ablation.svg'}   Figures: {out / 'ablation.json'}")


def correlate(
    files: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE [FILE ...]", help_behavior_hint="(required)")
    ],
    out: Path,
    success: str = "success",
    by: Literal["file", "task"] = "file",
    resamples: int = 10_000,
    seed: Seed = 0,
    json: bool = False,
) -> None:
    """Do lower error and higher PRC go with success? Ranks within groups, Spearman's correlation over all of them.

    A group is one experiment with at least three tokenizers: a results.json of `compare --replay`, a replay.json, or
    rollouts of several policies on the same tasks. Where a file has successes but no errors, these are taken from the
    other files (results.json of compare, ablation.json) by fingerprint, or by name where one of them has none. Or bring
    a table of your own, CSV or JSON, with the columns group, tokenizer, mse, prc and success.

    Args:
        files: results to read; a rollout is named with its tokenizer: pq=runs/pq/results.json.
        out: folder for correlation.md, correlation.json and correlation.svg.
        success: the column that counts as success; higher is better.
        by: take the tasks of a file together, or make each a group of its own.
        resamples: of whole groups, for the 95 % intervals.
        seed: of these.
        json: print the results as one JSON document and nothing else.
    """
    from actionpiece.evaluation.correlate import analyse, write_correlation
    from actionpiece.report.text import counted

    check_folder(out)
    if not files:
        raise ActionPieceError("no files were named; `actionpiece correlate --help` says which there may be")
    results = analyse(files, success=success, by=by, resamples=resamples, seed=seed, command=command_line())
    write_correlation(out, results)
    if json:
        print_json(results)
        return
    groups, left = (counted(len(results[key]), "group") for key in ("groups", "left_out"))
    say(f"{results['evaluations']} evaluations in {groups}, {left} left out:")
    for label, key in (("low error", "fidelity"), ("high PRC", "prc"), ("difference", "difference")):
        one = results[key]
        interval = "" if one["low"] is None else f", 95 % interval {one['low']:.3f} to {one['high']:.3f}"
        say(f"  {label:<11}{one['value']:.3f}{interval}")
    say(f"Table: {out / 'correlation.md'}   Figure: {out / 'correlation.svg'}   Figures: {out / 'correlation.json'}")


def show_rows(rows: list[dict[str, Any]], demos: Demos, scoring: ScoreOptions) -> None:
    from actionpiece.report.tables import console_table

    kind = "generated demonstrations" if demos.generated else "demonstrations"
    say(f"{rows[0]['n']:,} chunks of the {scoring.split} split of {demos.name} ({kind}), PRC@{scoring.k}")
    console.print(console_table(rows))
