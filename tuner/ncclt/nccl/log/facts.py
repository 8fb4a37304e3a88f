"""Facts of NCCL's log about a start: processes, ranks, connections between them, and disabled features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ncclt.core.algo_proto_text import ALGORITHM_WORDS, COLLECTIVE_WORDS
from ncclt.core.algorithms import LEGAL
from ncclt.nccl.log.evidence import Evidence
from ncclt.nccl.log.lines import Cells, Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedValue:
    """A value with the line that it comes from."""

    value: str
    evidence: Evidence


@dataclass(slots=True, kw_only=True)
class Process:
    """One process.

    Attributes:
        host, pid: as in the log's prefix; empty and 0 where the log has none.
        version: of NCCL.
        driver: of CUDA, as NCCL writes it, `13010` = 13.1.
        variables: name -> value of what NCCL took from environment and configuration files.
        network: the word after `Using network`.
        adapters: name -> link layer, as found by the IB transport or a plugin like it.
        provider: of libfabric, for example `efa`.
        plugins: line -> what was loaded or searched for: tuner, net, profiler.
        set_inside: name -> value of variables that a plugin says it sets in the process.
        sockets: `Bootstrap` or `NET/Socket`, and a network interface that it uses -> the line.
    """

    host: str
    pid: int
    version: LoggedValue | None = None
    driver: str = ""
    variables: dict[str, LoggedValue] = field(default_factory=dict)
    network: LoggedValue | None = None
    adapters: dict[str, str] = field(default_factory=dict)
    provider: LoggedValue | None = None
    plugins: dict[str, LoggedValue] = field(default_factory=dict)
    set_inside: dict[str, LoggedValue] = field(default_factory=dict)
    sockets: dict[tuple[str, str], Evidence] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return its name in messages."""
        return f"{self.host or '?'}:{self.pid}"


