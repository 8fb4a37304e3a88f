"""Debug logs of NCCL 2.8 to 2.32 and RCCL (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING).

COLL lines log every call of every rank and are preferred. Without them, the TUNING lines give the decisions of rank 0
of each communicator. In both cases the TUNING lines give the algorithm, protocol and channels that NCCL chose, which
the provenance keeps. A log may be gigabytes long and is read line by line in one pass; ranks may share a file or have
one each. `LogBook` counts its lines, `Communicators` joins the INIT lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ncclt.core.message import MOST_BYTES, Collective, Message
from ncclt.errors import TraceError
from ncclt.nccl.log.calls import (
    CollLine,
    CommLine,
    LineOrigin,
    TuningLine,
    coll_lines,
    comm_line,
    library_version,
    mentions_graphs,
    tuning_lines,
)
from ncclt.nccl.log.lines import ORIGIN
from ncclt.profile.nccl_calls import OPERATIONS, UNKNOWN_DTYPE, Choices, build_message, build_nccl_message
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.source import LINE_BYTES, Document, lines
from ncclt.profile.workload_builder import check_bounded, join_distinct, partial_note

LOGGED_CALL = re.compile(rb": opCount [0-9a-f]{1,16} sendbuff ")
"""A call as NCCL itself logs it. Such calls are exact, so they are preferred to everything else in a log."""

_STATEMENT = b"] NCCL "

# `host:pid:tid [device] NCCL INFO `, preceded by nothing, a blank, or the colon of a launcher's prefix.
_START = re.compile(rf"(?<![^\s:]){ORIGIN} NCCL ".encode())

# The ends of COLL and TUNING lines, followed by more than a blank (or an escaped line feed).
_GLUED = re.compile(
    rb"(?:\bstream 0x[0-9a-f]{1,16}|\btime \d[\d.]{0,20}|Hi\}=\{\d{1,4}\.\.\d{1,4}\}|\bglobalrank \d{1,7})"
    rb"[^\s\\:]{1,255}:\d{1,10}:\d{1,10} \["
)


# The prefix as `ncclt.nccl.log.lines` reads it: prose and code that only name NCCL are no logs.
_MARK = re.compile(
    rb"\]\s(?:\S{1,400}\s){0,4}NCCL (?:INFO|WARN|TRACE|ATTN|ERROR|ABORT) "
    rb"|\bR?NCCL version (?:: )?\d+\.\d+\.\d+[+-]| Bytes -> Algo "
)
_SUBSYSTEMS = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING"


class NcclLogReader(Reader):
    """Reader of NCCL's debug logs: one file of all ranks, or one per process."""

    name = "nccl_log"
    hint = f"record again with {_SUBSYSTEMS}"

    def begins(self, beginning: bytes) -> bool:
        """Return True for output of NCCL's logger, possibly among other output."""
        return _MARK.search(beginning) is not None or LOGGED_CALL.search(beginning) is not None

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield the calls in the COLL lines, else the decisions in the TUNING lines."""
        books = sorted(map(read_log, source.documents()), key=lambda book: book.label)
        check_own_process(books)
        comms = join_communicators(books)
        calls, read_from = list(_read_coll_lines(books, comms, source)), "COLL lines"
        if not calls:
            calls, read_from = list(_read_tuning_lines(books, comms, source)), "TUNING lines"
        if not calls and not source.left_out:
            if not any(book.has_nccl for book in books):
                raise TraceError(f"{source.where} is not an NCCL debug log", hint=f"record one with {_SUBSYSTEMS}")
            raise TraceError(
                f"no collectives in {source.where}: NCCL wrote it, but without COLL and TUNING lines",
                hint=f"record again with {_SUBSYSTEMS}; the default subsystems do not log calls",
            )
        source.labels = [book.label for book in books]
        source.detail["read_from"] = read_from
        source.detail["nccl_version"] = join_distinct(version for book in books for version in book.versions)
        source.detail["nodes"] = str(comms.world_nodes or "")
        source.detail["nccl_choices"] = _count_choices(books, comms).text()
        source.world_size = comms.world_size
        source.ranks = comms.global_ranks()
        source.notes += _list_notes(books, comms, calls, read_from)
        yield from calls


def _list_notes(books: Sequence[LogBook], comms: Communicators, calls: Sequence[Call], read_from: str) -> list[str]:
    """Return notes on what logs do not show, and what this one lacks."""
    messages = {call.message for call in calls}
    notes = [
        "the log mentions CUDA graphs: their calls are logged once, when captured, and not when replayed"
        if any(book.graphs for book in books)
        else "calls replayed by a CUDA graph are not logged: if the job used graphs, each counts once, at its capture"
    ]
    if read_from == "TUNING lines":
        notes.append(f"TUNING lines have no dtype: messages are counted in bytes, as {UNKNOWN_DTYPE}")
        notes.append("TUNING lines are of rank 0 of each communicator and show no send_recv")
        if any(message.group_size == 0 for message in messages):
            notes.append("no INIT line gives the ranks of some groups: they are assumed to be the whole job")
    untyped = (Collective.ALL_GATHER, Collective.BROADCAST)
    if lines_of_int8 := sum(c.count for c in calls if c.message.dtype == "int8" and c.message.collective in untyped):
        notes.append(
            f"{lines_of_int8} all_gather or broadcast lines say int8: NCCL up to 2.12 writes that for every dtype"
        )
    if any(message.collective is Collective.SEND_RECV for message in messages):
        notes.append("send_recv may come from an all_to_all, which frameworks hand to NCCL as sends and receives")
    if comms.world_size:
        notes.append(f"the largest communicator, of {comms.world_size} ranks, is assumed to be the whole job")
        if comms.ranks_seen and read_from == "COLL lines":
            notes += partial_note(comms.ranks_seen, comms.world_size)
    elif comms.ranks_seen:
        notes.append(f"{comms.ranks_seen} ranks seen and no communicator of all of them: the job's size is unknown")
    return notes


@dataclass(slots=True, kw_only=True)
class LogBook:
    """The statements of one log file and their counts.

    Attributes:
        label: name of the file.
        calls: COLL lines, with the count of each.
        tunings: TUNING lines, with the count of each.
        comms: INIT lines about communicators, in order.
        versions: versions of the library, in order.
        torn: calls whose line is cut off or torn, so that their size or group is lost.
        glued: statements that run into the next one without even a blank, so that its host is uncertain.
        graphs: whether CUDA graphs are mentioned.
        has_nccl: whether any line comes from NCCL.
    """

    label: str
    calls: Counter[CollLine] = field(default_factory=Counter)
    tunings: Counter[TuningLine] = field(default_factory=Counter)
    comms: list[CommLine] = field(default_factory=list)
    versions: dict[str, None] = field(default_factory=dict)
    torn: int = 0
    glued: int = 0
    graphs: bool = False
    has_nccl: bool = False

    @property
    def processes(self) -> set[tuple[str, str]]:
        """Return (host, pid) of every process with a statement."""
        origins = {c.origin for c in self.calls} | {t.origin for t in self.tunings} | {c.origin for c in self.comms}
        return {(origin.host, origin.pid) for origin in origins if origin.host}


Watch = Callable[[Iterable[str], str], Iterable[str]]
"""Takes the lines of a log and its name, and yields the lines."""


def read_log(document: Document, watch: Watch = lambda lines, _label: lines) -> LogBook:
    """Read one log; only distinct statements are kept, so memory does not grow with its length.

    Args:
        document: the log.
        watch: of another reader of the same lines.

    Raises:
        TraceError: damaged, without line ends, or with more different calls than a job makes.
    """
    book = LogBook(label=document.label)
    statements = (statement.decode("utf-8", errors="replace") for statement in _split(document, book))
    for line in watch(statements, document.label):
        _add(book, line)
    total = book.calls.total() + book.tunings.total()
    # A few glued lines occur if ranks share a file; `_joined` finds their hosts from the others.
    if book.glued > max(2, total / 10):
        raise TraceError(
            f"{book.label} has lost its line ends: {book.glued} of {total} statements run into the next one",
            hint="give the log as NCCL wrote it, for example with NCCL_DEBUG_FILE=/path/nccl.%h.%p",
        )
    return _join_processes(book)


def _split(document: Document, book: LogBook) -> Iterator[bytes]:
    """Yield the lines, split again where line feeds were lost between them."""
    remainder = b""
    for line in lines(document):
        is_part = len(line) >= LINE_BYTES and not line.endswith(b"\n")
        if not remainder and not is_part and line.count(_STATEMENT) < 2:
            yield line
            continue
        text, parts = remainder + line, list[bytes]()
        if _STATEMENT in text:
            book.glued += len(_GLUED.findall(text))
            for piece in text.replace(b"\\n", b"\n").split(b"\n"):  # as JSON writes a line feed
                starts = [0, *(match.start() for match in _START.finditer(piece)), len(piece)]
                parts += [piece[start:end] for start, end in pairwise(starts) if start < end]
        parts = parts or [text]
        # The last one may continue in the next piece of the line, unless it is longer than any that NCCL writes.
        remainder = parts.pop() if is_part and len(parts[-1]) <= LINE_BYTES else b""
        yield from parts
    if remainder:
        yield remainder


def _add(book: LogBook, line: str) -> None:
    # Substring tests first: most lines are of neither kind, and `in` costs a tenth of a regex search.
    if "opCount " in line:
        calls = list(coll_lines(line))
        book.calls.update(calls)
        book.torn += line.count(": opCount ") - len(calls)
        check_bounded(len(book.calls), book.label)
    if " Bytes -> " in line:
        book.tunings.update(tuning_lines(line))
        check_bounded(len(book.tunings), book.label)
    if "CCL " in line:
        book.has_nccl = True
    if " rank " in line and (comm := comm_line(line)) is not None:
        book.comms.append(comm)
        check_bounded(len(book.comms), book.label)
    if "CCL version" in line and len(book.versions) < 8 and (version := library_version(line)):
        book.versions[version] = None
    if not book.graphs and ("raph" in line or "apture" in line):
        book.graphs = mentions_graphs(line)


def _join_processes(book: LogBook) -> LogBook:
    """Attribute statements to the right process where a glued line hides it.

    Text of another program may directly precede the host's name (`...0.01node1:7:7 [0]`): a host whose name ends in
    that of another host with the same process id is that other host. A call without any origin is attributed to the
    process with the address of its communicator, if there is exactly one.
    """
    hosts = _find_real_hosts(book.processes)

    def rename(origin: LineOrigin) -> LineOrigin:
        return origin._replace(host=hosts.get((origin.host, origin.pid), origin.host))

    owners: dict[tuple[str, str], set[LineOrigin]] = {}
    for call in book.calls:
        if call.origin.host:
            owners.setdefault((call.comm, call.ranks), set()).add(rename(call.origin))
    calls, tunings = Counter[CollLine](), Counter[TuningLine]()
    for call, count in book.calls.items():
        candidates = owners.get((call.comm, call.ranks), set())
        is_owned = not call.origin.host and len(candidates) == 1
        calls[call._replace(origin=next(iter(candidates)) if is_owned else rename(call.origin))] += count
    for tuning, count in book.tunings.items():
        tunings[tuning._replace(origin=rename(tuning.origin))] += count
    comms = [comm._replace(origin=rename(comm.origin)) for comm in book.comms]
    return replace(book, calls=calls, tunings=tunings, comms=comms)


def _find_real_hosts(processes: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return (host as written, pid) -> host, for hosts whose name ends in that of another one with the same pid."""
    endings = ((host, pid, host[start:]) for host, pid in processes for start in range(1, len(host)))
    # The shortest ending is the last, and stays.
    return {(host, pid): ending for host, pid, ending in endings if (ending, pid) in processes}


