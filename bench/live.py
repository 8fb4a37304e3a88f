"""Jobs whose plan changes while they run: does every rank choose the same for every question, whatever fails?

    python bench/live.py [--ranks 8,32,64] [--switches 1000] [--faults none,killed] [--part PART] [--quick] [--json]

Each job is real processes with the compiled plugin, the worker threads of live tuning, a store of PyTorch, and a
stand-in for NCCL (bench/live_nccl.c) that compares all choices of all ranks and ends the job when two differ. No GPU,
and nothing is sent. Rows of `part` protocol: ranks, fault, calls (questions of all ranks), switches (committed plans),
disagreements (must be 0), ends (processes by how they ended), boundary_us and hook_us (median time that the optimizer's
hook takes at a boundary or to arm, and elsewhere), switch_ms (median time from the hook that arms a plan to the
decision, for which the next question waits), lines (of live tuning). Needs a C compiler and Linux. Rows of
`part` decisions come from simulated trainings (bench/live_decisions.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from live_decisions import run_cases
from ncclt.core.nccl_version import NcclVersion
from ncclt.deliver.agree.injected.live import COMPARED, Boundary, Coordinator, Limits, LivePlugin, LiveSession
from ncclt.nccl.tuner_plugin.build import FLAGS, build, compiler, source_folder
from ncclt.nccl.tuner_plugin.compact_table import encode_table
from ncclt.nccl.tuner_table import FUNCTIONS, table_text
from output import Rows, build_parser

NONE = "none"
FAULTS = {
    NONE: "plan stays",
    "exception": "plan stays",
    "read time-out": "plan stays",
    "estimates": "plan stays",
    "hidden estimates": "plan stays",
    "capture": "plan stays",
    "other thread": "plan stays",
    "second plan": "plan stays",
    "no memory": "plan stays",
    "other offers": "default",
    "slow store": "plan stays",
    "lost store": "fail-stop",
    "killed": "plan stays",
}
"""Expected end of a job by its fault, which the last rank has; `capture` and `second plan` concern all.

exception: its worker fails between acknowledgement and decision. read time-out: of some plans. estimates: of that rank
alone, known to the plugin; hidden: not known to it, and from step 120 on. capture: of CUDA graphs, twice. other thread:
drives a communicator of its own. second plan: before the first is armed. no memory: to connect another algorithm. other
offers: NCCL offers one choice less. lost store: for good, between acknowledgement and decision. killed: at the same
place, and all start again, as torchrun does."""

EVERY = 10
"""Steps between boundaries."""


def step_s(ranks: int) -> float:
    """Return the time of a step: of small models, which leave a switch the least time, while there are cores enough.

    More ranks than cores need longer steps: a switch takes them longer, and each step that they make meanwhile takes
    longer still. With these, one boundary suffices for a switch.
    """
    return max(0.004, 0.002 * ranks / (os.cpu_count() or 1))


LIMITS = Limits(collect_s=10.0, acknowledge_s=10.0, decide_s=25.0, question_s=40.0)
SHORT_LIMITS = Limits(collect_s=2.0, acknowledge_s=2.0, decide_s=5.0, question_s=6.0)
FAIL_STOP, DIFFERENT, NOT_CONNECTED = 5, 99, 98
WORDS = {FAIL_STOP: "fail-stop", DIFFERENT: "different", NOT_CONNECTED: "not connected"}
ALL_REDUCE, ALL_GATHER = FUNCTIONS.index("allreduce"), FUNCTIONS.index("allgather")
KIB = 1024
MOST_S = 1800.0


class Question(ctypes.Structure):
    """One question of the stand-in."""

    _fields_ = (("function", ctypes.c_int), ("bytes", ctypes.c_uint64))


def questions(*sizes: tuple[int, int]) -> Any:
    return (Question * len(sizes))(*(Question(*size) for size in sizes))


STEP = questions(*[(ALL_REDUCE, KIB << bucket % 10) for bucket in range(20)], (ALL_GATHER, 256 * KIB))
HALF_STEP = questions(*[(ALL_REDUCE, 3 * KIB << layer) for layer in range(4)])
OTHER = questions((ALL_REDUCE, 5 * KIB))
SAME = questions((ALL_REDUCE, KIB))


def plans(ranks: int) -> list[str]:
    """Return the plans that take turns; "" = the NCCL default."""
    rows = (
        ("allreduce,0,65536,ring,simple,2,-1,-1", "allreduce,65537,9000000,ring,ll128,-1,-1,-1"),
        ("allreduce,0,9000000,tree,simple,4,-1,-1", "allgather,0,9000000,ring,ll128,-1,-1,-1"),
    )
    version = NcclVersion(2, 28, 9)
    return [
        "",
        *(encode_table(table_text(lines, table_id="r", version=version, nodes=1, ranks=ranks)) for lines in rows),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of the bench.

    Attributes:
        switches: that end it.
        boundaries: that end it without.
        start: of the ranks, counted from 0.
    """

    plugin: Path
    nccl: Path
    shared: int
    errors: Path
    ranks: int
    fault: str
    switches: int
    boundaries: int
    port: int
    start: int = 0

    @property
    def limits(self) -> Limits:
        return SHORT_LIMITS if self.fault in ("read time-out", "lost store", "killed") else LIMITS


