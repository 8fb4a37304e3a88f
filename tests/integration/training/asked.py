"""A training over gloo with step times set by a stand-in for NCCL: python asked.py KIND STEPS.

KIND is ddp, zero1 or fsdp2. In each step every rank asks the tuner plugin, as NCCL would, about the messages of one
communicator; a step pauses for longer unless all are answered with the ring and LL128. So a delay stands for what
NCCL's choices cost: no message of this training ever goes through NCCL. It ends after STEPS steps, or once `SETTLED` in
a row were faster. With DIES_AT, rank 1 dies at that step of the first start.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
from ncclt.nccl.tuner_table import ALGORITHMS, PROTOCOLS

ALL_REDUCE = 4
PAUSE_S, FASTER_S = 0.08, 0.02
SETTLED = 50
SIZES = (64, 1 << 20)
CHOSEN = ALGORITHMS.index("ring") * len(PROTOCOLS) + PROTOCOLS.index("ll128")

kind, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
elif kind == "fsdp2":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
if kind == "zero1":
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

plugin = LoadedPlugin(Path(os.environ.get("NCCL_TUNER_PLUGIN") or os.environ["STAND_IN_PLUGIN"]))
world = dist.get_world_size()
dies_at = int(os.environ.get("DIES_AT", "-1")) if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" else -1
choices = ""
with plugin.communicator(api=5, ranks=world, nodes=1, number=7) as communicator:
    for step in range(steps):
        if step == dies_at and dist.get_rank() == 1:
            os._exit(1)
        answers = [communicator.ask(ALL_REDUCE, size).costs for size in SIZES]
        is_faster = all(costs.index(min(costs)) == CHOSEN for costs in answers)
        choices += "-+"[is_faster]
        model(torch.ones(4, 32)).square().mean().backward()
        time.sleep(FASTER_S if is_faster else PAUSE_S)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 49:
            time.sleep(0.5)  # an evaluation
        dist.barrier()
        if choices.endswith("+" * SETTLED):
            break
print(f"rank {dist.get_rank()} trained to the end, choices: {choices}", flush=True)
dist.destroy_process_group()
