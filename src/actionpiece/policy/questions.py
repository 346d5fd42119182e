"""Image questions for co-training: JSON lines of image, question and answer.

    {"image": "pictures/0001.jpg", "question": "What is on the table?", "answer": "A red cube."}

Images are paths beside the file. Robots' data alone would make the model forget what it knew of pictures and words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.policy.examples import decode_picture, open_picture
from actionpiece.policy.model import ActionPolicy
from actionpiece.policy.prompt import Prompter, learning_inputs
from actionpiece.policy.text import IM_END


@dataclass(frozen=True)
class Question:
    """One line of the file."""

    image: Path
    question: str
    answer: str


def read_questions(path: Path) -> list[Question]:
    """The questions of a file; a line that is none is an error that names it."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ActionPieceError(f"{path} is not readable text: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            values = row["image"], row["question"], row["answer"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ActionPieceError(f"{path}: line {number} is no image, question and answer: {error}") from None
        if not all(isinstance(value, str) and value for value in values):
            raise ActionPieceError(f"{path}: image, question and answer of line {number} must be texts")
        question = Question(path.parent / values[0], values[1], values[2])
        if not question.image.is_file():
            raise ActionPieceError(f"{path}: line {number} names {question.image}, which does not exist")
        open_picture(question.image.read_bytes(), str(question.image))
        try:
            (question.question + question.answer).encode()
        except UnicodeEncodeError:
            raise ActionPieceError(f"{path}: line {number} cannot be written as UTF-8") from None
        found.append(question)
    if not found:
        raise ActionPieceError(f"{path} holds no questions")
    return found


class Questions:
    """Questions as a policy's model reads them."""

    def __init__(self, questions: Sequence[Question], policy: ActionPolicy) -> None:
        self.questions, self.policy = questions, policy
        side, patch = policy.config.side, policy.vlm.config.vision_config.patch_size
        self.prompter = Prompter(policy.text, views=1, side=side, patch=patch, task="{instruction}")

    def __len__(self) -> int:
        return len(self.questions)

    def digest(self) -> str:
        """sha256 of questions, answers and the pictures' names."""
        rows = [(question.image.name, question.question, question.answer) for question in self.questions]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    def inputs(self, index: Sequence[int]) -> dict[str, Tensor]:
        """What `loss` takes, on the CPU. Targets stand where the model is to predict them; -100 elsewhere."""
        chosen = [self.questions[n] for n in index]
        shots = [decode_picture(q.image.read_bytes(), self.policy.config.side, str(q.image)) for q in chosen]
        prompts = [self.prompter.ids(q.question.strip()) for q in chosen]
        answers = [[*self.prompter.plain(q.answer), self.policy.text.convert_tokens_to_ids(IM_END)] for q in chosen]
        pictures = torch.stack([torch.from_numpy(shot) for shot in shots])[:, None]
        longest = max(len(answer) for answer in answers)
        targets = torch.full((len(chosen), longest), -100)
        for row, answer in enumerate(answers):
            targets[row, longest - len(answer) :] = torch.tensor(answer)
        rows = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
        return learning_inputs(self.prompter, rows, targets, pictures, ahead=1)


def answer_loss(learner: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """The sum of the next-token losses of all answers' tokens."""
    logits = learner(**{name: value for name, value in inputs.items() if name != "targets"})
    targets = inputs["targets"]
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum")
