"""Comparisons with a name: lists of contenders, as data. `actionpiece compare --recipe NAME` runs one.

Tokenizers that this version does not have are listed as such, never an error: the lists name all that a comparison
should hold one day.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actionpiece.data import Demos
from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.contenders import LOOK_CHUNKS, Contender, fit, unfitted
from actionpiece.evaluation.score import Training
from actionpiece.files import read_json, write_json
from actionpiece.metrics.codes import code_use
from actionpiece.tokenizers import KINDS, RECIPES

BITS = 144  # 16 tokens of 512 codes, the paper's
_E24 = (10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91)
_SCALES = (*range(1, 10), *_E24, *(10 * value for value in _E24))  # of FAST, each about a tenth finer


@dataclass(frozen=True)
class Knob:
    """The setting by which a tokenizer is made to fit into some bits. values: to try, rising; empty: whole numbers."""

    setting: str
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A tokenizer of a table, with settings. knobs: the first one that it has makes it smaller or larger."""

    name: str
    knobs: tuple[Knob, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of a comparison. bits: each tokenizer is as large as fits in them; None: as its original work has it."""

    name: str
    about: str
    entries: tuple[Entry, ...]
    bits: float | None = None


_CODES, _BINS, _TOKENS = Knob("codes"), Knob("bins"), Knob("tokens")
_CLASSICAL = (Entry("binning", (_BINS,)), Entry("fast", (Knob("scale", _SCALES),)), Entry("spline", (_BINS,)))
_PQ = (Entry("pq", (_CODES,)), Entry("pq:blend=0.75:groups=balanced", (_CODES,)))
_LEARNED = (
    Entry("vqbet", (Knob("levels"),)),
    Entry("quest", (Knob("downsample", (8, 4, 2, 1)),)),
    Entry("oat", (_TOKENS,)),
    Entry("actioncodec", (_CODES,)),
    Entry("actioncodec-48"),
    Entry("fastervq", (_CODES,)),
    Entry("xtokenizer", (_CODES,)),
    Entry("rvq", (_CODES,)),
    Entry("actionpiece", (_CODES,)),
    Entry("best", (_CODES,)),
)
_TRAINED = (
    " Learned ones train alike, with the learning rate, batch and steps that the paper fixes, but for `best`, which has"
    " a training of its own, and where a name says otherwise; everyone's settings are in the JSON."
)
_NATIVE = "Every tokenizer as its original work has it: its own number of tokens and its own vocabulary." + _TRAINED
_WITHIN = (
    f"Every tokenizer as large as fits into {BITS} bits a chunk, by one setting; its idea is left as it is, so that"
    " QueST, whose tokens have 1,000 values, ends at one token a step, and ActionCodec has its 16 tokens, not 48 of"
    " three bits each. A setting that decides a varying length is chosen on validation chunks, so that the mean of the"
    " scored ones may differ a little." + _TRAINED
)


def _tables(entries: tuple[Entry, ...]) -> tuple[Table, ...]:
    return (Table("native", _NATIVE, entries), Table(f"within-{BITS}-bits", _WITHIN, entries, BITS))


#: name -> its tables
COMPARISONS: dict[str, tuple[Table, ...]] = {
    "matched": _tables(_CLASSICAL + _LEARNED + _PQ),
    "classical": _tables(_CLASSICAL + _PQ),
}


@dataclass(frozen=True)
class Resolved:
    """The contenders of a comparison on some data.

    tables: plain data: `name`, `about`, `bits` where they are bounded, and the `names` of its contenders in order; one
        may stand in several tables.
    missing: plain data: what is not there (`name`, `table`), and `why`.
    """

    tables: list[dict[str, Any]]
    missing: list[dict[str, str]]

    @property
    def names(self) -> list[str]:
        """All contenders, each once."""
        return list(dict.fromkeys(name for table in self.tables for name in table["names"]))

    def joined(self, bits: dict[str, float]) -> Resolved:
        """With further contenders, {name: bits of a chunk}, in every table into which they fit."""
        tables, missing = [], list(self.missing)
        for table in self.tables:
            fit_in = [name for name, taken in bits.items() if table["bits"] is None or taken <= table["bits"]]
            tables.append(table | {"names": table["names"] + [one for one in fit_in if one not in table["names"]]})
            missing += [
                {"table": table["name"], "name": name, "why": f"it takes {f'{taken:.1f}'.removesuffix('.0')} bits"}
                for name, taken in bits.items()
                if name not in fit_in
            ]
        return Resolved(tables, missing)

    def without(self, broken: dict[str, str]) -> Resolved:
        """Without contenders that came to nothing, {name: why}; those of no table are missing from each."""
        tables = [table | {"names": [one for one in table["names"] if one not in broken]} for table in self.tables]
        missing = [
            {"table": table["name"], "name": name, "why": why}
            for table in self.tables
            for name, why in broken.items()
            if name in table["names"] or name not in self.names
        ]
        return Resolved(tables, self.missing + missing)


def resolve(
    tables: tuple[Table, ...],
    demos: Demos,
    training: Training,
    *,
    seed: int = 0,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> Resolved:
    """Find every contender of these tables on this data, and what is not to be had."""
    found: list[dict[str, Any]] = []
    missing: list[dict[str, str]] = []
    for table in tables:
        names = []
        for number, entry in enumerate(table.entries):
            progress(number / len(table.entries), f"{table.name}: {entry.name}")
            try:
                names.append(_contender(entry, table.bits, demos, training, seed))
            except _NotThereError as error:
                missing.append({"table": table.name, "name": entry.name, "why": str(error)})
        found.append({"name": table.name, "about": table.about, "bits": table.bits, "names": names})
    return Resolved(found, missing)


def resolve_once(
    file: Path,
    name: str,
    demos: Demos,
    training: Training,
    *,
    seed: int = 0,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> Resolved:
    """`resolve` a comparison by its name, and keep the answer in a file, so that it is not looked for again."""
    if name not in COMPARISONS:
        raise ActionPieceError(f"there is no recipe '{name}'; there are {', '.join(COMPARISONS)}")
    about = {
        "recipe": name,
        "tables": json.loads(json.dumps([dataclasses.asdict(table) for table in COMPARISONS[name]])),
        "data": demos.describe()["fingerprint"],
        "horizon": training.chunks.horizon,
        "seed": seed,
        "tokenizers": [*KINDS, *RECIPES],
    }
    saved = read_json(file) if file.is_file() else None
    if isinstance(saved, dict) and saved.get("about") == about:
        return Resolved(saved["tables"], saved["missing"])
    found = resolve(COMPARISONS[name], demos, training, seed=seed, progress=progress)
    write_json(file, {"about": about, **dataclasses.asdict(found)})
    return found


class _NotThereError(Exception):
    """Why a table lacks a tokenizer."""


def _contender(entry: Entry, bits: float | None, demos: Demos, training: Training, seed: int) -> str:
    kind = entry.name.partition(":")[0]
    if kind not in KINDS and kind not in RECIPES:
        raise _NotThereError("not in this version")
    plain = Contender.parse(entry.name)
    if bits is None:
        try:
            unfitted(plain, demos, training)
        except ActionPieceError as error:  # chunks may be too short for its idea
            raise _NotThereError(str(error)) from None
        return entry.name
    settings = {field.name for field in dataclasses.fields(plain.config)}
    knob = next((knob for knob in entry.knobs if knob.setting in settings), None)

    def size(text: str) -> float | None:
        """The bits of a chunk; None where there is no such tokenizer."""
        try:
            return _bits(Contender.parse(text), demos, training, seed)
        except ActionPieceError:
            return None

    if knob is None:
        own = size(entry.name)
        if own is None or own > bits:
            raise _NotThereError(f"it is not within {bits:g} bits, and the recipe has no setting to make it smaller")
        return entry.name

    def within(value: float) -> bool:
        taken = size(f"{entry.name}:{knob.setting}={value}")
        return taken is not None and taken <= bits

    value = _largest(within, knob.values)
    if value is None:
        raise _NotThereError(f"it has no configuration within {bits:g} bits for these chunks")
    return entry.name if getattr(plain.config, knob.setting) == value else f"{entry.name}:{knob.setting}={value}"


def _bits(contender: Contender, demos: Demos, training: Training, seed: int) -> float:
    """The bits that a chunk takes; where that varies, its mean over validation chunks."""
    tokenizer = unfitted(contender, demos, training)
    if tokenizer.tokens_per_chunk is not None:
        return tokenizer.bits_per_chunk(tokenizer.tokens_per_chunk)
    assert contender.kind is not None
    fitted = fit(contender.kind, demos, training, config=contender.config, normalizer=contender.normalizer, seed=seed)
    ids = fitted.encode(training.validation.sample(LOOK_CHUNKS, seed))
    return fitted.bits_per_chunk(code_use(fitted, ids).mean_tokens)


def _largest(within: Callable[[float], bool], values: tuple[float, ...]) -> float | None:
    """The largest value that is within; of whole numbers where no values are given. Larger values take more bits."""
    if not values:
        low = next((value for value in range(1, 9) if within(value)), None)  # the very smallest may not exist
        if low is None:
            return None
        high = 2 * low
        while within(high):
            low, high = high, 2 * high
            if high > 1 << 20:
                return low  # a setting that takes no bits
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if within(middle) else (low, middle)
        return low
    first, last = -1, len(values)
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if within(values[middle]) else (first, middle)
    return values[first] if first >= 0 else None
