"""Training of a policy: next-token loss on action ids, by one process or many, through accelerate.

Batches, and how their pictures are changed, depend on seed and step alone, so that a run that was resumed, or shared
among processes, sees the same examples. Checkpoints are safetensors files, written aside and renamed; under DeepSpeed,
whose moments are shared among processes, they are its own.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from actionpiece.errors import ActionPieceError, not_installed
from actionpiece.metrics.fidelity import fidelity
from actionpiece.policy.checkpoint import forget_state, load_state, save_state
from actionpiece.policy.examples import Changes, PolicyExamples, augmented
from actionpiece.policy.model import ActionPolicy
from actionpiece.policy.questions import Questions, answer_loss
from actionpiece.policy.recipes import PolicyTrainConfig
from actionpiece.training.log import Log, line

Precision = Literal["mixed", "bf16", "float32"]
Progress = Callable[[float, str], None]

ZERO2 = Path(__file__).with_name("zero2.json")  # DeepSpeed's settings
_GENERATED = 64  # chunks generated at a time in validation


@dataclass(frozen=True)
class Material:
    """What a policy is trained on and looked at with."""

    train: PolicyExamples
    validation: PolicyExamples
    questions: Questions | None = None


def train_policy(
    policy: ActionPolicy,
    material: Material,
    config: PolicyTrainConfig,
    *,
    seed: int = 0,
    device: str = "cpu",
    precision: Precision = "mixed",
    deepspeed: bool = False,
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress = lambda fraction, what: None,
) -> None:
    """Train the policy in place.

    precision: `mixed` keeps weights in float32 and multiplies in bfloat16 on a GPU; `bf16` keeps weights and moments
        in bfloat16, which takes half the memory; `float32` throughout.
    deepspeed: ZeRO-2 with the settings in `zero2.json`. folder: for the log and the checkpoint.
    """
    accelerator = _accelerator(device, precision, deepspeed, config)
    ranks = accelerator.num_processes
    if config.batch % ranks or (material.questions is not None and config.cotrain_batch % ranks):
        raise ActionPieceError(
            f"batches of {config.batch} and {config.cotrain_batch} are not shared by {ranks} processes"
        )
    policy.forget_plans()
    # Buffers stay as they are: angles of positions in bfloat16 would be other positions, and are not saved.
    buffers = {name: buffer.detach().clone() for name, buffer in policy.vlm.named_buffers()}
    policy.vlm.to(accelerator.device, torch.bfloat16 if precision == "bf16" else torch.float32)
    optimizer = torch.optim.AdamW(
        _groups(policy.vlm, config.weight_decay),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=accelerator.device.type == "cuda" and not deepspeed,
    )
    learner, optimizer = accelerator.prepare(policy.learner(recompute=config.checkpointing), optimizer)
    for name, buffer in policy.vlm.named_buffers():
        buffer.data = buffers[name].to(buffer.device)
    run = _Run(policy, learner, optimizer, accelerator, material, config, seed)
    about = _about(policy, material, config, seed, precision)
    done = 0
    if resume:
        if folder is None:
            raise ActionPieceError("there is nothing to resume without a folder")
        done = load_state(folder, accelerator, policy.vlm, optimizer, about)
    elif folder is not None and accelerator.is_main_process:
        forget_state(folder)  # of another run, which a later --resume would take for this one's
    log = (
        Log(folder, done, tensorboard=config.tensorboard)
        if folder is not None and accelerator.is_main_process
        else None
    )
    totals: dict[str, Tensor] = {}
    since = 0
    for step in range(done, config.steps):
        values = run.step(step)
        totals = {name: totals.get(name, 0.0) + value for name, value in values.items()}
        since, done = since + 1, step + 1
        validates = done % config.validate_every == 0 or done == config.steps
        if done % 20 and not validates and done % config.checkpoint_every:
            continue
        report = {name: float(accelerator.reduce(value, "mean")) / since for name, value in totals.items()}
        totals, since = {}, 0
        if not all(math.isfinite(value) for value in report.values()):
            raise ActionPieceError(
                f"the loss is not finite at step {done} ({line(report)}); the last checkpoint is kept"
            )
        if validates:
            if accelerator.is_main_process:
                report |= validate(policy, material.validation, config.validate_chunks, seed)
            accelerator.wait_for_everyone()
            policy.vlm.train()
        if log is not None:
            log.write(done, report)
        progress(done / config.steps, line(report))
        if folder is not None and (done % config.checkpoint_every == 0 or done == config.steps):
            save_state(folder, accelerator, policy.vlm, optimizer, about, done)
    policy.vlm.eval()
    policy.forget_plans()


def _accelerator(device: str, precision: Precision, deepspeed: bool, config: PolicyTrainConfig) -> Any:
    try:
        import accelerate
    except ImportError as error:
        raise not_installed(error, "policy") from None
    plugin = None
    if deepspeed:
        if device == "cpu" and os.environ.get("DS_ACCELERATOR") != "cpu":
            raise ActionPieceError("DeepSpeed wants GPUs: say --device cuda, or leave out --deepspeed")
        try:
            plugin = accelerate.DeepSpeedPlugin(hf_ds_config=str(ZERO2), gradient_clipping=config.clip)
        except ImportError as error:
            raise ActionPieceError(f"{error}; pip install deepspeed") from None
    mixed = "bf16" if device != "cpu" and precision != "float32" else "no"
    try:
        accelerator = accelerate.Accelerator(
            cpu=device == "cpu" and not deepspeed, mixed_precision=mixed, deepspeed_plugin=plugin
        )
    except ValueError as error:  # accelerate settles these once for a process
        raise ActionPieceError(f"training cannot be set up like this here: {error}") from None
    if plugin is not None:  # DeepSpeed would ask a data loader, of which there is none
        plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = config.batch // accelerator.num_processes
    return accelerator


def _about(
    policy: ActionPolicy, material: Material, config: PolicyTrainConfig, seed: int, precision: Precision
) -> dict[str, Any]:
    """Everything that decides how a training goes: a checkpoint is of one run, and of no other."""
    model = policy.vlm.config.to_dict()
    digests = {"train": material.train.digest(), "validation": material.validation.digest()}
    if material.questions is not None:
        digests["questions"] = material.questions.digest()
    return {
        "config": dataclasses.asdict(config),
        "seed": seed,
        "precision": precision,
        "policy": dataclasses.asdict(policy.config),
        "vocabulary": dataclasses.asdict(policy.vocabulary),
        "model": {part: model[part] for part in ("text_config", "vision_config")},
        "examples": digests,
    }


def _groups(model: torch.nn.Module, decay: float) -> list[dict[str, Any]]:
    """Decay is for matrices; norms and biases are left alone."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


