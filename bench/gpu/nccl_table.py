"""A job for `ncclt upgrade --gate` on one GPU: times all_reduce as nccl-tests prints it, under the NCCL of BENCH_NCCL.

    BENCH_NCCL=/path/libnccl.so.2 python bench/gpu/nccl_table.py --output FOLDER [--recipe fake-hosts|one-host]

NCCL's own log goes to standard output before the table, whole with NCCL_DEBUG=INFO and its version line otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from live import LiveRanks, Place, add_options, place_of, without_plugin
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.core.trial import Outcome, TrialResult
from ncclt.errors import NccltError

SIZES = tuple(1 << power for power in range(10, 25, 2))
VARIABLE = "BENCH_NCCL"


def measure(place: Place) -> tuple[TrialResult, str, str]:
    """Return the trial, NCCL's log, and the GPU's name.

    Raises:
        NccltError: the ranks do not open, or the trial failed.
    """
    kind = {"collective": Collective.ALL_REDUCE, "dtype": "float32", "group_size": place.ranks}
    messages = [Message(**kind, size_bytes=size) for size in SIZES]
    with LiveRanks(place) as ranks:
        result = ranks.measure(DEFAULT, messages, repeat=1)
        gpu = str(ranks.facts.get("gpu", ""))
    if result.outcome is not Outcome.OK:
        raise NccltError(f"{result.outcome}: {result.detail}", hint=f"see {place.output}")
    logs = sorted(ranks.folder.glob("nccl-*.log"))
    return result, "".join(log.read_text(errors="replace") for log in logs), gpu


def table_lines(result: TrialResult, *, ranks: int, gpu: str) -> list[str]:
    """Return the table of nccl-tests; the second half of each row was not measured."""
    columns = "time   algbw   busbw  #wrong"
    lines = [
        "# Collective test starting: all_reduce_perf",
        f"# nThread {ranks} nGpus 1 minBytes {SIZES[0]} maxBytes {SIZES[-1]}",
        *(f"#  Rank {rank:2d} Group  0 Pid {os.getpid():6d} on here device  0 [0x00] {gpu}" for rank in range(ranks)),
        f"#       size         count      type   redop    root     {columns}     {columns}",
    ]
    for one in result.measurements:
        size, time_us = one.message.size_bytes, one.time_us
        half = (
            f"  {time_us:.3f}  {size / time_us / 1e3:.2f}  {one.busbw_gbps:.2f}  {one.wrong or 0}  nan  nan  nan  N/A"
        )
        lines.append(f"{size:12d}  {size // 4:12d}     float     sum      -1{half}")
    wrong = sum(one.wrong or 0 for one in result.measurements)
    return [*lines, f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = parser.parse_args(argv)
    if VARIABLE in os.environ:
        options.nccl = Path(os.environ[VARIABLE])
    options.plugin = Path(os.devnull)  # none is loaded, so none is built
    try:
        place = without_plugin(place_of(options, room_bytes=SIZES[-1]))
        place = replace(place, logged=os.environ.get("NCCL_DEBUG") == "INFO")
        result, log, gpu = measure(place)
    except NccltError as error:
        print(f"bench/gpu/nccl_table.py: {error.message}; {error.hint or ''}", file=sys.stderr)
        return 2
    print(log)
    print("\n".join(table_lines(result, ranks=options.ranks, gpu=gpu)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
