"""`actionpiece fit NAME`: its flags are those of the tokenizer it names."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tyro

from actionpiece.commands.console import note_few_chunks, progress, say
from actionpiece.errors import ActionPieceError
from actionpiece.normalize import Way
from actionpiece.options import DataOptions, Seed


def fit_command(name: str) -> Callable[..., None]:
    """The function behind `actionpiece fit NAME`, with the flags of that tokenizer's configuration."""
    from actionpiece.tokenizers import KINDS, RECIPES, recipe

    kind, default = recipe(name)

    def command(
        source: Any,
        out: Path,
        config: Any = default,
        horizon: int = 8,
        normalizer: Way = "minmax",
        seed: Seed = 0,
        device: str = "cpu",
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        from actionpiece.evaluation.contenders import fit
        from actionpiece.evaluation.score import Training
        from actionpiece.files import check_folder
        from actionpiece.tokenizers.saving import check_savable
        from actionpiece.training import is_first, leave

        place = out.absolute()  # "." has no name
        run = place.with_name(f"{place.name}.run")
        check_savable(out)  # better known now than after the fit
        check_folder(place.parent)
        if not overwrite:
            _check_nothing_lost(out, run, resume=resume)
        demos = source.open()
        with progress() as show:
            show(0.0, "reading demonstrations")
            training = Training.of(demos, horizon)
            tokenizer = fit(
                kind,
                demos,
                training,
                config=config,
                normalizer=normalizer,
                seed=seed,
                run=run,
                resume=resume,
                device=device,
                progress=lambda fraction, what: show(fraction, f"{name}: {what}"),
            )
        leave()
        if not is_first():  # several processes trained one tokenizer
            return
        if name in RECIPES:
            tokenizer.provenance["recipe"] = name
        tokenizer.save_pretrained(out)
        say(f"Fitted {name} on {len(training.chunks):,} training chunks of {demos.name}; saved in {out}.")
        note_few_chunks(name, config, len(training.chunks))
        say(f"Next: {shlex.join(['actionpiece', 'eval', str(out), *source.flags()])}")

    command.__annotations__ = {
        "source": tyro.conf.OmitArgPrefixes[DataOptions],
        "out": Path,
        "config": tyro.conf.OmitArgPrefixes[type(default)],  # type: ignore[misc]
        "horizon": int,
        "normalizer": Way,
        "seed": Seed,
        "device": str,
        "resume": bool,
        "overwrite": bool,
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
        overwrite: replace a tokenizer that is there, or begin anew where a training was interrupted.
    """
    return command


def _check_nothing_lost(out: Path, run: Path, *, resume: bool) -> None:
    """A tokenizer may have taken hours, and so may the beginning of one."""
    from actionpiece.tokenizers.saving import CONFIG
    from actionpiece.training.checkpoint import saved_step

    step = saved_step(run)
    if resume and step is not None:  # it is the same training, or an error
        return
    if (out / CONFIG).is_file():
        raise ActionPieceError(f"{out} holds a tokenizer already; --overwrite replaces it")
    if step is not None:
        raise ActionPieceError(
            f"{run} holds a training that came to step {step:,}: --resume goes on from there, --overwrite begins anew"
        )
