"""The tokenizers, by name. A new one is one file and one line here."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from actionpiece.errors import ActionPieceError
from actionpiece.tokenizers.base import ActionTokenizer
from actionpiece.tokenizers.lengths import FixedLengthTokenizer, VariableLengthTokenizer
from actionpiece.tokenizers.saving import build_config, find_folder, read_description, trained

#: name -> (module, class, one line for people)
KINDS: dict[str, tuple[str, str, str]] = {
    "binning": ("binning", "BinningTokenizer", "one uniform bin per value (RT-2, OpenVLA)"),
    "fast": ("fast", "FastTokenizer", "cosine transform, rounding, byte-pair encoding (FAST)"),
    "spline": ("spline", "SplineTokenizer", "B-spline coefficients in uniform bins (BEAST)"),
    "actionpiece": ("actionpiece", "ActionPieceTokenizer", "the paper's codec: Transformer, residual quantiser"),
    "pq": ("pq", "PQTokenizer", "rotated product quantiser: principal components, k-means codebooks"),
    "oat": ("oat", "OATTokenizer", "ordered registers, finite scalar quantisation; every prefix decodes (OAT)"),
    "actioncodec": ("actioncodec", "ActionCodecTokenizer", "Perceiver, one codebook, time-contrastive (ActionCodec)"),
    "fastervq": (
        "fastervq",
        "FASTerVQTokenizer",
        "patches by physical group, residual quantiser, spectral loss (FASTer)",
    ),
    "xtokenizer": ("xtokenizer", "XTokenizer", "residual quantiser, first level by masked modelling (X-Tokenizer)"),
    "vqbet": ("vqbet", "VQBeTTokenizer", "perceptrons, residual quantiser of 2 x 16 codes (VQ-BeT)"),
    "quest": ("quest", "QueSTTokenizer", "causal convolutions, finite scalar quantisation (QueST)"),
}

#: Named configurations beside the defaults: name -> (kind, function in its module, one line for people)
RECIPES: dict[str, tuple[str, str, str]] = {
    "rvq": ("actionpiece", "rvq", "`actionpiece` without the physical objectives: the paper's Standard RVQ"),
    "actioncodec-48": ("actioncodec", "three_levels", "`actioncodec` with three residual levels, 48 tokens"),
    "best": ("actionpiece", "best", "a product quantiser, of which Transformers learn corrections; wants a GPU"),
    "small": ("actionpiece", "small", "`best` for a minute on a CPU"),
}


def recipe(name: str) -> tuple[str, Any]:
    """The kind and the configuration that a name stands for: a tokenizer with its defaults, or a recipe."""
    if name not in RECIPES:
        return name, tokenizer_class(name).config_class()
    kind, function, _ = RECIPES[name]
    return kind, getattr(importlib.import_module(f"{__name__}.{KINDS[kind][0]}"), function)()


def tokenizer_class(name: str) -> type[ActionTokenizer]:
    """The class of a tokenizer by its name."""
    if name not in KINDS:
        raise ActionPieceError(f"there is no tokenizer '{name}'; there are {', '.join([*KINDS, *RECIPES])}")
    module, attribute, _ = KINDS[name]
    found = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    assert isinstance(found, type)
    assert issubclass(found, ActionTokenizer)
    return found


def load(path: str | Path) -> ActionTokenizer:
    """The tokenizer in a folder, of whatever kind; or one that comes with the package, by its name; or from the hub."""
    folder = find_folder(path)
    return tokenizer_class(read_description(folder)["kind"]).from_pretrained(folder)


__all__ = [
    "KINDS",
    "RECIPES",
    "ActionTokenizer",
    "FixedLengthTokenizer",
    "VariableLengthTokenizer",
    "build_config",
    "load",
    "recipe",
    "tokenizer_class",
    "trained",
]
