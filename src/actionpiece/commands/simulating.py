"""`record`, `replay` and `rollout`: demonstrations, tokenizers and policies in the simulator."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from actionpiece.commands.console import command_line, console, print_json, progress, say
from actionpiece.errors import ActionPieceError
from actionpiece.files import check_folder
from actionpiece.options import DataOptions, Seed, names_in


def record(
    env: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK [TASK ...]")],
    out: Path,
    episodes: int = 50,
    workers: int = 2,
    images: Literal["none", "chunks", "all"] = "none",
    size: int = 128,
    horizon: int = 8,
    every: int = 0,
    mistakes: float = 0.0,
    seed: Seed = 0,
) -> None:
    """Record scripted demonstrations in the simulator as a LeRobot v3.0 data set.

    Failed attempts are left out and counted. Run the same command again to go on after an interrupt: finished attempts
    are kept in OUT.recording until the data set is whole. The same settings and seed give the same files.

    Args:
        env: tasks by name, or `all`: lift, stack, can, milk, cereal, square_nut, round_nut, door. LIBERO's, where it is
            installed, are libero_object/0 and so on, or a whole suite.
        out: folder for the data set.
        episodes: successful demonstrations of each task.
        workers: processes that record side by side; about one for each core.
        images: pictures of the agent and the wrist camera: none, at chunk starts (every HORIZON steps, which is where a
            policy looks), or at all steps.
        size: of the pictures, in pixels.
        horizon: steps of an action chunk.
        every: steps between pictures, for `--images chunks`; 0: the horizon. Nearer ones show a policy more.
        mistakes: share of the delicate movements (from 0 to 1) that first go to a wrong place and are mended, so that a
            policy learns what to do about its own mistakes. Moments before a mistake get no pictures: nobody learns it.
        seed: of the starts and of how the demonstrators go about it.
    """
    from actionpiece.sim.make import expand
    from actionpiece.sim.recording import record as run
    from actionpiece.sim.rendering import choose_backend

    tasks = expand(env)
    if images != "none":
        say(choose_backend().line)
    with progress(len(tasks) * episodes) as show:
        done = run(
            tasks,
            episodes,
            out,
            workers=workers,
            seed=seed,
            images=images,
            size=size,
            horizon=horizon,
            every=every,
            mistakes=mistakes,
            progress=lambda good, total, what: show(good, what),
        )
    if not done.fresh:
        say(f"{out} holds this recording already; nothing was done.")
    say(f"{done.episodes:,} episodes, {done.steps:,} steps, {done.nbytes / 1e6:.1f} MB in {out}.")
    failures = ", ".join(f"{name} {count}" for name, count in done.discarded.items() if count)
    say(f"Failed attempts left out: {failures or 'none'}.")
    say(f"Next: {shlex.join(['actionpiece', 'data', 'info', str(out)])}")


def replay(
    tokenizer: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TOKENIZER [TOKENIZER ...]")],
    source: tyro.conf.OmitArgPrefixes[DataOptions],
    out: Path,
    env: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK [TASK ...]")] = ("all",),
    split: Literal["test", "validation", "train", "all"] = "test",
    episodes: int = 50,
    horizon: int = 8,
    workers: int = 2,
    seed: Seed = 0,
    film: bool = False,
    json: bool = False,
) -> None:
    """Execute demonstrations after encoding and decoding, from their own starts, and count what still succeeds.

    Open loop, the raw commands first, all tokenizers from the same starts. The demonstrations must have been made by
    `actionpiece record`, which writes down where each began; `--data recorded` has some of every task. Run it again to
    go on after an interrupt.

    Args:
        tokenizer: folders of fitted tokenizers, names of those that come trained, or kinds to fit on the training
            episodes (binning:bins=16).
        out: folder for replay.json, the journal and the picture.
        env: tasks to replay, or `all` that the data has.
        split: which episodes of the data.
        episodes: of each task, at most.
        horizon: steps of a chunk, for tokenizers that are fitted here.
        workers: processes side by side; about one for each core.
        seed: of the fits.
        film: draw a filmstrip of one failure beside the raw commands' success.
        json: print the results as one JSON document and nothing else.
    """
    from actionpiece.evaluation.contenders import Contender, check_names, ready
    from actionpiece.evaluation.replay import replay as run
    from actionpiece.evaluation.replay import replayable, write_replay
    from actionpiece.evaluation.score import Training, environment
    from actionpiece.report.replay import show_replay
    from actionpiece.sim.make import expand, picture_notes, simulator

    check_folder(out)
    simulated_by = simulator()  # what is not there is better known before anything is fitted
    contenders = [Contender.parse(text) for text in names_in(tokenizer)]
    check_names(contenders)
    demos = source.open()
    tasks = None if "all" in env else expand(env)
    chosen = replayable(demos, tasks=tasks, split=split, most=episodes)
    with progress() as show:
        show(0.0, "reading demonstrations")
        training = Training.of(demos, horizon)
        tokenizers = {
            contender.name: ready(
                contender, demos, training, seed=seed, progress=lambda fraction, what: show(0.0, f"fitting: {what}")
            )
            for contender in contenders
        }
        results = run(
            demos,
            tokenizers,
            episodes=chosen,
            journal=out / "episodes.jsonl",
            workers=workers,
            progress=lambda fraction, what: show(fraction, f"replaying: {what}"),
        )
        results = {
            "command": command_line(),
            "split": split,
            "data": demos.describe(),
            "environment": environment() | simulated_by,
            "tokenizers": {
                name: {"kind": one.kind, "settings": one.settings, "fingerprint": one.fingerprint()}
                for name, one in tokenizers.items()
            },
            "notes": picture_notes({demos.starts[index].task for index in chosen}),  # type: ignore[union-attr]
            **results,
        }
        show(1.0, "drawing" if film else "writing")
        picture = write_replay(out, results, demos, tokenizers, film=film)
    if json:
        print_json(results)
        return
    show_replay(console, results)
    for note in results["notes"]:
        say(note)
    say(f"Figures: {out / 'replay.json'}" + (f"   Filmstrip: {picture}" if picture else ""))


def rollout(
    policy: str,
    env: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK [TASK ...]")],
    out: Path,
    episodes: int = 20,
    repeats: int = 1,
    execute: int = 8,
    size: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    published: bool = False,
    video: Literal["none", "failures", "all"] = "none",
    workers: int = 2,
    seed: Seed = 7,
    against: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
    json: bool = False,
) -> None:
    """Let a policy do tasks in the simulator, closed loop, and count how often it succeeds.

    Every episode is a line of OUT/episodes.jsonl. An episode that crashes is an error there, never a failure, and the
    status is then that of an error. Run it again to go on after an interrupt, or to try crashed episodes once more.

    Args:
        policy: folder of a policy that `policy train` made; or package.module:maker or path/to/file.py:maker, where
            maker() returns an object with act(observation) -> (H, 7) commands; or ws://host:port of a server that
            speaks openpi's protocol. A folder's is run on a GPU, in bfloat16, where there is one.
        env: tasks by name, or `all` of robosuite's; LIBERO's are libero_object/0 and so on, or a whole suite.
        out: folder for episodes.jsonl, results.json and videos.
        episodes: starts of each task; they depend on seed and task alone, so that policies meet the same ones.
        repeats: of each start. Intervals and tests take every episode for one of its own: where a policy always
            answers alike, repeats only make them look surer than they are.
        execute: commands of a chunk that are executed before the policy looks again.
        size: of the pictures it is shown, in pixels; 0 for none. When not given, what a policy's folder was trained
            with, or 128.
        published: show LIBERO's pictures as published policies see them: 256 pixels, half a turn, resized to 224.
        video: keep a GIF of no episode, of failures, or of all.
        workers: simulators side by side, about one for each core; more where the policy is a folder, which is loaded
            once and answers those who wait together.
        seed: of the starts.
        against: the folder of another policy's rollout, for a paired test on the episodes that both have.
        json: print the results as one JSON document and nothing else.
    """
    from actionpiece.evaluation.rollout import paired, picture_size, read_other, summary, tokenizer_of
    from actionpiece.evaluation.rollout import rollout as run
    from actionpiece.evaluation.score import environment
    from actionpiece.files import write_json
    from actionpiece.sim.make import expand, picture_notes, simulator

    size = picture_size(policy) if size is None else size
    if video != "none" and not size and not published:
        raise ActionPieceError("a video needs pictures: give --size, or leave --video out")
    tasks, simulated_by = expand(env), simulator()
    other = None if against is None else read_other(against)
    with progress() as show:
        lines = run(
            policy,
            tasks,
            out,
            episodes=episodes,
            repeats=repeats,
            seed=seed,
            execute=execute,
            size=size,
            published=published,
            video=video,
            workers=workers,
            progress=show,
        )
    facts = environment() | simulated_by
    notes = picture_notes(tasks) if size or published else []
    settings = {"seed": seed, "execute": execute, "size": size, "published": published}
    results: dict[str, Any] = {"command": command_line(), "environment": facts, "notes": notes, "settings": settings}
    results |= {"tokenizer": tokenizer_of(policy), **summary(lines)}
    unpaired = None
    if other is not None:
        try:
            results["against"] = {"folder": against.name if against else "", **paired(lines, other)}
        except ActionPieceError as error:  # said last: it must not cost the results
            unpaired = error
    write_json(out / "results.json", results)
    if json:
        print_json(results)
    else:
        _say_rollout(results, out)
    if results["errors"]:
        broken = next(line for line in lines if "error" in line)
        raise ActionPieceError(
            f"{results['errors']} episodes crashed and are not counted, the first ({broken['key']}) with"
            f" {broken['error']}; run the command again to try them once more"
        )
    if unpaired is not None:
        raise unpaired


def _say_rollout(results: dict[str, Any], out: Path) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("task", "succeeded", "share", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for name, share in {**results["tasks"], "all": results["overall"]}.items():
        if share:
            counts = f"{share['successes']} of {share['episodes']}"
            table.add_row(name, counts, f"{share['success']:.1%}", f"{share['low']:.1%} to {share['high']:.1%}")
    console.print(table)
    for note in results["notes"]:
        say(note)
    if test := results.get("against"):
        say(
            f"On {test['starts']} episodes that both have: {test['only_first']} only here,"
            f" {test['only_second']} only in {test['folder']}; p = {test['p']:.3g} (exact McNemar)."
        )
    say(f"Episodes: {out / 'episodes.jsonl'}   Figures: {out / 'results.json'}")
