"""FAST's own saved format: the folder of a Hugging Face processor, `processor_config.json` and a `tokenizer.json`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actionpiece.errors import ActionPieceError
from actionpiece.files import read_json, write_json, writing_folder

PROCESSOR = "processor_config.json"
TOKENIZER = "tokenizer.json"
#: Where a processor's tokenizer lies: beside its config (transformers 4), or in a folder named after the attribute that
#: holds it (transformers 5, which still looks beside the config, but says it will stop doing so).
_PLACES = (".", "bpe_tokenizer")
#: FAST's code is not ours to ship: transformers finds it in FAST's own repository.
_AUTO_MAP = {"AutoProcessor": "physical-intelligence/fast--processing_action_tokenizer.UniversalActionProcessor"}


@dataclass(frozen=True)
class FastFolder:
    """What FAST's folder says.

    scale: what coefficients are multiplied by before rounding.
    vocab_size: as configured; tokenizer_json holds the tokens there are.
    min_token: the integer that character 0 stands for.
    tokenizer_json: the text of the `tokenizers` library's own file.
    time_horizon, action_dim: of the last chunks FAST's processor saw, where it saw any.
    """

    scale: float
    vocab_size: int
    min_token: int
    tokenizer_json: str
    time_horizon: int | None = None
    action_dim: int | None = None


def read_fast(path: str | Path) -> FastFolder:
    """Read a folder that FAST's processor saved."""
    folder = Path(path)
    if not (folder / PROCESSOR).is_file():
        raise ActionPieceError(f"{folder} is not a folder of FAST's: it has no {PROCESSOR}")
    values = read_json(folder / PROCESSOR)
    where = str(folder / PROCESSOR)
    if not isinstance(values, dict):
        raise ActionPieceError(f"{where} must hold a JSON object")
    found = [file for place in _PLACES if (file := folder / place / TOKENIZER).is_file()]
    if not found:
        raise ActionPieceError(f"{folder} has no {TOKENIZER}")
    try:
        text = found[0].read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ActionPieceError(f"{found[0]} cannot be read: {error}") from None
    scale = values.get("scale")
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not (scale > 0 and math.isfinite(scale)):
        raise ActionPieceError(f"{where}: scale must be a positive number, not {scale!r}")
    return FastFolder(
        scale=float(scale),
        vocab_size=_whole(values, "vocab_size", where, least=1),
        min_token=_whole(values, "min_token", where),
        tokenizer_json=text,
        time_horizon=None if values.get("time_horizon") is None else _whole(values, "time_horizon", where, least=1),
        action_dim=None if values.get("action_dim") is None else _whole(values, "action_dim", where, least=1),
    )


def write_fast(path: str | Path, saved: FastFolder) -> Path:
    """Write a folder that FAST's own processor loads, whole or not at all; returns the folder."""
    folder = Path(path)
    processor = {
        "processor_class": "UniversalActionProcessor",
        "auto_map": _AUTO_MAP,
        "scale": saved.scale,
        "vocab_size": saved.vocab_size,
        "min_token": saved.min_token,
        "time_horizon": saved.time_horizon,
        "action_dim": saved.action_dim,
    }
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": "UniversalActionProcessor",
        "clean_up_tokenization_spaces": False,  # integers may be spelled as spaces and full stops
        "added_tokens_decoder": {},
        "model_max_length": 10**30,  # transformers' way of saying that there is no limit
    }
    with writing_folder(folder, marker=PROCESSOR) as aside:
        write_json(aside / PROCESSOR, processor)
        for place in _PLACES:
            (aside / place).mkdir(exist_ok=True)
            (aside / place / TOKENIZER).write_text(saved.tokenizer_json, encoding="utf-8")
            write_json(aside / place / "tokenizer_config.json", tokenizer)
            write_json(aside / place / "special_tokens_map.json", {})
    return folder


def _whole(values: dict[str, Any], name: str, where: str, least: int | None = None) -> int:
    value = values.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise ActionPieceError(
            f"{where}: {name} must be a whole number{f' from {least} on' if least else ''}, not {value!r}"
        )
    return value
