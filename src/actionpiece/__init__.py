"""ActionPiece: action tokenizers for vision-language-action policies, and what each of them costs.

import actionpiece
demos = actionpiece.open_demos("demos/")                # npz, HDF5 or LeRobot
tok = actionpiece.load("tokenizers/pq")                 # any kind; the folder says which
ids = tok.encode(chunk)                                 # (H, D) commands -> (T,) ids
out = tok.decode(ids)                                   # -> (H, D), in the units that went in
actionpiece.prc(chunks, tok.decode(tok.encode(chunks)), space=tok.space, distance=tok.distance).value
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from actionpiece.data import Chunks, Demos, open_demos
    from actionpiece.distance import PhysicalDistance
    from actionpiece.errors import ActionPieceError, DecodeError
    from actionpiece.metrics.prc import PRCResult, prc
    from actionpiece.normalize import Normalizer
    from actionpiece.policy.model import ActionPolicy
    from actionpiece.space import ActionSpace, Group
    from actionpiece.tokenizers import ActionTokenizer, load
    from actionpiece.tokenizers.wrapped import wrap

#: Names are looked up on first use, so that `import actionpiece` and `actionpiece --help` do not wait for torch.
_ROOMS = {
    "ActionPieceError": "errors",
    "ActionPolicy": "policy.model",
    "ActionSpace": "space",
    "ActionTokenizer": "tokenizers",
    "Chunks": "data",
    "DecodeError": "errors",
    "Demos": "data",
    "Group": "space",
    "Normalizer": "normalize",
    "PRCResult": "metrics.prc",
    "PhysicalDistance": "distance",
    "load": "tokenizers",
    "open_demos": "data",
    "prc": "metrics.prc",
    "wrap": "tokenizers.wrapped",
}

__all__ = [
    "ActionPieceError",
    "ActionPolicy",
    "ActionSpace",
    "ActionTokenizer",
    "Chunks",
    "DecodeError",
    "Demos",
    "Group",
    "Normalizer",
    "PRCResult",
    "PhysicalDistance",
    "load",
    "open_demos",
    "prc",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'actionpiece' has no attribute '{name}'")
    return getattr(importlib.import_module(f"actionpiece.{_ROOMS[name]}"), name)
