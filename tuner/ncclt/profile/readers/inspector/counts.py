"""Counts the operations that NCCL Inspector recorded, rank by rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ncclt.core.message import MOST_BYTES, Message
from ncclt.errors import TraceError
from ncclt.profile.readers.inspector.records import Header, Performed, records
from ncclt.profile.readers.nccl_log.choices import Choices
from ncclt.profile.readers.nccl_log.lines import check_bounded
from ncclt.profile.readers.nccl_log.ranks import OPERATIONS, PER_RANK, UNKNOWN_DTYPE
from ncclt.profile.roles import RankMessages
from ncclt.profile.source import Document

_MOST_VERSIONS = 16


@dataclass(slots=True, kw_only=True)
class Series:
    """The calls of one operation that one rank made in one communicator.

    Attributes:
        header: of its first record.
        operation: NCCL's name of it.
        first: smallest sequence number seen.
        last: largest one.
        seen: records, the same one twice in a row counted once.
        sizes: bytes of one rank's part -> records.
        times: the same -> (sum of durations in µs, how many).
    """

    header: Header
    operation: str
    first: int
    last: int = -1
    seen: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    times: dict[int, tuple[float, int]] = field(default_factory=dict)

    @property
    def span(self) -> int:
        """Return how many calls were made between the first and the last one seen, both included."""
        return max(self.seen, self.last - self.first + 1)


@dataclass(slots=True, kw_only=True)
class Tally:
    """All records of a job.

    Attributes:
        series: (communicator, rank, operation) -> its calls.
        labels: (communicator, rank) -> the file it is in.
        slots: process -> communicator -> ranks of it in this process, one per GPU that the process drives.
        choices: what NCCL chose for which message, from v4.2 on.
        dropped: largest number of drops that a record reports.
        unread: lines that are cut off or of another kind.
        worlds: sizes of communicators -> nodes they reach over.
        left_out: reason -> records left out for it.
        versions: formats of the records.
        dates: days of the dumps.
    """

    series: dict[tuple[str, int, str], Series] = field(default_factory=dict)
    labels: dict[tuple[str, int], str] = field(default_factory=dict)
    slots: dict[tuple[str, int], dict[str, set[int]]] = field(default_factory=dict)
    choices: Choices = field(default_factory=Choices)
    dropped: int = 0
    unread: int = 0
    worlds: dict[int, int] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    versions: set[str] = field(default_factory=set)
    dates: set[str] = field(default_factory=set)

    @property
    def ranks_seen(self) -> int:
        """Return how many GPUs made these records."""
        return sum(max(len(ranks) for ranks in comms.values()) for comms in self.slots.values())

    @property
    def world_size(self) -> int:
        """Return the size of the largest communicator, 0 where more GPUs than that made records."""
        largest = max(self.worlds, default=0)
        return largest if self.ranks_seen <= largest else 0

    def read(self, document: Document) -> None:
        """Add the records of one file.

        Raises:
            TraceError: damaged, or a rank that another file has too.
        """
        kinds = 0
        for record in records(document):
            if record is None:
                self.unread += 1
                continue
            self._admit(record.header, document.label)
            check_bounded(len(self.labels), document.label)
            self.dropped = max(self.dropped, record.dropped)
            if record.performed is not None:
                kinds += self._add(record.header, record.performed)
                check_bounded(kinds, document.label)

    def views(self) -> Iterator[tuple[tuple[str, int, int], Series]]:
        """Yield every series with its GPU: host, process and number of the GPU in that process."""
        numbers = {
            (comm, rank): (*process, number)
            for process, comms in self.slots.items()
            for comm, ranks in comms.items()
            for number, rank in enumerate(sorted(ranks))
        }
        for (comm, rank, _operation), series in sorted(self.series.items()):
            yield numbers[comm, rank], series

    def _admit(self, header: Header, label: str) -> None:
        end = (header.comm, header.rank)
        if self.labels.setdefault(end, label) != label:
            raise TraceError(
                f"rank {header.rank} of communicator {header.comm} is in {self.labels[end]} and in {label}",
                hint="is one a copy? give every file of one job once",
            )
        self.slots.setdefault(header.process, {}).setdefault(header.comm, set()).add(header.rank)
        self.worlds[header.ranks] = max(header.nodes, self.worlds.get(header.ranks, 0))
        if len(self.versions) < _MOST_VERSIONS:
            self.versions.add(header.version)
        self.dates.add(header.written_on)

    def _add(self, header: Header, call: Performed) -> int:
        """Add a call and return 1 if it is of a new kind."""
        key = (header.comm, header.rank, call.operation)
        series = self.series.get(key)
        if series is None:
            series = self.series[key] = Series(header=header, operation=call.operation, first=call.number)
        # The dump thread writes the last call again where no new one was completed in its interval.
        if series.last == call.number and call.operation not in ("Send", "Recv"):
            return 0
        series.first, series.last = min(series.first, call.number), max(series.last, call.number)
        series.seen += 1
        new = call.size_bytes not in series.sizes
        series.sizes[call.size_bytes] += 1
        if call.time_us is not None:
            total, count = series.times.get(call.size_bytes, (0.0, 0))
            series.times[call.size_bytes] = (total + call.time_us, count + 1)
        if call.choice and (collective := OPERATIONS.get(call.operation)) is not None:
            size = call.size_bytes * (header.ranks if collective in PER_RANK else 1)
            self.choices.add(collective, size, call.choice, 1)
        return int(new)


def rank_views(tally: Tally) -> tuple[RankMessages, ...]:
    """Return the calls GPU by GPU, for `find_roles`; a receive counts where the GPU sends nothing.

    Before NCCL 2.30 the records are a sample. There the sequence numbers show how many calls were made, and the
    records of all ranks together how they spread over the sizes.
    """
    pooled: dict[tuple[str, str], tuple[Counter[int], int]] = {}
    for (comm, _rank, operation), series in tally.series.items():
        sizes, span = pooled.get((comm, operation), (Counter(), 0))
        sizes.update(series.sizes)
        pooled[comm, operation] = (sizes, max(span, series.span))
    calls: dict[tuple[str, int, int], Counter[tuple[str, Message]]] = {}
    world_size = tally.world_size
    sends = {gpu for gpu, series in tally.views() if series.operation == "Send"}
    for gpu, series in tally.views():
        if series.operation == "Recv" and gpu in sends:
            continue
        sizes = series.sizes
        if not series.header.keeps_all:
            spread, span = pooled[series.header.comm, series.operation]
            sizes = Counter({size: max(1, round(span * count / spread.total())) for size, count in spread.items()})
        for size, count in sizes.items():
            message = _message(series, size, world_size)
            if isinstance(message, str):
                tally.left_out[message] += count
            else:
                calls.setdefault(gpu, Counter())[series.header.comm, message] += count
    return tuple(RankMessages(rank=None, calls=counted) for counted in calls.values())


def mean_times(tally: Tally) -> dict[Message, float]:
    """Return the mean duration of each message, µs: the smallest of the ranks' means.

    A rank that arrives early waits inside the kernel for the last one, so only the smallest is communication alone.
    """
    found: dict[Message, float] = {}
    world_size = tally.world_size
    for _gpu, series in tally.views():
        for size, (total, count) in series.times.items():
            message = _message(series, size, world_size)
            if not isinstance(message, str):
                found[message] = min(total / count, found.get(message, total / count))
    return found


def _message(series: Series, part_bytes: int, world_size: int) -> Message | str:
    """Return the message of a call, or why it makes none."""
    collective, ranks = OPERATIONS.get(series.operation), series.header.ranks
    if collective is None:
        return f"calls of {series.operation!r}, which ncclt has no message for"
    size = part_bytes * (ranks if collective in PER_RANK else 1)
    if not 0 < size <= MOST_BYTES:
        return f"calls of {series.operation} of {size} bytes"
    return Message(
        collective=collective,
        dtype=UNKNOWN_DTYPE,
        size_bytes=size,
        group_size=ranks,
        spans_nodes=series.header.nodes > 1 and 1 < ranks < world_size,
    )
