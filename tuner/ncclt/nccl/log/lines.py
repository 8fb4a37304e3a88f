"""The prefix of NCCL's log lines, the messages about its start, and its table of latencies and bandwidths.

Formats: NCCL 2.4 to 2.32 (src/init.cc, src/transport, src/graph) and logs quoted in NCCL's issues. mpirun, srun, Ray
and others prefix lines, and the lines of several processes run into each other; both are handled here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ncclt.core.algo_proto_text import ALGORITHM_WORDS, COLLECTIVE_WORDS
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective

_PROCESS = r"(?P<host>[^\s:\[\]()<>]{1,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10})"
_DEVICE = r"\[(?P<device>-?\d{1,4})\]"

ORIGIN = f"{_PROCESS} {_DEVICE}"
"""`host:pid:tid [device]`, the prefix of a line; every repetition is bounded, since lines may be hostile."""

_PREFIX = re.compile(
    rf"(?:{_PROCESS} )?{_DEVICE} "
    r"(?:[\w./+-]{1,400}:\d{1,9} (?:\([^)]{0,400}\) )?)?(?:\d{1,20} )?NCCL (?P<level>INFO|WARN|ATTN|ERROR|ABORT) ",
    re.ASCII,
)
_LONGEST_LINE = 16 * 1024
"""Longest line that is read; trees of 64 channels take some 3000 characters, and nothing is longer."""

BY_NCCL = re.compile(r"NCCL (?:INFO|WARN|ATTN|ERROR|ABORT) |[NR]CCL version ?:? ?\d")
"""Mark of a line that NCCL or RCCL has written."""

VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
RCCL = {
    "version": re.compile(r"RCCL version ?:? ?(\d+\.\d+\.\d+)"),
    "rocm": re.compile(r"ROCm version ?: ?(\d+\.\d+)"),
    "table": re.compile(r"TUNER/CsvTuner: Loaded \d+ tuning configurations from (\S+)"),
    "msccl": re.compile(r"(MSCCL: Initialization finished|Using MSCCL files from \S+)"),
    "warp_speed": re.compile(r"(WarpSpeed enabled: .*|RCCL Warp Speed Channels set to \d+)"),
    "no_warp_speed": re.compile(r"(WarpSpeed auto-disabled: .*|WarpSpeed does not support more than .*)"),
}
"""Facts that only RCCL logs (init.cc, csv_tuner.cc, msccl_lifecycle.cc and rccl_wrap.cc of ROCm/rocm-systems)."""

DRIVER = re.compile(r"cudaDriverVersion (\d+)")
VARIABLE = re.compile(r"([NR]CCL_[A-Z0-9_]+) set (?:by environment )?to (.*)")
NETWORK = re.compile(r"Using network (\S.*)")
ADAPTERS = re.compile(r"NET/(?:IB|[\w. ]*RDMA[\w. ]*) : Using (.*)")
ADAPTER = re.compile(r"\[\d+\]([\w.+-]+):\d+/(\w+)")
PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;]+)")
PLUGIN = re.compile(r"(TUNER|NET|PROFILER|ENV|GIN|RMA)/Plugin\s?: (.*)")
SET_INSIDE = re.compile(r"[Ss]etting (NCCL_[A-Z0-9_]+)(?: environment variable)?(?: to |\s?=\s?)\"?([^\s\"]+)")
SOCKETS = re.compile(r"(Bootstrap|NET/Socket)\s?: Using (.*)")
INTERFACE = re.compile(r"(?:\[\d+\])?([\w.@-]+):\S+<\d+>")
CONNECTION = re.compile(
    r"(?:Channel|Ring|Tree) (\d+)(?:/(\d+))? : (\d+)(?:\[([0-9a-f]+)\])? -> (\d+)(?:\[([0-9a-f]+)\])? "
    r"(?:\[(?:send|receive)\] )?via (\S.*)"
)
CHANNELS = re.compile(r"(\d+) (coll|collnet|nvls|p2p) channels(?! per peer)")
GRAPH = re.compile(
    r"Pattern (\d+), crossNic \d+, nChannels (\d+), (?:bw|speed) ([\d.]+)/([\d.]+), (?:nvlink \d+, )?type (\w+)/(\w+)"
)
FALLBACK = re.compile(r"Could not find a path for pattern \d+, falling back to simple order")
UNREADABLE = re.compile(r"Topology detection ?: could not read (\S+),? ")
P2P_CHUNK = re.compile(r"P2P Chunksize set to (\d{1,10})")
P2P_PROBLEM = re.compile(
    r"P2P is disabled between connected GPUs|Could not enable P2P between|peer access .*not supported"
)
GPUDIRECT = re.compile(r"GPU Direct RDMA (?:\(\w+\) )?(Enabled|enabled|Disabled|disabled) for (?:HCA|GPU)")
MULTICAST = re.compile(r"NVLS multicast support is (not )?available on dev \d+")
LINK = re.compile(r"\+ (\w+)\[([\d.]+)\] - ((\w+)(?:/[\w-]+)?)")
UNOPENED = re.compile(r"Could not open XML (?:topology|graph) file (?!/var/run/nvidia-topologyd/)")
CPU = re.compile(r"CPU/[\w-]+ \((\d+)/(\d+)/-?\d+\)")
ANNOUNCED = re.compile(r"NCCL version (\d+\.\d+\.\d+)|# nccl-tests version .*nccl-library=(\d+)")
TEST_DEVICE = re.compile(r"#\s+Rank\s+\d+ .*\bdevice\s+\d+ \[[0-9a-fA-Fx:.]+\] (\S.*)")

CPU_ARM = 3
"""NCCL_TOPO_CPU_ARCH_ARM; 1 is x86 (graph/topo.h)."""
CPU_VENDORS = {1: "intel", 2: "amd"}
"""NCCL_TOPO_CPU_VENDOR_* of x86 (graph/topo.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One message of NCCL and the thread that wrote it.

    Attributes:
        host, pid, tid, device, level, text: its parts.
        written: all of it, without what others wrote on the same line.
    """

    host: str
    pid: int
    tid: int
    device: int
    level: str
    text: str
    written: str


def log_lines(line: str) -> Iterator[LogLine]:
    """Yield every message of NCCL in one line of a file; most lines have none, some several."""
    if "NCCL " not in line or len(line) > _LONGEST_LINE:
        return
    matches = list(_PREFIX.finditer(line))
    ends = [match.start() for match in matches[1:]] + [len(line)][: len(matches)]
    for match, end in zip(matches, ends, strict=True):
        yield LogLine(
            host=match["host"] or "",
            pid=int(match["pid"] or 0),
            tid=int(match["tid"] or 0),
            device=int(match["device"]),
            level=match["level"],
            text=line[match.end() : end].strip(),
            written=line[match.start() : end].strip(),
        )


_CELL = re.compile(r"\s*(-?[\d.]+)\s*/\s*(-?[\d.]+)\s*")
_COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_PROTOCOLS = ("LL", "LL128", "Simple")

_COLLECTIVE_OF = {word: collective for collective, word in COLLECTIVE_WORDS.items()}
_ALGORITHM_OF = {word: algorithm for algorithm, word in ALGORITHM_WORDS.items()}
_PROTOCOL_OF = {protocol.value: protocol for protocol in Protocol}

Costs = dict[tuple[Collective, Algorithm, Protocol], tuple[float, float]]
"""(collective, algorithm, protocol) -> latency in µs and bandwidth in GB/s."""

Cells = tuple[tuple[str, str, float, float], ...]
"""(algorithm, protocol, latency µs, bandwidth GB/s)."""

Columns = tuple[tuple[str, str], ...]
"""(algorithm, protocol)."""


def read_columns(text: str) -> Columns | None:
    """Return the columns of the rows that follow a header of the cost table; None = the message is no header.

    NCCL prints the table (NCCL_DEBUG_SUBSYS=TUNING) from 2.23 in blocks of three algorithms, with a header line each
    for algorithms and protocols; before that with one header line `Tree/LL`, ... (graph/tuning.cc).
    """
    head, *cells = [part.strip() for part in text.split("|")]
    if head == "Algorithm":
        return tuple((name, protocol) for name in cells if name for protocol in _PROTOCOLS)
    if head.startswith("Latency/AlgBw"):
        pairs = [cell.split("/") for cell in cells if "/" in cell]
        return tuple((algorithm.strip(), protocol.strip()) for algorithm, protocol, *_ in pairs)
    return None


def read_row(text: str, columns: Columns) -> tuple[str, Cells] | None:
    """Return collective and cells of a row of the cost table; None = no row, or its columns are not known."""
    collective, *cells = [part.strip() for part in text.split("|")]
    numbers = [_CELL.fullmatch(cell) for cell in cells if cell]
    if collective not in _COLLECTIVES or not columns or len(numbers) < len(columns):
        return None
    row = []
    for (algorithm, protocol), match in zip(columns, numbers, strict=False):
        latency, bandwidth = (parse_float(match[1]), parse_float(match[2])) if match else (None, None)
        if latency is None or bandwidth is None:
            return None
        row.append((algorithm, protocol, latency, bandwidth))
    return collective, tuple(row)


def parse_costs(collective: str, cells: Cells) -> Costs:
    """Return the cells of a row whose algorithm and protocol ncclt knows."""
    costs: Costs = {}
    for algorithm, protocol, latency_us, gbps in cells:
        if algorithm.lower() in _ALGORITHM_OF and protocol.lower() in _PROTOCOL_OF:
            pair = _ALGORITHM_OF[algorithm.lower()], _PROTOCOL_OF[protocol.lower()]
            costs[_COLLECTIVE_OF[collective.lower()], *pair] = (latency_us, gbps)
    return costs


def parse_float(text: str) -> float | None:
    """Return a number, None where the text is none."""
    try:
        return float(text)
    except ValueError:
        return None
