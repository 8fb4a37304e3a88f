"""Starts of a two-node job in which one node meets a fault: do both nodes start with the same decision?

    python bench/answers.py [--starts 100] [--json]

Each start is two real `ncclt run` processes around torchrun's name, with the compiled plugin and a server on loopback
that gives one recommendation with a table. The second node meets the fault. `same` = both started with the same
variables (or both with none), `refused` = a node did not start, which the rendezvous shows before training; `different`
must be 0.
Needs a C compiler and Linux; no GPU is used, and nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePath
from typing import Any

from ncclt.nccl.tuner_plugin.build import build, compiler

FAULTS = ("none", "server away", "server slow", "another revision", "cut-off answer", "foreign owner", "missing plugin")
MODES = ("nothing", "--shared", "--job", "--policy")
SLOW_S, TIMEOUT_S, WAIT_S, LONGEST_S = 4.0, 2.0, 20.0, 120.0
AWAY = "http://127.0.0.1:9"
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
BY_NAME = ("NCCL_TUNER_PLUGIN", "NCCLT_POLICY")


def document(revision: str) -> dict[str, Any]:
    """Return an answer for 2 nodes x 4 GPUs with a table."""
    rule = {
        "collective": "all_reduce",
        "min_bytes": 0,
        "max_bytes": None,
        "group_size": 0,
        "algorithm": "ring",
        "protocol": "ll" if revision == "r-1" else "simple",
        "channels": None,
    }
    return {
        "schema": 1,
        "recommendation": revision,
        "cluster": "bench",
        "model": "bert",
        "nodes": 2,
        "gpus_per_node": 4,
        "nccl_version": "2.28.9",
        "decision": "keep-default",
        "speedup": None,
        "interval": None,
        "launcher": "slurm",
        "variables": {},
        "lost": [],
        "origin": "measured",
        "remarks": [],
        "table": [rule],
        "table_parameters": {},
        "groups": [],
        "table_verdict": None,
    }


@contextmanager
def serving() -> Iterator[str]:
    """Serve on loopback; the first part of the path says what the server does for a node."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            behaviour = self.path.split("/")[1]
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            said = document("r-2" if behaviour == "another" else "r-1")
            if "keeping" in self.path and "job" in query:
                said["job"] = query["job"][0]
            body = json.dumps(said).encode()
            if behaviour == "slow":
                time.sleep(SLOW_S)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body[:200] if behaviour == "cut" else body)
            except OSError:
                return  # the client has given up

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def start_node(folder: Path, url: str, plugin: Path, *, rank: int, fault: str, mode: str) -> subprocess.Popen[str]:
    here = fault if rank else "none"
    node = folder / f"node{rank}"
    node.mkdir()
    # A server that keeps one answer per job gives both nodes the same one: another revision is an older server's.
    kept = "keeping" if fault != "another revision" else "forgetting"
    behaviour = {"server slow": "slow", "another revision": "another", "cut-off answer": "cut"}.get(here, "good")
    server = AWAY if here == "server away" else f"{url}/{behaviour}/{kept}"
    mine = {"missing plugin": folder / "none.so", "foreign owner": folder / "open" / plugin.name}.get(here, plugin)
    table = folder / ("cut.csv" if here == "cut-off answer" else "table.csv")
    more = {
        "nothing": ["--server", server],
        "--shared": ["--server", server, "--shared", str(folder / "shared")],
        "--job": ["--server", server, "--job", "bench-1"],
        "--policy": ["--policy", str(table)],
    }[mode]
    launch = [str(folder / "torchrun"), "--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=4", "--rdzv-id=bench-1"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "SLURM", "OMPI", "PMI"))}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ncclt",
            "run",
            "--cluster",
            "bench",
            "--model",
            "bert",
            "--nccl-version",
            "2.28.9",
            "--timeout",
            str(TIMEOUT_S),
            "--wait",
            str(WAIT_S),
            *more,
            "--",
            *launch,
            "train.py",
        ],
        env=clean | {"NCCLT_PLUGIN": str(mine), "XDG_CACHE_HOME": str(node), "NCCLT_ALLOW_DIFFERENCE": "NO_GPU"},
        cwd=node,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def prepare(folder: Path, plugin: Path) -> None:
    (folder / "shared").mkdir()
    torchrun = folder / "torchrun"
    torchrun.write_text(f"#!{sys.executable}\n{SHOW}\n")
    torchrun.chmod(0o755)
    (folder / "open").mkdir()
    (folder / "open" / plugin.name).write_bytes(plugin.read_bytes())
    (folder / "open").chmod(0o777)  # another user can swap the plugin
    from ncclt.deliver.answer import answer_from_document

    text = answer_from_document(document("r-1")).table
    (folder / "table.csv").write_text(text)
    (folder / "cut.csv").write_text(text[: len(text) - 20])


