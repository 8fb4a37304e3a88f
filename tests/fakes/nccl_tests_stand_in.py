"""A stand-in for the programs of nccl-tests: speaks their flags and both formats, and fails on demand.

`python nccl_tests_stand_in.py install FOLDER` writes one executable per program there; each starts this file with its
own name first. The variable STAND_IN names the misbehaviour; times depend on the size and on NCCL_ALGO alone, so tests
can foretell them. Written for `python -I -S`: standard library only.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

ELEMENT_BYTES = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "half": 2, "float": 4, "double": 8, "bfloat16": 2, "f8e4m3": 1, "f8e5m2": 1,
}  # fmt: skip
PER_RANK = ("all_gather_perf", "reduce_scatter_perf", "alltoall_perf")
UNCHECKED_IN_PLACE = ("alltoall_perf", "sendrecv_perf")
REDUCING = ("all_reduce_perf", "reduce_scatter_perf", "reduce_perf", "sendrecv_perf")
PROGRAMS = (*PER_RANK, "all_reduce_perf", "broadcast_perf", "reduce_perf", "sendrecv_perf")
KNOWN = {"-b", "-e", "-i", "-f", "-d", "-t", "-g", "-w", "-n", "-c", "-J"}
STUBBORN = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"


def install(folder):
    for program in PROGRAMS:
        path = Path(folder) / program
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{Path(__file__).resolve()}" {program} "$@"\n')
        path.chmod(0o755)
    return 0


def say(text=""):
    print(text, flush=True)


def time_us(size):
    """20 µs and 10e9 bytes/s; the tree takes twice as long."""
    return (20 + size / 10_000) * (2 if os.environ.get("NCCL_ALGO", "").lower() == "tree" else 1)


def sizes(options, program, ranks, element):
    size, last = int(options["-b"]), int(options["-e"])
    factor, step = int(options.get("-f", 1)), int(options.get("-i", 1 << 20))
    unit = 16 * ranks if program in PER_RANK else element
    while size <= last:
        yield size // unit * unit
        size = size * factor if factor > 1 else size + step


def row(program, size, element, ranks, dtype, fault):
    half = {"time": time_us(size), "alg_bw": size / time_us(size) / 1e3, "bus_bw": size / time_us(size) / 1e3}
    out, inside = dict(half, nwrong=0.0), dict(half, nwrong=0.0)
    if program in UNCHECKED_IN_PLACE:
        inside["nwrong"] = None
    if fault in ("wrong", "wrong_exit_1"):
        out["nwrong"] = 12.0
    if fault == "nan":
        out["time"] = inside["time"] = float("nan")
    return {
        "size": size, "count": size // element // (ranks if program in PER_RANK else 1), "type": dtype,
        "redop": "sum" if program in REDUCING else "none", "root": "    -1", "out_of_place": out, "in_place": inside,
    }  # fmt: skip


def text_half(half):
    wrong = "N/A" if half["nwrong"] is None else f"{half['nwrong']:g}"
    return f"  {half['time']:7.2f}  {half['alg_bw']:6.2f}  {half['bus_bw']:6.2f}  {wrong:>6}"


def text_row(found):
    return (
        f"{found['size']:12d}  {found['count']:12d}  {found['type']:>8}  {found['redop']:>6}  {found['root']}"
        + text_half(found["out_of_place"])
        + text_half(found["in_place"])
    )


def misbehave(fault):
    """Do what happens before the table; None goes on."""
    if fault == "hang":
        time.sleep(600)
    elif fault == "stubborn_child":
        # In a group of its own, as shells and MPI launchers start theirs, and deaf to SIGTERM.
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", STUBBORN], process_group=0, stdout=subprocess.PIPE)
        child.stdout.readline()
        say(f"CHILD {child.pid}")
        time.sleep(600)
    elif fault == "orphan":
        # Double fork: the one in between ends, the grandchild belongs to init and holds our standard output open.
        middle = "import subprocess,sys; print(subprocess.Popen([sys.executable,'-I','-S','-c',sys.argv[1]]).pid)"
        subprocess.run([sys.executable, "-I", "-S", "-c", middle, STUBBORN], check=True)
    elif fault == "segfault":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "noise":
        for _ in range(300):
            sys.stdout.write("gpu-node-1: noise " * 4000 + "\n")
            sys.stderr.write("gpu-node-1: noise " * 4000 + "\n")
    elif fault == "no_algorithm":
        say("host: Test NCCL failure common.cu:10 'invalid usage / no algorithm/protocol available for AllGather'")
        raise SystemExit(3)
    elif fault == "out_of_memory":
        say("host: Test CUDA failure common.cu:11 'out of memory' HF_TOKEN=hf_verysecret")
        raise SystemExit(2)


def main(program, arguments):
    fault = os.environ.get("STAND_IN", "")
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    if fault == "usage" or set(options) - KNOWN:
        say(f"{program}: invalid option -- 'J'\nUSAGE: {program}\n\t[-b,--minbytes <min size in bytes>]")
        return 0
    misbehave(fault)
    ranks = int(options["-t"]) * int(options["-g"])
    element = ELEMENT_BYTES[options["-d"]]
    say(f"# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007\n# Collective test starting: {program}")
    say(f"# nThread {options['-t']} nGpus {options['-g']} minBytes {options['-b']} maxBytes {options['-e']}\n#")
    say("# Using devices")
    for rank in range(ranks):
        say(f"#  Rank {rank:2d} Group  0 Pid {os.getpid():6d} on stand-in device {rank:2d} [0000:18:00] Stand-in GPU")
    columns = "time   algbw   busbw  #wrong"
    say(f"#\n#       size         count      type   redop    root     {columns}     {columns}")
    rows = [
        row(program, size, element, ranks, options["-d"], fault) for size in sizes(options, program, ranks, element)
    ]
    for number, found in enumerate(rows):
        if fault == "partial" and number == len(rows) - 1:
            say(text_row(found)[:50])
            return 1
        if fault == "info":
            say("host:12:34 [0] NCCL INFO Connected all rings")
            say("\n[2026-01-01 10:00:00] host:12:34 [0] net.cc:10 NCCL WARN something 8 2 float")
        if fault == "glued":
            say(text_row(found)[:60] + "host:12:34 [0] NCCL INFO Connected all rings\n" + text_row(found)[60:])
        else:
            say(text_row(found))
    wrong = len(rows) if fault in ("wrong", "wrong_exit_1", "out_of_bounds") else 0
    say(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}\n# Avg bus bandwidth    : 1.5 \n#")
    if "-J" in options:
        write_json(options, program, ranks, rows, wrong)
    return 7 if fault in ("wrong", "exit_7") else 1 if fault == "wrong_exit_1" else 0


def write_json(options, program, ranks, rows, wrong):
    document = {
        "version": 3, "args": [f"/build/{program}"], "env": [f"{k}={v}" for k, v in os.environ.items()],
        "config": {"nthreads": int(options["-t"]), "ngpus": int(options["-g"]), "devices": [{"rank": 0}]},
        "results": rows, "out_of_bounds": {"count": wrong, "okay": "false" if wrong else "true"},
        "average_bus_bandwidth": {"bandwidth": 1.5, "okay": "unchecked"}, "errors": [], "end_time": "x",
    }  # fmt: skip
    text = json.dumps(document).replace("NaN", '"nan"')
    with Path(options["-J"]).open("x") as file:
        file.write(text[: len(text) // 2] if os.environ.get("STAND_IN") == "cut_json" else text)


if __name__ == "__main__":
    raise SystemExit(install(sys.argv[2]) if sys.argv[1] == "install" else main(sys.argv[1], sys.argv[2:]))
