"""A job as nccl-tests prints it, under an NCCL of any version: `upgrade_job.py`.

It reads VERSION (2.28.9; empty = prints none), SLOW and SLOW_BELOW (factor, and the size up to which it counts), FAIL
(a sentence to end with), WRONG, HANG and FAIL_AT (number of the launch on this side that fails). It logs as NCCL does.
"""

import os
import random
import sys
import time
from pathlib import Path

version = os.environ.get("VERSION", "2.28.9")
debug, path = os.environ.get("NCCL_DEBUG", ""), os.environ.get("NCCL_DEBUG_FILE", "")
if debug == "INFO" and version:
    lines = [f"NCCL version {version}+cuda12.8", "cudaDriverVersion 12080", "Using network IB"]
    lines += [f"{name} set by environment to {os.environ[name]}" for name in ("NCCL_ALGO",) if name in os.environ]
    Path(path.replace("%h", "n0").replace("%p", "7")).write_text(
        "".join(f"n0:7:7 [0] NCCL INFO {line}\n" for line in lines)
    )
elif debug == "VERSION" and version:
    print(f"NCCL version {version}+cuda12.8")

if "HANG" in os.environ:
    time.sleep(600)
if "FAIL" in os.environ:
    sys.exit(os.environ["FAIL"])
if "FAIL_AT" in os.environ:
    counter = Path("launches-of-this-side")
    with counter.open("a") as file:
        file.write("x")
    if counter.stat().st_size == int(os.environ["FAIL_AT"]):
        sys.exit("no such network")

print("# Collective test starting: all_reduce_perf")
print("# nThread 1 nGpus 1 minBytes 1024 maxBytes 33554432\n#\n# Using devices")
for rank in range(2):
    print(f"#  Rank  {rank} Group  0 Pid {os.getpid():6d} on n0 device  {rank} [0000:18:00] NVIDIA H100 80GB HBM3")
columns = "time   algbw   busbw  #wrong"
print(f"#\n#       size         count      type   redop    root     {columns}     {columns}")
slow, below = float(os.environ.get("SLOW", "1")), int(os.environ.get("SLOW_BELOW", str(1 << 40)))
size = 1024
while size <= 32 << 20:
    time_us = (10 + size / 1e5) * random.gauss(1, 0.004) * (slow if size <= below else 1.0)
    half = f"  {time_us:.3f}  {size / time_us / 1e3:.2f}  {size / time_us / 1e3:.2f}  0"
    print(f"{size:12d}  {size // 4:12d}     float     sum      -1{half}{half}")
    size *= 4
wrong = 12 if "WRONG" in os.environ else 0
print(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}\n# Avg bus bandwidth    : 1.5\n#")
