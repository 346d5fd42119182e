"""`Demos`: episodes of one or more files as one list, with what their cards say applied."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actionpiece.data.card import Card
from actionpiece.data.idle import idle_steps
from actionpiece.data.reader import Actions, Indices, Look, Reader, Start
from actionpiece.data.split import Split, SplitRule
from actionpiece.errors import ActionPieceError
from actionpiece.space import PRESETS, ActionSpace


@dataclass(frozen=True)
class Member:
    """One file or LeRobot folder with its card.

    label: its name in reports, relative to what was opened, so that no machine's paths are recorded.
    episodes: the stored episodes that the card keeps.
    """

    reader: Reader
    card: Card
    label: str
    episodes: Indices

    @classmethod
    def of(cls, reader: Reader, card: Card, label: str) -> Member:
        """Check the card against the data and apply its `keep`."""
        if card.clip is not None and len(card.clip) != reader.dim:
            raise ActionPieceError(
                f"{card.path}: clip has {len(card.clip)} bounds, but actions have {reader.dim} columns"
            )
        episodes = np.arange(len(reader.lengths), dtype=np.int64)
        if card.keep is not None:
            episodes = np.flatnonzero(reader.mask(card.keep)).astype(np.int64)
            if len(episodes) == 0:
                raise ActionPieceError(f"{card.path}: keep '{card.keep}' leaves no episode of {label}")
        return cls(reader, card, label, episodes)

    @property
    def where(self) -> str:
        """How errors name it."""
        return str(self.reader.path or self.reader.name)

    def digest(self) -> str:
        """sha256 of the files that hold its actions, and of its card and the action space that this names."""
        return self.reader.digest(*self.card.files)

    def raw(self, position: int) -> Actions:
        """The actions of a kept episode as stored."""
        return self.reader.read(int(self.episodes[position]))

    def episode(self, position: int) -> Actions:
        """The same, checked for finite values and clipped as the card says; a fresh array."""
        actions = self.raw(position)
        if not np.isfinite(actions).all():
            bad = np.argwhere(~np.isfinite(actions))
            raise ActionPieceError(
                f"{self.where}: episode {self.episodes[position]} holds {len(bad)} values that are not finite"
                f" (NaN or infinity), the first at step {bad[0][0]}, column {bad[0][1]}"
            )
        if self.card.clip is None:
            return actions.copy()
        bound = np.asarray(self.card.clip, np.float32)
        return np.clip(actions, -bound, bound)

    def describe(self) -> dict[str, Any]:
        """Plain facts about this member."""
        clip = self.card.clip
        return {
            "name": self.label,
            "episodes": len(self.episodes),
            "keep": self.card.keep,
            "clip": None if clip is None else [bound if math.isfinite(bound) else None for bound in clip],
            "split": "card" if self.card.split else "default",
            "licence": self.licence,
            "note": self.note,
        }

    @property
    def licence(self) -> str:
        """The card's word before the file's."""
        return self.card.licence or self.reader.licence

    @property
    def note(self) -> str:
        """The card's word before the file's."""
        return self.card.note or self.reader.note


class Demos:
    """Demonstrations, opened by `open_demos`: a list of episodes that are read when asked for.

    name: short, for reports. dim: columns of an action. members: the files and LeRobot folders, with their cards.
    drop_idle: the threshold below which steps count as idle and are left out, or None. action_key: the column that was
    asked for, or None for the usual one.
    """

    def __init__(
        self,
        name: str,
        members: Sequence[Member],
        space: ActionSpace | None = None,
        drop_idle: float | None = None,
        action_key: str | None = None,
    ) -> None:
        self.name = name
        self.drop_idle = drop_idle
        self.dim = members[0].reader.dim
        self.members = tuple(members)
        self._ends = np.cumsum([len(member.episodes) for member in members])
        for rule, episodes, where in self._card_rules()[0]:
            rule.apply(len(episodes), where)  # a split that cannot be made is better known now
        self._space, self._without_space = _common_space(members, space)
        # What was asked for beyond the cards makes other chunks of the same files.
        self._asked = [f"idle {drop_idle:g}"] if drop_idle is not None else []
        if action_key is not None:
            self._asked.append(f"column {action_key}")
        if space is not None and any(not _alike(space, member.card.space) for member in members):
            self._asked.append(f"space {space.groups} {space.rate}")
        self._lengths: Indices | None = None
        self._fingerprint: str | None = None
        if drop_idle is not None:
            if not drop_idle >= 0:
                raise ActionPieceError(f"drop_idle is a threshold and must not be negative, as {drop_idle} is")
            _ = self.space  # idle steps cannot be told without knowing what the columns mean

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files and LeRobot folders behind the episodes; none for generated ones."""
        return tuple(member.reader.path for member in self.members if member.reader.path is not None)

    @property
    def lengths(self) -> Indices:
        """Steps of each episode, (episodes,) int64. With `drop_idle` the first look reads every episode once."""
        if self._lengths is None:
            if self.drop_idle is None:
                parts = [member.reader.lengths[member.episodes] for member in self.members]
                self._lengths = np.concatenate(parts)
            else:
                self._lengths = np.array([len(self.episode(i)) for i in range(len(self))], np.int64)
        return self._lengths

    def _locate(self, index: int) -> tuple[Member, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"episode {index} of {len(self)}")
        number = int(np.searchsorted(self._ends, index, "right"))
        return self.members[number], int(index) - (int(self._ends[number - 1]) if number else 0)

    def raw(self, index: int) -> Actions:
        """An episode (T, D) as stored: not clipped, not checked, idle steps included. Not to be written to."""
        member, position = self._locate(index)
        return member.raw(position)

    def episode(self, index: int) -> Actions:
        """An episode (T, D) float32: finite, clipped as its card says, without idle steps if that was asked for."""
        member, position = self._locate(index)
        actions = member.episode(position)
        if self.drop_idle is not None:
            actions = actions[~idle_steps(actions, self.space, self.drop_idle)]
        return actions

    @property
    def space(self) -> ActionSpace:
        """What the columns mean; an error if neither a card nor the caller said so."""
        if self._space is None or self._without_space:
            who = self._without_space or self.name
            raise ActionPieceError(
                f"the action space of {who} is not known: pass --space ({', '.join(PRESETS)}, joints:N, or a JSON file)"
                " or write a data card with a 'space' entry"
            )
        return self._space

    @property
    def known_space(self) -> ActionSpace | None:
        """The action space, or None where `space` would be an error."""
        return None if self._without_space else self._space

    @property
    def rate(self) -> float | None:
        """Control rate in Hz: the card's, else the file's, else the action space's; None if unknown or not one."""
        default = self.known_space.rate if self.known_space else None
        rates = {member.card.rate or member.reader.rate or default for member in self.members}
        return rates.pop() if len(rates) == 1 else None

    @property
    def tasks(self) -> list[str] | None:
        """An instruction for each episode (empty where a file has none), or None if no file has any."""
        if all(member.reader.tasks is None for member in self.members):
            return None
        tasks: list[str] = []
        for member in self.members:
            texts = member.reader.tasks or [""] * len(member.reader.lengths)
            tasks.extend(texts[i] for i in member.episodes)
        return tasks

    @property
    def starts(self) -> list[Start | None]:
        """For each episode where it began in the simulator, or None where its file does not say."""
        starts: list[Start | None] = []
        for member in self.members:
            known = member.reader.starts()
            starts.extend(None if known is None else known[i] for i in member.episodes)
        return starts

    @property
    def cameras(self) -> list[str]:
        """The cameras of which every member has pictures."""
        first, *others = [member.reader.cameras() for member in self.members]
        return [name for name in first if all(name in names for names in others)]

    def looks(self, cameras: Sequence[str]) -> Iterator[Look]:
        """Every step of every episode at which all of these cameras took a picture."""
        if self.drop_idle is not None:
            raise ActionPieceError("pictures belong to the steps as recorded; leave idle steps in to look at them")
        first = 0
        for member in self.members:
            kept = {int(stored): first + position for position, stored in enumerate(member.episodes)}
            for look in member.reader.looks(cameras):
                if look.episode in kept:
                    yield dataclasses.replace(look, episode=kept[look.episode])
            first += len(member.episodes)

    @property
    def licence(self) -> str:
        """What cards and files say about the licence, each once."""
        return "; ".join(dict.fromkeys(member.licence for member in self.members if member.licence))

    @property
    def note(self) -> str:
        """What cards and files note, each once."""
        return "; ".join(dict.fromkeys(member.note for member in self.members if member.note))

    @property
    def generated(self) -> bool:
        """Whether any of the episodes were made by a program and not by a robot or a person."""
        return any(member.reader.generated for member in self.members)

    def fingerprint(self) -> str:
        """sha256 over the files that hold actions, over their cards, and over what was asked for beyond the cards (a
        space, a column, no idle steps); videos are not looked at.
        """
        if self._fingerprint is None:
            parts = [*(member.digest() for member in self.members), *self._asked]
            self._fingerprint = parts[0] if len(parts) == 1 else hashlib.sha256(" ".join(parts).encode()).hexdigest()
        return self._fingerprint

    def _rules(self, seed: int) -> list[tuple[SplitRule, Indices, str]]:
        """A rule for each card that has one, and the default one for all other episodes together."""
        rules, rest = self._card_rules()
        if len(rest):
            where = self.name if not rules else f"{self.name} without its members with a split of their own"
            rules.append((SplitRule.default(len(rest), seed, where), rest, where))
        return rules

    def _card_rules(self) -> tuple[list[tuple[SplitRule, Indices, str]], Indices]:
        """A rule for each card that has one, with the episodes of all its members; and all other episodes."""
        starts = np.concatenate(([0], self._ends))
        ruled: dict[str, tuple[SplitRule, list[Indices]]] = {}
        others: list[Indices] = [np.arange(0, dtype=np.int64)]
        for number, (member, start, end) in enumerate(zip(self.members, starts[:-1], starts[1:], strict=True)):
            episodes = np.arange(start, end, dtype=np.int64)
            if member.card.split is None:
                others.append(episodes)
            else:
                place = str(member.card.path or number)
                ruled.setdefault(place, (member.card.split, []))[1].append(episodes)
        return [(rule, np.concatenate(parts), place) for place, (rule, parts) in ruled.items()], np.concatenate(others)

    def split(self, seed: int = 0) -> Split:
        """Whole episodes for train, validation and test, in drawn order.

        A card's split is followed, with the card's seed. Episodes of files without one are pooled and split by
        `seed`: a tenth for test, a tenth for validation, at least one each.
        """
        return Split.union(
            [rule.apply(len(episodes), where).of(episodes) for rule, episodes, where in self._rules(seed)]
        )

    def describe_split(self, seed: int = 0) -> dict[str, Any]:
        """By which seeds it is made and how many episodes each part has, or what the problem with it is."""
        try:
            return {"seeds": [rule.seed for rule, _, _ in self._rules(seed)], **self.split(seed).counts()}
        except ActionPieceError as error:  # data that cannot be split can still be described
            return {"problem": str(error)}

    def describe(self, seed: int = 0, tail: str = "drop") -> dict[str, Any]:
        """Plain facts to be written beside a result: what was read, how it was cut, and under which licence."""
        space = self.known_space
        return {
            "name": self.name,
            "generated": self.generated,
            "fingerprint": self.fingerprint(),
            "space": space.name if space else None,
            "dim": self.dim,
            "rate": self.rate,
            "episodes": len(self),
            "steps": int(self.lengths.sum()),
            "split": self.describe_split(seed),
            "idle": "kept" if self.drop_idle is None else f"steps within {self.drop_idle:g} of rest left out",
            "tail": tail,
            "licence": self.licence,
            "note": self.note,
            "files": [member.describe() for member in self.members],
        }


def _alike(one: ActionSpace, other: ActionSpace | None) -> bool:
    """Whether they mean the same commands."""
    return other is not None and (one.groups, one.rate) == (other.groups, other.rate)


def _common_space(members: Sequence[Member], given: ActionSpace | None) -> tuple[ActionSpace | None, str]:
    """The space all members share, and the first of them that has none; two that differ are an error."""
    first, known, without = members[0], None, ""
    for member in members:
        space = given or member.card.space
        if member.reader.dim != first.reader.dim:
            raise ActionPieceError(
                f"{first.where} has actions of {first.reader.dim} columns and {member.where} of {member.reader.dim};"
                " they cannot be used together"
            )
        if space is None:
            without = without or member.where
            continue
        if space.dim != member.reader.dim:
            raise ActionPieceError(
                f"{member.where} has actions of {member.reader.dim} columns,"
                f" but the action space '{space.name}' has {space.dim}"
            )
        # Names and notes may differ: robosuite and libero mean the same commands.
        if known is not None and not _alike(space, known[1]):
            raise ActionPieceError(
                f"{known[0].where} is in the action space '{known[1].name}' and {member.where} in '{space.name}';"
                " they cannot be used together"
            )
        known = known or (member, space)
    return (known[1] if known else None), without
