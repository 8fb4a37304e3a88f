"""What single lines of an NCCL or RCCL debug log say, found anywhere in the line.

A line may carry launcher prefixes, quote marks or the torn half of another line before the part that counts, so
everything is searched for and the origin is the last `host:pid:tid [device]` before it. The formats are those of
enqueue.cc and init.cc of NCCL 2.8 to 2.32; RCCL adds `acc` before the count and `task N globalrank N` at the end.
Every repetition is bounded, so that a hostile line costs no more than its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

_ORIGIN = re.compile(rb"([^\s:]{1,255}):(\d{1,10}):\d{1,10} \[(-?\d{1,4})\]")
_ORIGIN_BYTES = 400
"""How far before a statement its origin can begin: a host of 255 characters, numbers, a time stamp, `NCCL INFO`."""
_COLL = re.compile(
    rb"([A-Z]\w{2,24}): opCount [0-9a-f]{1,16} sendbuff \S{1,32} recvbuff \S{1,32} (?:acc \S{1,32} )?count (\d{1,20}) "
    rb"datatype (\d{1,3}) op -?\d{1,10} root -?\d{1,10} comm (0x[0-9a-f]{1,16}) \[nranks=(\d{1,7})\]"
)
_TUNING = re.compile(
    rb"(?:([A-Z]\w{2,24})(?: \[([A-Za-z ]{1,24})\])?: )?(?<!\d)(\d{1,20}) Bytes -> "
    rb"(?:Algo (\w{1,16}) proto (\w{1,16})(?: channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\})?"
    rb"|Kernel (\S{1,80}) nchannels (\d{1,4})|cudaMemcpy|RMA proxy)"
)
_COMM = re.compile(rb"comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) n[rR]anks (\d{1,7})\b")
_COMM_ID = re.compile(rb"commId (0x[0-9a-f]{1,16})")
_DEVICE = re.compile(rb"cudaDev (\d{1,4})")
_NODES = re.compile(rb"nNodes (\d{1,7})")
_VERSION = re.compile(rb"(R|N)CCL version ?:? ?(\d{1,3}\.\d{1,3}[\w.+-]{0,40})")
_GRAPH = re.compile(rb"(?i)cuda ?graph|stream captur|# nThread .{0,200} graph: [1-9]")


class LineOrigin(NamedTuple):
    """Who wrote a line; all empty where its beginning is torn off."""

    host: str
    pid: str
    device: str


class CollLine(NamedTuple):
    """One call as COLL lines tell it: the elements are those of the API's `count`, of one rank."""

    origin: LineOrigin
    operation: str
    elements: str
    datatype: str
    comm: str
    ranks: str


class TuningLine(NamedTuple):
    """One decision as TUNING lines tell it; fields that the form lacks are empty."""

    origin: LineOrigin
    operation: str
    size: str
    choice: str
    is_full_size: bool


class CommLine(NamedTuple):
    """A communicator as INIT lines tell it; `comm_id` is the same on all of its ranks."""

    origin: LineOrigin
    comm: str
    rank: int
    ranks: str
    device: str
    comm_id: str
    nodes: int


NOWHERE = LineOrigin("", "", "")


def coll_lines(line: bytes) -> Iterator[CollLine]:
    """Yield the calls of one line; two glued lines give two."""
    start = 0
    for match in _COLL.finditer(line):
        yield _coll_line(line[max(start, match.start() - _ORIGIN_BYTES) : match.start()], match.groups())
        start = match.end()


@lru_cache(maxsize=1 << 14)
def _coll_line(before: bytes, words: tuple[bytes, ...]) -> CollLine:
    """Build a call; a log repeats the same ones step after step, and the cache makes that twice as fast."""
    operation, count, datatype, comm, ranks = map(_text, words)
    return CollLine(_origin(before), operation, count, datatype, comm, ranks)


def tuning_lines(line: bytes) -> Iterator[TuningLine]:
    """Yield the decisions of one line."""
    start = 0
    for match in _TUNING.finditer(line):
        operation, variant, size, algorithm, protocol, low, high, kernel, channels = map(_text, match.groups())
        # NCCL up to 2.23 logs the numbers of algorithm and protocol, and the full buffer; later the names, and
        # count x dtype of one rank (enqueue.cc, task->count).
        numbered = algorithm.isdigit()
        if algorithm:
            used = f"/{int(high) - int(low) + 1}" if low else ""
            choice = _named(algorithm, _ALGORITHMS) + "/" + _named(protocol, _PROTOCOLS) + used
        else:
            choice = f"{kernel}/{channels}" if kernel else variant or "copy engine"
        before = line[max(start, match.start() - _ORIGIN_BYTES) : match.start()]
        yield TuningLine(_origin(before), operation, size, choice, numbered)
        start = match.end()


def comm_line(line: bytes) -> CommLine | None:
    """Return the communicator that an INIT line describes, None for any other line."""
    match = _COMM.search(line)
    if match is None:
        return None
    comm, rank, ranks = match.groups()
    rest = line[match.end() :]
    nodes = _first(_NODES, rest)
    return CommLine(
        origin=_origin(line[: match.start()]),
        comm=_text(comm),
        rank=int(rank),
        ranks=_text(ranks),
        device=_first(_DEVICE, rest),
        comm_id=_first(_COMM_ID, rest),
        nodes=int(nodes) if nodes else 0,
    )


def library_version(line: bytes) -> str:
    """Return for example `2.29.7+cuda12.9`, or `RCCL 2.18.3`, empty where the line tells none."""
    match = _VERSION.search(line)
    return "" if match is None else ("RCCL " if match[1] == b"R" else "") + _text(match[2])


def mentions_graphs(line: bytes) -> bool:
    """Tell whether a line speaks of CUDA graphs or of capturing a stream into one."""
    return _GRAPH.search(line) is not None


# The numbers of NCCL_ALGO_* and NCCL_PROTO_* in src/include/nccl_common.h (device.h before 2.19).
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")


def _named(word: str, names: tuple[str, ...]) -> str:
    return names[int(word)] if word.isdigit() and int(word) < len(names) else word


def _origin(before: bytes) -> LineOrigin:
    """Return the last origin in the text before a statement: an earlier one belongs to the line torn off there."""
    origin = NOWHERE
    for host, pid, device in _ORIGIN.findall(before):
        origin = LineOrigin(_text(host), _text(pid), _text(device))
    return origin


def _first(pattern: re.Pattern[bytes], text: bytes) -> str:
    match = pattern.search(text)
    return _text(match[1]) if match else ""


@lru_cache(maxsize=1 << 16)
def _text(word: bytes | None) -> str:
    """Decode a word; the cache lets the many equal ones of a log share one string."""
    return "" if word is None else word.decode("utf-8", errors="replace")
