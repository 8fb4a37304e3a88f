"""A job of two ranks that logs its start as NCCL does (2.27.5): `nccl_job.py [NAME=VALUE ...] [exit CODE] [stay]`.

The log goes to NCCL_DEBUG_FILE, or to standard output where that cannot be written (src/debug.cc). Variables of the
arguments are set by the program itself. `stay` goes on until SIGTERM, and `deaf` beyond that.
"""

import os
import re
import signal
import sys
import time

words = sys.argv[1:]
for word in words:
    name, equals, value = word.partition("=")
    if equals:
        os.environ[name] = value
if "deaf" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

READ = ("NCCL_ALGO", "NCCL_IB_HCA", "NCCL_DEBUG_SUBSYS")
INIT = (
    "ncclCommInitRankConfig comm 0x5{rank} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId 1000 commId 0xabc"
)
START = """cudaDriverVersion 12080
NCCL version 2.27.5+cuda12.8
NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
Using network IB
{init} - Init START
comm 0x5{rank} rank {rank} nRanks 2 nNodes 1 localRanks 2 localRank {rank} MNNVL 0
Channel 00/0 : {rank}[{rank}] -> {other}[{other}] via P2P/CUMEM
24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer
{init} - Init COMPLETE"""


def lines(rank):
    said = [f"{name} set by environment to {os.environ[name]}" for name in READ if name in os.environ]
    said += START.format(rank=rank, other=1 - rank, init=INIT.format(rank=rank)).split("\n")
    if rank == 0:
        said += ["AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}"] * 3
    return [f"node-a:{100 + rank}:{200 + rank} [{rank}] NCCL INFO {text}\n" for text in said]


print("the job begins", flush=True)
if os.environ.get("NCCL_DEBUG") == "INFO":
    for rank in (0, 1):
        filled = {"%h": "node-a", "%p": str(100 + rank), "%%": "%"}
        path = "".join(filled.get(part, part) for part in re.split("(%.)", os.environ.get("NCCL_DEBUG_FILE", "")))
        try:
            with open(path, "w") as file:  # noqa: PTH123
                file.writelines(lines(rank))
        except OSError:
            sys.stdout.writelines(lines(rank))
            sys.stdout.flush()
if "stay" in words:
    time.sleep(600)
print("the job ends", flush=True)
if "exit" in words:
    sys.exit(int(words[words.index("exit") + 1]))
