"""A contrastive term for baselines: the same chunk in two views is more alike than different chunks (InfoNCE)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of finding row i of `other` (B, d) from row i of `one` (B, d) by cosine, and the way round."""
    similarity = F.normalize(one, dim=-1) @ F.normalize(other, dim=-1).T / temperature
    own = torch.arange(len(one), device=one.device)
    return (F.cross_entropy(similarity, own) + F.cross_entropy(similarity.T, own)) / 2
