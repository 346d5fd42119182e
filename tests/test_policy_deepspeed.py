"""Training through DeepSpeed, where it is installed, on its CPU accelerator, in one process and in two."""

from __future__ import annotations

import importlib.util
import json
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
import os
import sys
from pathlib import Path
import accelerate.state
import torch
from safetensors.torch import save_file
from actionpiece.policy.training import train_policy
from policies import policy
from test_policy_training import SHORT, EnoughError, material

data, folder, stop, resume, deepspeed = sys.argv[1:]
torch.set_num_threads(1)
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    # Without a GPU, accelerate would take each process for the only one.
    found = "gloo", accelerate.state.DistributedType.MULTI_CPU
    accelerate.state.PartialState._prepare_backend = lambda *args, **kwargs: found

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
    if os.environ.get("RANK", "0") == "0":
        save_file({n: p.detach().float().clone() for n, p in made.vlm.named_parameters()}, f"{folder}/end.safetensors")
"""


def run(
    data: Path, folder: Path, *, stop: float = 2.0, resume: bool = False, deepspeed: bool = True, processes: int = 1
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    if deepspeed:
        environment |= {"DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = [data, folder, stop, int(resume), int(deepspeed)]
    started = []
    for rank in range(processes):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)} if deepspeed else {}
        command = [sys.executable, "-c", SCRIPT, *map(str, words)]
        started.append(subprocess.Popen(command, env=environment | own, stderr=subprocess.PIPE, text=True))
    for process in started:
        said = process.communicate()[1]
        assert process.returncode == 0, said[-2000:]


@pytest.mark.parametrize("processes", [1, 2])
def test_it_trains_as_one_process_does_and_goes_on_from_its_checkpoint(processes: int, tmp_path: Path) -> None:
    data = demonstrations(tmp_path / "shown")
    run(data, tmp_path / "plain", deepspeed=False)
    run(data, tmp_path / "whole", processes=processes)
    run(data, tmp_path / "cut", stop=0.7, processes=processes)
    shards = (tmp_path / "cut" / "deepspeed" / "pytorch_model").glob("*optim_states.pt")
    assert len(list(shards)) == processes
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["deepspeed", "log.jsonl"]
    (tmp_path / "cut" / "deepspeed").rename(tmp_path / "cut" / "deepspeed.part")  # a kill between the last two steps
    run(data, tmp_path / "cut", resume=True, processes=processes)
    steps = [json.loads(line)["step"] for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))  # one process writes it
    plain, whole, cut = (load_file(tmp_path / name / "end.safetensors") for name in ("plain", "whole", "cut"))
    assert all(torch.equal(cut[name], value) for name, value in whole.items())
    start = dict(policy(loud=1.0).vlm.named_parameters())
    # The way that the weights went is the same, but for DeepSpeed's bfloat16: their rounding, and that of gradients.
    way, same = (torch.cat([(end[n] - start[n].detach()).flatten() for n in start]) for end in (plain, whole))
    assert float(torch.nn.functional.cosine_similarity(way, same, 0)) > 0.8
    assert 0.8 < float(same.norm() / way.norm()) < 1.25
