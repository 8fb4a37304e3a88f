"""A data-parallel training by hand whose steps take a known time: python paced.py STEPS [resumes].

Most of a step is a pause, so that a busy machine changes little of it; SLOW=1 makes it half as long again. With
`resumes` it saves on SIGTERM, and ends STEPS steps after it has resumed. DDP and PyTorch's own optimizers would load
torch._dynamo, which takes longer than all steps together.
"""

import os
import signal
import sys
import time
from pathlib import Path

if os.environ.get("FAIL"):
    sys.exit("no such network")

import torch
import torch.distributed as dist

PAUSE_S = 0.03 if os.environ.get("SLOW") == "1" else 0.02
SAVED, asked = Path("saved"), []


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


steps, resumes = int(sys.argv[1]), sys.argv[2:] == ["resumes"]
if resumes:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
done = int(SAVED.read_text()) if SAVED.exists() else 0
last = done + steps if done or not resumes else 3000
dist.barrier()
model = torch.nn.Linear(256, 256)
optimizer = Descent(model.parameters(), done)
while done < last and not asked:
    model(torch.randn(8, 256)).square().mean().backward()
    time.sleep(PAUSE_S)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    done += 1
if resumes and dist.get_rank() == 0:
    with Path("log").open("a") as log:
        print("saved after" if asked else "trained to the end", done, file=log)
    SAVED.write_text(str(done))
print("trained to the end", flush=True)
dist.barrier()
dist.destroy_process_group()
