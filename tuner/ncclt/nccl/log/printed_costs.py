"""Read NCCL's tables of latencies and bandwidths from the log of a job, with their ranks and nodes.

Rank 0 of each communicator prints it (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS with TUNING, and INIT for ranks and nodes).
"""

from __future__ import annotations

from collections.abc import Iterable

from ncclt.core.printed_costs import PrintedCost, PrintedCosts, PrintedTable
from ncclt.errors import InputError
from ncclt.nccl.log.facts import RankStart
from ncclt.nccl.log.startup import LogReader

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
        source: its name, for messages.

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
                    f"{source}: its job forced {name}={said.value}, so its table is not what NCCL chooses by",
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
