"""What several commands ask for: which demonstrations, and what is scored. No torch, so that `--help` is quick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from actionpiece.data import Demos
    from actionpiece.evaluation.score import Protocol
    from actionpiece.space import ActionSpace

_SEEDS = 1 << 32  # numpy, torch and the simulators all take as many


def _seed(given: list[str]) -> int:
    try:
        seed = int(given[0])
    except ValueError:
        raise ValueError(f"a seed is a whole number, not {given[0]}") from None
    if not 0 <= seed < _SEEDS:
        raise ValueError(f"a seed is a whole number from 0 to {_SEEDS - 1}, not {seed}")
    return seed


Seed = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=_seed,
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda seed: [str(seed)],
    ),
]


def names_in(words: Sequence[str]) -> list[str]:
    """Names that were typed with commas or blanks between them; a folder whose own name has a comma is one."""
    return [
        name.strip() for word in words for name in ([word] if Path(word).is_dir() else word.split(",")) if name.strip()
    ]


@dataclass(frozen=True)
class DataOptions:
    """Which demonstrations, and what their columns mean.

    Attributes:
        data: one or more npz or HDF5 files, LeRobot folders, folders of these, or the word `recorded`: demonstrations
            that come with the package.
        space: libero, vla_arena, bridge, droid, aloha, robosuite, joints:N, or a JSON file. Not needed when a data
            card says it.
        action_key: name of the action column or dataset, where it is not the usual one.
        drop_idle: leave out steps that move less than this, in raw units.
    """

    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PATH [PATH ...]")]
    space: Annotated[str | None, tyro.conf.arg(metavar="SPACE")] = None
    action_key: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    drop_idle: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None

    def open(self, default: ActionSpace | None = None) -> Demos:
        """Open the demonstrations; `default` is the action space where neither a flag nor a card names one."""
        from actionpiece.data import open_demos

        def opened(space: ActionSpace | str | None) -> Demos:
            return open_demos(*self.data, space=space, action_key=self.action_key, drop_idle=self.drop_idle)

        if default is None or self.space is not None:
            demos = opened(self.space)
            if self.space is not None:
                _say_what_is_overridden(demos)
            return demos
        known = open_demos(*self.data, action_key=self.action_key).known_space
        return opened(None if known is not None else default)

    def flags(self) -> list[str]:
        """The flags that name the same demonstrations again."""
        named = {"--space": self.space, "--action-key": self.action_key, "--drop-idle": self.drop_idle}
        rest = [word for flag, value in named.items() if value is not None for word in (flag, str(value))]
        return ["--data", *self.data, *rest]


def _say_what_is_overridden(demos: Demos) -> None:
    """A wrong action space with the right number of columns would go unseen in every figure."""
    from actionpiece.commands.console import note

    cards = [member.card for member in demos.members if member.card.space is not None]
    said = next((card.space.name for card in cards if card.space and card.space.groups != demos.space.groups), None)
    if said is not None:
        note(f"The card of {demos.name} says {said}; --space {demos.space.name} takes its place.")


@dataclass(frozen=True)
class ScoreOptions:
    """What is scored.

    Attributes:
        split: episodes to score. The test split is for figures you publish; choose anything on validation.
        n: chunks drawn from it.
        k: neighbours of physical rank consistency.
        draw_seed: of the draw of the chunks.
    """

    split: Literal["test", "validation", "train", "all"] = "test"
    n: int = 10_000
    k: int = 32
    draw_seed: Seed = 0

    def protocol(self, horizon: int) -> Protocol:
        """The same as the scoring room wants it."""
        from actionpiece.evaluation.score import Protocol

        return Protocol(split=self.split, horizon=horizon, n=self.n, k=self.k, seed=self.draw_seed)
