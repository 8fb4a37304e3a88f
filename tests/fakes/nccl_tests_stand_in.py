"""A stand-in for the programs of nccl-tests: their flags, both formats, exit codes; answers and fails as it is told.

`python nccl_tests_stand_in.py install FOLDER` writes one executable per program there; each starts this file with its
own path first. What it is told stands in FOLDER/stand_in.json (`install` in Python takes the same words):

    release     of nccl-tests, 2.10.0 to 2.19.6: unknown options print the usage, formats and exit codes follow it
    mpi         false = every process is a job of its own, as a build without MPI
    cluster     fields of an ncclt Cluster: times are those of its simulation; left out, they follow from the size and
                NCCL_ALGO alone, so tests can foretell them
    factors     algorithm -> factor of its times where there is no cluster
    sigma       deviation of each time from the simulated one, as a share; every launch of a setting has the same, so
                that two settings which are equal in truth are told apart in the same way each time
    lacks       ["tree/simple", ...]: choices that NCCL does not offer to a tuner plugin
    environ     true = each rank of a measurement appends its NCCL_* variables to FOLDER/environ.txt, a line each

A tuner plugin that NCCL_TUNER_PLUGIN names is loaded and asked, as NCCL does, and changes the times as NCCL_ALGO does.
The variable STAND_IN names the misbehaviour of one launch. Written for `python -I -S`: standard library only.
"""

import ctypes
import hashlib
import json
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

ELEMENT_BYTES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "half": 2,
    "float": 4,
    "double": 8,
    "bfloat16": 2,
    "f8e4m3": 1,
    "f8e5m2": 1,
}
PER_RANK = ("all_gather_perf", "reduce_scatter_perf", "alltoall_perf")
UNCHECKED_IN_PLACE = ("alltoall_perf", "sendrecv_perf")
REDUCING = ("all_reduce_perf", "reduce_scatter_perf", "reduce_perf", "sendrecv_perf")
PROGRAMS = (*PER_RANK, "all_reduce_perf", "broadcast_perf", "reduce_perf", "sendrecv_perf")

OPTIONS = {
    "-t": ("nthreads", (2, 10, 0)),
    "-g": ("ngpus", (2, 10, 0)),
    "-b": ("minbytes", (2, 10, 0)),
    "-e": ("maxbytes", (2, 10, 0)),
    "-i": ("stepbytes", (2, 10, 0)),
    "-f": ("stepfactor", (2, 10, 0)),
    "-n": ("iters", (2, 10, 0)),
    "-w": ("warmup_iters", (2, 10, 0)),
    "-c": ("check", (2, 10, 0)),
    "-d": ("datatype", (2, 10, 0)),
    "-N": ("run_cycles", (2, 13, 10)),
    "-J": ("output_file", (2, 17, 3)),
    "-I": ("per_iter_timing", (2, 19, 2)),
}
SPLIT_SINCE, STARTING_SINCE, VERSION_SINCE = (2, 14, 0), (2, 16, 7), (2, 17, 4)

RANK_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
STUBBORN = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"
LOST = {
    "node_lost": "srun: error: Node failure on n2",
    "node_lost_mpirun": "ORTE has lost communication with a remote daemon.",
    "node_lost_ssh": "Connection to n2 closed by remote host.",
    "oom_kill": "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks were OOM Killed.",
    "no_algorithm": "h: Test NCCL failure common.cu:10 'invalid usage / no algorithm/protocol available for AllGather'",
    "out_of_memory": "host: Test CUDA failure common.cu:11 'out of memory' HF_TOKEN=hf_verysecret",
    "ecc": "host: Test CUDA failure common.cu:11 'uncorrectable ECC error encountered'",
}


def install(folder, **told):
    for program in PROGRAMS:
        path = Path(folder) / program
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{Path(__file__).resolve()}" "{path}" "$@"\n')
        path.chmod(0o755)
    (Path(folder) / "stand_in.json").write_text(json.dumps(told))
    return 0


