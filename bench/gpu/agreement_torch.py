"""One rank of a small PyTorch job, started by torchrun: what agreement.py asks of a real framework.

    agreement_torch.py WHAT FOLDER [LIBRARY OF THE PROBE]

Every rank is a host of its own to NCCL, so that several can share one GPU. Writes FOLDER/rank-N.jsonl, a line per
event.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

RANK = int(os.environ["RANK"])
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: torchrun gives its ranks sessions of their own
# Before NCCL reads them.
if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
    os.environ["NCCL_HOSTID"] = f"ncclt-host-{RANK}"
os.environ["PROBE_RANK"] = str(RANK)
if os.environ.get("PROBE_FAIL_RANK") == str(RANK):
    os.environ["PROBE_FAIL"] = os.environ["PROBE_FAIL_CODE"]
if plan := os.environ.get(f"PROBE_PLAN_{RANK}"):
    os.environ["PROBE_PLAN"] = plan

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

STEPS = 4
SWITCH_STEPS, SWITCH_EVERY = 200, 5
TREE, RING, LL, SIMPLE = "tree", "ring", "ll", "simple"


class Job:
    """The process group and the file that tells what happens."""

    def __init__(self, folder: Path, probe: Path | None) -> None:
        self._file = (folder / f"rank-{RANK}.jsonl").open("w", buffering=1)
        self._probe = None if probe is None else ctypes.CDLL(str(probe))
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")

    def say(self, event: str, **more: Any) -> None:
        self._file.write(json.dumps({"event": event, "at_s": round(time.monotonic(), 4), **more}) + "\n")

    def mark(self, name: str) -> None:
        """Let the questions that follow carry a name."""
        if self._probe is not None:
            self.wait()
            self._probe.probe_mark(name.encode())

    def begin(self, *, limit_s: float) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            dist.init_process_group("nccl", timeout=timedelta(seconds=limit_s))
        else:
            dist.init_process_group("gloo", timeout=timedelta(seconds=limit_s))

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def model(width: int = 256) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, 8)
    )


def inputs(job: Job, step: int, width: int = 256) -> torch.Tensor:
    """Return other numbers on each rank and in each step, the same in each run."""
    return torch.randn(16, width, generator=torch.Generator().manual_seed(1000 * step + RANK)).to(job.device)


def train_step(job: Job, module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> str:
    """Return the loss, exactly."""
    loss = module(inputs(job, step)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach()).hex()


def train(job: Job, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(STEPS):
        train_step(job, module, optimizer, step)


def ddp(job: Job) -> None:
    module = DistributedDataParallel(model().to(job.device), bucket_cap_mb=1)
    train(job, module, torch.optim.SGD(module.parameters(), lr=0.01))


def fsdp2(job: Job) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    module = model().to(job.device)
    mesh = init_device_mesh(job.device.type, (dist.get_world_size(),))
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    train(job, module, torch.optim.SGD(module.parameters(), lr=0.01))


def zero1(job: Job) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    module = DistributedDataParallel(model().to(job.device), bucket_cap_mb=1)
    train(job, module, ZeroRedundancyOptimizer(module.parameters(), torch.optim.Adam, lr=0.01))


def compiled(job: Job) -> None:
    module = DistributedDataParallel(model().to(job.device), bucket_cap_mb=1)
    compiled_module = torch.compile(module)
    train(job, compiled_module, torch.optim.SGD(module.parameters(), lr=0.01))


def capture(job: Job) -> None:
    values = torch.ones(1 << 18, device=job.device)
    dist.all_reduce(values)
    job.wait()
    job.mark("capture: recording")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(values)
    job.mark("capture: replay")
    for _ in range(3):
        graph.replay()
    job.wait()
    job.mark("capture: after")
    dist.all_reduce(values)
    job.wait()


def group(job: Job) -> None:
    """20 calls in one group, which NCCL merges."""
    tensors = [torch.ones(4096, device=job.device) for _ in range(20)]
    with dist._coalescing_manager(device=job.device):
        for tensor in tensors:
            dist.all_reduce(tensor)


def estimate(job: Job) -> None:
    """Let rank 0 alone ask NCCL for the time of a call, as torch.compile may."""
    values = torch.ones(1 << 18, device=job.device)
    if RANK == 0:
        with dist._time_estimator(device=job.device) as estimator:
            dist.all_reduce(values)
        job.say("estimate", us=estimator.estimated_time)
    dist.all_reduce(values)


WORKLOADS: dict[str, Callable[[Job], None]] = {
    "ddp": ddp,
    "fsdp2": fsdp2,
    "zero1": zero1,
    "capture": capture,
    "compile": compiled,
    "group": group,
    "estimate": estimate,
}


def questions(job: Job) -> None:
    job.begin(limit_s=60)
    dist.all_reduce(torch.ones(1, device=job.device))
    for name, workload in WORKLOADS.items():
        job.mark(name)
        job.say("workload begins", name=name)
        workload(job)
        job.wait()
        job.say("workload done", name=name)
    job.mark("end")
    dist.destroy_process_group()


def refuse(job: Job) -> None:
    job.begin(limit_s=8)
    job.say("group is there")
    values = torch.ones(1 << 18, device=job.device)
    dist.all_reduce(values)
    job.say("all_reduce is enqueued")
    job.wait()
    job.say("all_reduce is done", right=bool((values == dist.get_world_size()).all()))


def disagree(job: Job) -> None:
    job.begin(limit_s=8)
    for step in range(6):
        values = torch.ones(1 << 20, device=job.device)
        dist.all_reduce(values)
        job.wait()
        job.say("all_reduce is done", step=step, right=bool((values == dist.get_world_size()).all()))


def switch(job: Job) -> None:
    """Train with the table in shared memory: fixed, another protocol in turn, another algorithm in turn, none."""
    from ncclt.nccl.tuner_plugin.shared_table import VARIABLE, SharedTable
    from ncclt.nccl.tuner_table import PluginRow

    table = SharedTable()
    os.environ[VARIABLE] = table.path
    job.begin(limit_s=30)
    arms = {
        "ring/simple": [(RING, SIMPLE)],
        "ring/simple, ring/ll": [(RING, SIMPLE), (RING, LL)],
        "ring/simple, tree/simple": [(RING, SIMPLE), (TREE, SIMPLE)],
        "no table": [],
    }
    for name, pairs in arms.items():
        module = DistributedDataParallel(model().to(job.device))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        losses, steps_ms, choices, publish_us = [], [], [], []
        table.publish([])
        for step in range(SWITCH_STEPS):
            began = time.perf_counter()
            algorithm, protocol = pairs[step // SWITCH_EVERY % len(pairs)] if pairs else ("", "")
            if pairs and step % SWITCH_EVERY == 0:
                table.publish([PluginRow(collective="allreduce", algorithm=algorithm, protocol=protocol)])
                publish_us.append(1e6 * (time.perf_counter() - began))
            losses.append(train_step(job, module, optimizer, step))
            choices.append(f"{algorithm}/{protocol}" if pairs else "default")
            steps_ms.append(1e3 * (time.perf_counter() - began))
        job.say(
            "arm",
            name=name,
            every=SWITCH_EVERY,
            losses=losses,
            steps_ms=steps_ms,
            choices=choices,
            publish_us=publish_us,
        )
    dist.destroy_process_group()
    table.close()


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    job = Job(folder, Path(sys.argv[3]) if len(sys.argv) > 3 else None)
    job.say("begin", torch=torch.__version__, nccl=_nccl_version())
    try:
        {"questions": questions, "refuse": refuse, "disagree": disagree, "switch": switch}[what](job)
    except Exception as error:  # whatever a user of PyTorch would see is the result
        job.say("failed", kind=type(error).__name__, text=str(error)[:1500])
        raise
    job.say("end")
    if dist.is_initialized() and job.device.type == "cpu":
        dist.destroy_process_group()  # a thread of gloo that still runs at exit may abort the process


def _nccl_version() -> str:
    return ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "none"


if __name__ == "__main__":
    main()