def check_own_process(books: list[LogBook]) -> None:
    """Raise if one process is in two files: its calls would count twice.

    Raises:
        TraceError: see above.
    """
    owners: dict[tuple[str, str], LogBook] = {}
    for book in books:
        for host, pid in sorted(book.processes):
            if (first := owners.setdefault((host, pid), book)) is not book:
                hint = "is one a copy? join the parts of a rotated log with `cat` in their order"
                raise TraceError(f"process {pid} of {host} is in two files: {first.label} and {book.label}", hint=hint)


_Handle = tuple[str, str, str, str]
"""One rank's end of a communicator: host, process id, address, and size, for another one can reuse the address."""


@dataclass(slots=True, kw_only=True)
class Communicators:
    """The known communicators of a job.

    Attributes:
        described: one rank's end -> its INIT lines, joined.
        devices: one rank's end -> devices named in its COLL lines, for ends without an INIT line.
        hosts: id of a communicator -> hosts of its ranks, as far as they were seen.
        led: a process and GPU (empty where not logged) -> (ranks, spans nodes) of the communicators it is rank 0 of.
        world_size: ranks of the job: those of the largest communicator, 0 where more ranks than that were seen.
        world_nodes: nodes of the largest communicator, 0 where not logged.
        ranks_seen: ranks (processes and their GPUs) that log calls.
    """

    described: dict[_Handle, CommLine] = field(default_factory=dict)
    devices: dict[_Handle, Counter[str]] = field(default_factory=dict)
    hosts: dict[str, set[str]] = field(default_factory=dict)
    led: dict[LineOrigin, set[tuple[int, bool]]] = field(default_factory=dict)
    world_size: int = 0
    world_nodes: int = 0
    ranks_seen: int = 0

    def rank_of(self, line: CollLine, label: str) -> LineOrigin:
        """Return the rank that made a call: a process and its GPU, since one process can drive several.

        Where the writer is not known each communicator of a file counts as one.
        """
        if not line.origin.host:
            return LineOrigin(label, line.comm, "")
        handle = _handle(line)
        known = self.described.get(handle)
        if known is not None and known.device:
            return line.origin._replace(device=known.device)
        return line.origin._replace(device=self.devices[handle].most_common(1)[0][0])

    def group_decided_by(self, origin: LineOrigin) -> tuple[int, bool]:
        """Return the ranks of the communicator of a TUNING line, and whether it spans nodes.

        Such a line comes from rank 0 of its communicator and does not name it: if all communicators that this GPU is
        rank 0 of are alike, it is one of them. Otherwise it is not known: (0, False).
        """
        kinds = self.led.get(origin, set()) | self.led.get(origin._replace(device=""), set())
        return next(iter(kinds)) if len(kinds) == 1 else (0, False)

    def global_ranks(self) -> set[int]:
        """Return the ranks in the largest communicator that have INIT lines."""
        world_size = self.world_size
        return {comm.rank for comm in self.described.values() if world_size and int(comm.ranks) == world_size}

    def part_spans_nodes(self, known: CommLine) -> bool:
        """Return True if a communicator of a part of the job spans nodes."""
        if not 1 < int(known.ranks) < self.world_size:
            return False
        return known.nodes > 1 or len(self.hosts.get(known.comm_id, ())) > 1


