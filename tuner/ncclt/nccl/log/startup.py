"""Read NCCL's start from its log, of any length and with the lines of all ranks interleaved.

Rank 0 of each communicator prints NCCL's table of latencies and bandwidths (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS with
TUNING, and INIT for ranks and nodes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from re import Match, Pattern

from ncclt.core.printed_costs import PrintedCost, PrintedCosts, PrintedTable
from ncclt.errors import InputError
from ncclt.nccl.log.calls import CommLine, comm_line, tuning_lines
from ncclt.nccl.log.evidence import Evidence, shortened
from ncclt.nccl.log.facts import (
    Connection,
    CostRow,
    LogFacts,
    LoggedChoice,
    LoggedValue,
    PrintedLink,
    Process,
    RankStart,
    SearchedGraph,
    jobs_of,
)
from ncclt.nccl.log.lines import (
    ADAPTER,
    ADAPTERS,
    ANNOUNCED,
    CHANNELS,
    CONNECTION,
    CPU,
    CPU_ARM,
    CPU_VENDORS,
    DRIVER,
    FALLBACK,
    GPUDIRECT,
    GRAPH,
    INTERFACE,
    LINK,
    MULTICAST,
    NETWORK,
    P2P_CHUNK,
    P2P_PROBLEM,
    PLUGIN,
    PROVIDER,
    RCCL,
    SET_INSIDE,
    SOCKETS,
    TEST_DEVICE,
    UNOPENED,
    UNREADABLE,
    VARIABLE,
    VERSION,
    Columns,
    Costs,
    LogLine,
    log_lines,
    parse_costs,
    read_columns,
    read_row,
)
from ncclt.nccl.run_facts import traced_assignments
from ncclt.nccl.variables import masked

_MOST_STARTS = 200_000
"""Most starts of ranks: those of a job of 16384 ranks with a dozen communicators each."""

_MOST_TABLES = 5_000
"""Most cost tables kept: a job has few kinds of communicators, and those of one kind print the same table."""

_MOST_OF_A_KIND = 200
"""Most lines kept of one kind of problem: thousands of ranks log the same."""

_MOST_LINKS = 20_000
"""Most different links kept: those of some hundred nodes."""

_LONGEST_COMMAND = 16 * 1024
"""Longest line of a script or shell that is read."""

_MOST_CHOICES = 100_000
"""Most distinct (process, collective, algorithm, protocol) kept."""

_MARKS_OF_RCCL = ("RCCL", "ROCm", "CsvTuner", "MSCCL", "WarpSpeed")

_CALLS = (": opCount ", " Bytes -> ")
"""Marks of the lines about calls: nearly all of a long log, and never about a start."""


class LogReader:
    """Collects the logs of one job; `read` each file, then take `facts`.

    Args:
        ignored: variables that were only set to get the log.
    """

    def __init__(self, *, ignored: frozenset[str] = frozenset()) -> None:
        self._ignored = ignored
        self._sources: list[str] = []
        self._lines = 0
        self._processes: dict[tuple[str, int], Process] = {}
        self._hosts: dict[int, list[str]] = {}
        self._starts: list[RankStart] = []
        self._open: dict[tuple[str, int, int], RankStart] = {}
        self._latest: dict[tuple[str, int, int], RankStart] = {}
        self._columns: dict[tuple[str, int, int], Columns] = {}
        self._table: dict[str, CostRow] = {}
        self._printed: list[RankStart] = []
        self._models: dict[str, None] = {}
        self._announced: LoggedValue | None = None
        self._kept: dict[str, list[Evidence]] = {"fallback": [], "unreadable": [], "p2p": [], "unopened": []}
        self._warnings: dict[str, Evidence] = {}
        self._gpudirect: list[tuple[bool, Evidence]] = []
        self._multicast: list[tuple[bool, Evidence]] = []
        self._links: dict[tuple[str, str, str, str], PrintedLink] = {}
        self._cpu = ""
        self._choices: dict[tuple[str, ...], LoggedChoice] = {}
        self._assigned: dict[str, dict[str, Evidence]] = {}
        self._rccl: dict[str, LoggedValue] = {}

    def read(self, lines: Iterable[str], source: str) -> None:
        """Take the lines of one file.

        Raises:
            InputError: it has more starts than any job.
        """
        for _ in self.watching(lines, source):
            pass

    def watching(self, lines: Iterable[str], source: str) -> Iterator[str]:
        """Read the lines of one file as `read` does, and yield them to another reader."""
        self._sources.append(source)
        for number, line in enumerate(lines, start=1):
            if line[:1] in "#NR":
                self._take_header(line, Evidence(source=source, line=number, text=shortened(line).strip()))
            if any(mark in line for mark in _CALLS):
                self._lines += 1
                self._take_choices(line)
            else:
                by_others = True
                for said in log_lines(line):
                    self._lines += 1
                    self._take(said, Evidence(source=source, line=number, text=shortened(said.written)))
                    by_others = False
                if by_others and "NCCL_" in line and len(line) <= _LONGEST_COMMAND:
                    self._take_command(line, source, number)
            yield line

    def facts(self) -> LogFacts:
        """Return the facts read so far."""
        starts = tuple(start for start in self._starts if not start.has_only_costs)
        return LogFacts(
            sources=tuple(self._sources),
            lines=self._lines,
            processes=tuple(self._processes.values()),
            starts=starts,
            tables=tuple(self._printed[:_MOST_TABLES]),
            gpu_models=tuple(self._models),
            announced=self._announced,
            cost_table=tuple(self._table.values()),
            fallbacks=tuple(self._kept["fallback"]),
            unreadable=tuple(self._kept["unreadable"]),
            p2p_problems=tuple(self._kept["p2p"]),
            gpudirect=tuple(self._gpudirect),
            multicast=tuple(self._multicast),
            warnings=tuple(self._warnings.values()),
            unopened=tuple(self._kept["unopened"]),
            links=tuple(self._links.values()),
            cpu=self._cpu,
            jobs=jobs_of(starts),
            choices=tuple(self._choices.values()),
            assigned={name: dict(values) for name, values in self._assigned.items()},
            rccl=dict(self._rccl),
        )

    def _take_command(self, line: str, source: str, number: int) -> None:
        """Store what a command sets that a shell has traced (`set -x`); of the command itself nothing is kept."""
        for name, value in traced_assignments(line).items():
            if len(self._assigned) < _MOST_OF_A_KIND:
                shown = masked(name, value)
                evidence = Evidence(source=source, line=number, text=shortened(f"{name}={shown}"))
                self._assigned.setdefault(name, {}).setdefault(shown, evidence)

    def _take_choices(self, line: str) -> None:
        """Count the decisions of a line by collective, algorithm and protocol."""
        for tuning in tuning_lines(line):
            origin, choice = tuning.origin, "/".join(tuning.choice.split("/")[:2])
            key = (*origin, tuning.operation, choice)
            known = self._choices.get(key)
            if known is None:
                if len(self._choices) >= _MOST_CHOICES:
                    return
                known = self._choices[key] = LoggedChoice(
                    host=origin.host,
                    pid=int(origin.pid or 0),
                    device=int(origin.device or 0),
                    operation=tuning.operation,
                    choice=choice,
                    smallest_bytes=int(tuning.size),
                )
            known.calls += 1
            known.smallest_bytes = min(known.smallest_bytes, int(tuning.size))
            known.largest_bytes = max(known.largest_bytes, int(tuning.size))

    def _take_header(self, line: str, evidence: Evidence) -> None:
        """Read what nccl-tests prints before its table, and the versions that NCCL and RCCL print without a prefix."""
        self._take_rccl(line, evidence)
        if model := TEST_DEVICE.match(line):
            self._models.setdefault(shortened(model[1]).strip())
        elif self._announced is None and (match := ANNOUNCED.match(line)):
            self._announced = LoggedValue(value=match[1] or match[2], evidence=evidence)

    def _take(self, said: LogLine, evidence: Evidence) -> None:
        said = self._unglued(said)
        key = (said.host, said.pid)
        process = self._processes.get(key)
        if process is None:
            process = self._processes[key] = Process(host=said.host, pid=said.pid)
        if said.level != "INFO" and said.text and len(self._warnings) < _MOST_OF_A_KIND:
            self._warnings.setdefault(said.text, evidence)
        if " : " in said.text and (match := CONNECTION.match(said.text)):
            self._connect(said, match, evidence)
            return
        self._take_process(process, said.text, evidence)
        self._take_rccl(said.text, evidence)
        self._take_machine(said, evidence)
        self._take_start(said, evidence)

    def _unglued(self, said: LogLine) -> LogLine:
        """Return a line with its true host, if the end of another process's line was glued to it: `-1node7`."""
        if (said.host, said.pid) in self._processes:
            return said
        true = next((host for host in self._hosts.get(said.pid, ()) if host and said.host.endswith(host)), None)
        if true is None:
            self._hosts.setdefault(said.pid, []).append(said.host)
            return said
        return replace(said, host=true)

    def _take_process(self, process: Process, text: str, evidence: Evidence) -> None:
        """Read what concerns one process."""

        def find(pattern: Pattern[str]) -> Match[str] | None:
            match = pattern.search(text)
            return match if match and match[1] not in self._ignored else None

        if match := find(VERSION):
            process.version = process.version or LoggedValue(value=match[1], evidence=evidence)
        if match := find(DRIVER):
            process.driver = match[1]
        if match := find(SET_INSIDE):
            process.set_inside.setdefault(match[1], LoggedValue(value=match[2], evidence=evidence))
        if match := find(VARIABLE):
            value = match[2].strip().removesuffix(".")
            inside = process.set_inside.get(match[1])
            if inside is None or inside.value != value:  # NCCL logs what a plugin has set like what was inherited
                process.variables.setdefault(match[1], LoggedValue(value=value, evidence=evidence))
        if match := find(SOCKETS):
            for interface in INTERFACE.findall(match[2]):
                process.sockets.setdefault((match[1], interface), evidence)
        if match := find(NETWORK):
            process.network = LoggedValue(value=match[1].strip(), evidence=evidence)
        if match := find(ADAPTERS):
            process.adapters.update(ADAPTER.findall(match[1]))
        if match := find(PROVIDER):
            process.provider = LoggedValue(value=match[1], evidence=evidence)
        if match := find(PLUGIN):
            said = f"{match[1]}/Plugin: {match[2]}"
            process.plugins.setdefault(said, LoggedValue(value=said, evidence=evidence))

    def _take_rccl(self, text: str, evidence: Evidence) -> None:
        if any(mark in text for mark in _MARKS_OF_RCCL):
            for name, pattern in RCCL.items():
                if match := pattern.search(text):
                    self._rccl.setdefault(name, LoggedValue(value=match[1], evidence=evidence))

    def _take_machine(self, said: LogLine, evidence: Evidence) -> None:
        """Read what concerns the whole node."""
        for name, pattern in _PROBLEMS:
            if pattern.search(said.text) and len(self._kept[name]) < _MOST_OF_A_KIND:
                self._kept[name].append(evidence)
        if (match := GPUDIRECT.search(said.text)) and len(self._gpudirect) < _MOST_OF_A_KIND:
            self._gpudirect.append((match[1].lower() == "enabled", evidence))
        if (match := MULTICAST.search(said.text)) and len(self._multicast) < _MOST_OF_A_KIND:
            self._multicast.append((not match[1], evidence))
        if "+ " in said.text and (match := LINK.search(said.text)) and len(self._links) < _MOST_LINKS:
            kind, gbps, device, end = match.groups()
            link = PrintedLink(kind=kind, gbps=_float(gbps), end=end, device=device, evidence=evidence)
            self._links.setdefault((said.host, kind, gbps, device), link)
        if not self._cpu and (match := CPU.search(said.text)):
            self._cpu = "arm" if int(match[1]) == CPU_ARM else CPU_VENDORS.get(int(match[2]), "")
        if "|" in said.text:
            self._take_costs(said, evidence)

    def _take_costs(self, said: LogLine, evidence: Evidence) -> None:
        rank = said.host, said.pid, said.device
        if (columns := read_columns(said.text)) is not None:
            self._columns[rank] = columns
        elif row := read_row(said.text, self._columns.get(rank, ())):
            name, cells = row
            self._keep_costs(said, parse_costs(name, cells))
            known = self._table.get(name)
            if known is None:
                self._table[name] = CostRow(collective=name, cells=cells, evidence=evidence)
            elif not {cell[0] for cell in known.cells} & {cell[0] for cell in cells}:
                self._table[name] = CostRow(collective=name, cells=known.cells + cells, evidence=known.evidence)

    def _keep_costs(self, said: LogLine, costs: Costs) -> None:
        """Store a row of the table with the start that it belongs to."""
        if not costs or len(self._printed) > _MOST_TABLES:
            return
        start = self._start(said)
        if start.complete or start.costs.keys() & costs.keys():
            # The table of another communicator, whose start is not logged.
            start = self._open[said.host, said.pid, said.tid] = self._new(said)
        if not start.costs:
            self._printed.append(start)
        start.costs |= costs

    def _take_start(self, said: LogLine, evidence: Evidence) -> None:
        line = comm_line(said.text) if " rank " in said.text else None
        if line is not None and line.state:
            self._init(said, line)
        elif line is not None and line.nodes:
            start = self._start(said)
            start.rank, start.ranks, start.nodes = line.rank, int(line.ranks), line.nodes
            start.multi_node_nvlink = line.multi_node_nvlink
        elif counts := CHANNELS.findall(said.text):
            start = self._start(said)
            start.channels |= {word: int(count) for count, word in counts}
            start.channels_line = evidence
        elif match := P2P_CHUNK.match(said.text):
            self._start(said).p2p_chunk = int(match[1])
        elif match := GRAPH.search(said.text):
            graph = SearchedGraph(
                pattern=int(match[1]),
                channels=int(match[2]),
                bw_inter=_float(match[4]),
                type_intra=match[5],
                type_inter=match[6],
                evidence=evidence,
            )
            self._start(said).graphs.append(graph)

    def _init(self, said: LogLine, line: CommLine) -> None:
        thread = (said.host, said.pid, said.tid)
        start = self._open.get(thread)
        # A thread that starts its next communicator; before 2.17 only the end of a start is logged, with its rank.
        if start is None or start.complete or (line.state == "START" and (start.rank is not None or start.costs)):
            start = self._open[thread] = self._new(said)
        start.rank, start.ranks = line.rank, int(line.ranks)
        start.device = int(line.device or said.device)
        start.bus_id = line.bus_id
        start.comm_id = line.comm_id or start.comm_id
        start.nvml_device = int(line.nvml_device) if line.nvml_device else None
        start.complete = line.state == "COMPLETE"
        self._latest[said.host, said.pid, start.device] = start

    def _connect(self, said: LogLine, match: Match[str], evidence: Evidence) -> None:
        source, target = (int(match[3]), match[4] or ""), (int(match[5]), match[6] or "")
        ends = (source, target, match[7].strip().rstrip("."))
        connections = self._start(said).by_ends
        if (known := connections.get(ends)) is None:
            known = connections[ends] = Connection(source=source, target=target, transport=ends[2], evidence=evidence)
        # Both ends of a connection are logged, once per channel.
        known.channels.add(int(match[1]))

    def _start(self, said: LogLine) -> RankStart:
        """Return the start of a line: its thread's, else the device's latest, else a new one.

        From 2.22 ranks are connected on demand, by threads other than that of the start.
        """
        found = self._open.get((said.host, said.pid, said.tid)) or self._latest.get((said.host, said.pid, said.device))
        if found is None:
            found = self._new(said)
            self._open[said.host, said.pid, said.tid] = self._latest[said.host, said.pid, said.device] = found
        return found

    def _new(self, said: LogLine) -> RankStart:
        if len(self._starts) >= _MOST_STARTS:
            raise InputError(
                f"{self._sources[-1]} shows more than {_MOST_STARTS} starts of ranks: this is not a log of one job",
                hint="is the file damaged? otherwise cut it to some of the ranks",
            )
        made = RankStart(host=said.host, pid=said.pid, device=said.device)
        self._starts.append(made)
        return made


