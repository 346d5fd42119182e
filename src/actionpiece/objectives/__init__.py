"""Training objectives by name. A new one is one file and one line here.

Each is a function of a `Step`: one batch on its way through a codec. A configuration combines them by weights:
`{"reconstruction": 1.0, "commitment": 0.25, "physical_rank": 6.25e-4, "quantization_order": 6.25e-4}` is the paper's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.objectives.commitment import commitment, committed
from actionpiece.objectives.contrast import info_nce
from actionpiece.objectives.neighbor_order import neighbor_order
from actionpiece.objectives.neighborhood import neighborhood
from actionpiece.objectives.physical_error import physical_error
from actionpiece.objectives.physical_rank import physical_rank
from actionpiece.objectives.quantization_order import quantization_order
from actionpiece.objectives.reconstruction import reconstruction
from actionpiece.objectives.sigreg import sigreg
from actionpiece.objectives.step import Step
from actionpiece.objectives.temporal import temporal

OBJECTIVES: dict[str, Callable[[Step], Tensor]] = {
    "reconstruction": reconstruction,
    "commitment": commitment,
    "physical_rank": physical_rank,
    "quantization_order": quantization_order,
    "sigreg": sigreg,
    "temporal": temporal,
    "neighborhood": neighborhood,
    "physical_error": physical_error,
    "neighbor_order": neighbor_order,
}


def combine(step: Step, weights: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
    """The weighted sum, and each term before its weight. Terms of weight 0 are not computed."""
    return weigh({name: functools.partial(term, step) for name, term in OBJECTIVES.items()}, weights, step.target)


def weigh(
    objectives: Mapping[str, Callable[[], Tensor]], weights: Mapping[str, float], like: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """What `combine` does, for any objectives by name. like: a tensor of their type and device."""
    unknown = set(weights) - set(objectives)
    if unknown:
        raise ActionPieceError(f"there is no objective '{min(unknown)}'; there are {', '.join(objectives)}")
    terms = {name: objectives[name]() for name, weight in weights.items() if weight}
    total = like.new_zeros(()) + sum(weights[name] * term for name, term in terms.items())
    return total, terms


__all__ = ["OBJECTIVES", "Step", "combine", "committed", "info_nce", "weigh"]