def join_communicators(books: Sequence[LogBook]) -> Communicators:
    """Join the INIT lines of all files; those about one communicator complete each other."""
    joined = Communicators()
    for book in books:
        for comm in book.comms:
            if comm.origin.host:
                before = joined.described.get(_handle(comm), comm)
                joined.described[_handle(comm)] = comm._replace(
                    device=comm.device or before.device,
                    comm_id=comm.comm_id or before.comm_id,
                    nodes=comm.nodes or before.nodes,
                )
        for call, count in book.calls.items():
            if call.origin.host:
                joined.devices.setdefault(_handle(call), Counter())[call.origin.device] += count
    for comm in joined.described.values():
        if comm.comm_id:
            joined.hosts.setdefault(comm.comm_id, set()).add(comm.origin.host)
    sizes = {call.ranks for book in books for call in book.calls} | {c.ranks for book in books for c in book.comms}
    largest = max((int(size) for size in sizes), default=0)
    ranks = {joined.rank_of(call, book.label) for book in books for call in book.calls if call.origin.host}
    joined.ranks_seen = len(ranks)
    if len(ranks) <= largest:
        joined.world_size = largest
        joined.world_nodes = max((c.nodes for c in joined.described.values() if int(c.ranks) == largest), default=0)
    for comm in joined.described.values():
        if comm.rank == 0 and int(comm.ranks) > 1:
            rank = comm.origin._replace(device=comm.device)
            joined.led.setdefault(rank, set()).add((int(comm.ranks), joined.part_spans_nodes(comm)))
    return joined