class Job:
    """What this process is of the job, and what it was told."""

    def __init__(self, place, arguments):
        self.folder, self.program = Path(place).parent, Path(place).name
        told = self.folder / "stand_in.json"
        self.told = json.loads(told.read_text()) if Path(place).is_absolute() and told.exists() else {}
        self.release = tuple(map(int, self.told.get("release", "2.19.6").split(".")))
        self.options = dict(zip(arguments[::2], arguments[1::2], strict=False))
        names = next((names for names in RANK_VARIABLES if names[0] in os.environ), None)
        mpi = names is not None and self.told.get("mpi", True)
        self.rank, self.processes = (int(os.environ[name]) for name in names) if mpi else (0, 1)
        self.gpus = int(self.options.get("-t", 1)) * int(self.options.get("-g", 1))
        self.dtype = self.options.get("-d", "float")
        self.fault = os.environ.get("STAND_IN", "")

    def groups(self):
        """The group of each process: all in one, unless the environment says otherwise."""
        split = os.environ.get("NCCL_TESTS_SPLIT", "")
        if mask := os.environ.get("NCCL_TESTS_SPLIT_MASK"):
            return [process & int(mask, 16) for process in range(self.processes)]
        if split and self.release >= SPLIT_SINCE:
            operation, number = re.fullmatch(r"([A-Z&|%/]+)\s*(\w+)", split).groups()
            number = int(number, 0)
            how = {"MOD": lambda p: p % number, "DIV": lambda p: p // number, "AND": lambda p: p & number}
            return [how[operation](process) for process in range(self.processes)]
        return [0] * self.processes

    @property
    def ranks(self):
        groups = self.groups()
        return groups.count(groups[0]) * self.gpus


def forced():
    """What was forced on NCCL, as one text."""
    return " ".join(f"{k}={v}" for k, v in sorted(os.environ.items()) if re.match(r"NCCL_(?!TESTS_|DEBUG)", k))


def say(text=""):
    print(text, flush=True)


def usage(job, unknown):
    if unknown:
        say(f"{job.program}: invalid option -- '{unknown.lstrip('-')}'")
    known = [(key, name) for key, (name, since) in OPTIONS.items() if job.release >= since]
    say(f"USAGE: {job.program} \n\t" + " \n\t".join(f"[{key},--{name} <{name}>]" for key, name in known))
    return 0


def sizes(job, element):
    options = job.options
    size, last = int(options["-b"]), int(options["-e"])
    factor, step = int(options.get("-f", 1)), int(options.get("-i", 1 << 20))
    unit = 16 * job.ranks if job.program in PER_RANK else element
    found = []
    while size <= last:
        found.append(size // unit * unit)
        size = size * factor if factor > 1 else size + step
    return found


FUNCTIONS = ("broadcast_perf", "reduce_perf", "all_gather_perf", "reduce_scatter_perf", "all_reduce_perf")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")


class Tuner(ctypes.Structure):
    """ncclTuner_v6_t."""

    _fields_ = [
        (name, ctypes.c_char_p if name == "name" else ctypes.c_void_p)
        for name in ("name", "init", "choose", "end", "chunk")
    ]


def chosen_by_plugin(job, wanted):
    """Open a communicator for each GPU of this process; return size -> algorithm that the plugin made the cheapest."""
    library, chosen = os.environ.get("NCCL_TUNER_PLUGIN", ""), {}
    if not Path(library).is_file() or job.program not in FUNCTIONS or job.fault == "plugin_not_loaded":
        return chosen
    tuner = Tuner.in_dll(ctypes.CDLL(library), "ncclTunerPlugin_v6")
    size_t, pointer = ctypes.c_size_t, ctypes.c_void_p
    init = ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_uint64, size_t, size_t, pointer, pointer, pointer)
    numbers = [ctypes.c_int] * 3
    choose = ctypes.CFUNCTYPE(
        ctypes.c_int, pointer, ctypes.c_int, size_t, ctypes.c_int, pointer, *numbers, ctypes.POINTER(ctypes.c_int)
    )
    nodes = int(job.told.get("nodes", 1))
    for _ in range(job.gpus):
        context, channels = pointer(), ctypes.c_int()
        assert init(tuner.init)(ctypes.addressof(context), 1, job.ranks, nodes, None, None, None) == 0
        for size in wanted:
            words = [f"{algorithm}/{protocol}" for algorithm in ALGORITHMS for protocol in PROTOCOLS]
            costs = (ctypes.c_float * 21)(*(-1.0 if word in job.told.get("lacks", ()) else 1.0 for word in words))
            function, table = FUNCTIONS.index(job.program), ctypes.addressof(costs)
            assert choose(tuner.choose)(context, function, size, 1, table, 7, 3, 0, ctypes.byref(channels)) == 0
            cheapest = min(range(21), key=lambda at: costs[at] if costs[at] >= 0 else math.inf)
            if costs[cheapest] < 1:
                chosen[size] = words[cheapest].partition("/")[0]
        assert ctypes.CFUNCTYPE(ctypes.c_int, pointer)(tuner.end)(context) == 0
    return chosen


def times_us(job, wanted, chosen):
    """The time of each size: of the simulated cluster, or 20 µs and 10e9 bytes/s, by default twice that for a tree."""
    if "cluster" not in job.told:
        named = os.environ.get("NCCL_ALGO", "").lower().rpartition(":")[2]
        factors = job.told.get("factors", {"tree": 2})
        return {size: (20 + size / 10_000) * factors.get(chosen.get(size, named), 1) for size in wanted}
    request = {
        "cluster": job.told["cluster"],
        "program": job.program,
        "dtype": job.dtype,
        "ranks": job.ranks,
        "spans": job.ranks > 1 and len(set(job.groups())) > 1 and "MOD" in os.environ.get("NCCL_TESTS_SPLIT", ""),
        "forced": forced(),
        "sizes": sorted(set(wanted)),
    }
    text = json.dumps(request)
    cached = job.folder / "times" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
    if not cached.exists():
        cached.parent.mkdir(exist_ok=True)
        helper = Path(__file__).with_name("known_times.py")
        done = subprocess.run([sys.executable, "-I", str(helper), text], stdout=subprocess.PIPE, text=True, check=True)
        part = cached.with_suffix(f".{os.getpid()}")
        part.write_text(done.stdout)
        part.replace(cached)
    return {int(size): time_us for size, time_us in json.loads(cached.read_text()).items()}


def row(job, size, element, time_us, draw):
    def half(nwrong):
        calls = [time_us * (1 + job.told.get("sigma", 0.0) * draw.gauss(0, 1)) for _ in range(int(job.options["-n"]))]
        calls = [math.nan] * len(calls) if job.fault == "nan" else calls
        mean = sum(calls) / len(calls)
        timed = {"time": mean, "alg_bw": size / mean / 1e3, "bus_bw": size / mean / 1e3, "nwrong": nwrong}
        return timed, {"skipped_iterations": 0, "times_us": calls}

    wrong = 12.0 if job.fault in ("wrong", "wrong_exit_1") else 0.0
    out, out_calls = half(wrong)
    inside, inside_calls = half(None if job.program in UNCHECKED_IN_PLACE else 0.0)
    found = {
        "size": size,
        "count": size // element // (job.ranks if job.program in PER_RANK else 1),
        "type": job.dtype,
        "redop": "sum" if job.program in REDUCING else "none",
        "root": "    -1",
        "out_of_place": out,
        "in_place": inside,
    }
    if job.options.get("-I") == "1":
        found |= {"out_of_place_per_iter": out_calls, "in_place_per_iter": inside_calls}
    return found


def text_row(found):
    def half(name):
        timed, calls = found[name], found.get(f"{name}_per_iter")
        wrong = "N/A" if timed["nwrong"] is None else f"{timed['nwrong']:g}"
        text = f"  {timed['time']:7.2f}  {timed['alg_bw']:6.2f}  {timed['bus_bw']:6.2f}  {wrong:>6}"
        return text + f"  {min(calls['times_us']):7.2f}" * 4 if calls else text

    head = f"{found['size']:12d}  {found['count']:12d}  {found['type']:>8}  {found['redop']:>6}  {found['root']}"
    return head + half("out_of_place") + half("in_place")


def misbehave(job):
    """Do what happens before the table."""
    fault, last = job.fault, job.rank == job.processes - 1
    if fault == "hang" or (fault in ("segfault", "killed") and not last):
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
    elif fault in ("segfault", "killed"):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV if fault == "segfault" else signal.SIGKILL)
    elif fault == "noise" and job.rank == 0:
        block = "gpu-node-1: noise " * 3640 + "\n"  # 64 KiB, 100 MB in all
        for _ in range(800):
            sys.stdout.write(block)
            sys.stderr.write(block)
    elif fault in LOST:
        say(LOST[fault])
        raise SystemExit({"no_algorithm": 3, "out_of_memory": 2, "ecc": 2}.get(fault, 1))


