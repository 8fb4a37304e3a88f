"""The port behind which every source of workloads stands, and the one way from calls to a workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ncclt.core.message import Message
from ncclt.core.workload import WHOLE_FILE, Provenance, Workload
from ncclt.errors import TraceError
from ncclt.profile.roles import RankRoles, count_per_step, find_roles
from ncclt.profile.source import Document, documents, read_heads
from ncclt.profile.workload_builder import (
    build_workload,
    check_distinct,
    count_reasons,
    drop_answered_receives,
    left_out_notes,
    min_times,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Equal calls of one rank.

    Attributes:
        message: what was sent, `size_bytes` in the convention of `ncclt.core.message.Message`.
        rank: global rank, None where the source does not say.
        lane: distinguishes ranks whose number is not known, such as host and process.
        group: process group or communicator of the call on its rank.
        count: how many calls.
        steps: training steps of this rank that they were counted over; 0 = those of the source.
        is_receive: the receiving half of a send_recv; it counts on ranks that send nothing.
        time_us: mean duration of a call, µs, None where not recorded.
    """

    message: Message
    rank: int | None = None
    lane: Hashable = None
    group: str = ""
    count: float = 1
    steps: int = 0
    is_receive: bool = False
    time_us: float | None = None


@dataclass(slots=True, kw_only=True)
class Source:
    """The files of one job, and all that a reader finds in them besides calls.

    Attributes:
        paths: the files, sorted.
        single: what a file is called where one represents all ranks, empty = several may belong to a job.
        labels: names of the documents.
        detail: facts for the provenance; empty texts are dropped.
        created: ISO date, empty = not known.
        world_size: ranks of the job, 0 = not known.
        ranks: global ranks that were read.
        steps: training steps of the calls, 0 = not known.
        whole_file: the calls are those of the whole file rather than of steps.
        notes: on what the source lacks and what was assumed, one sentence each.
        left_out: reason -> calls that make no message.
        readings: of each rank, for readers of one file per rank.
    """

    paths: Sequence[Path]
    single: str = ""
    labels: list[str] = field(default_factory=list)
    detail: dict[str, str] = field(default_factory=dict)
    created: str = ""
    world_size: int = 0
    ranks: set[int] = field(default_factory=set)
    steps: int = 0
    whole_file: bool = True
    notes: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    readings: Sequence[object] = ()

    def documents(self) -> Iterator[Document]:
        """Yield the documents of all files, in order of their paths.

        Raises:
            TraceError: a file cannot be read, or there are several where one represents all ranks.
        """
        for path in self.paths:
            for document in documents(path):
                self.labels.append(document.label)
                if self.single and len(self.labels) > 1:
                    hint = "one of them represents all ranks: import one"
                    raise TraceError(f"several {self.single} were given: {', '.join(self.labels)}", hint=hint)
                yield document

    def admit(self, message: Message | str, *, count: int = 1, **facts: Any) -> Iterator[Call]:
        """Yield equal calls; a reason in place of their message is counted instead, unless it is empty.

        Args:
            facts: further fields of `Call`.
        """
        if isinstance(message, Message):
            yield Call(message=message, count=count, **facts)
        elif message:
            self.left_out[message] += count

    @property
    def where(self) -> str:
        """Name the files in a message: the only one, or how many there are."""
        return self.labels[0] if len(self.labels) == 1 else f"the {len(self.labels)} files"


class Reader(ABC):
    """One kind of source: a subclass, named by an entry point `ncclt.readers` or in `ncclt.profile.READERS`.

    Contract: `begins` judges by content and never raises. `calls` is given the files of one recorded job. It yields
    every call once, however many event families show it, and fills in the source. It raises `TraceError` with a hint
    for files that are damaged, belong to different jobs, or show the same rank twice. The result does not depend on the
    order of the files. It writes nothing and needs no network.

    Attributes:
        name: the word used with `--source` and in `Provenance.source`.
        single: see `Source`.
        unstepped: note on calls that are not those of training steps.
        empty: why a source without calls has none, where nothing was left out.
        hint: what to do about a source without calls.
    """

    name: ClassVar[str]
    single: ClassVar[str] = ""
    unstepped: ClassVar[str] = WHOLE_FILE
    empty: ClassVar[str] = "no collective call was recorded"
    hint: ClassVar[str] = "record steps of the distributed run itself"

    @abstractmethod
    def begins(self, beginning: bytes) -> bool:
        """Return True if a document of this kind can begin with these bytes."""

    @abstractmethod
    def calls(self, source: Source) -> Iterable[Call]:
        """Yield the calls of a job.

        Raises:
            TraceError: see the contract.
        """

    def refusal(self, source: Source) -> TraceError:
        """Return the error for a source without calls."""
        why = "; ".join(count_reasons(source.left_out)) or self.empty
        return TraceError(f"no collectives in {source.where}: {why}", hint=self.hint)

    def complete(self, workload: Workload, source: Source, roles: RankRoles) -> Workload:
        """Add to a workload all that no call shows."""
        del source, roles
        return workload

    def fits(self, path: Path, heads: Sequence[bytes]) -> bool:
        """Return True if a file whose documents begin with `heads` is of this kind; never raises."""
        del path
        return any(map(self.begins, heads))

    def recognises(self, path: Path) -> bool:
        """Return True if the content of a file is of this kind; reads no more than its beginning and never raises."""
        try:
            return self.fits(path, read_heads(path))
        except TraceError:
            return False

    def read(self, paths: Sequence[Path], *, name: str) -> Workload:
        """Read the files of one job into a workload called `name`.

        Raises:
            TraceError: a file was given twice, there is no call, or as `calls`.
        """
        check_distinct(paths)
        source = Source(paths=sorted(paths, key=str), single=self.single)
        by_rank: dict[tuple[int | None, Hashable], list[Call]] = {}
        for call in self.calls(source):
            by_rank.setdefault((call.rank, call.lane), []).append(call)
        if not by_rank:
            raise self.refusal(source)
        ranks = [drop_answered_receives(calls) for calls in by_rank.values()]
        roles = find_roles(
            ((calls[0].rank, _calls_per_step(calls, source)) for calls in ranks), min_times(map(_mean_times_us, ranks))
        )
        origin = Provenance(
            source=self.name,
            created=source.created,
            detail={"files": ", ".join(source.labels), **{key: text for key, text in source.detail.items() if text}},
            world_size=source.world_size,
            ranks_read=tuple(sorted(source.ranks)),
            steps=source.steps,
            notes=(*([self.unstepped] if source.whole_file else []), *source.notes, *left_out_notes(source.left_out)),
            whole_file=source.whole_file,
        )
        return self.complete(build_workload(name, roles, origin), source, roles)


def _calls_per_step(calls: Sequence[Call], source: Source) -> dict[Message, float]:
    counts: dict[tuple[str, Message], float] = defaultdict(float)
    for call in calls:
        counts[call.group, call.message] += call.count
    return count_per_step(counts, calls[0].steps or source.steps or 1)


def _mean_times_us(calls: Sequence[Call]) -> dict[Message, float]:
    sums: dict[Message, tuple[float, float]] = {}
    for call in calls:
        if call.time_us is not None:
            total_us, count = sums.get(call.message, (0.0, 0.0))
            sums[call.message] = (total_us + call.time_us * call.count, count + call.count)
    return {message: total_us / count for message, (total_us, count) in sums.items() if total_us}