def _handle(line: CollLine | CommLine) -> _Handle:
    return line.origin.host, line.origin.pid, line.comm, line.ranks


# ncclDataType_t of nccl.h; 9 since 2.10, 10 and 11 since 2.24.
_DATATYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"),
    *("float8_e4m3", "float8_e5m2"),
)


def _count_choices(books: Sequence[LogBook], comms: Communicators) -> Choices:
    """Count what NCCL chose for which message; sizes whose group is not known stay those of one rank."""
    choices = Choices()
    for book in books:
        for line, count in book.tunings.items():
            collective = OPERATIONS.get(line.operation)
            if collective is not None and 0 < int(line.size) <= MOST_BYTES:
                size, complete = full_size(line, collective, comms.group_decided_by(line.origin)[0])
                choices.add(collective, size, line.choice, count, per_rank=not complete)
    return choices


def _read_coll_lines(books: Sequence[LogBook], comms: Communicators, source: Source) -> Iterator[Call]:
    for book in books:
        if book.torn:
            source.left_out["calls whose line is cut off or torn apart"] += book.torn
        for line, count in book.calls.items():
            lane, is_receive = comms.rank_of(line, book.label), line.operation == "Recv"
            message = _read_call(line, comms)
            yield from source.admit(message, count=count, lane=lane, group=line.comm, is_receive=is_receive)


