"""A training that is quick to start: a stand-in for PyTorch, and a job that uses it.

Its steps take 4 ms, with SLOW 20; with FAIL it ends at once, with SLEEPER it leaves a process in a session of its own.
"""

import sys
from pathlib import Path

# Enough of PyTorch for the hook.
STAND_IN = {
    "__init__.py": "__version__ = '2'\nfrom . import autograd, distributed\n",
    "autograd/__init__.py": "def backward(): pass\nfrom . import profiler\n",
    "autograd/profiler.py": "class profile: pass\n",
    "distributed.py": "def is_available(): return False\n",
    "optim/__init__.py": "",
    "optim/optimizer.py": """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
""",
}
JOB = """
import os, subprocess, sys, time
if os.environ.get("SLEEPER"):
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
if os.environ.get("FAIL"):
    sys.exit("no such network")
print(*sorted(name for name in os.environ if name.startswith("NCCL_")), flush=True)
from torch.optim.optimizer import Optimizer
optimizer = Optimizer()
for _ in range(int(sys.argv[1])):
    time.sleep(0.02 if os.environ.get("SLOW") else 0.004)
    optimizer.step()
print("trained to the end")
"""


def install(folder):
    """Write the stand-in to FOLDER/site and the job beside it; return the job's command up to its number of steps."""
    for name, text in STAND_IN.items():
        path = Path(folder) / "site" / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    script = Path(folder) / "job.py"
    script.write_text(JOB)
    return [sys.executable, str(script)]
