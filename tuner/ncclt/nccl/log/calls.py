"""Calls, decisions and communicators in single lines of a debug log of NCCL or RCCL, found anywhere in the line.

A line may have launcher prefixes, quote marks or the torn half of another line before the statement, so statements are
searched for anywhere, and the origin is the last `host:pid:tid [device]` before one. The formats are those of
enqueue.cc and init.cc of NCCL 2.4 to 2.32; RCCL adds `acc` before the count and `task N globalrank N` at the end.
Every repetition is bounded, so that a hostile line takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from ncclt.nccl.log.lines import ORIGIN

_ORIGIN = re.compile(ORIGIN, re.ASCII)
_ORIGIN_BYTES = 400
"""Bytes before a statement that may hold its origin: a host of 255 characters, numbers, a time stamp, `NCCL INFO`."""
_COLL = re.compile(
    r"([A-Z]\w{2,24}): opCount [0-9a-f]{1,16} sendbuff \S{1,32} recvbuff \S{1,32} (?:acc \S{1,32} )?count (\d{1,20}) "
    r"datatype (\d{1,3}) op -?\d{1,10} root -?\d{1,10} comm (0x[0-9a-f]{1,16}) \[nranks=(\d{1,7})\]",
    re.ASCII,
)
_TUNING = re.compile(
    r"(?:([A-Z]\w{2,24})(?: \[([A-Za-z ]{1,24})\])?: )?(?<!\d)(\d{1,20}) Bytes -> "
    r"(?:Algo (\w{1,16}) proto (\w{1,16})(?: channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\})?"
    r"|Kernel (\S{1,80}) nchannels (\d{1,4})|cudaMemcpy|RMA proxy)",
    re.ASCII,
)
_COMM = re.compile(r"comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) n[rR]anks (\d{1,7})\b", re.ASCII)
_OF_COMM = re.compile(
    r" (?:cudaDev (?P<device>\d{1,4})|nvmlDev (?P<nvml_device>\d{1,4})|busId (?P<bus_id>[0-9a-f]{1,16})"
    r"|commId (?P<comm_id>0x[0-9a-f]{1,16})|nNodes (?P<nodes>\d{1,7})(?= )|MNNVL (?P<mnnvl>\d)"
    r"|- Init (?P<state>\w{1,20}))",
    re.ASCII,
)
_VERSION = re.compile(r"(R|N)CCL version ?:? ?(\d{1,3}\.\d{1,3}[\w.+-]{0,40})", re.ASCII)
_GRAPH = re.compile(r"(?i)cuda ?graph|stream captur|# nThread .{0,200} graph: [1-9]", re.ASCII)


class LineOrigin(NamedTuple):
    """The writer of a line; all fields empty where its beginning is torn off."""

    host: str
    pid: str
    device: str


class CollLine(NamedTuple):
    """One call of a COLL line; `elements` is the `count` of the API, of one rank."""

    origin: LineOrigin
    operation: str
    elements: str
    datatype: str
    comm: str
    ranks: str


class TuningLine(NamedTuple):
    """One decision of a TUNING line; fields that its form lacks are empty."""

    origin: LineOrigin
    operation: str
    size: str
    choice: str
    is_full_size: bool


class CommLine(NamedTuple):
    """A communicator of an INIT line; fields that a line lacks are empty or 0.

    `comm_id` is equal on all of its ranks, and present from NCCL 2.17; `state` is START or COMPLETE.
    """

    origin: LineOrigin
    comm: str
    rank: int
    ranks: str
    device: str = ""
    comm_id: str = ""
    nodes: int = 0
    nvml_device: str = ""
    bus_id: str = ""
    multi_node_nvlink: bool = False
    state: str = ""


NOWHERE = LineOrigin("", "", "")


def coll_lines(line: str) -> Iterator[CollLine]:
    """Yield the calls of one line; two lines glued together give two."""
    start = 0
    for match in _COLL.finditer(line):
        yield _coll_line(line[max(start, match.start() - _ORIGIN_BYTES) : match.start()], match.groups())
        start = match.end()


@lru_cache(maxsize=1 << 14)
def _coll_line(before: str, words: tuple[str, ...]) -> CollLine:
    """Build a call; a log repeats the same ones every step, and the cache makes that twice as fast."""
    operation, count, datatype, comm, ranks = map(intern, words)
    return CollLine(_origin(before), operation, count, datatype, comm, ranks)


def tuning_lines(line: str) -> Iterator[TuningLine]:
    """Yield the decisions of one line."""
    start = 0
    for match in _TUNING.finditer(line):
        operation, variant, size, algorithm, protocol, low, high, kernel, channels = match.groups("")
        # NCCL up to 2.23 logs the numbers of algorithm and protocol, and the full buffer; later the names, and
        # count x dtype of one rank (enqueue.cc, task->count).
        numbered = algorithm.isdigit()
        if algorithm:
            used = f"/{int(high) - int(low) + 1}" if low else ""
            choice = _named(algorithm, _ALGORITHMS) + "/" + _named(protocol, _PROTOCOLS) + used
        else:
            choice = f"{kernel}/{channels}" if kernel else variant or "copy engine"
        before = line[max(start, match.start() - _ORIGIN_BYTES) : match.start()]
        yield TuningLine(_origin(before), intern(operation), intern(size), intern(choice), numbered)
        start = match.end()


def comm_line(line: str) -> CommLine | None:
    """Return the communicator that an INIT line describes, None for any other line."""
    match = _COMM.search(line)
    if match is None:
        return None
    parts: dict[str, str] = {}
    for word in _OF_COMM.finditer(line, match.end()):
        if word.lastgroup:
            parts.setdefault(word.lastgroup, word[word.lastgroup])
    nodes, is_multi_node = int(parts.pop("nodes", 0)), parts.pop("mnnvl", "") == "1"
    origin, comm, rank, ranks = _origin(line[: match.start()]), intern(match[1]), int(match[2]), intern(match[3])
    return CommLine(origin, comm, rank, ranks, nodes=nodes, multi_node_nvlink=is_multi_node, **parts)


def library_version(line: str) -> str:
    """Return for example `2.29.7+cuda12.9` or `RCCL 2.18.3`; empty where the line has no version."""
    match = _VERSION.search(line)
    return "" if match is None else ("RCCL " if match[1] == "R" else "") + match[2]


def mentions_graphs(line: str) -> bool:
    """Return True if a line mentions CUDA graphs or capturing a stream into one."""
    return _GRAPH.search(line) is not None


# The numbers of NCCL_ALGO_* and NCCL_PROTO_* in src/include/nccl_common.h (device.h before 2.19).
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")


def _named(word: str, names: tuple[str, ...]) -> str:
    return names[int(word)] if word.isdigit() and int(word) < len(names) else word


def _origin(before: str) -> LineOrigin:
    """Return the last origin in the text before a statement: an earlier one belongs to a torn-off line."""
    origin = NOWHERE
    for host, pid, _, device in _ORIGIN.findall(before):
        origin = LineOrigin(intern(host), intern(pid), intern(device))
    return origin