class Alternating:
    """The director: another plan at each boundary, until there were enough switches."""

    news = finished = ""

    def __init__(self, job: Job, stop: Callable[[], None]) -> None:
        self._plans, self._job, self._stop = plans(job.ranks), job, stop
        self._proposals, self._left = 0, job.boundaries
        self.switches, self.aborts, self.left_out, self.reason = 0, 0, 0, ""
        self.latencies_ms: list[float] = []

    def decide(self, boundary: Boundary) -> str | None:
        if boundary.outcome is not None:
            self.latencies_ms.append(1e3 * boundary.outcome.latency_s)
            self.switches += boundary.outcome.committed
            self.aborts += not boundary.outcome.committed
        self.left_out = max(self.left_out, boundary.left_out)
        self._left -= 1
        if self.switches >= self._job.switches or self._left <= 0:
            self._stop()
            return None
        if not boundary.can_propose:
            return None
        self._proposals += 1
        return self._plans[self._proposals % len(self._plans)]

    def end(self, reason: str) -> None:
        self.reason = reason
        self._stop()


class Hasty(Coordinator):
    """A coordinator that proposes again before its last proposal is armed."""

    def take(self, *args: Any) -> Boundary:
        boundary = super().take(*args)
        return boundary._replace(can_propose=bool(self._planned) and not self.end)

    def propose(self, plan: str, steps: int) -> dict[str, Any]:
        return super().propose(plan, steps + EVERY)


class FaultyStore:
    """A store whose operations fail at some keys, after it was told which."""

    def __init__(self, store: Any, before: Callable[[str, str], None], after: Callable[[str, str], None]) -> None:
        self._store, self._before, self._after = store, before, after

    def clone(self) -> FaultyStore:
        return FaultyStore(self._store.clone(), self._before, self._after)

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)

        def run(*args: Any) -> Any:
            key = str(args[0] if isinstance(args[0], str) else args[0][0])
            self._before(name, key)
            result = operation(*args)
            self._after(name, key)
            return result

        return run


def spoil(store: Any, job: Job) -> Any:
    """Return the store of the rank that has the fault."""
    state = {"acknowledged": 0, "raised": 0}

    def before(name: str, key: str) -> None:
        is_third = state["acknowledged"] and state["acknowledged"] % 3 == 0
        if job.fault == "slow store":
            time.sleep(0.02)
        if job.fault == "exception" and is_third and state["raised"] < state["acknowledged"]:
            state["raised"] = state["acknowledged"]
            raise MemoryError("made up: after the acknowledgement")
        if job.fault == "read time-out" and name == "get" and "/plan/" in key and int(key.rpartition("/")[2]) % 7 == 0:
            raise TimeoutError("made up: the read ran into its limit")
        if job.fault == "lost store" and state["acknowledged"] == 3:
            raise ConnectionError("made up: the store is gone")

    def after(name: str, key: str) -> None:
        if name == "set" and "/ack/" in key:
            state["acknowledged"] += 1
            if job.fault == "killed" and state["acknowledged"] == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    return FaultyStore(store, before, after)


