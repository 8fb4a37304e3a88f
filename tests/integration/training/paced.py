"""A data-parallel training by hand whose steps take a known time: python paced.py STEPS.

Most of a step is a pause, so that a busy machine changes little of it; SLOW=1 makes it half as long again. DDP and
PyTorch's own optimizers would load torch._dynamo, which takes longer than all steps together.
"""

import os
import sys
import time

if os.environ.get("FAIL"):
    sys.exit("no such network")

import torch
import torch.distributed as dist

PAUSE_S = 0.03 if os.environ.get("SLOW") == "1" else 0.02


class Descent(torch.optim.Optimizer):
    """Plain gradient descent."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"lr": 0.01})

    def add_param_group(self, group) -> None:
        group["params"] = list(group["params"])
        self.param_groups.append({**self.defaults, **group})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad
                parameter.grad = None


torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
dist.barrier()
model = torch.nn.Linear(256, 256)
optimizer = Descent(model.parameters())
for _ in range(int(sys.argv[1])):
    model(torch.randn(8, 256)).square().mean().backward()
    time.sleep(PAUSE_S)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
print("trained to the end", flush=True)
dist.barrier()
dist.destroy_process_group()