def _read_tuning_lines(books: Sequence[LogBook], comms: Communicators, source: Source) -> Iterator[Call]:
    """Yield the decisions, which rank 0 of each communicator writes, and which have bytes but no dtype."""
    for book in books:
        for line, count in book.tunings.items():
            decider = line.origin if line.origin.host else LineOrigin(book.label, "", "")
            message = _read_decision(line, *comms.group_decided_by(line.origin))
            yield from source.admit(message, count=count, lane=decider)


def _read_call(line: CollLine, comms: Communicators) -> Message | str:
    """Return the message of a call, or why there is none."""
    number, ranks = int(line.datatype), int(line.ranks)
    if number >= len(_DATATYPES):
        return f"calls of {line.operation} with datatype {number}, of unknown size"
    if not ranks:
        return f"calls of {line.operation} in a group of no rank"
    known = comms.described.get(_handle(line))
    spans_nodes = known is not None and comms.part_spans_nodes(known)
    elements, dtype = int(line.elements), _DATATYPES[number]
    return build_nccl_message(line.operation, elements, dtype, ranks=ranks, spans_nodes=spans_nodes)


def _read_decision(line: TuningLine, group: int, spans_nodes: bool) -> Message | str:
    """Return the message of a decision, or why there is none."""
    if not line.operation:
        return "TUNING lines that do not name the collective, as NCCL 2.20 to 2.22 write them"
    collective = OPERATIONS.get(line.operation)
    size, complete = full_size(line, collective, group) if collective else (0, True)
    if not complete:
        return f"calls of {line.operation}: TUNING lines give one rank's part, and no INIT line the number of ranks"
    return build_message(f"calls of {line.operation}", collective, size, group_size=group, spans_nodes=spans_nodes)


def full_size(line: TuningLine, collective: Collective, group: int) -> tuple[int, bool]:
    """Return the size of a decision, bytes, and whether it is that of the full buffer."""
    size = int(line.size)
    if line.is_full_size or not collective.has_rank_parts:
        return size, True
    return (size * group, True) if group else (size, False)