_PROBLEMS = (("fallback", FALLBACK), ("unreadable", UNREADABLE), ("p2p", P2P_PROBLEM), ("unopened", UNOPENED))
"""Kind of a problem of the node -> its line."""


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


_HINT = (
    "start any NCCL job on these nodes with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING and give the log of its "
    "rank 0"
)

_FORCED = ("NCCL_ALGO", "NCCL_PROTO")
"""Variables that take pairs out of the table."""


def read_printed_costs(lines: Iterable[str], source: str) -> PrintedCosts:
    """Read the tables of a log, of one process or of all of them.

    Args:
        lines: of the log.

    Raises:
        InputError: there is no table, its ranks and nodes are not known, or the job forced algorithms or protocols, so
            that the table is not the one NCCL normally chooses by.
    """
    reader = LogReader()
    reader.read(lines, source)
    facts = reader.facts()
    for process in facts.processes:
        for name, said in process.variables.items():
            if name in _FORCED:
                raise InputError(
                    f"{source}: its job forced {name}={said.value}, so its table is not the one of the NCCL default",
                    hint="take the log of a job without NCCL_ALGO and NCCL_PROTO",
                )
    tables: dict[tuple[int, int], PrintedTable] = {}
    for start in facts.tables:
        ranks, nodes = start.ranks or 0, start.nodes or _hosts(start, facts.starts)
        costs = tuple(PrintedCost(*pair, *cost) for pair, cost in start.costs.items() if cost[1] > 0)
        # The first table of each kind of communicator counts.
        if costs and ranks and nodes and (ranks, nodes) not in tables:
            tables[ranks, nodes] = PrintedTable(
                ranks=ranks,
                nodes=nodes,
                channels=start.channels.get("coll", 0),
                nvls_channels=start.channels.get("nvls", 0),
                costs=costs,
            )
    if not tables:
        if facts.tables:
            raise InputError(f"{source} does not say of how many ranks and nodes its cost table is", hint=_HINT)
        raise InputError(f"{source} holds no table of NCCL's latencies and bandwidths", hint=_HINT)
    version = next((process.version.value for process in facts.processes if process.version), "")
    return PrintedCosts(version=version, tables=tuple(tables.values()))


def _hosts(start: RankStart, starts: Iterable[RankStart]) -> int:
    """Return the number of hosts of a communicator; 0 if some ranks logged nothing."""
    hosts = {
        other.rank: other.host
        for other in starts
        if other.rank is not None and (other.comm_id, other.ranks) == (start.comm_id, start.ranks)
    }
    return len(set(hosts.values())) if len(hosts) == start.ranks else 0
