"""Reads NCCL's table of latencies and bandwidths out of the log of a job, for each of its communicators.

The doctor only asks what such a table rules out; here it is kept whole, with the ranks and nodes that it is true for.
Rank 0 of each communicator prints it (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS with TUNING, and INIT for ranks and nodes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ncclt.core.algo_proto_text import ALGORITHM_WORDS, COLLECTIVE_WORDS
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.printed_costs import PrintedCost, PrintedCosts, PrintedTable
from ncclt.errors import InputError
from ncclt.health.doctor.cost_table import Cells, CostTableReader
from ncclt.health.doctor.log_lines import CHANNELS, INIT, SHAPE, VARIABLE, VERSION, LogLine, log_lines

_HINT = (
    "start any NCCL job on these nodes with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING and give the log of its "
    "rank 0"
)

_FORCED = ("NCCL_ALGO", "NCCL_PROTO")
"""Variables that take pairs out of the table."""

_COLLECTIVES = {word: collective for collective, word in COLLECTIVE_WORDS.items()}
_ALGORITHMS = {word: algorithm for algorithm, word in ALGORITHM_WORDS.items()}
_PROTOCOLS = {protocol.value: protocol for protocol in Protocol}

_MOST_COMMUNICATORS = 100_000
"""More than any job has; beyond that the file is damaged."""

_Thread = tuple[str, int, int]
_Cell = tuple[Collective, Algorithm, Protocol]


@dataclass(slots=True)
class _Communicator:
    """What one rank said while one communicator started."""

    host: str
    rank: int | None = None
    ranks: int = 0
    nodes: int = 0
    comm_id: str = ""
    channels: dict[str, int] = field(default_factory=dict)
    cells: dict[_Cell, tuple[float, float]] = field(default_factory=dict)
    reader: CostTableReader = field(default_factory=CostTableReader)


def read_printed_costs(lines: Iterable[str], source: str) -> PrintedCosts:
    """Read the tables of a log, that of one process or of all of them together.

    Args:
        lines: of the log.
        source: its name, for messages.

    Raises:
        InputError: there is no table, none that says of how many ranks and nodes it is, or the job forced algorithms
            or protocols, so that the table is not what NCCL chooses by.
    """
    version, communicators = "", _Communicators(source)
    for line in lines:
        for said in log_lines(line):
            if match := VARIABLE.search(said.text):
                if match[1] in _FORCED:
                    raise InputError(
                        f"{source}: its job forced {match[1]}={match[2].strip().removesuffix('.')}, so its table is "
                        "not what NCCL chooses by",
                        hint="take the log of a job without NCCL_ALGO and NCCL_PROTO",
                    )
            elif not version and (match := VERSION.search(said.text)):
                version = match[1]
            communicators.take(said)
    tables = communicators.tables()
    if not tables:
        if communicators.printed:
            raise InputError(f"{source} does not say of how many ranks and nodes its cost table is", hint=_HINT)
        raise InputError(f"{source} holds no table of NCCL's latencies and bandwidths", hint=_HINT)
    return PrintedCosts(version=version, tables=tables)


class _Communicators:
    """All communicators of a log, in the order in which they began."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._all: list[_Communicator] = []
        self._open: dict[_Thread, _Communicator] = {}

    @property
    def printed(self) -> bool:
        """Tell whether any of them printed a table."""
        return any(known.cells for known in self._all)

    def take(self, said: LogLine) -> None:
        thread = (said.host, said.pid, said.tid)
        if match := INIT.search(said.text):
            # A start begins a communicator; before it was told (2.17), only its end is.
            known = self._begun(thread) if match["state"] == "START" else self._of(thread)
            known.rank, known.ranks = int(match["rank"]), int(match["ranks"])
            known.comm_id = match["id"] or known.comm_id
            if match["state"] == "COMPLETE":
                self._open.pop(thread, None)
        elif match := SHAPE.search(said.text):
            known = self._of(thread)
            known.rank, known.ranks, known.nodes = int(match[1]), int(match[2]), int(match[3])
        elif counts := CHANNELS.findall(said.text):
            self._of(thread).channels |= {word: int(count) for count, word in counts}
        elif "|" in said.text and (row := self._of(thread).reader.row(said.text)):
            self._keep(thread, *row)

    def tables(self) -> tuple[PrintedTable, ...]:
        """Return the first table of each kind of communicator; those that do not say their kind are left out."""
        found: dict[tuple[int, int], PrintedTable] = {}
        for known in self._all:
            nodes = known.nodes or self._hosts(known)
            if known.cells and known.ranks and nodes:
                table = PrintedTable(
                    ranks=known.ranks,
                    nodes=nodes,
                    channels=known.channels.get("coll", 0),
                    nvls_channels=known.channels.get("nvls", 0),
                    costs=tuple(
                        PrintedCost(*algo_proto, *cost) for algo_proto, cost in known.cells.items() if cost[1] > 0
                    ),
                )
                found.setdefault((known.ranks, nodes), table)
        return tuple(found.values())

    def _keep(self, thread: _Thread, collective: str, cells: Cells) -> None:
        costs = {
            (_COLLECTIVES[collective.lower()], _ALGORITHMS[algorithm.lower()], _PROTOCOLS[protocol.lower()]): cost
            for algorithm, protocol, *cost in cells
            if algorithm.lower() in _ALGORITHMS and protocol.lower() in _PROTOCOLS
        }
        known = self._of(thread)
        if known.cells.keys() & costs.keys():
            # The same row again: a communicator whose start is not told.
            reader, known = known.reader, self._begun(thread)
            known.reader = reader
        known.cells |= {algo_proto: (latency_us, gbps) for algo_proto, (latency_us, gbps) in costs.items()}

    def _hosts(self, wanted: _Communicator) -> int:
        """Return on how many hosts all ranks of a communicator spoke; 0 where some did not."""
        hosts = {
            known.rank: known.host
            for known in self._all
            if known.rank is not None and (known.comm_id, known.ranks) == (wanted.comm_id, wanted.ranks)
        }
        return len(set(hosts.values())) if len(hosts) == wanted.ranks else 0

    def _of(self, thread: _Thread) -> _Communicator:
        return self._open.get(thread) or self._begun(thread)

    def _begun(self, thread: _Thread) -> _Communicator:
        if len(self._all) >= _MOST_COMMUNICATORS:
            raise InputError(
                f"{self._source} shows more than {_MOST_COMMUNICATORS} communicators: this is not a log of one job",
                hint="is the file damaged? otherwise cut it to rank 0",
            )
        known = self._open[thread] = _Communicator(host=thread[0])
        self._all.append(known)
        return known
