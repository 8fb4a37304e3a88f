"""Read NCCL's start from its log, of any length and with the lines of all ranks interleaved.

Rank 0 of each communicator prints NCCL's table of latencies and bandwidths (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS with
TUNING, and INIT for ranks and nodes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from re import Match, Pattern
from typing import Any

from ncclt.core.printed_costs import PrintedCost, PrintedCosts, PrintedTable
from ncclt.errors import InputError
from ncclt.nccl.log import lines as patterns
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
from ncclt.nccl.log.lines import Columns, Costs, LogLine, log_lines, parse_costs, parse_float, read_columns, read_row
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
        self._facts = LogFacts()
        self._processes: dict[tuple[str, int], Process] = {}
        self._hosts: dict[int, list[str]] = {}
        self._starts: list[RankStart] = []
        self._open: dict[tuple[str, int, int], RankStart] = {}
        self._latest: dict[tuple[str, int, int], RankStart] = {}
        self._columns: dict[tuple[str, int, int], Columns] = {}
        self._table: dict[str, CostRow] = {}
        self._models: dict[str, None] = {}
        self._warnings: dict[str, Evidence] = {}
        self._links: dict[tuple[str, str, str, str], PrintedLink] = {}
        self._choices: dict[tuple[str, ...], LoggedChoice] = {}

    def read(self, lines: Iterable[str], source: str) -> None:
        """Take the lines of one file.

        Raises:
            InputError: it has more starts than any job.
        """
        for _ in self.watching(lines, source):
            pass

    def watching(self, lines: Iterable[str], source: str) -> Iterator[str]:
        """Read the lines of one file as `read` does, and yield them to another reader."""
        self._facts.sources.append(source)
        for number, line in enumerate(lines, start=1):
            if line[:1] in "#NR":
                self._take_header(line, Evidence(source=source, line=number, text=shortened(line).strip()))
            if any(mark in line for mark in _CALLS):
                self._facts.lines += 1
                self._take_choices(line)
            else:
                messages = list(log_lines(line))
                for message in messages:
                    self._facts.lines += 1
                    self._take(message, Evidence(source=source, line=number, text=shortened(message.written)))
                if not messages and "NCCL_" in line and len(line) <= _LONGEST_COMMAND:
                    self._take_command(line, source, number)
            yield line

    def facts(self) -> LogFacts:
        """Return the facts read so far."""
        starts = tuple(start for start in self._starts if not start.has_only_costs)
        return replace(
            self._facts,
            processes=tuple(self._processes.values()),
            starts=starts,
            tables=self._facts.tables[:_MOST_TABLES],
            gpu_models=tuple(self._models),
            cost_table=tuple(self._table.values()),
            warnings=tuple(self._warnings.values()),
            links=tuple(self._links.values()),
            jobs=jobs_of(starts),
            choices=tuple(self._choices.values()),
        )

    def _take_command(self, line: str, source: str, number: int) -> None:
        """Store what a command sets that a shell has traced (`set -x`); of the command itself nothing is kept."""
        for name, value in traced_assignments(line).items():
            if len(self._facts.assigned) < _MOST_OF_A_KIND:
                shown = masked(name, value)
                evidence = Evidence(source=source, line=number, text=shortened(f"{name}={shown}"))
                self._facts.assigned.setdefault(name, {}).setdefault(shown, evidence)

    def _take_choices(self, line: str) -> None:
        """Count the decisions of a line by collective, algorithm and protocol."""
        for tuning in tuning_lines(line):
            origin, choice, size = tuning.origin, "/".join(tuning.choice.split("/")[:2]), int(tuning.size)
            key = (*origin, tuning.operation, choice)
            if key not in self._choices and len(self._choices) >= _MOST_CHOICES:
                return
            counted = self._choices.setdefault(
                key,
                LoggedChoice(
                    host=origin.host,
                    pid=int(origin.pid or 0),
                    device=int(origin.device or 0),
                    operation=tuning.operation,
                    choice=choice,
                    smallest_bytes=size,
                ),
            )
            counted.calls += 1
            counted.smallest_bytes = min(counted.smallest_bytes, size)
            counted.largest_bytes = max(counted.largest_bytes, size)

    def _take_header(self, line: str, evidence: Evidence) -> None:
        """Read what nccl-tests prints before its table, and the versions that NCCL and RCCL print without a prefix."""
        self._take_rccl(line, evidence)
        if model := patterns.TEST_DEVICE.match(line):
            self._models.setdefault(shortened(model[1]).strip())
        elif self._facts.announced is None and (match := patterns.ANNOUNCED.match(line)):
            self._facts.announced = LoggedValue(value=match[1] or match[2], evidence=evidence)

    def _take(self, message: LogLine, evidence: Evidence) -> None:
        message = self._unglued(message)
        process = self._processes.setdefault((message.host, message.pid), Process(host=message.host, pid=message.pid))
        if message.level != "INFO" and message.text and len(self._warnings) < _MOST_OF_A_KIND:
            self._warnings.setdefault(message.text, evidence)
        if " : " in message.text and (match := patterns.CONNECTION.match(message.text)):
            self._connect(message, match, evidence)
            return
        self._take_process(process, message.text, evidence)
        self._take_rccl(message.text, evidence)
        self._take_machine(message, evidence)
        self._take_start(message, evidence)

    def _unglued(self, message: LogLine) -> LogLine:
        """Return a line with its true host, if the end of another process's line was glued to it: `-1node7`."""
        if (message.host, message.pid) in self._processes:
            return message
        hosts = self._hosts.setdefault(message.pid, [])
        true_host = next((host for host in hosts if host and message.host.endswith(host)), None)
        if true_host is None:
            hosts.append(message.host)
        return replace(message, host=true_host or message.host)

    def _take_process(self, process: Process, text: str, evidence: Evidence) -> None:
        """Read what concerns one process."""

        def find(pattern: Pattern[str]) -> Match[str] | None:
            match = pattern.search(text)
            return match if match and match[1] not in self._ignored else None

        if match := find(patterns.VERSION):
            process.version = process.version or LoggedValue(value=match[1], evidence=evidence)
        if match := find(patterns.DRIVER):
            process.driver = match[1]
        if match := find(patterns.SET_INSIDE):
            process.set_inside.setdefault(match[1], LoggedValue(value=match[2], evidence=evidence))
        if match := find(patterns.VARIABLE):
            value = match[2].strip().removesuffix(".")
            inside = process.set_inside.get(match[1])
            if inside is None or inside.value != value:  # NCCL logs what a plugin has set like what was inherited
                process.variables.setdefault(match[1], LoggedValue(value=value, evidence=evidence))
        if match := find(patterns.SOCKETS):
            for interface in patterns.INTERFACE.findall(match[2]):
                process.sockets.setdefault((match[1], interface), evidence)
        if match := find(patterns.NETWORK):
            process.network = LoggedValue(value=match[1].strip(), evidence=evidence)
        if match := find(patterns.ADAPTERS):
            process.adapters.update(patterns.ADAPTER.findall(match[1]))
        if match := find(patterns.PROVIDER):
            process.provider = LoggedValue(value=match[1], evidence=evidence)
        if match := find(patterns.PLUGIN):
            text = f"{match[1]}/Plugin: {match[2]}"
            process.plugins.setdefault(text, LoggedValue(value=text, evidence=evidence))

    def _take_rccl(self, text: str, evidence: Evidence) -> None:
        if any(mark in text for mark in _MARKS_OF_RCCL):
            for name, pattern in patterns.RCCL.items():
                if match := pattern.search(text):
                    self._facts.rccl.setdefault(name, LoggedValue(value=match[1], evidence=evidence))

    def _take_machine(self, message: LogLine, evidence: Evidence) -> None:
        """Read what concerns the whole node."""
        for name, pattern in _PROBLEMS.items():
            if pattern.search(message.text):
                self._keep(name, evidence)
        if match := patterns.GPUDIRECT.search(message.text):
            self._keep("gpudirect", (match[1].lower() == "enabled", evidence))
        if match := patterns.MULTICAST.search(message.text):
            self._keep("multicast", (not match[1], evidence))
        if "+ " in message.text and (match := patterns.LINK.search(message.text)) and len(self._links) < _MOST_LINKS:
            kind, gbps, device, end = match.groups()
            link = PrintedLink(kind=kind, gbps=parse_float(gbps) or 0.0, end=end, device=device, evidence=evidence)
            self._links.setdefault((message.host, kind, gbps, device), link)
        if not self._facts.cpu and (match := patterns.CPU.search(message.text)):
            is_arm = int(match[1]) == patterns.CPU_ARM
            self._facts.cpu = "arm" if is_arm else patterns.CPU_VENDORS.get(int(match[2]), "")
        if "|" in message.text:
            self._take_costs(message, evidence)

    def _keep(self, name: str, line: Any) -> None:
        lines = getattr(self._facts, name)
        if len(lines) < _MOST_OF_A_KIND:
            lines.append(line)

    def _take_costs(self, message: LogLine, evidence: Evidence) -> None:
        rank = message.host, message.pid, message.device
        if (columns := read_columns(message.text)) is not None:
            self._columns[rank] = columns
        elif row := read_row(message.text, self._columns.get(rank, ())):
            name, cells = row
            self._keep_costs(message, parse_costs(name, cells))
            logged = self._table.setdefault(name, CostRow(collective=name, cells=(), evidence=evidence))
            if not {cell[0] for cell in logged.cells} & {cell[0] for cell in cells}:
                self._table[name] = replace(logged, cells=logged.cells + cells)

    def _keep_costs(self, message: LogLine, costs: Costs) -> None:
        """Store a row of the table with the start that it belongs to."""
        if not costs or len(self._facts.tables) > _MOST_TABLES:
            return
        start = self._start(message)
        if start.complete or start.costs.keys() & costs.keys():
            # The table of another communicator, whose start is not logged.
            start = self._open[message.host, message.pid, message.tid] = self._new(message)
        if not start.costs:
            self._facts.tables.append(start)
        start.costs |= costs

    def _take_start(self, message: LogLine, evidence: Evidence) -> None:
        line = comm_line(message.text) if " rank " in message.text else None
        if line is not None and line.state:
            self._init(message, line)
        elif line is not None and line.nodes:
            start = self._start(message)
            start.rank, start.ranks, start.nodes = line.rank, int(line.ranks), line.nodes
            start.multi_node_nvlink = line.multi_node_nvlink
        elif counts := patterns.CHANNELS.findall(message.text):
            start = self._start(message)
            start.channels |= {word: int(count) for count, word in counts}
            start.channels_line = evidence
        elif match := patterns.P2P_CHUNK.match(message.text):
            self._start(message).p2p_chunk = int(match[1])
        elif match := patterns.GRAPH.search(message.text):
            graph = SearchedGraph(
                pattern=int(match[1]),
                channels=int(match[2]),
                bw_inter=parse_float(match[4]) or 0.0,
                type_intra=match[5],
                type_inter=match[6],
                evidence=evidence,
            )
            self._start(message).graphs.append(graph)

    def _init(self, message: LogLine, line: CommLine) -> None:
        thread = (message.host, message.pid, message.tid)
        start = self._open.get(thread)
        # A thread that starts its next communicator; before 2.17 only the end of a start is logged, with its rank.
        if start is None or start.complete or (line.state == "START" and (start.rank is not None or start.costs)):
            start = self._open[thread] = self._new(message)
        start.rank, start.ranks = line.rank, int(line.ranks)
        start.device = int(line.device or message.device)
        start.bus_id = line.bus_id
        start.comm_id = line.comm_id or start.comm_id
        start.nvml_device = int(line.nvml_device) if line.nvml_device else None
        start.complete = line.state == "COMPLETE"
        self._latest[message.host, message.pid, start.device] = start

    def _connect(self, message: LogLine, match: Match[str], evidence: Evidence) -> None:
        source, target = (int(match[3]), match[4] or ""), (int(match[5]), match[6] or "")
        transport = match[7].strip().rstrip(".")
        connection = Connection(source=source, target=target, transport=transport, evidence=evidence)
        connections = self._start(message).by_ends
        # Both ends of a connection are logged, once per channel.
        connections.setdefault((source, target, transport), connection).channels.add(int(match[1]))

    def _start(self, message: LogLine) -> RankStart:
        """Return the start of a line: its thread's, else the device's latest, else a new one.

        From 2.22 ranks are connected on demand, by threads other than that of the start.
        """
        thread = (message.host, message.pid, message.tid)
        device = (message.host, message.pid, message.device)
        start = self._open.get(thread) or self._latest.get(device)
        if start is None:
            start = self._new(message)
            self._open[thread] = self._latest[device] = start
        return start

    def _new(self, message: LogLine) -> RankStart:
        if len(self._starts) >= _MOST_STARTS:
            source = self._facts.sources[-1]
            raise InputError(
                f"{source} shows more than {_MOST_STARTS} starts of ranks: this is not a log of one job",
                hint="is the file damaged? otherwise cut it to some of the ranks",
            )
        start = RankStart(host=message.host, pid=message.pid, device=message.device)
        self._starts.append(start)
        return start


_PROBLEMS = {
    "fallbacks": patterns.FALLBACK,
    "unreadable": patterns.UNREADABLE,
    "p2p_problems": patterns.P2P_PROBLEM,
    "unopened": patterns.UNOPENED,
}
"""Field of `LogFacts` with a problem of the node -> its line."""


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
        for name, variable in process.variables.items():
            if name in _FORCED:
                forced = f"{name}={variable.value}"
                raise InputError(
                    f"{source}: its job forced {forced}, so its table is not the one of the NCCL default",
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
        member.rank: member.host
        for member in starts
        if member.rank is not None and (member.comm_id, member.ranks) == (start.comm_id, start.ranks)
    }
    return len(set(hosts.values())) if len(hosts) == start.ranks else 0
