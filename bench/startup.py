"""How long `ncclt env` takes against the local store, beside what importing the command line framework alone takes.

    python bench/startup.py [--runs 15] [--json]

A launcher calls `ncclt env` once per job (or per rank), so it must be nothing that anybody waits for.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from output import Rows, build_parser

NCCLT = [sys.executable, "-m", "ncclt"]
TARGET = 2.0
SHAPE = ("--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.22.3")


def seconds(argv: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--runs", type=int, default=15, help="counted runs of each command")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    with tempfile.TemporaryDirectory() as folder:
        storage = f"sqlite:///{Path(folder) / 'bench.db'}"
        tune = ["tune", "--model", "bert", "--nodes", "2", "--launcher", "simulate", "--trials", "8", "--quiet"]
        subprocess.run([*NCCLT, *tune, "--storage", storage], check=True, capture_output=True)
        job = ["--cluster", "leonardo", "--model", "bert", *SHAPE]
        env = [*NCCLT, "env", *job, "--storage", storage, "--allow", "simulated"]
        commands = {"python -c 'import typer' (peer)": [sys.executable, "-c", "import typer"], "ncclt env": env}
        times: dict[str, list[float]] = {name: [] for name in commands}
        for run in range(arguments.runs + 1):
            for name, argv in commands.items():
                elapsed_s = seconds(argv)
                if run:  # the first round warms the file cache
                    times[name].append(elapsed_s)
    peer = statistics.median(next(iter(times.values())))
    rows = Rows(as_json=arguments.json)
    for name, seconds_each in times.items():
        median = statistics.median(seconds_each)
        rows.add(
            {
                "case": name,
                "runs": len(seconds_each),
                "median_ms": round(median * 1e3, 1),
                "min_ms": round(min(seconds_each) * 1e3, 1),
                "ratio_to_peer": round(median / peer, 2),
            }
        )
    rows.end(f"target: ncclt env at most {TARGET:.1f}x the peer")


if __name__ == "__main__":
    main()
