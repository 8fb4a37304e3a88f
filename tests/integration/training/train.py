"""An ordinary training script: python train.py transformer|convnet|sharded STEPS. It knows nothing of ncclt."""

import os
import sys

import torch
import torch.distributed as dist
from models import Transformer, convnet
from torch import nn

kind, steps = sys.argv[1], int(sys.argv[2])
for ours, theirs in (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
    os.environ.setdefault(ours, os.environ.get(theirs, ""))
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")

if kind == "sharded":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model: nn.Module = Transformer()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
else:
    model = convnet() if kind == "convnet" else Transformer()
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=2)

optimizer = torch.optim.AdamW(model.parameters())
for _ in range(steps):
    if kind == "convnet":
        outputs = model(torch.randn(2, 3, 16, 16))
    else:
        outputs = model(torch.randint(0, 1000, (2, 16))).flatten(0, 1)
    loss = nn.functional.cross_entropy(outputs, torch.randint(0, 1000, (len(outputs),)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {dist.get_rank()} trained {steps} steps", flush=True)
dist.destroy_process_group()
sys.exit(int(os.environ.get("TRAINING_EXIT", "0")))