def heading(job):
    if job.release >= VERSION_SINCE:
        say(f"# nccl-tests version {'.'.join(map(str, job.release))} nccl-headers=23007 nccl-library=23007")
    if job.release >= STARTING_SINCE:
        say(f"# Collective test starting: {job.program}")
    say(f"# nThread {job.options['-t']} nGpus {job.options['-g']} minBytes {job.options['-b']}\n#\n# Using devices")
    for process, group in enumerate(job.groups()):
        for gpu in range(job.gpus):
            rank = process * job.gpus + gpu
            say(
                f"#  Rank {rank:2d} Group {group:2d} Pid {os.getpid():6d} on stand-in device {gpu:2d} [0000:18:00] Fake"
            )
    columns = "time   algbw   busbw  #wrong" + ("  i_min i_max i_p99 i_cv%" if job.options.get("-I") == "1" else "")
    say(f"#\n#       size         count      type   redop    root     {columns}     {columns}")


def main(place, arguments):
    job = Job(place, arguments)
    unknown = next((key for key in job.options if key not in OPTIONS or job.release < OPTIONS[key][1]), "")
    if "-h" in arguments or unknown:
        return usage(job, "" if "-h" in arguments else unknown)
    if job.fault == "usage":
        return usage(job, "J") if job.rank == 0 else 0
    if job.told.get("environ"):
        with (job.folder / "environ.txt").open("a") as file:
            file.write(" ".join(f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("NCCL_")) + "\n")
    misbehave(job)
    element = ELEMENT_BYTES[job.dtype]
    swept = sizes(job, element)
    chosen = chosen_by_plugin(job, swept)
    if job.rank:
        return 0  # the others have nothing to say
    heading(job)
    times = times_us(job, swept, chosen)
    draw = random.Random(f"{swept} {forced()}")
    rows = [row(job, size, element, times[size], draw) for _ in range(int(job.options.get("-N", 1))) for size in swept]
    for number, found in enumerate(rows):
        if job.fault == "partial" and number == len(rows) - 1:
            say(text_row(found)[:50])
            return 1
        if job.fault == "info":
            say("host:12:34 [0] NCCL INFO Connected all rings")
            say("\n[2026-01-01 10:00:00] host:12:34 [0] net.cc:10 NCCL WARN something 8 2 float")
        if job.fault == "glued":
            say(text_row(found)[:60] + "host:12:34 [0] NCCL INFO Connected all rings\n" + text_row(found)[60:])
        else:
            say(text_row(found))
    wrong = len(rows) if job.fault in ("wrong", "wrong_exit_1", "out_of_bounds") else 0
    say(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}\n# Avg bus bandwidth    : 1.5 \n#")
    if "-J" in job.options:
        write_json(job, rows, wrong)
    if job.fault in ("wrong", "exit_7"):
        return 7 if job.release >= (2, 18, 0) else 6 if job.release >= (2, 17, 3) else 1
    return 1 if job.fault == "wrong_exit_1" else 0


def write_json(job, rows, wrong):
    version = 3 if job.release >= (2, 19, 6) else 2 if job.release >= (2, 19, 2) else 1
    document = {
        "version": version,
        "args": [f"/build/{job.program}"],
        "env": [f"{k}={v}" for k, v in os.environ.items()],
        "config": {
            "nthreads": int(job.options["-t"]),
            "ngpus": int(job.options["-g"]),
            "devices": [{"rank": n, "group": group} for n, group in enumerate(job.groups())],
        },
        "results": rows,
        "out_of_bounds": {"count": wrong, "okay": "false" if wrong else "true"},
        "average_bus_bandwidth": {"bandwidth": 1.5, "okay": "unchecked"},
        "errors": [],
        "end_time": "x",
    }
    text = json.dumps(document).replace("NaN", '"nan"')
    with Path(job.options["-J"]).open("x") as file:
        file.write(text[: len(text) // 2] if job.fault == "cut_json" else text)


if __name__ == "__main__":
    raise SystemExit(install(sys.argv[2]) if sys.argv[1] == "install" else main(sys.argv[1], sys.argv[2:]))
