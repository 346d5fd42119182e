"""The `actionpiece` command: parse, call one function, print.

Exit code 0 is success, 2 a mistake in what was given (one sentence on standard error), 130 an interrupt.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from actionpiece.errors import ActionPieceError
from actionpiece.options import DataOptions, ScoreOptions
from actionpiece.sim.command import record

if TYPE_CHECKING:
    from actionpiece.data import Demos

_console = Console()
_errors = Console(stderr=True)


@contextlib.contextmanager
def _progress(total: float = 1.0) -> Iterator[Callable[[float, str], None]]:
    """A progress bar on standard error, gone when done; standard output stays clean for results."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=_errors, transient=True, disable=not _errors.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, what: bar.update(task, completed=done, description=what)


def _say(text: str) -> None:
    """A line of results; paths are not broken."""
    _console.print(text, highlight=False, soft_wrap=True, markup=False)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def _fit_command(name: str) -> Callable[..., None]:
    """The function behind `actionpiece fit NAME`, with the flags of that tokenizer's configuration."""
    from actionpiece.tokenizers import KINDS, RECIPES, recipe

    kind, default = recipe(name)

    def command(
        source: Any,
        out: Path,
        config: Any = default,
        horizon: int = 8,
        normalizer: Literal["minmax", "quantile", "meanstd", "identity"] = "minmax",
        seed: int = 0,
        device: str = "cpu",
        resume: bool = False,
    ) -> None:
        from actionpiece.evaluation.compare import fit
        from actionpiece.evaluation.score import Training
        from actionpiece.files import check_replaceable
        from actionpiece.tokenizers.saving import CONFIG
        from actionpiece.training import is_first, leave

        check_replaceable(out, CONFIG)  # better known now than after the fit
        demos = source.open()
        with _progress() as show:
            show(0.0, "reading demonstrations")
            training = Training.of(demos, horizon)
            tokenizer = fit(
                kind,
                demos,
                training,
                config=config,
                normalizer=normalizer,
                seed=seed,
                run=out.with_name(f"{out.name}.run"),
                resume=resume,
                device=device,
                progress=lambda fraction, what: show(fraction, f"{name}: {what}"),
            )
        leave()
        if not is_first():  # several processes trained one tokenizer
            return
        tokenizer.save_pretrained(out)
        _say(f"Fitted {name} on {len(training.chunks):,} training chunks of {demos.name}; saved in {out}.")
        _say(f"Next: {shlex.join(['actionpiece', 'eval', str(out), *source.flags()])}")

    command.__annotations__ = {
        "source": tyro.conf.OmitArgPrefixes[DataOptions],
        "out": Path,
        "config": tyro.conf.OmitArgPrefixes[type(default)],  # type: ignore[misc]
        "horizon": int,
        "normalizer": Literal["minmax", "quantile", "meanstd", "identity"],
        "seed": int,
        "device": str,
        "resume": bool,
        "return": None,
    }
    command.__doc__ = f"""Fit `{name}`: {(RECIPES.get(name) or KINDS[name])[2]}.

    Args:
        out: folder for the fitted tokenizer. Learned ones keep their log and checkpoint in OUT.run beside it.
        horizon: steps of an action chunk.
        normalizer: how columns are scaled before tokenizing; fitted on training episodes, saved with the tokenizer.
        seed: of everything random in the fit.
        device: where a learned tokenizer trains: cpu or cuda.
        resume: go on from the checkpoint of a learned tokenizer's interrupted training.
    """
    return command


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
    with _progress() as show:
        show(0.0, "reading demonstrations")
        training = Training.of(demos, loaded.horizon)
        data = ScoringSet.of(demos, training, scoring.protocol(loaded.horizon))
        row = score(loaded, data, name=tokenizer.resolve().name, progress=show).row
    if json:
        _print_json({"data": demos.describe(), "environment": environment(), "rows": [row]})
    else:
        _show_rows([row], demos, scoring)