@dataclass
class _Run:
    policy: ActionPolicy
    learner: Any
    optimizer: Any
    accelerator: Any
    material: Material
    config: PolicyTrainConfig
    seed: int

    @property
    def _rank(self) -> int:
        return int(self.accelerator.process_index)

    @property
    def _ranks(self) -> int:
        return int(self.accelerator.num_processes)

    def step(self, number: int) -> dict[str, Tensor]:
        """One optimiser step; the loss per token and the share of tokens predicted right, of this process."""
        self.learner.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate_at(number)
        inputs = self._mine(self.material.train, self.config.batch, number)
        if self.config.augment:
            changes = Changes.draw(self.config.batch * inputs["pictures"].shape[1], self.seed * 1_000_003 + number)
            inputs["pictures"] = augmented(inputs["pictures"], changes.part(self._rank, self._ranks))
        with self.accelerator.autocast():
            total, right, count = self.policy.loss(inputs, self.learner)
        values = {"loss": total.detach() / count, "accuracy": right / count}
        loss = total / self._share(count)
        if self.material.questions is not None and self.config.cotrain_weight:
            asked = self._mine(self.material.questions, self.config.cotrain_batch, number)
            with self.accelerator.autocast():
                said = answer_loss(self.learner, asked)
            words = int((asked["targets"] >= 0).sum())
            loss = loss + self.config.cotrain_weight * said / self._share(words)
            values["answers"] = said.detach() / words
        self.accelerator.backward(loss)
        norm = self.accelerator.clip_grad_norm_(self.learner.parameters(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return values if norm is None else values | {"gradient": torch.as_tensor(norm).detach()}

    def _share(self, count: int) -> float:
        """Tokens of all processes over the number of processes: gradients are averaged, and all tokens count alike."""
        if self.accelerator.num_processes == 1:
            return float(count)
        counts = torch.tensor(float(count), device=self.accelerator.device)
        return float(self.accelerator.reduce(counts, "mean"))

    def _mine(self, source: PolicyExamples | Questions, size: int, step: int) -> dict[str, Tensor]:
        index = batch_at(len(source), size, step, self.seed)
        inputs = source.inputs(index[self._rank * size // self._ranks : (self._rank + 1) * size // self._ranks])
        return {name: value.to(self.accelerator.device, non_blocking=True) for name, value in inputs.items()}


def batch_at(count: int, size: int, step: int, seed: int) -> list[int]:
    """The examples of a step: consecutive entries of one permutation after another, each drawn by seed and number."""
    chosen: list[int] = []
    at = step * size
    while len(chosen) < size:
        epoch, place = divmod(at, count)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        part = order[place : place + size - len(chosen)].tolist()
        chosen += part
        at += len(part)
    return chosen


@torch.no_grad()
def validate(policy: ActionPolicy, examples: PolicyExamples, count: int, seed: int = 0) -> dict[str, float]:
    """On held-out looks: the loss and the share of tokens right, and the error of generated commands.

    Commands are generated and decoded as a robot would get them, in millimetres and degrees.
    """
    policy.vlm.eval()
    chosen = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))[:count].tolist()
    if not chosen:
        return {}
    losses, rights, counts, decoded = 0.0, 0, 0, []
    device = policy.device
    for first in range(0, len(chosen), _GENERATED):
        part = chosen[first : first + _GENERATED]
        inputs = {name: value.to(device) for name, value in examples.inputs(part).items()}
        with torch.compiler.set_stance("force_eager"):  # other shapes: not worth compiling for
            loss, right, tokens = policy.loss(inputs)
        losses, rights, counts = losses + float(loss), rights + int(right), counts + tokens
        decoded.append(generated_commands(policy, [examples.prompts[n] for n in part], examples.pictures(part)))
    tokenizer = policy.tokenizer
    original = torch.from_numpy(examples.lookings.chunks[chosen])
    found = fidelity(original, torch.cat(decoded), space=tokenizer.space, normalizer=tokenizer.normalizer)
    errors = {f"val_{group.name}_{group.unit}": group.rmse for group in found.groups}
    return {"val_loss": losses / counts, "val_accuracy": rights / counts, **errors}


def generated_commands(policy: ActionPolicy, prompts: Sequence[Sequence[int]], pictures: Tensor) -> Tensor:
    """Commands (n, H, D) that the policy generates, on the CPU; a smaller last batch is filled up."""
    short = _GENERATED - len(prompts) if len(prompts) > 1 else 0
    rows = [*prompts, *[prompts[-1]] * short]
    filled = torch.cat((pictures, pictures[-1:].expand(short, -1, -1, -1, -1)))
    ids = policy.generate(policy.prompter.batch(rows, filled, pad="left")).ids[: len(prompts)]
    answer: Tensor = policy.tokenizer.decode(ids.cpu() if isinstance(ids, Tensor) else [i.cpu() for i in ids])
    return answer
