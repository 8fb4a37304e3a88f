"""Which kernel is fastest for small all_reduces, and does NCCL choose it? From 1 KiB to 1 MiB, on one GPU.

    python bench/gpu/small_messages.py --output FOLDER [--nccl PATH] [--recipe fake-hosts|one-host]

Times the default, each forced pair of algorithm and protocol, and NCCL_PROTO=Simple, in turn, over several rounds.
Writes small_messages.json: median and minimum of each size, µs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace

from live import UNSET, LiveRanks, Place, add_options, place_of
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message, format_bytes
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome, TrialResult
from ncclt.errors import NccltError

SIZES = tuple(1 << power for power in range(10, 21, 2))
FORCED = tuple(
    Setting(algorithm=algorithm, protocol=protocol)
    for algorithm in (Algorithm.RING, Algorithm.TREE)
    for protocol in (Protocol.LL, Protocol.SIMPLE)
)
VARIABLE = "NCCL_PROTO=Simple"

Times = dict[str, dict[int, list[float]]]


def measure(place: Place, rounds: int) -> Times:
    """Return the samples of every arm and size, µs.

    Raises:
        NccltError: an arm did not come to an end.
    """
    messages = [Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size) for size in SIZES]
    environ = {"NCCL_PROTO": "Simple", "NCCLT_POLICY_SHM": UNSET}
    variable = replace(place, plugin=None, output=place.output / "variable", environ=environ)
    times: Times = {}

    def keep(name: str, result: TrialResult) -> None:
        if result.outcome != Outcome.OK:
            raise NccltError(f"{name}: {result.outcome}: {result.detail}", hint=f"see {place.output}")
        for one in result.measurements:
            times.setdefault(name, {}).setdefault(one.message.size_bytes, []).extend(one.samples_us)

    with LiveRanks(replace(place, output=place.output / "table")) as ranks, LiveRanks(variable) as others:
        for _ in range(rounds):
            for setting in (DEFAULT, *FORCED):
                keep("default" if setting == DEFAULT else setting.label, ranks.measure(setting, messages, repeat=1))
            keep(VARIABLE, others.measure(DEFAULT, messages, repeat=1))
    return times


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--rounds", type=int, default=4, help="times every arm is measured (default 4)")
    options = parser.parse_args(argv)
    try:
        times = measure(place_of(options, room_bytes=SIZES[-1]), options.rounds)
    except NccltError as error:
        print(f"bench/gpu/small_messages.py: {error.message}; {error.hint or ''}", file=sys.stderr)
        return 2
    rows = [
        {"arm": name, "size_bytes": size, "median_us": statistics.median(samples), "min_us": min(samples)}
        for name, row in times.items()
        for size, samples in row.items()
    ]
    (options.output / "small_messages.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    print(f"{'median µs':20}" + "".join(f"{format_bytes(size):>12}" for size in SIZES))
    for name, row in times.items():
        print(f"{name:20}" + "".join(f"{statistics.median(row[size]):12.1f}" for size in SIZES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