def compare(
    source: tyro.conf.OmitArgPrefixes[DataOptions],
    out: Path,
    scoring: tyro.conf.OmitArgPrefixes[ScoreOptions],
    tokenizers: str = "binning,fast,spline,pq",
    horizon: int = 8,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Fit several tokenizers on the same training episodes, score them on the same test chunks, write a report.

    Args:
        out: folder for results.json, report.html and the fitted tokenizers.
        tokenizers: names separated by commas, with settings after colons (pq:blend=0.5:codes=256), or folders of
            tokenizers fitted before, or the name of one that comes trained. `actionpiece list` shows the names.
        horizon: steps of an action chunk.
        seed: of the fits.
        json: print the results as one JSON document and nothing else.
    """
    from actionpiece.evaluation.compare import Contender, write_comparison
    from actionpiece.evaluation.compare import compare as run

    contenders = [Contender.parse(text.strip()) for text in tokenizers.split(",") if text.strip()]
    if not contenders:
        raise ActionPieceError("no tokenizers were named; `actionpiece list` shows what there is")
    if out.exists() and not out.is_dir():
        raise ActionPieceError(f"{out} is a file; a folder is to be written there")
    demos = source.open()
    order = {contender.name: number for number, contender in enumerate(contenders)}
    with _progress(len(contenders)) as show:
        show(0.0, "reading demonstrations")
        results, pictures = run(
            demos,
            contenders,
            protocol=scoring.protocol(horizon),
            seed=seed,
            command=_command_line(),
            save=out / "tokenizers",
            progress=lambda name, fraction, what: show(order[name] + fraction, f"{name}: {what}"),
        )
        show(len(contenders), "writing the report")
        write_comparison(out, results, pictures)
    if json:
        _print_json(results)
    else:
        _show_rows(results["rows"], demos, scoring)
        _say(f"Report: {out / 'report.html'}   Figures: {out / 'results.json'}")


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
    with _progress() as show:
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
            command=_command_line(),
            progress=show,
        )
    _say(page(results))
    _say(f"Table: {out / 'ablation.md'}   Figure: {out / 'ablation.svg'}   Figures: {out / 'ablation.json'}")


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
        tokenizer: folder of a fitted tokenizer, or the name of one that comes trained, such as libero.
        out: folder for the shards and their manifest.
        stride: steps between the starts of consecutive chunks.
        tail: at an episode's end, repeat the last command (as policies need it) or drop windows that run past it.
        shard: chunks per file.
    """
    from actionpiece.tokenizers import load
    from actionpiece.tokenizers.corpus import tokenize as run

    loaded = load(tokenizer)
    demos = source.open(loaded.space)
    with _progress() as show:
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
    _say(f"{manifest['chunks']['chunks']:,} chunks in {len(manifest['shards'])} shards under {out}")


def inspect(tokenizer: tyro.conf.Positional[Path], json: bool = False) -> None:
    """Say what a tokenizer folder holds: kind, vocabulary, action space, scales, what it was fitted on.

    Args:
        tokenizer: folder of a fitted tokenizer, or the name of one that comes trained, such as libero.
        json: print one JSON document and nothing else.
    """
    from actionpiece.report.facts import describe_tokenizer, show_tokenizer
    from actionpiece.tokenizers import load

    facts = describe_tokenizer(load(tokenizer))
    if json:
        _print_json(facts)
    else:
        show_tokenizer(_console, facts)


def data_info(
    data: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="PATH [PATH ...]")]],
    space: Annotated[str | None, tyro.conf.arg(metavar="SPACE")] = None,
    action_key: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    json: bool = False,
) -> None:
    """Look at demonstrations before trusting them: episodes, ranges, rate, and columns that look wrong.

    Args:
        data: npz or HDF5 files, LeRobot folders, folders of these, or the word `generated`.
        space: action space; with it grippers and idle steps can be judged.
        action_key: name of the action column or dataset.
        json: print one JSON document and nothing else.
    """
    from actionpiece.data import info
    from actionpiece.report.facts import show_data

    facts = info(DataOptions(data, space, action_key).open())
    if json:
        _print_json(facts)
    else:
        show_data(_console, facts)


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
        _print_json({"tokenizers": kinds, "trained": sorted(trained()), "spaces": spaces})
    else:
        show_kinds(_console, kinds, sorted(trained()), spaces)


def fit() -> None:
    """Fit a tokenizer on demonstrations: `actionpiece fit NAME --data … --out DIR` (NAME --help shows its settings)."""


def data() -> None:
    """Look at demonstrations: `actionpiece data info PATH`."""


COMMANDS: dict[str, Callable[..., None]] = {
    "fit": fit,
    "eval": evaluate,
    "compare": compare,
    "ablate": ablate,
    "tokenize": tokenize,
    "inspect": inspect,
    "data": data,
    "record": record,
    "list": list_all,
}

_ABOUT = "Action tokenizers for vision-language-action policies: fit, measure, compare."


def run(arguments: Sequence[str]) -> None:
    """Parse the arguments and run the command they name; mistakes are raised as `ActionPieceError`."""
    if arguments[:1] == ["fit"]:  # its flags depend on the tokenizer, whose file imports torch: only when asked for
        from actionpiece.tokenizers import KINDS, RECIPES

        table = {name: _fit_command(name) for name in [*KINDS, *RECIPES]}
        _parse(table, arguments[1:], "actionpiece fit", "Fit a tokenizer on the training episodes of a data set.")
    elif arguments[:1] == ["data"]:
        _parse({"info": data_info}, arguments[1:], "actionpiece data", "Look at demonstrations.")
    else:
        _parse(COMMANDS, arguments, "actionpiece", _ABOUT)


def _parse(table: dict[str, Callable[..., None]], arguments: Sequence[str], program: str, about: str) -> None:
    from actionpiece import __version__

    if list(arguments) in (["--version"], ["-V"]):
        sys.stdout.write(f"actionpiece {__version__}\n")
        return
    tyro.extras.subcommand_cli_from_dict(
        table,
        prog=program,
        description=about,
        args=list(arguments) or ["--help"],
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _command_line() -> str:
    return shlex.join(["actionpiece", *sys.argv[1:]])


def _show_rows(rows: list[dict[str, Any]], demos: Demos, scoring: ScoreOptions) -> None:
    from actionpiece.report.tables import console_table

    kind = "generated demonstrations" if demos.generated else "demonstrations"
    _console.print(f"{rows[0]['n']:,} chunks of the {scoring.split} split of {demos.name} ({kind}), PRC@{scoring.k}")
    _console.print(console_table(rows))


def main() -> None:
    """The entry point of the `actionpiece` command."""
    # Tokenizers make many small parallel calls; threads that spin between them starve everything else on the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        run(sys.argv[1:])
        sys.stdout.flush()
    except ActionPieceError as error:
        _errors.print(f"actionpiece: {error}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        _errors.print("actionpiece: interrupted", highlight=False, soft_wrap=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:  # a disk that is full, a folder that may not be written
        _errors.print(f"actionpiece: {error}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