def read_decision(environ: dict[str, str]) -> dict[str, str]:
    own = ("NCCLT_PLUGIN", "NCCLT_ALLOW_DIFFERENCE")
    return {
        name: PurePath(value).name if name in BY_NAME and "/node" in value else value
        for name, value in environ.items()
        if name.startswith("NCCL") and name not in own
    }


def run_start(url: str, plugin: Path, *, fault: str, mode: str) -> tuple[str, str]:
    """Return `same`, `refused` or `different`, and what was given or said."""
    with tempfile.TemporaryDirectory(prefix="ncclt-answers-") as name:
        folder = Path(name)
        prepare(folder, plugin)
        nodes = [start_node(folder, url, plugin, rank=rank, fault=fault, mode=mode) for rank in (0, 1)]
        told = [node.communicate(timeout=LONGEST_S) for node in nodes]
        if any(node.returncode not in (0, 2, 69) for node in nodes):
            return "different", f"exit codes {[node.returncode for node in nodes]}: {told}"
        if any(node.returncode for node in nodes):
            return "refused", next(err for node, (_, err) in zip(nodes, told, strict=True) if node.returncode)
        given = [read_decision(json.loads(out)) for out, _ in told]
        outcome = "same" if given[0] == given[1] else "different"
        return outcome, given[0].get("NCCLT_RECOMMENDATION", "nothing") if outcome == "same" else str(given)


def main(argv: list[str] | None = None) -> int:
    """Print the outcomes per way to agree and fault; return 1 if any start was different."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=100, help="starts, spread over all cases (default 100)")
    parser.add_argument("--json", action="store_true", help="one JSON object per case")
    arguments = parser.parse_args(argv)
    if compiler() is None:
        raise SystemExit("bench/answers.py needs a C compiler, for example gcc")
    cases = [(mode, fault) for mode in MODES for fault in FAULTS]
    outcomes: dict[tuple[str, str], Counter[str]] = {case: Counter() for case in cases}
    given: dict[tuple[str, str], set[str]] = {case: set() for case in cases}
    with tempfile.TemporaryDirectory() as folder, serving() as url:
        plugin = build(Path(folder) / "libnccl-tuner-ncclt.so")
        for number in range(arguments.starts):
            mode, fault = case = cases[number % len(cases)]
            outcome, what = run_start(url, plugin, fault=fault, mode=mode)
            outcomes[case][outcome] += 1
            given[case].add(what if outcome == "same" else "")
            if outcome == "different":
                print(f"{mode}, {fault}: {what}", file=sys.stderr)
    words = ("same", "refused", "different")
    rows = [
        {
            "agreement": mode,
            "fault": fault,
            **{word: outcomes[mode, fault][word] for word in words},
            "given": ", ".join(sorted(given[mode, fault] - {""})),
        }
        for mode, fault in cases
        if outcomes[mode, fault]
    ]
    for row in rows:
        print(json.dumps(row) if arguments.json else " ".join(f"{value!s:>18}" for value in row.values()))
    different = sum(row["different"] for row in rows)
    if not arguments.json:
        print(f"{arguments.starts} starts of two nodes, {different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
