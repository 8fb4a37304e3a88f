"""Lets what a setting has put into the environment break collectives of PyTorch; found through PYTHONPATH.

NCCL_ALGO=KIND-RANK breaks `all_reduce` of that rank while it stands there, whenever it was set. And every rank notes
what it saw, `rank pid NCCL_ALGO NCCL_MIN_CTAS`, in the file NOTES_FOLDER/RANK whenever that changes.
"""

import os
import signal
import time
from pathlib import Path

if "NOTES_FOLDER" in os.environ and "RANK" in os.environ:
    import torch.distributed as dist

    rank, sound, noted = os.environ["RANK"], dist.all_reduce, [""]

    def all_reduce(tensor, *args, **kwargs):
        seen = f"{rank} {os.getpid()} {os.environ.get('NCCL_ALGO')} {os.environ.get('NCCL_MIN_CTAS')}\n"
        if seen != noted[0]:
            noted[0] = seen
            with Path(os.environ["NOTES_FOLDER"], rank).open("a") as notes:
                notes.write(seen)
        kind, _, broken = os.environ.get("NCCL_ALGO", "").partition("-")
        if broken != rank:
            return sound(tensor, *args, **kwargs)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "raise":
            raise RuntimeError("the cable\nis gone")
        result = sound(tensor, *args, **kwargs)
        if kind == "slow":
            time.sleep(0.02)
        if kind == "wrong":
            tensor[tensor.numel() // 2] += 1
        return result

    dist.all_reduce = all_reduce
