"""Starts of a PyTorch job in which one rank differs: do all ranks decide the same about the tuner table?

    python bench/agreement.py [--starts 1000] [--ranks 8] [--timeout 2] [--json]

Each start is `--ranks` processes with torch.distributed over gloo, the compiled plugin, and a stand-in for NCCL, which
has nothing but a version. The faults take turns; two are none. `different` must be 0. Ranks are forked from this
process, which has PyTorch loaded; needs a C compiler and Linux.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ncclt.core.nccl_version import NcclVersion
from ncclt.deliver.agree import AGREEMENT_VARIABLE, TIMEOUT_VARIABLE
from ncclt.deliver.agree.injected import hook
from ncclt.errors import InputError
from ncclt.nccl.tuner_plugin.build import build, compiler
from ncclt.nccl.tuner_plugin.compact_table import TABLE_VARIABLE, encode_table
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
from ncclt.nccl.tuner_table import FUNCTIONS, table_text
from output import build_parser
from servers import free_port

FAULTS = (
    "none",
    "eager",
    "no plugin",
    "gone plugin",
    "other plugin",
    "other table",
    "cut table",
    "other version",
    "lost table",
    "lost agreement",
    "dropped environment",
    "late",
    "killed",
)
"""`eager`: communicators open before the ranks agree, as with init_process_group(device_id=...). Both first ones are no
fault: all ranks use the table."""

PLUGIN_VARIABLE = "NCCL_TUNER_PLUGIN"
ANSWER_S = 60


def build_parts(folder: Path) -> dict[str, Path]:
    cc = compiler()
    if cc is None:
        raise SystemExit("bench/agreement.py needs a C compiler, for example gcc")
    parts = {
        "plugin": build(folder / "one" / "libnccl-tuner-ncclt.so"),
        "other": build(folder / "two" / "libnccl-tuner-ncclt.so", extra=("-O1",)),
    }
    for version in (22809, 22907):
        library = folder / str(version) / "libnccl.so.2"
        library.parent.mkdir()
        source = library.with_name("nccl.c")
        source.write_text(f"int ncclGetVersion(int *version) {{ *version = {version}; return 0; }}\n")
        subprocess.run([cc, "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", library, source], check=True)
        parts[str(version)] = library
    return parts


def table(ranks: int, *, end: int = 100) -> str:
    rows = [f"allreduce,0,{end},tree,ll,2,1,{ranks}"]
    return encode_table(table_text(rows, table_id="r", version=NcclVersion(2, 28, 9), nodes=1, ranks=ranks))


def rank_environment(parts: Mapping[str, Path], fault: str, *, ranks: int, timeout_s: float) -> dict[str, str]:
    environ = {
        PLUGIN_VARIABLE: str(parts["plugin"]),
        TABLE_VARIABLE: table(ranks),
        AGREEMENT_VARIABLE: "hook",
        TIMEOUT_VARIABLE: str(timeout_s),
    }
    changes = {
        "gone plugin": {PLUGIN_VARIABLE: "/nowhere/libnccl-tuner-ncclt.so"},
        "other plugin": {PLUGIN_VARIABLE: str(parts["other"])},
        "other table": {TABLE_VARIABLE: table(ranks, end=101)},
        "cut table": {TABLE_VARIABLE: table(ranks)[:-3]},
    }
    lost = {
        "no plugin": (PLUGIN_VARIABLE,),
        "lost table": (TABLE_VARIABLE,),
        "lost agreement": (AGREEMENT_VARIABLE,),
        "dropped environment": (PLUGIN_VARIABLE, TABLE_VARIABLE, AGREEMENT_VARIABLE),
    }
    environ |= changes.get(fault, {})
    return {name: value for name, value in environ.items() if name not in lost.get(fault, ())}


def become_rank(
    connection: Connection,
    errors: Path,
    rank: int,
    ranks: int,
    port: int,
    fault: str,
    parts: Mapping[str, Path],
    timeout_s: float,
) -> None:
    """Train nothing: join the job, open a communicator, and tell whether the plugin chooses by its table."""
    import torch.distributed.distributed_c10d as distributed

    os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), 2)
    os.environ.update(rank_environment(parts, fault, ranks=ranks, timeout_s=timeout_s))
    ctypes.CDLL(str(parts["22907" if fault == "other version" else "22809"]))
    if fault != "dropped environment":  # PYTHONPATH and so the hook are lost with it
        hook.wrap(distributed)
    if fault in ("late", "killed"):
        original = distributed._get_default_store

        def be_late() -> Any:
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(2.5 * timeout_s)
            return original()

        distributed._get_default_store = be_late
    library = os.environ.get(PLUGIN_VARIABLE, "")
    opening = LoadedPlugin(Path(library)).communicator(ranks=ranks, nodes=1) if Path(library).is_file() else None
    eager = opening.__enter__() if opening and fault == "eager" else None
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    answer = "default"
    if opening:
        try:
            communicator = eager or opening.__enter__()
            asked = communicator.ask(FUNCTIONS.index("allreduce"), 64)
            answer = "use" if asked.costs[0] < 1 else "default"
        except InputError as error:
            answer = str(error)
    connection.send(answer)
    connection.poll(ANSWER_S)  # rank 0 has the store: it ends after all others know
    os._exit(0)


def start(folder: Path, parts: Mapping[str, Path], fault: str, *, ranks: int, timeout_s: float) -> dict[str, object]:
    """Start all ranks; the last one has the fault."""
    context = multiprocessing.get_context("fork")
    port = free_port()
    errors = folder / "stderr"
    errors.unlink(missing_ok=True)
    processes, connections = [], []
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        own = fault if rank == ranks - 1 or fault == "eager" else "none"
        arguments = (theirs, errors, rank, ranks, port, own, parts, timeout_s)
        process = context.Process(target=become_rank, args=arguments)
        process.start()
        theirs.close()
        processes.append(process)
        connections.append(ours)
    answers = []
    for connection in connections:
        try:
            answers.append(connection.recv() if connection.poll(ANSWER_S) else "no answer")
        except EOFError:
            answers.append("ended")
    for connection, answer in zip(connections, answers, strict=True):
        if answer != "ended":
            connection.send("end")
        connection.close()
    for process in processes:
        process.join(ANSWER_S)
        process.kill()
    lines = [line for line in errors.read_text().splitlines() if line.startswith("ncclt: ")]
    return {"fault": fault, "answers": answers, "lines": lines}


def is_different(row: Mapping[str, Any]) -> bool:
    """Tell whether ranks that live decided differently; a rank that fails its call is different, too."""
    return len({answer for answer in row["answers"] if answer != "ended"}) != 1


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--starts", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8, help="of each start; at least 3")
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds that ranks wait for each other")
    arguments = parser.parse_args()
    if arguments.starts < 1 or arguments.ranks < 3 or arguments.timeout <= 0:
        parser.error("--starts must be at least 1, --ranks at least 3, and --timeout above 0")
    import torch.distributed  # noqa: F401  # before the forks

    began_s, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory() as name:
        parts = build_parts(Path(name))
        for number in range(arguments.starts):
            fault = FAULTS[number % len(FAULTS)]
            rows.append(start(Path(name), parts, fault, ranks=arguments.ranks, timeout_s=arguments.timeout))
    different = [row for row in rows if is_different(row)]
    outcomes = Counter(str(row["answers"][0]) for row in rows)  # type: ignore[index]
    document = {
        "starts": len(rows),
        "ranks": arguments.ranks,
        "different": len(different),
        "used": outcomes["use"],
        "kept_default": outcomes["default"],
        "not_started": len(rows) - outcomes["use"] - outcomes["default"],
        "seconds": round(time.monotonic() - began_s, 1),
    }
    if arguments.json:
        print(json.dumps(document | {"rows": rows}))
    else:
        print(*(f"{key} {value}" for key, value in document.items()), sep="\n")
        print(*different, sep="\n")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
