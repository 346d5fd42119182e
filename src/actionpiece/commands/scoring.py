"""`eval`, `compare` and `ablate`: tokenizers measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from actionpiece.commands.console import command_line, console, print_json, progress, say
from actionpiece.errors import ActionPieceError
from actionpiece.options import DataOptions, ScoreOptions

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
        tokenizer: folder of a fitted tokenizer, or the name of one that comes trained, such as libero.
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
    tokenizers: str = "binning,fast,spline,pq",
    horizon: int = 8,
    seed: int = 0,
    replay: int = 0,
    workers: int = 2,
    json: bool = False,
) -> None:
    """Fit several tokenizers on the same training episodes, score them on the same test chunks, write a report.

    Args:
        out: folder for results.json, report.html and the fitted tokenizers.
        tokenizers: names separated by commas, with settings after colons (pq:blend=0.5:codes=256), or folders of
            tokenizers fitted before, or the name of one that comes trained. `actionpiece list` shows the names.
        horizon: steps of an action chunk.
        seed: of the fits.
        replay: also execute so many demonstrations of each task in the simulator after encoding and decoding; needs
            demonstrations made by `actionpiece record`.
        workers: processes of that replay; about one for each core.
        json: print the results as one JSON document and nothing else.
    """
    from actionpiece.evaluation.compare import Contender, replay_comparison, write_comparison
    from actionpiece.evaluation.compare import compare as run
    from actionpiece.evaluation.replay import replayable

    contenders = [Contender.parse(text.strip()) for text in tokenizers.split(",") if text.strip()]
    if not contenders:
        raise ActionPieceError("no tokenizers were named; `actionpiece list` shows what there is")
    if out.exists() and not out.is_dir():
        raise ActionPieceError(f"{out} is a file; a folder is to be written there")
    demos = source.open()
    if replay:  # what cannot work is better known before the first fit
        replayable(demos, split=scoring.split, most=replay)
    order = {contender.name: number for number, contender in enumerate(contenders)}
    with progress(len(contenders)) as show:
        show(0.0, "reading demonstrations")
        results, pictures = run(
            demos,
            contenders,
            protocol=scoring.protocol(horizon),
            seed=seed,
            command=command_line(),
            save=out / "tokenizers",
            progress=lambda name, fraction, what: show(order[name] + fraction, f"{name}: {what}"),
        )
        show(len(contenders), "writing the report")
        write_comparison(out, results, pictures)
        if replay:
            replay_comparison(
                out,
                results,
                pictures,
                demos,
                contenders,
                most=replay,
                workers=workers,
                progress=lambda fraction, what: show(len(contenders) * fraction, f"replaying: {what}"),
            )
    if json:
        print_json(results)
    else:
        show_rows(results["rows"], demos, scoring)
        if "replay" in results:
            from actionpiece.report.replay import show_replay

            show_replay(console, results["replay"])
        say(f"Report: {out / 'report.html'}   Figures: {out / 'results.json'}")


def ablate(
    source: tyro.conf.OmitArgPrefixes[DataOptions],
    out: Path,
    scoring: tyro.conf.OmitArgPrefixes[ScoreOptions],
    rows: str = "rvq,sigreg,neighborhood,temporal,prp,qr,actionpiece,actionpiece-q2,best,pq",
    seeds: tuple[int, ...] = (0,),
    horizon: int = 8,
    steps: int | None = None,
    device: str = "cpu",
    together: int = 8,
    finished: bool = False,
) -> None:
    """Train the paper's codec with every training objective it tries, score them all, write the table and a figure.

    Run it again to go on after an interrupt: finished cells are not redone, others continue from their checkpoint. On
    a CPU the recipes' 100,000 steps take days; try `--steps 200` first.

    Args:
        out: folder for ablation.md, ablation.json, ablation.svg and the cells.
        rows: of the table, separated by commas.
        seeds: one cell of every row for each of these.
        horizon: steps of an action chunk.
        steps: training steps of the learned rows, where they are not to be their recipe's.
        device: where they train: cpu or cuda.
        together: learned cells that train side by side in this process.
        finished: train nothing; write the table of what is finished so far.
    """
    from actionpiece.evaluation.ablate import ablate as run
    from actionpiece.evaluation.ablate import page

    if out.exists() and not out.is_dir():
        raise ActionPieceError(f"{out} is a file; a folder is to be written there")
    demos = source.open()
    with progress() as show:
        show(0.0, "reading demonstrations")
        results = run(
            demos,
            out,
            rows=[name.strip() for name in rows.split(",") if name.strip()],
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


def show_rows(rows: list[dict[str, Any]], demos: Demos, scoring: ScoreOptions) -> None:
    from actionpiece.report.tables import console_table

    kind = "generated demonstrations" if demos.generated else "demonstrations"
    console.print(f"{rows[0]['n']:,} chunks of the {scoring.split} split of {demos.name} ({kind}), PRC@{scoring.k}")
    console.print(console_table(rows))
