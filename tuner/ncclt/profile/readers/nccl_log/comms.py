"""The communicators in the INIT lines of NCCL logs: their ranks, devices and nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ncclt.nccl.log.calls import CollLine, CommLine, LineOrigin, TuningLine
from ncclt.profile.readers.nccl_log.book import LogBook


class Rank(NamedTuple):
    """One GPU's process, or one of its communicators if the writer of a line is not known."""

    host: str
    pid: str
    device: str


class _Handle(NamedTuple):
    """One rank's end of a communicator; an address can be reused for a communicator of another size."""

    host: str
    pid: str
    comm: str
    ranks: str


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

    as_ncclt_error: dict[_Handle, CommLine] = field(default_factory=dict)
    devices: dict[_Handle, Counter[str]] = field(default_factory=dict)
    hosts: dict[str, set[str]] = field(default_factory=dict)
    led: dict[Rank, set[tuple[int, bool]]] = field(default_factory=dict)
    world_size: int = 0
    world_nodes: int = 0
    ranks_seen: int = 0

    def rank_of(self, line: CollLine, label: str) -> Rank:
        """Return the rank that made a call: a process and its GPU, since one process can drive several."""
        if not line.origin.host:
            return Rank(label, line.comm, "")
        handle = _handle(line)
        known = self.as_ncclt_error.get(handle)
        if known is not None and known.device:
            return Rank(line.origin.host, line.origin.pid, known.device)
        return Rank(line.origin.host, line.origin.pid, self.devices[handle].most_common(1)[0][0])

    def decider(self, line: TuningLine, label: str) -> Rank:
        """Return the rank that wrote a TUNING line."""
        origin = line.origin
        return Rank(origin.host, origin.pid, origin.device) if origin.host else Rank(label, "", "")

    def spans_nodes(self, line: CollLine) -> bool:
        """Return whether a call spans nodes; False if unknown, and for the whole job."""
        known = self.as_ncclt_error.get(_handle(line))
        return known is not None and self.part_spans_nodes(known)

    def group_decided_by(self, origin: LineOrigin) -> tuple[int, bool]:
        """Return the ranks of the communicator of a TUNING line, and whether it spans nodes.

        Such a line comes from rank 0 of its communicator and does not name it: if all communicators that this GPU is
        rank 0 of are alike, it is one of them. Otherwise it is not known: (0, False).
        """
        kinds = self.led.get(Rank(*origin), set()) | self.led.get(Rank(origin.host, origin.pid, ""), set())
        return next(iter(kinds)) if len(kinds) == 1 else (0, False)

    def global_ranks(self) -> tuple[int, ...]:
        """Return the ranks in the largest communicator that have INIT lines, in order."""
        if not self.world_size:
            return ()
        return tuple(sorted({c.rank for c in self.as_ncclt_error.values() if int(c.ranks) == self.world_size}))

    def part_spans_nodes(self, known: CommLine) -> bool:
        """Return whether a communicator of a part of the job spans nodes."""
        if not 1 < int(known.ranks) < self.world_size:
            return False
        return known.nodes > 1 or len(self.hosts.get(known.comm_id, ())) > 1


def communicators_of(books: Sequence[LogBook]) -> Communicators:
    """Join the INIT lines of all files."""
    found = Communicators()
    for book in books:
        for comm in book.comms:
            if comm.origin.host:
                _join(found, comm)
        for call, count in book.calls.items():
            if call.origin.host:
                found.devices.setdefault(_handle(call), Counter())[call.origin.device] += count
    for comm in found.as_ncclt_error.values():
        if comm.comm_id:
            found.hosts.setdefault(comm.comm_id, set()).add(comm.origin.host)
    sizes = {call.ranks for book in books for call in book.calls} | {c.ranks for book in books for c in book.comms}
    largest = max((int(size) for size in sizes), default=0)
    ranks = {found.rank_of(call, book.label) for book in books for call in book.calls if call.origin.host}
    found.ranks_seen = len(ranks)
    if len(ranks) <= largest:
        found.world_size = largest
        found.world_nodes = max((c.nodes for c in found.as_ncclt_error.values() if int(c.ranks) == largest), default=0)
    for comm in found.as_ncclt_error.values():
        if comm.rank == 0 and int(comm.ranks) > 1:
            rank = Rank(comm.origin.host, comm.origin.pid, comm.device)
            found.led.setdefault(rank, set()).add((int(comm.ranks), found.part_spans_nodes(comm)))
    return found


def _handle(line: CollLine | CommLine) -> _Handle:
    return _Handle(line.origin.host, line.origin.pid, line.comm, line.ranks)


def _join(found: Communicators, comm: CommLine) -> None:
    """Add an INIT line; the lines about one communicator complete each other."""
    before = found.as_ncclt_error.get(_handle(comm), comm)
    found.as_ncclt_error[_handle(comm)] = comm._replace(
        device=comm.device or before.device,
        comm_id=comm.comm_id or before.comm_id,
        nodes=comm.nodes or before.nodes,
    )