@dataclass(slots=True, kw_only=True)
class Connection:
    """One connection between two ranks of a communicator, over one or more channels.

    Attributes:
        source, target: rank and device word, for example `0` and `1b000`; the word is empty where NCCL wrote none.
        transport: as NCCL writes it, for example `P2P/CUMEM`, `SHM/direct/direct`, `NET/IB/0/GDRDMA`.
        channels: their numbers.
        evidence: the first line.
    """

    source: tuple[int, str]
    target: tuple[int, str]
    transport: str
    channels: set[int] = field(default_factory=set)
    evidence: Evidence

    @property
    def kind(self) -> str:
        """Return the transport without device numbers: `P2P/CUMEM`, `SHM`, `NET/IB/GDRDMA`, `NET/Socket`."""
        words = self.transport.split("/")
        if words[0] in ("SHM", "direct shared memory"):  # the latter up to 2.11
            return "SHM"
        if words[0] == "NET":
            direct = [w for w in words[2:] if w == "GDRDMA"]
            return "/".join(["NET", *words[1:2], *direct])
        return "/".join(words[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedGraph:
    """Result of NCCL's search for one pattern.

    Attributes:
        pattern: 1 balanced tree, 2 split tree, 3 tree, 4 ring, 5 NVLS, 6 CollNet (graph.h).
        channels: number found; 0 = the pattern cannot be used here.
        bw_inter: GB/s of one channel, out of the node.
        type_intra, type_inter: the longest path, `NVL`, `PIX`, `SYS`, ...
        evidence: the line.
    """

    pattern: int
    channels: int
    bw_inter: float
    type_intra: str
    type_inter: str
    evidence: Evidence


@dataclass(slots=True, kw_only=True)
class RankStart:
    """Log of one rank while one communicator started.

    Attributes:
        host, pid, device: of the rank; the device as NCCL writes it in brackets, which is CUDA's number.
        rank, ranks: in the communicator; None = not logged.
        nodes: that the communicator spans; None = not logged.
        comm_id: equal on all ranks of a communicator; empty before NCCL 2.17.
        bus_id: of the GPU, hexadecimal without colons.
        nvml_device: as nvidia-smi counts; None = not logged.
        complete: the start was completed.
        channels: kinds in the channel line -> number: `coll`, `collnet`, `nvls`, `p2p`.
        channels_line: that line.
        by_ends: (source, target, transport) -> connection of this rank.
        graphs: of the search.
        multi_node_nvlink: used.
        costs: the table of latencies and bandwidths, if this rank printed it.
        p2p_chunk: bytes in which send_recv and all_to_all move data; None = not logged.
    """

    host: str
    pid: int
    device: int
    rank: int | None = None
    ranks: int | None = None
    nodes: int | None = None
    comm_id: str = ""
    bus_id: str = ""
    nvml_device: int | None = None
    complete: bool = False
    channels: dict[str, int] = field(default_factory=dict)
    channels_line: Evidence | None = None
    by_ends: dict[tuple[tuple[int, str], tuple[int, str], str], Connection] = field(default_factory=dict)
    graphs: list[SearchedGraph] = field(default_factory=list)
    multi_node_nvlink: bool = False
    costs: Costs = field(default_factory=dict)
    p2p_chunk: int | None = None

    @property
    def connections(self) -> Iterable[Connection]:
        """Return the connections of this rank."""
        return self.by_ends.values()

    @property
    def has_only_costs(self) -> bool:
        """Return True if nothing but a cost table was logged, as without the subsystem INIT."""
        return bool(self.costs) and self.rank is None and not (self.channels or self.by_ends or self.graphs)

    @property
    def name(self) -> str:
        """Return its name in messages."""
        rank = f"rank {self.rank}" if self.rank is not None else f"device {self.device}"
        return f"{rank} on {self.host or '?'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """One row of NCCL's table of latencies and bandwidths.

    Attributes:
        collective: NCCL's word, `AllReduce`.
        cells: (algorithm, protocol, latency in µs, bandwidth in GB/s); bandwidth 0 = NCCL does not use it.
        evidence: the line.
    """

    collective: str
    cells: Cells
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedLink:
    """One link of the topology that NCCL prints.

    Attributes:
        kind: `PCI`, `NVL`, `NET`, ...
        gbps: as NCCL takes it, GB/s.
        end: kind of the device that it leads to: `GPU`, `NIC`, `PCI`, `NVS`, `NET`, ...
        device: that device, `GPU/0-43000`.
        evidence: the line.
    """

    kind: str
    gbps: float
    end: str
    device: str
    evidence: Evidence


@dataclass(slots=True, kw_only=True)
class LoggedChoice:
    """Decision of NCCL for calls of one collective, in lines of rank 0 of a communicator.

    Attributes:
        host, pid, device: of the writer; a line names no communicator.
        operation: NCCL's word, `AllReduce`; empty up to 2.22.
        choice: algorithm and protocol, `RING/LL`, or a kernel.
        calls: how many.
        smallest_bytes, largest_bytes: sizes as logged: from 2.24 those of one rank.
    """

    host: str
    pid: int
    device: int
    operation: str
    choice: str
    calls: int = 0
    smallest_bytes: int = 0
    largest_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorKind:
    """Communicators of one shape.

    Attributes:
        count: how many.
        ranks, nodes: of each; 0 = not logged.
        channels: kind -> number, of the first rank that logged them.
        transports: kind -> channels over all logged connections.
        choices: of their rank 0, where that is rank 0 of no communicator of another shape.
    """

    count: int
    ranks: int
    nodes: int
    channels: dict[str, int]
    transports: dict[str, int]
    choices: tuple[LoggedChoice, ...]


@dataclass(slots=True, kw_only=True)
class LogFacts:
    """Everything that the logs of one job say about its start; only its reader changes it.

    Attributes:
        sources: the files.
        lines: number of NCCL's lines read.
        processes: in the order of their first lines.
        starts: likewise, without those that only a cost table is known of.
        tables: the starts with a cost table, whatever else is known of them.
        gpu_models: that nccl-tests named, `NVIDIA H100 80GB HBM3`.
        announced: the version that nccl-tests or old NCCL prints for the whole job.
        cost_table: of the first communicator that printed it.
        fallbacks: lines that say that no path was found.
        unreadable: lines that say that a property of the machine could not be read.
        p2p_problems: lines that say that two GPUs cannot reach each other directly.
        gpudirect: (enabled, line) about GPUDirect RDMA.
        multicast: (available, line) of NVLink SHARP.
        warnings: of NCCL, each text once.
        unopened: lines that say that a file with a topology or graphs could not be opened.
        links: of the printed topology, equal ones of a host once.
        cpu: `intel`, `amd` or `arm`; empty = not logged.
        jobs: processes that belong together, as (host, pid): those that shared a communicator.
        choices: of algorithms and protocols, in the order of the log.
        assigned: variable -> value, masked as for pages -> the line of `set -x` that sets it.
        rccl: name of a fact that only RCCL logs (see `ncclt.nccl.log.lines.RCCL`) -> the first of them.
    """

    sources: list[str] = field(default_factory=list)
    lines: int = 0
    processes: tuple[Process, ...] = ()
    starts: tuple[RankStart, ...] = ()
    tables: list[RankStart] = field(default_factory=list)
    gpu_models: tuple[str, ...] = ()
    announced: LoggedValue | None = None
    cost_table: tuple[CostRow, ...] = ()
    fallbacks: list[Evidence] = field(default_factory=list)
    unreadable: list[Evidence] = field(default_factory=list)
    p2p_problems: list[Evidence] = field(default_factory=list)
    gpudirect: list[tuple[bool, Evidence]] = field(default_factory=list)
    multicast: list[tuple[bool, Evidence]] = field(default_factory=list)
    warnings: tuple[Evidence, ...] = ()
    unopened: list[Evidence] = field(default_factory=list)
    links: tuple[PrintedLink, ...] = ()
    cpu: str = ""
    jobs: tuple[tuple[tuple[str, int], ...], ...] = ()
    choices: tuple[LoggedChoice, ...] = ()
    assigned: dict[str, dict[str, Evidence]] = field(default_factory=dict)
    rccl: dict[str, LoggedValue] = field(default_factory=dict)

    @property
    def tells_starts(self) -> bool:
        """Return True if the log holds lines of communicators that start."""
        return any(start.connections or start.rank is not None or start.channels for start in self.starts)

    @property
    def nodes(self) -> int:
        """Return the nodes of the largest communicator; 0 = not logged."""
        return max((start.nodes or 0 for start in self.starts), default=0)

    @property
    def ranks(self) -> int:
        """Return the ranks of the largest communicator; 0 = not logged."""
        return max((start.ranks or 0 for start in self.starts), default=0)

    @property
    def p2p_chunks(self) -> tuple[tuple[int, int], ...]:
        """Return (nodes, 0 = not logged; bytes of a P2P chunk) of communicators of several ranks, each pair once."""
        chunks = {(s.nodes or 0, s.p2p_chunk) for s in self.starts if s.p2p_chunk is not None and s.ranks != 1}
        return tuple(sorted(chunks))

    @property
    def net_gbps(self) -> float:
        """Return the bandwidth of a network device as NCCL detected it, GB/s; 0 = not logged."""
        return max((link.gbps for link in self.links if link.kind == link.end == "NET"), default=0.0)

    @property
    def nvlink_ends(self) -> frozenset[str]:
        """Return the ends of NVLinks: `NVS` = NVSwitch, `GPU` = another GPU."""
        return frozenset(link.end for link in self.links if link.kind == "NVL" and link.end in ("NVS", "GPU"))

    def transports(self) -> dict[str, int]:
        """Return kind of transport -> channels over all connections."""
        return _transports(self.starts)

    def communicators(self) -> tuple[CommunicatorKind, ...]:
        """Return the communicators of each shape, the largest first."""
        named: dict[tuple[str, int], list[RankStart]] = {}
        for start in self.starts:
            named.setdefault((start.comm_id, start.ranks or 0), []).append(start)
        shapes: dict[tuple[int, int], list[list[RankStart]]] = {}
        for (_id, ranks), members in named.items():
            nodes = max((start.nodes or 0 for start in members), default=0)
            shapes.setdefault((ranks, nodes), []).append(members)
        leads: dict[tuple[str, int, int], set[tuple[int, int]]] = {}
        for shape, groups in shapes.items():
            for start in (start for members in groups for start in members if start.rank == 0):
                leads.setdefault((start.host, start.pid, start.device), set()).add(shape)
        kinds = []
        for shape, groups in sorted(shapes.items(), reverse=True):
            starts = [start for members in groups for start in members]
            kinds.append(
                CommunicatorKind(
                    count=len(groups),
                    ranks=shape[0],
                    nodes=shape[1],
                    channels=next((start.channels for start in starts if start.channels), {}),
                    transports=_transports(starts),
                    choices=tuple(
                        choice
                        for choice in self.choices
                        if len(shapes) == 1 or leads.get((choice.host, choice.pid, choice.device)) == {shape}
                    ),
                )
            )
        return tuple(kinds)

    def disabled(self) -> dict[str, list[str]]:
        """Return collective -> algorithms that NCCL supports for it and rules out with every protocol."""
        disabled: dict[str, list[str]] = {}
        for row in self.cost_table:
            usable = {algorithm for algorithm, _, _, bandwidth in row.cells if bandwidth > 0}
            printed = dict.fromkeys(algorithm for algorithm, *_ in row.cells)
            legal = _LEGAL.get(row.collective.lower(), frozenset())
            disabled[row.collective] = [name for name in printed if name.lower() in legal and name not in usable]
        return disabled


def _transports(starts: Iterable[RankStart]) -> dict[str, int]:
    channels: Counter[str] = Counter()
    for start in starts:
        for connection in start.connections:
            channels[connection.kind] += len(connection.channels)
    return dict(sorted(channels.items()))


_LEGAL = {
    word: frozenset(ALGORITHM_WORDS[algorithm] for algorithm in LEGAL[collective])
    for collective, word in COLLECTIVE_WORDS.items()
}
"""NCCL's word of a collective -> its words of the algorithms."""

_Key = tuple[str, int]
"""Host and pid."""


def jobs_of(starts: Sequence[RankStart]) -> tuple[tuple[_Key, ...], ...]:
    """Return the groups of processes that shared a communicator, without single processes.

    One file may hold several jobs, and these may differ harmlessly.
    Before 2.17 communicators have no id in the log: then all ranks count as one job if no rank occurs twice.
    """
    groups: dict[_Key, set[_Key]] = {}
    for members in _communicators(starts):
        joined = set(members).union(*(groups.get(member, set()) for member in members))
        groups.update(dict.fromkeys(joined, joined))
    distinct = {id(group): group for group in groups.values() if len(group) > 1}
    return tuple(tuple(sorted(group)) for group in distinct.values())


def _communicators(starts: Sequence[RankStart]) -> Iterator[set[_Key]]:
    named: dict[str, set[_Key]] = {}
    for start in starts:
        if start.comm_id:
            named.setdefault(start.comm_id, set()).add((start.host, start.pid))
    yield from named.values()
    by_size: dict[int | None, list[RankStart]] = {}
    for start in starts:
        if not start.comm_id and start.rank is not None:
            by_size.setdefault(start.ranks, []).append(start)
    for members in by_size.values():
        if len({start.rank for start in members}) == len(members):
            yield {(start.host, start.pid) for start in members}