class Rank:
    """One rank: its communicators and its training loop."""

    def __init__(self, job: Job, rank: int) -> None:
        import torch.distributed as dist

        self.job, self.rank = job, rank
        self.has_fault = rank == job.ranks - 1 and job.start == 0
        os.environ["NCCLT_LIVE"] = "1"
        self.nccl = ctypes.CDLL(str(job.nccl), mode=ctypes.RTLD_GLOBAL)
        self.nccl.live_open.restype = ctypes.c_void_p
        self.nccl.live_stop_at.restype = ctypes.c_uint64
        self.shared = ctypes.c_void_p(job.shared)
        self.world = self._open(0, 0x1000, rank, job.ranks)
        half = rank % 2
        self.half = self._open(1 + half, 0x2000 + half, rank // 2, (job.ranks + 1 - half) // 2)
        self.other = self._open(3, 0x3000, rank, job.ranks) if job.fault == "other thread" else None
        store: Any = dist.TCPStore("127.0.0.1", job.port, None, False, timedelta(seconds=60))
        if self.has_fault:
            store = spoil(store, job)
        self.plugin = LivePlugin(ctypes.CDLL(str(job.plugin)))
        self.director = Alternating(job, self._stop_soon) if rank == 0 else None
        self.session = LiveSession(
            store,
            self.plugin,
            rank,
            job.ranks,
            prefix=f"ncclt/live/{job.start}/1",
            every=EVERY,
            limits=job.limits,
            director=self.director,
            hello={**dict.fromkeys([name for name, _ in COMPARED], ""), "problem": "", "host": "here"},
            connected_only=job.fault == "no memory",
        )
        if job.fault == "second plan" and rank == 0:
            self.session._coordinator = Hasty(job.ranks, EVERY, 1)
        self.step = 0

    def _open(self, communicator: int, number: int, rank: int, ranks: int) -> ctypes.c_void_p:
        connects, has_memory = self.job.fault == "no memory", not (self.job.fault == "no memory" and self.has_fault)
        hides = self.job.fault == "other offers" and self.has_fault
        number = ctypes.c_uint64(number)  # type: ignore[assignment]
        opened = self.nccl.live_open(
            self.shared, str(self.job.plugin).encode(), communicator, number, rank, ranks, connects, has_memory, hides
        )
        if not opened:
            raise SystemExit("the plugin does not open a communicator")
        return ctypes.c_void_p(opened)

    def _stop_soon(self) -> None:
        """Let all ranks end at the same step, which none has reached: none is ahead by more than a few."""
        if int(self.nccl.live_stop_at(self.shared)) > self.step + 3 * EVERY:
            self.nccl.live_stop(self.shared, ctypes.c_uint64(self.step + 3 * EVERY))

    def play(self, communicator: ctypes.c_void_p, asked: Any, *, launches: bool = True) -> None:
        if code := self.nccl.live_step(communicator, asked, len(asked), launches):
            raise RuntimeError(WORDS[code])

    def estimate(self) -> None:
        if self.job.fault == "estimates":
            self.plugin.estimate(1)
        self.play(self.world, SAME, launches=False)
        self.plugin.estimate(0)

    def drive_other(self) -> None:
        """Ask in a communicator of its own, at a pace that differs from rank to rank."""
        with contextlib.suppress(RuntimeError):
            for turn in range(1 << 30):
                if self.is_over:
                    return
                self.play(self.other, OTHER)  # type: ignore[arg-type]
                time.sleep(0.001 * ((self.rank + turn) % 4))

    @property
    def is_over(self) -> bool:
        return self.step >= int(self.nccl.live_stop_at(self.shared))

    def train(self) -> tuple[list[float], list[float]]:
        """Return the times of the hook at boundaries and elsewhere, µs."""
        boundary_us: list[float] = []
        hook_us: list[float] = []
        pause_s = step_s(self.job.ranks)
        thread = threading.Thread(target=self.drive_other, daemon=True)
        if self.other:
            thread.start()
        while not self.is_over:
            begins = {"estimates": 0, "hidden estimates": 12 * EVERY}.get(self.job.fault)
            if begins is not None and self.has_fault and self.step >= begins and self.step % 3 == 0:
                self.estimate()
            captures = self.job.fault == "capture" and self.step in (12 * EVERY + 3, 14 * EVERY)
            if captures:
                self.plugin.capture(1)
            self.play(self.world, STEP)
            self.play(self.half, HALF_STEP)
            if captures:
                self.plugin.capture(0)
            time.sleep(pause_s)
            self.step += 1
            scheduled = self.session._scheduled
            arms = scheduled is not None and scheduled["step"] <= self.step
            began_s = time.perf_counter()
            self.session.step()
            taken_us = 1e6 * (time.perf_counter() - began_s)
            (boundary_us if arms or self.step % EVERY == 0 else hook_us).append(taken_us)
        return boundary_us, hook_us

    def close(self) -> None:
        for communicator in (self.world, self.half):
            self.nccl.live_close(communicator)


def become_rank(connection: Connection, job: Job, rank: int) -> None:
    os.dup2(os.open(job.errors, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), 2)
    os.nice(5)
    try:
        played = Rank(job, rank)
        times: tuple[list[float], list[float]] = ([], [])
        try:
            times = played.train()
            end = ""
        except RuntimeError as error:
            end = str(error)
        report: dict[str, Any] = {"end": end, "ended": played.session.ended, "times": times}
        if played.director is not None:
            report |= {name: getattr(played.director, name) for name in ("switches", "aborts", "left_out", "reason")}
            report["switch_ms"] = median(played.director.latencies_ms)
        connection.send(report)
        connection.poll(60)
        if not end:
            played.session.close()
            played.close()
    except BaseException as error:
        connection.send(silent_report(f"broken: {error!r}"))
        raise
    os._exit(0)


def serve_store(connection: Connection) -> None:
    """Hold the store, as torchrun's agent does: it outlives the ranks."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False)
    connection.send(store.port)
    connection.poll(None)
    os._exit(0)


def start_ranks(job: Job) -> tuple[list[Any], list[Connection]]:
    context = multiprocessing.get_context("fork")
    processes, connections = [], []
    for rank in range(job.ranks):
        ours, theirs = context.Pipe()
        process = context.Process(target=become_rank, args=(theirs, job, rank))
        process.start()
        theirs.close()
        processes.append(process)
        connections.append(ours)
    return processes, connections


def await_ranks(processes: Sequence[Any], connections: Sequence[Connection]) -> list[dict[str, Any]]:
    """Return the reports of the ranks; after a failure, end the ranks that wait for the failed one."""
    reports: dict[int, dict[str, Any]] = {}
    deadline_s = time.monotonic() + MOST_S
    while len(reports) < len(processes) and time.monotonic() < deadline_s:
        ready = wait([pipe for rank, pipe in enumerate(connections) if rank not in reports], timeout=1.0)
        for connection in ready:
            rank = connections.index(connection)  # type: ignore[arg-type]
            try:
                reports[rank] = connection.recv()  # type: ignore[union-attr]
            except EOFError:
                reports[rank] = silent_report("killed")
        if failed := [report for report in reports.values() if report["end"]]:
            deadline_s = min(deadline_s, time.monotonic() + (8.0 if failed[0]["end"] != "killed" else 1.0))
    for rank, (process, connection) in enumerate(zip(processes, connections, strict=True)):
        with contextlib.suppress(OSError):
            connection.send("end")
        process.join(5.0 if rank in reports else 0.0)
        process.kill()
        process.join()
        connection.close()
    return [reports.get(rank, silent_report("waits for another rank")) for rank in range(len(processes))]


def silent_report(end: str) -> dict[str, Any]:
    return {"end": end, "ended": "", "times": ([], [])}


def median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 1) if values else None


def play_job(parts: dict[str, Path], folder: Path, fault: str, *, ranks: int, switches: int) -> dict[str, Any]:
    """Run one job to its end, and return its row."""
    nccl = ctypes.CDLL(str(parts["nccl"]))
    nccl.live_questions.restype = nccl.live_different.restype = ctypes.c_uint64
    nccl.live_shared_size.restype = ctypes.c_size_t
    memory = mmap.mmap(-1, nccl.live_shared_size())
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve_store, args=(theirs,))
    server.start()
    errors = folder / "stderr"
    errors.unlink(missing_ok=True)
    job = Job(
        plugin=parts["plugin"],
        nccl=parts["nccl"],
        shared=at,
        errors=errors,
        ranks=ranks,
        fault=fault,
        switches=switches,
        boundaries=4 * switches + 40 if FAULTS[fault] != "default" else 40,
        port=ours.recv(),
    )
    calls, reports = 0, []
    began_s = time.monotonic()
    for start in range(2):
        nccl.live_begin(ctypes.c_void_p(at))
        reports += await_ranks(*start_ranks(replace(job, start=start)))
        calls += nccl.live_questions(ctypes.c_void_p(at))
        if fault != "killed":
            break
    ours.send("end")
    server.join(5)
    server.kill()
    directors = [report for report in reports if "switches" in report]
    switched = sum(report["switches"] for report in directors)
    ends = Counter(report["end"] or ("plan stays" if switched else "default") for report in reports)
    lines = [line for line in errors.read_text().splitlines() if line.startswith("ncclt: ")]
    return {
        "part": "protocol",
        "ranks": ranks,
        "fault": fault,
        "calls": calls,
        "switches": switched,
        "aborts": sum(report["aborts"] for report in directors),
        "left_out": max((report["left_out"] for report in directors), default=0),
        "disagreements": nccl.live_different(ctypes.c_void_p(at)),
        "ends": dict(ends),
        "boundary_us": median([time_us for report in reports for time_us in report["times"][0]]),
        "hook_us": median([time_us for report in reports for time_us in report["times"][1]]),
        "switch_ms": median([report["switch_ms"] for report in directors if report["switch_ms"] is not None]),
        "lines": lines,
        "seconds": round(time.monotonic() - began_s, 1),
    }


def build_parts(folder: Path) -> dict[str, Path]:
    cc = compiler()
    if cc is None:
        raise SystemExit("bench/live.py needs a C compiler, for example gcc")
    nccl = folder / "libnccl.so.2"
    flags = [*FLAGS, "-fvisibility=default", "-shared", "-Wl,-soname,libnccl.so.2", f"-I{source_folder()}"]
    subprocess.run([cc, *flags, "-o", nccl, Path(__file__).with_name("live_nccl.c"), "-ldl"], check=True)
    return {"plugin": build(folder / "libnccl-tuner-ncclt.so"), "nccl": nccl}


def is_as_expected(row: dict[str, Any]) -> bool:
    """Tell whether no two ranks differed, and the job ended as documented."""
    allowed = {FAULTS[row["fault"]], "waits for another rank", *(("killed",) if row["fault"] == "killed" else ())}
    if row["fault"] == "lost store":
        allowed.add("plan stays")
    if row["fault"] == "second plan":  # two aborts in a row may come before the first switch
        allowed.add("default")
    return (
        row["disagreements"] == 0 and set(row["ends"]) <= allowed and bool({*row["ends"]} - {"waits for another rank"})
    )


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--ranks", default="8,32,64", help="processes per job, with commas; 2 to 64")
    parser.add_argument("--switches", type=int, default=1000, help="of the job without a fault; others make a tenth")
    parser.add_argument("--faults", default=",".join(FAULTS), help="with commas")
    parser.add_argument("--part", choices=("protocol", "decisions"), help="only these rows")
    parser.add_argument("--quick", action="store_true", help="4 processes, 10 switches, 5 simulated trainings per case")
    arguments = parser.parse_args()
    sizes = [4] if arguments.quick else [int(word) for word in arguments.ranks.split(",")]
    switches = 10 if arguments.quick else arguments.switches
    faults = arguments.faults.split(",")
    if not all(2 <= ranks <= 64 for ranks in sizes) or switches < 1 or not set(faults) <= set(FAULTS):
        parser.error(f"--ranks must be 2 to 64, --switches at least 1, and --faults some of {', '.join(FAULTS)}")
    import torch.distributed  # noqa: F401  # before the forks

    rows = Rows(as_json=arguments.json)
    with tempfile.TemporaryDirectory() as name:
        parts = build_parts(Path(name)) if arguments.part != "decisions" else {}
        for ranks in sizes if arguments.part != "decisions" else ():
            for fault in faults:
                limit = switches if fault == NONE else max(10, switches // 10)
                rows.add(play_job(parts, Path(name), fault, ranks=ranks, switches=limit))
    for row in run_cases(5 if arguments.quick else 1000) if arguments.part != "protocol" else ():
        rows.add(row)
    rows.end()
    sys.exit(0 if all(is_as_expected(row) for row in rows if row["part"] == "protocol") else 1)


if __name__ == "__main__":
    main()
