"""`policy train`: its defaults are those of the recipe it names."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from actionpiece.commands.console import progress, say
from actionpiece.errors import ActionPieceError
from actionpiece.options import DataOptions, Seed

_VIEWS = {"agent": "image", "wrist": "wrist_image"}  # what the recorder calls them, and what policies are shown


def train_command(arguments: Sequence[str]) -> Callable[..., None]:
    """The function behind `actionpiece policy train`, with the defaults of the recipe that the arguments name."""
    from actionpiece.policy.recipes import RECIPES

    named = [b for a, b in zip(arguments, [*arguments[1:], ""], strict=True) if a == "--recipe"]
    named += [a.partition("=")[2] for a in arguments if a.startswith("--recipe=")]
    name = named[-1] if named else "small"
    if name not in RECIPES:
        raise ActionPieceError(f"there is no recipe '{name}'; there are {', '.join(RECIPES)}")
    default = RECIPES[name]()

    def train(
        source: Any,
        tokenizer: str,
        out: Path,
        vlm: str = "small",
        recipe: str = name,
        config: Any = default,
        cameras: tuple[str, ...] = (),
        side: int = 0,
        state: bool = False,
        block: int = 1,
        questions: Path | None = None,
        seed: Seed = 0,
        device: str = "cpu",
        precision: Literal["mixed", "bf16", "float32"] = "mixed",
        deepspeed: bool = False,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        from actionpiece.arrays import check_device
        from actionpiece.files import check_folder, check_replaceable
        from actionpiece.policy.checkpoint import holds_state
        from actionpiece.policy.examples import Lookings, PolicyExamples
        from actionpiece.policy.model import POLICY, ActionPolicy, PolicyConfig, written_files
        from actionpiece.policy.questions import Questions, read_questions
        from actionpiece.policy.text import SIZES
        from actionpiece.policy.training import Material, train_policy
        from actionpiece.tokenizers import load
        from actionpiece.training import is_first, leave

        check_device(device)
        place = out.absolute()  # "." has no name
        run = place.with_name(f"{place.name}.run")
        check_replaceable(out, POLICY, written_files(out))  # better known now than after the training
        check_folder(place.parent)
        if not (resume or overwrite):
            if (out / POLICY).is_file():
                raise ActionPieceError(f"{out} holds a policy already; --overwrite replaces it")
            if holds_state(run):
                raise ActionPieceError(
                    f"{run} holds an interrupted training: --resume goes on from there, --overwrite begins anew"
                )
        actions = load(tokenizer)
        demos = source.open()
        if demos.space.groups != actions.space.groups:
            raise ActionPieceError(f"{demos.name} and the tokenizer {tokenizer} do not have the same action space")
        asked = read_questions(questions) if questions is not None else None
        if asked is None and recipe == "paper":
            say("The paper trains on image questions too, with a weight of 0.1: name some with --questions.")
        with progress() as show:
            show(0.0, "reading pictures")
            chosen = list(cameras or demos.cameras)
            if not chosen:
                raise ActionPieceError(f"{demos.name} holds no pictures, or keeps them as videos, which are not read")
            lookings = Lookings.of(demos, chosen, actions.horizon)
            split = demos.split()
            low, high = lookings.among(split.train).state_range() if state else ((), ())
            views = tuple(_VIEWS.get(camera, camera) for camera in chosen)
            settings = PolicyConfig(views, side or (lookings.side() if vlm in SIZES else 224), state, low, high, block)
            if vlm in SIZES:
                corpus = sorted({*lookings.instructions, *([q.question + " " + q.answer for q in asked or ()])})
                policy = ActionPolicy.untrained(vlm, tokenizer=actions, corpus=corpus, config=settings, seed=seed)
            else:
                policy = ActionPolicy.from_vlm(vlm, tokenizer=actions, config=settings, seed=seed)
            # There are many chunks to encode. Each process has its GPU, which accelerate chooses only later.
            actions.to(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if device == "cuda" else device)
            material = Material(
                PolicyExamples(lookings.among(split.train), policy),
                PolicyExamples(lookings.among(split.validation), policy),
                Questions(asked, policy) if asked is not None else None,
            )
            actions.cpu()
            train_policy(
                policy,
                material,
                config,
                seed=seed,
                device=device,
                precision=precision,
                deepspeed=deepspeed,
                folder=run,
                resume=resume,
                progress=show,
            )
        first = is_first()
        leave()
        if not first:  # several processes trained one policy
            return
        policy.save(out)
        say(f"Trained on {len(material.train):,} looks of {demos.name} with {actions.kind} tokens; saved in {out}.")
        following = ["actionpiece", "rollout", "--policy", str(out), "--env", "lift", "--out", f"{out}.rollouts"]
        say(f"Next: {shlex.join(following)}")

    train.__annotations__ = {
        "source": tyro.conf.OmitArgPrefixes[DataOptions],
        "tokenizer": str,
        "out": Path,
        "vlm": str,
        "recipe": str,
        "config": tyro.conf.OmitArgPrefixes[type(default)],  # type: ignore[misc]
        "cameras": Annotated[
            tuple[str, ...], tyro.conf.arg(metavar="NAME [NAME ...]", help_behavior_hint="(default: all)")
        ],
        "side": int,
        "state": bool,
        "block": int,
        "questions": Annotated[Path | None, tyro.conf.arg(metavar="FILE")],
        "seed": Seed,
        "device": str,
        "precision": Literal["mixed", "bf16", "float32"],
        "deepspeed": bool,
        "resume": bool,
        "overwrite": bool,
        "return": None,
    }
    train.__doc__ = """Train a policy on demonstrations with pictures: next-token prediction of a tokenizer's ids.

    `torchrun --nproc_per_node=8 -m actionpiece policy train …` shares the training among processes.

    Args:
        tokenizer: folder of a fitted action tokenizer, or the name of one that comes trained, such as libero, or of
            a repository on the Hugging Face hub (owner/name).
        out: folder for the policy. Log and checkpoint are kept in OUT.run beside it.
        vlm: `small` or `tiny`, untrained Qwen3-VL models that need no download; or a folder or hub name of
            released Qwen3-VL weights, such as Qwen/Qwen3-VL-4B-Instruct.
        recipe: whose defaults to take: `small`, or `paper` for released weights on several GPUs.
        cameras: of the data, in the order in which the model sees them.
        side: of the pictures the model sees, a multiple of 32; the data's own for untrained models, else 224.
        state: write the robot's state into the prompt, as whole numbers over its range in the training data.
        block: tokens that are predicted at once; the number of slots fits level-major tokenizers.
        questions: JSON lines of image, question and answer to train on beside the demonstrations.
        seed: of everything random.
        device: cpu or cuda.
        precision: on a GPU: weights in float32 and products in bfloat16; all in bfloat16; or all in float32.
        deepspeed: ZeRO-2, with the settings that come with the package.
        resume: go on from the checkpoint of an interrupted training.
        overwrite: replace a policy that is there, or begin anew where a training was interrupted.
    """
    return train
