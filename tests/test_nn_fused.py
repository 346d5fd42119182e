"""How exact products are, whatever the caller has asked torch for."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import torch

from actionpiece.nn.fused import products


def test_products_put_back_what_either_of_torchs_switches_said() -> None:
    backends: Any = torch.backends
    places = backends.cuda.matmul, backends.mkldnn.matmul

    def now() -> list[str]:
        return [place.fp32_precision for place in places]

    before = now()
    try:
        for one, other in itertools.product(("none", "ieee", "tf32"), repeat=2):
            places[0].fp32_precision, places[1].fp32_precision = one, other
            with products("highest"):
                assert set(now()) <= {"none", "ieee"}
            assert now() == [one, other]
    finally:
        for place, was in zip(places, before, strict=True):
            place.fp32_precision = was
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_tokenizer_encodes_where_torchs_newer_switches_were_used() -> None:
    """In a process of its own: `none`, which inherits, cannot be told from what it inherits."""
    script = """
import torch, actionpiece
tokenizer = actionpiece.load("libero")
x = tokenizer.decode([[slot for slot in range(16)]] * 3)
ids = tokenizer.encode(x)
torch.backends.fp32_precision = "tf32"
assert (tokenizer.encode(x) == ids).all()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
