"""Breaks a collective of PyTorch in one rank, as a broken transport or driver would; found through PYTHONPATH.

TORCH_FAULT=KIND:RANK:CALL breaks `all_reduce` and `broadcast` of a rank from that call on (the first is 1).
"""

import os
import signal
import time


def _break(function, kind, first):
    calls = 0

    def broken(tensor, *args, **kwargs):
        nonlocal calls
        calls += 1
        if calls >= first and kind == "raise":
            raise RuntimeError("the cable\nis gone")
        if calls >= first and kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if calls >= first and kind == "hang":
            time.sleep(3600)
        result = function(tensor, *args, **kwargs)
        if calls >= first and kind == "wrong":
            tensor[tensor.numel() // 2] += 1
        if calls >= first and kind == "slow":
            time.sleep(0.02)
        return result

    return broken


if "TORCH_FAULT" in os.environ:
    kind, rank, first = os.environ["TORCH_FAULT"].split(":")
    if os.environ.get("RANK") == rank:
        import torch.distributed as dist

        for name in ("all_reduce", "broadcast"):
            setattr(dist, name, _break(getattr(dist, name), kind, int(first)))
