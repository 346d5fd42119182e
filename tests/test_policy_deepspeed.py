"""Training through DeepSpeed, where it is installed. Its CPU accelerator is one process's, which accelerate allows."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from policies import demonstrations, policy

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs DeepSpeed"),
    pytest.mark.slow,
]

SCRIPT = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from actionpiece.policy.training import train_policy
from policies import policy
from test_policy_training import SHORT, EnoughError, material

data, folder, stop, resume, deepspeed = sys.argv[1:]
torch.set_num_threads(1)

def progress(fraction, what):
    if fraction > float(stop):
        raise EnoughError

made = policy(loud=1.0)
try:
    train_policy(
        made, material(made, Path(data)), SHORT,
        device="cpu", deepspeed=bool(int(deepspeed)), folder=Path(folder), resume=bool(int(resume)), progress=progress,
    )
except EnoughError:
    pass
else:
    save_file({n: p.detach().float().clone() for n, p in made.vlm.named_parameters()}, Path(folder) / "end.safetensors")
"""


def run(data: Path, folder: Path, *, stop: float = 2.0, resume: bool = False, deepspeed: bool = True) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"DS_ACCELERATOR": "cpu", **alone} if deepspeed else {}
    words = [data, folder, stop, int(resume), int(deepspeed)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, words)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_it_trains_as_one_process_does_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    data = demonstrations(tmp_path / "shown")
    run(data, tmp_path / "plain", deepspeed=False)
    run(data, tmp_path / "whole")
    run(data, tmp_path / "cut", stop=0.7)
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["deepspeed", "log.jsonl"]
    (tmp_path / "cut" / "deepspeed").rename(tmp_path / "cut" / "deepspeed.part")  # a kill between the last two steps
    run(data, tmp_path / "cut", resume=True)
    plain, whole, cut = (load_file(tmp_path / name / "end.safetensors") for name in ("plain", "whole", "cut"))
    assert all(torch.equal(cut[name], value) for name, value in whole.items())
    start = dict(policy(loud=1.0).vlm.named_parameters())
    # The way that the weights went is the same, but for DeepSpeed's bfloat16: their rounding, and that of gradients.
    way, same = (torch.cat([(end[n] - start[n].detach()).flatten() for n in start]) for end in (plain, whole))
    assert float(torch.nn.functional.cosine_similarity(way, same, 0)) > 0.8
    assert 0.8 < float(same.norm() / way.norm()) < 1.25
