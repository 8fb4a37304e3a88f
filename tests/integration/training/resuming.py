"""A data-parallel training that saves on SIGTERM and ends STEPS steps after it has resumed: python resuming.py STEPS.

A step takes 20 ms. PyTorch's own optimizers would load torch._dynamo, which takes longer than all steps together.
"""

import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

SAVED, asked = Path("saved"), []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))


class Descent(torch.optim.Optimizer):
    """Plain gradient descent that counts its steps, as Adam does."""

    def __init__(self, parameters, done) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.state[self.param_groups[0]["params"][0]] = {"step": torch.tensor(float(done))}

    def add_param_group(self, group) -> None:
        group["params"] = list(group["params"])
        self.param_groups.append({**self.defaults, **group})

    @torch.no_grad()
    def step(self) -> None:
        next(iter(self.state.values()))["step"] += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad
                parameter.grad = None


torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
done = int(SAVED.read_text()) if SAVED.exists() else 0
dist.barrier()
model = torch.nn.Linear(64, 64)
optimizer = Descent(model.parameters(), done)
last = done + int(sys.argv[1]) if SAVED.exists() else 3000
while done < last and not asked:
    model(torch.randn(8, 64)).square().mean().backward()
    time.sleep(0.02)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    done += 1
if dist.get_rank() == 0:
    with Path("log").open("a") as log:
        print("saved after" if asked else "trained to the end", done, file=log)
    SAVED.write_text(str(done))
dist.barrier()
dist.destroy_process_group()
