"""Counts of the statements in one NCCL log file, read as a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

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
from ncclt.profile.readers.nccl_log.lines import Statements, check_bounded
from ncclt.profile.source import Document


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
        graphs: whether CUDA graphs are mentioned.
        has_nccl: whether any line comes from NCCL.
    """

    label: str
    calls: Counter[CollLine] = field(default_factory=Counter)
    tunings: Counter[TuningLine] = field(default_factory=Counter)
    comms: list[CommLine] = field(default_factory=list)
    versions: dict[str, None] = field(default_factory=dict)
    torn: int = 0
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
    statements = Statements(document)
    for line in watch(statements, document.label):
        _add(book, line)
    total = book.calls.total() + book.tunings.total()
    # A few glued lines occur if ranks share a file; `_joined` finds their hosts from the others.
    if statements.glued > max(2, total / 10):
        raise TraceError(
            f"{book.label} has lost its line ends: {statements.glued} of {total} statements run into the next one",
            hint="give the log as NCCL wrote it, for example with NCCL_DEBUG_FILE=/path/nccl.%h.%p",
        )
    return _joined(book)


def _add(book: LogBook, line: str) -> None:
    # Substring tests first: most lines are of neither kind, and `in` costs a tenth of a regex search.
    if "opCount " in line:
        whole = 0
        for call in coll_lines(line):
            book.calls[call] += 1
            whole += 1
        book.torn += line.count(": opCount ") - whole
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


def _joined(book: LogBook) -> LogBook:
    """Attribute statements to the right process where a glued line hides it.

    Text of another program may directly precede the host's name (`...0.01node1:7:7 [0]`): a host whose name ends in
    that of another host with the same process id is that other host. A call without any origin is attributed to the
    process with the address of its communicator, if there is exactly one.
    """
    hosts = _real_hosts(book.processes)
    owners: dict[tuple[str, str], set[LineOrigin]] = {}
    for call in book.calls:
        if call.origin.host:
            owners.setdefault((call.comm, call.ranks), set()).add(_renamed(call.origin, hosts))
    calls: Counter[CollLine] = Counter()
    for call, count in book.calls.items():
        candidates = owners.get((call.comm, call.ranks), set())
        if call.origin.host:
            origin = _renamed(call.origin, hosts)
        else:
            origin = next(iter(candidates)) if len(candidates) == 1 else call.origin
        calls[call._replace(origin=origin)] += count
    tunings: Counter[TuningLine] = Counter()
    for tuning, count in book.tunings.items():
        tunings[tuning._replace(origin=_renamed(tuning.origin, hosts))] += count
    comms = [comm._replace(origin=_renamed(comm.origin, hosts)) for comm in book.comms]
    return replace(book, calls=calls, tunings=tunings, comms=comms)


def _real_hosts(processes: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return (host as written, pid) -> host, for hosts whose name ends in that of another one with the same pid."""
    found: dict[tuple[str, str], str] = {}
    for host, pid in processes:
        endings = (host[start:] for start in range(len(host) - 1, 0, -1))
        shortest = next((ending for ending in endings if (ending, pid) in processes), None)
        if shortest is not None:
            found[host, pid] = shortest
    return found


def _renamed(origin: LineOrigin, hosts: dict[tuple[str, str], str]) -> LineOrigin:
    return origin._replace(host=hosts.get((origin.host, origin.pid), origin.host))


def check_own_process(books: list[LogBook]) -> None:
    """Raise if one process is in two files: its calls would count twice.

    Raises:
        TraceError: see above.
    """
    seen: dict[tuple[str, str], str] = {}
    for book in books:
        for process in sorted(book.processes):
            if process in seen:
                raise TraceError(
                    f"process {process[1]} of {process[0]} is in two files: {seen[process]} and {book.label}",
                    hint="is one a copy? join the parts of a rotated log with `cat` in their order",
                )
            seen[process] = book.label
